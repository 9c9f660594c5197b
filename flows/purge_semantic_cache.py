"""purge-semantic-cache: remove cached answers that have expired (SPEC §11, §15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fallow.flows.outcomes import tell
from fallow.flows.this_run import this_run
from fallow.tasks.caching import purge_cache
from fallow.tasks.steps import stores_named
from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from fallow.model.settings import without_secrets
from fallow.model.times import iso, wall_clock


@flow(name="purge-semantic-cache", persist_result=False)
def purge_semantic_cache(store: str | None = None, merge_duplicates: bool = True, dry_run: bool = False) -> State[Any]:
    """Removes expired entries of the semantic cache, the only thing that fallow ever deletes, and reports duplicates.

    Args:
        store: Address of the store; empty means every store that the worker is configured with.
        merge_duplicates: Also remove older entries that answer the same query in the same scope.
        dry_run: Report what would be removed and remove nothing.
    """
    # A run that starts late removes what had expired when it was due; one that starts early, nothing too soon.
    as_of = min(this_run().as_of, wall_clock())
    reports = {name: purge_cache(name, as_of, merge_duplicates, dry_run) for name in stores_named(store)}
    create_markdown_artifact(cache_page(reports, as_of), key="semantic-cache", description=f"as of {iso(as_of)}")
    for name, report in reports.items():
        for why, ids in report["kept"].items():
            get_run_logger().info("%s: %d kept, %s", name, len(ids), why)
    verb = "would be removed" if dry_run else "removed"
    field = "to_remove" if dry_run else "removed"
    number = sum(len(report[field]) for report in reports.values())
    message = f"{number} {'entry' if number == 1 else 'entries'} {verb}"
    for name, report in reports.items():
        tell(
            "fallow.cache.purged",
            f"fallow.store.{without_secrets(name)}",
            without_secrets(name),
            {"scanned": report["scanned"], "expired": len(report["expired"]), "removed": len(report["removed"])},
        )
    if all(report["state"] == "NothingToDo" for report in reports.values()):
        return Completed(name="NothingToDo", message=message)
    return Completed(message=message)


def cache_page(reports: Mapping[str, Mapping[str, Any]], as_of: int) -> str:
    """Counts by store, and the ids of duplicates; no query and no answer."""
    lines = [
        f"# Semantic cache as of {iso(as_of)}",
        "",
        "| Store | Entries | Expired | Duplicates | Removed | Kept | Without a time |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, report in reports.items():
        doubles = sum(len(ids) for ids in report["duplicates"].values())
        kept = sum(len(ids) for ids in report["kept"].values())
        counts = (report["scanned"], len(report["expired"]), doubles, len(report["removed"]), kept)
        lines.append(f"| `{name}` | {' | '.join(map(str, counts))} | {len(report['without_time'])} |")
    for name, report in reports.items():
        for latest, older in list(report["duplicates"].items())[:50]:
            lines.append(f"- `{name}`: `{latest}` answers the same as " + ", ".join(f"`{one}`" for one in older[:20]))
    return "\n".join(lines)
