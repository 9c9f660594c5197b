"""Completing old events on the command line, so that agents' own control planes list them (SPEC §10, §16)."""

from __future__ import annotations

from typing import Annotated

import typer

from fallow.cli.app import Json, Store, emit, open_store, say, table


def repair_events(
    write: Annotated[bool, typer.Option("--write", help="Write it; without, only say what would be written.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Complete events of earlier releases that agents' control planes do not list; ids and hashes stay the same."""
    from fallow.acting.repair_events import repair_events as repair

    with open_store(store) as provider:
        report = repair(provider, write=write)
    if as_json:
        emit(report.to_json())
    else:
        rows = [(item.row["_id"], item.event_type, item.plan_id or "", ", ".join(item.added)) for item in report.found]
        table("events to complete", ("event", "type", "plan", "adds"), rows)
        if not report.found:
            say("nothing to write: every event of fallow's is complete")
        elif write:
            say(f"{len(report.written)} written")
        else:
            say("nothing was written; --write writes it")
        for reason, names in sorted(report.failed.items()):
            say(f"  {reason}: {len(names)} ({', '.join(names[:3])})")
    return 5 if report.failed else 0
