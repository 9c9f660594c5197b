"""Commands of ranking decay: reinforce records, and clear the semantic cache (SPEC §4, §11)."""

from __future__ import annotations

from typing import Annotated

import typer

from fallow.cli.app import Json, Store, emit, open_store, say, settings_of
from fallow.model.arguments import memory_type as checked_type
from fallow.model.arguments import record_ids
from fallow.model.times import wall_clock


def touch(
    record_id: Annotated[list[str], typer.Argument(help="One record or several of the same type.")],
    memory_type: Annotated[str, typer.Option("--memory-type", help="The records' memory type.")],
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Mark records as used now: they become fresh again."""
    from fallow.acting.touch import touch_many

    kind, names = checked_type(memory_type, "--memory-type"), record_ids(record_id, "RECORD_ID")
    with open_store(store) as provider:
        report = touch_many(provider, kind, names, now=wall_clock(), event=True)
    if as_json:
        emit(report.to_json())
    else:
        say(f"{len(report.touched)} touched.")
        for title, ids in (("gone", report.gone), ("suppressed", report.suppressed), ("unknown", report.unknown)):
            if ids:
                say(f"  {title}: {', '.join(sorted(ids))}")
        for why, ids in sorted(report.failed.items()):
            say(f"  failed, {why}: {', '.join(sorted(ids))}")
    return 5 if report.failed or report.unknown else 0


def purge_cache(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing.")] = False,
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Report duplicates, remove only what has expired.")
    ] = False,
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Remove expired semantic cache entries and older duplicates: the only thing fallow deletes."""
    from fallow.acting.purge import CachePolicy, purge_semantic_cache
    from fallow.port.reading import read_agents

    with open_store(store) as provider:
        settings = settings_of(provider, None)
        report = purge_semantic_cache(
            provider,
            now=wall_clock(),
            policy=CachePolicy(
                ttl_hours=settings.get("cache.ttl_hours"), domain_windows=settings.get("cache.domain_windows")
            ),
            agents=read_agents(provider),
            merge_duplicates=not keep_duplicates,
            dry_run=dry_run,
        )
    if as_json:
        emit(report.to_json())
    else:
        verb = "would be removed" if dry_run else "removed"
        doubles = sum(map(len, report.duplicates.values()))
        number = len(report.to_remove if dry_run else report.removed)
        say(f"{number} of {report.scanned} entries {verb}: {len(report.expired)} expired, {doubles} duplicates.")
        if report.without_time:
            say(f"  without a readable time, kept: {len(report.without_time)}")
        for why, ids in sorted(report.kept.items()):
            say(f"  kept, {why}: {len(ids)}")
    return 0
