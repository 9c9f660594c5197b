"""The step that clears the semantic cache (SPEC §11)."""

from __future__ import annotations

from typing import Any

from fallow.tasks.steps import open_store, settings_variable, step

from fallow.acting.purge import CachePolicy, purge_semantic_cache
from fallow.port.reading import read_agents
from fallow.usecases.planner import settings_for


@step("purge the semantic cache")
def purge_cache(store: str | None, as_of: int, merge_duplicates: bool, dry_run: bool) -> dict[str, Any]:
    """Removes what had expired at ``as_of`` (microseconds), and older duplicates where that is asked for.

    Tried again it removes what the first try left: an entry that is gone is as good as removed.
    """
    variable = settings_variable()
    with open_store(store) as provider:
        settings = settings_for(provider, None, variable=variable)
        return purge_semantic_cache(
            provider,
            now=as_of,
            policy=CachePolicy(
                ttl_hours=settings.get("cache.ttl_hours"), domain_windows=settings.get("cache.domain_windows")
            ),
            agents=read_agents(provider),
            merge_duplicates=merge_duplicates,
            dry_run=dry_run,
        ).to_json()
