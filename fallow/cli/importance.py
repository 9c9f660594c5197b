"""The command that rates what a store holds unrated (SPEC §3.6)."""

from __future__ import annotations

from typing import Annotated

import typer

from fallow.cli.app import AgentId, Json, MemoryId, Store, ThreadId, UserId, emit, open_store, say, scope_of
from fallow.times import wall_clock


def backfill_importance(
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    memory_type: Annotated[list[str] | None, typer.Option("--memory-type", help="Only this type; repeatable.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Rate and count, write nothing.")] = False,
    as_json: Json = False,
) -> int:
    """Rate what has no rating: free, by the heuristic; a stored rating is never replaced."""
    from fallow.importance.backfill import backfill_importance as backfill
    from fallow.planner import check_memory_type
    from fallow.record import PRIMARY_TYPES

    types = tuple(check_memory_type(name) for name in memory_type or PRIMARY_TYPES)
    with open_store(store) as provider:
        scope = scope_of(agent_id, memory_id, user_id, thread_id)
        report = backfill(provider, now=wall_clock(), scope=scope, memory_types=types, dry_run=dry_run)
    if as_json:
        emit(report.to_json())
    else:
        verb = "would be rated" if dry_run else "rated"
        say(f"{report.rated} of {report.scanned} records {verb}; {report.already} had a rating.")
        if report.raised:
            say(f"  verified and raised to 1.0: {report.raised}")
        if report.suspect:
            say(f"  suspect: {report.suspect} ratings of exactly 1.0 by a model (a model's 1 may have been stored so)")
        for title, groups in (("skipped", report.skipped), ("failed", report.failed)):
            for why, ids in sorted(groups.items()):
                say(f"  {title}, {why}: {len(ids)}")
    return 5 if report.failed else 0
