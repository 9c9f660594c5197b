"""The flow that rates, against a real Prefect server and a scripted model (SPEC §3.6, §15)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fallow.flows.backfill_importance import backfill_importance
from fallow.tasks.rating import KEY_BLOCK
from prefect.blocks.system import Secret

from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, record
from tests.model_server import ModelServer

pytestmark = pytest.mark.server


def store_of(folder: Path, rows: int, *more: dict[str, Any], **others: list[dict[str, Any]]) -> Path:
    root = folder / "store"
    plain = [
        record(
            f"r{at:02}", importance=None, content=f"private words {at}" + " were decided with Ines on 3 May" * (at % 3)
        )
        for at in range(rows)
    ]
    write_as_agent(root, {CONVERSATION: [*plain, *more], **others})
    return root


def run(store: Path, **parameters: Any) -> Any:
    return backfill_importance(store=str(store), return_state=True, **parameters)


def sources(store: Path) -> dict[str, Any]:
    files = (store / CONVERSATION).glob("*.json")
    rows = {path.stem: json.loads(path.read_text()) for path in files if path.name != "index.json"}
    return {name: row.get("importance_source") for name, row in rows.items()}


def artifacts(client: Any, key: str) -> list[Any]:
    return [item for item in client.read_artifacts(limit=200) if item.key == key]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(server: ModelServer) -> None:
        monkeypatch.setenv("FALLOW_MODEL_BASE_URL", server.url)
        monkeypatch.setenv("MEMORIZZ_IMPORTANCE_MODEL", "m")
        monkeypatch.setenv("FALLOW_MODEL_PRICES", '{"m": [1.0, 2.0]}')

    return use


def test_the_free_rating_ends_as_what_it_did_15(prefect_api: Any, tmp_path: Path) -> None:
    store = store_of(tmp_path, 12)
    state = run(store)
    assert (state.name, state.type.value) == ("NothingToDo", "COMPLETED")
    assert "off" in state.message
    assert set(sources(store).values()) == {None}
    state = run(store, mode="heuristic", dry_run=True)
    assert (state.name, set(sources(store).values())) == ("NothingToDo", {None})
    state = run(store, mode="heuristic")
    assert (state.name, state.type.value) == ("Rated", "COMPLETED")
    assert set(sources(store).values()) == {"heuristic"}
    assert run(store, mode="heuristic").name == "NothingToDo"
    assert any("rated by heuristic | 12" in item.data for item in artifacts(prefect_api, "importance-backfill"))
    assert artifacts(prefect_api, "importance-distribution")


def test_a_model_with_a_budget_its_key_from_the_secret_block(prefect_api: Any, tmp_path: Path, endpoint: Any) -> None:
    store = store_of(tmp_path, 40)
    Secret(value="sk-from-the-block").save(KEY_BLOCK, overwrite=True)
    with ModelServer() as server:
        endpoint(server)
        state = run(store, mode="llm", dry_run=True)
        assert (state.name, server.requests) == ("NothingToDo", [])
        assert "40 records would be rated" in state.message
        state = run(store, mode="llm", max_calls=2)
        assert (state.name, server.paid_calls) == ("Rated", 2)
        assert "budget" in state.message
        state = run(store, mode="llm")
        assert (state.name, server.paid_calls) == ("Rated", 5)
        assert {item["authorization"] for item in server.headers} == {"Bearer sk-from-the-block"}
        assert set(server.rated.values()) == {1}
    assert set(sources(store).values()) == {"llm"}
    pages = [item.data for item in artifacts(prefect_api, "importance-backfill")]
    assert any("rank correlation with the heuristic" in page for page in pages)
    everything = json.dumps([str(item.data) for item in prefect_api.read_artifacts(limit=200)])
    assert "private words" not in everything
    assert "sk-from-the-block" not in everything
    assert any(item.data == 100.0 for item in artifacts(prefect_api, "importance-progress"))
    (agreement, *_) = artifacts(prefect_api, "importance-agreement")
    assert agreement.data.startswith("data:image/png;base64,")


def test_batch_jobs_across_runs(
    prefect_api: Any, tmp_path: Path, endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path, 20)
    monkeypatch.setenv("FALLOW_CACHE_DIR", str(tmp_path / "cache"))
    with ModelServer() as server:
        endpoint(server)
        state = run(store, mode="llm", batch=True)
        assert (state.name, "1 batch jobs handed in" in state.message) == ("NothingToDo", True)
        server.work_off(server.jobs["batch-0"])
        assert run(store, mode="llm", batch=True).name == "Rated"
        assert server.requests == []
    assert set(sources(store).values()) == {"llm"}
    assert any("texts that they rated | 20" in item.data for item in artifacts(prefect_api, "importance-backfill"))


def test_a_useless_model_needs_attention_15(prefect_api: Any, tmp_path: Path, endpoint: Any) -> None:
    store = store_of(tmp_path, 60)
    with ModelServer(answer=lambda rows: json.dumps({row["id"]: 7 for row in rows})) as server:
        endpoint(server)
        state = run(store, mode="llm")
    assert (state.name, state.type.value) == ("NeedsAttention", "FAILED")
    assert "different texts 0.7" in state.message


def test_each_agent_by_its_own_settings(prefect_api: Any, tmp_path: Path, endpoint: Any) -> None:
    mine = [record("b1", importance=None, agent_id="baker"), record("c1", importance=None, agent_id="cook")]
    policy = {"scoring": {"importance": {"mode": "llm", "purpose": "bakes bread"}}}
    off = {"scoring": {"importance": {"mode": "off"}}}
    agents = [
        {"_id": "baker", "agent_id": "baker", "retrieval_policy": policy},
        {"_id": "cook", "agent_id": "cook", "retrieval_policy": off},
    ]
    store = store_of(tmp_path, 3, *mine, agents=agents)
    with ModelServer() as server:
        endpoint(server)
        from_agent = run(store)
        assert from_agent.name == "Rated"
        assert server.rated.total() == 1
        assert "bakes bread" in server.requests[0]["messages"][0]["content"]
    assert sources(store) == {"r00": None, "r01": None, "r02": None, "b1": "llm", "c1": None}
    assert any("Off" in item.data for item in artifacts(prefect_api, "importance-backfill"))
