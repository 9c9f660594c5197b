"""The same records in LangGraph's store and in files: the same plan id, reports and restore (SPEC §12)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("langgraph.store.postgres", reason="langgraph-checkpoint-postgres is not installed")

from fallow.model.record import PRIMARY_TYPES
from fallow.model.settings import RetentionConfig
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider
from fallow.usecases.planner import RetentionPlanner
from tests.conftest import write_as_agent
from tests.plugins.langgraph_world import NOW, World, world
from tests.servers.postgresql import PostgreSQL

MINUTE = 60_000_000
SPACES = {
    ("memories", "u1"): "knowledge_base",
    ("memories", "u2"): "knowledge_base",
    ("u3", "memories"): "knowledge_base",
    ("conversations", "u1", "t1"): "conversation_memory",
    ("profiles", "u1"): "entity_memory",
    ("episodes", "u2"): "workflow_memory",
    ("summaries", "u1"): "summaries",
}


def fill(made: World) -> None:
    """Sixty records as agents of LangGraph's write them, of every type, some cited, pinned, untidy or recalled."""
    chance = random.Random(3)
    with made.langgraph() as store:
        for place, space in enumerate(SPACES):
            for number in range(9):
                value = {"content": f"said {number} in {place}", "kind": "Memory"}
                if number % 3:
                    value["importance"] = chance.choice([0.05, 0.1, 0.9, "0.2", 7])
                if number == 4:
                    value["pinned"] = "yes"
                if number == 5:
                    value["source_ids"] = ["k1", f"{'.'.join(space)}:k2"]
                if number == 6:
                    value = {"kind": "Memory", "content": {"content": "LangMem's way"}}
                if number == 7:
                    value = {"food": "pizza", "n": 1.0, "deep": {"er": [None, True]}}
                store.put(space, f"k{number}-{place}" if space[0] == "summaries" else f"k{number}", value)
    made.run("update store set created_at = '2026-06-01 08:00:00Z', updated_at = '2026-06-01 08:00:00Z'")
    made.run("update store set updated_at = '2026-11-28 08:00:00Z' where key like 'k8%'")


def life(provider: Provider) -> list[object]:
    """Plan, apply and restore, and what was said of each."""
    planner = RetentionPlanner(provider, config=RetentionConfig(min_retention=0.25))
    plan = planner.plan(as_of=NOW, now=NOW)
    report = planner.apply(plan, approved_by="ann", reason="old", count=len(plan.entries), now=NOW + MINUTE)
    back = planner.restore_plan(plan.plan_id, approved_by="bea", reason="back", now=NOW + 2 * MINUTE)
    return [plan.plan_id, len(plan.entries), plan.counts, report.to_json(), back.to_json()]


def test_files_and_langgraph_have_one_plan(server: PostgreSQL, tmp_path: Path) -> None:
    with world(server) as made:
        fill(made)
        before = made.bytes()
        with made.open() as provider:
            rows = {name: list(provider.find(name)) for name in PRIMARY_TYPES}
            assert all(rows.values())
            write_as_agent(tmp_path / "files", {**rows, "shared_memory": []})
            here = life(provider)
        assert made.bytes() == before
    with open_provider(str(tmp_path / "files")) as provider:
        there = life(provider)
    assert here == there
    assert here[1] > 10
