"""The flow that clears the semantic cache, against a real server (SPEC §11, §15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fallow.flows.purge_semantic_cache import purge_semantic_cache
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from fallow.model.times import MICROSECONDS_PER_HOUR, wall_clock
from fallow.port.registry import open_provider
from tests.conftest import write_as_agent

pytestmark = pytest.mark.server


def entry(name: str, hours: float, **fields: Any) -> dict[str, Any]:
    created = (wall_clock() - hours * MICROSECONDS_PER_HOUR) / 1e6
    return {"_id": name, "query": f"secret {name}", "response": "x", "agent_id": "a", "timestamp": created, **fields}


def left(store: Path) -> set[str]:
    with open_provider(str(store)) as provider:
        return {str(row["_id"]) for row in provider.find("semantic_cache")}


def test_the_flow_removes_what_has_expired_and_says_so_11(prefect_api: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    rows = [
        entry("old", 30),
        entry("own", 30, expires_at=(wall_clock() + 48 * MICROSECONDS_PER_HOUR) / 1e6),
        entry("fresh", 2, query="Hello?"),
        entry("again", 1, query="hello ?"),
    ]
    agent = {"_id": "a", "agent_id": "a", "semantic_cache_config": {"ttl_hours": 24}}
    write_as_agent(store, {"semantic_cache": rows, "conversation_memory": [], "shared_memory": [], "agents": [agent]})

    state = purge_semantic_cache(store=str(store), dry_run=True, return_state=True)
    assert (state.type.value, state.message) == ("COMPLETED", "2 entries would be removed")
    assert left(store) == {"old", "own", "fresh", "again"}

    state = purge_semantic_cache(store=str(store), merge_duplicates=False, return_state=True)
    assert (state.name, state.message) == ("Completed", "1 entry removed")
    assert left(store) == {"own", "fresh", "again"}

    state = purge_semantic_cache(store=str(store), return_state=True)
    assert state.message == "1 entry removed"
    assert left(store) == {"own", "again"}

    state = purge_semantic_cache(store=str(store), return_state=True)
    assert (state.name, state.type.value) == ("NothingToDo", "COMPLETED")
    assert left(store) == {"own", "again"}

    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=["semantic-cache"]))
    page = prefect_api.read_artifacts(artifact_filter=wanted)[0]
    assert "secret" not in page.data
    assert "hello" not in page.data.lower()


def test_the_deployment_ships_paused_15() -> None:
    import yaml

    from tests.prefect_server import PREFECT_YAML

    deployments = yaml.safe_load(PREFECT_YAML.read_text())["deployments"]
    (ours,) = [item for item in deployments if item["entrypoint"].startswith("fallow.flows.purge_semantic_cache:")]
    (schedule,) = ours["schedules"]
    assert (schedule["cron"], schedule["active"]) == ("15 * * * *", False)
