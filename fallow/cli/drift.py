"""Drift on the command line: records, plans and journal that disagree (SPEC §16)."""

from __future__ import annotations

from typing import Annotated

import typer

from fallow.cli.app import Json, Store, emit, open_store, say, settings_variable, table
from fallow.model.times import wall_clock
from fallow.showing.tables import counted


def drift(
    detailed_exitcode: Annotated[bool, typer.Option("--detailed-exitcode", help="0 none, 10 drift.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Find what was suppressed or taken back past fallow, and where plans and journal disagree; changes nothing."""
    from fallow.usecases.drift import find_drift
    from fallow.usecases.planner import settings_for

    with open_store(store) as provider:
        settings = settings_for(provider, None, variable=settings_variable())
        report = find_drift(provider, now=wall_clock(), approval=settings.approval)
    if as_json:
        emit(report.to_json())
    else:
        say(
            f"{report.plans} plans, {report.suppressed} suppressed records, {report.journalled} journal entries; "
            f"{report.gone} suppressed records are gone since; agents' own tools suppressed {report.by_agents} "
            f"and took back {report.restored_by_agents}"
        )
        rows = [
            (item.kind, item.key.memory_type if item.key else "", item.key.record_id if item.key else "", item.says)
            for item in report.findings
        ]
        table(counted(len(rows), "finding"), ("kind", "type", "record", "what"), rows)
    return 10 if detailed_exitcode and report.findings else 0
