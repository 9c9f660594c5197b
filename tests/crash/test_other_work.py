"""kill -9 anywhere in a backfill, a reflection, a purge, and in an apply on MongoDB (SPEC §3.6, §5.2, §8.2, §11).

Killed and run again, each ends where an undisturbed run ends: the same rows, the same journal. ``--long`` runs
three hundred deaths.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.deciding import decide
from fallow.model.settings import ApprovalConfig
from fallow.port.registry import open_provider
from tests.conftest import write_as_agent
from tests.crash.child import NOW, WORK
from tests.crash.harness import duration, kill_at
from tests.fallow.small_stores import CONVERSATION, planned, record

CACHE = "semantic_cache"


def make(root: Path) -> None:
    """Unrated rows, two conversations over the threshold, cache entries expired, doubled and fresh."""
    rows = [record(f"r{n}", importance=None, content=f"we decided on plot {n}") for n in range(9)]
    rows += [record(f"t{n}", importance=0.5, thread_id=f"thread{n % 2}", x_custom=n) for n in range(12)]
    cache = [
        {"_id": f"c{n}", "query_text": f"question {n % 7}", "response": "x", "created_at": f"2026-{day}T00:00:00Z"}
        for n, day in enumerate(["11-20"] * 6 + ["12-01"] * 8)
    ]
    write_as_agent(root, {CONVERSATION: rows, "summaries": [], CACHE: cache, "shared_memory": []})


def end_of(root: Path) -> dict[str, Any]:
    """Every row of the agent's types, the journal's entries and what the listings show, as they lie on disk."""
    found: dict[str, Any] = {}
    for folder in (CONVERSATION, "summaries", CACHE, "shared_memory"):
        files = {path.stem: path for path in (root / folder).glob("*.json")}
        listed = json.loads(files.pop("index").read_text())["items"]
        if folder == "shared_memory":
            # A purge's own event can be stored and not yet listed when it dies: the next purge has another event.
            files = {name: path for name, path in files.items() if not name.startswith("learn-evt-") or name in listed}
        # An agent finds a purged entry gone that its index still lists; nothing that is there is missing from it.
        assert listed.keys() >= files.keys(), f"{folder}: the index misses records"
        assert folder == CACHE or listed.keys() == files.keys(), f"{folder}: the index lists what is not there"
        rows = {name: json.loads(path.read_text()) for name, path in files.items()}
        if folder == "shared_memory":
            rows = {name: None for name in rows if name.startswith(("mem-change-", "mem-head-"))}
        found[folder] = rows
    return found


def die_and_finish(folder: Path, work: str, number: int, seed: int) -> tuple[int, int]:
    """``number`` deaths in fresh stores, each run to its end afterwards; how many died, of how many points."""
    chance = random.Random(seed)
    untouched, whole = folder / "untouched", folder / "whole"
    make(untouched)
    make(whole)
    _, points = duration(work, whole)
    want = end_of(whole)
    assert want != end_of(untouched), f"{work} changed nothing"
    died = 0
    for turn in range(number):
        root = folder / f"store{turn}"
        make(root)
        died += kill_at(work, root, chance.randint(1, points))
        with open_provider(str(root)) as provider:
            WORK[work](provider, NOW)
        assert end_of(root) == want, (work, turn)
    return died, points


@pytest.mark.parametrize("work", ["rate", "summarise", "purge"])
def test_killed_anywhere_it_ends_where_an_undisturbed_run_ends_trap_7_25(tmp_path: Path, work: str) -> None:
    died, points = die_and_finish(tmp_path, work, 5, seed=3)
    assert died == 5
    assert points > 10


@pytest.mark.long
@pytest.mark.parametrize("work", ["rate", "summarise", "purge"])
def test_a_hundred_deaths_of_each(tmp_path: Path, work: str) -> None:
    assert die_and_finish(tmp_path, work, 100, seed=4)[0] == 100


def on_mongodb(address: str, name: str, use: Callable[[Any, str], None]) -> None:
    """A database with one approved plan over ten records, given to ``use`` with its address, and dropped."""
    import pymongo

    with pymongo.MongoClient(address) as client:
        client.drop_database(name)
        rows = [record(f"r{n}", days=90 + n, x_custom=n) for n in range(10)] + [record("kept", importance=0.9)]
        client[name][CONVERSATION].insert_many(rows)
        store = f"{address.partition('/?')[0]}/{name}?directConnection=true"
        try:
            with open_provider(store) as provider:
                plan = planned(provider, as_of=NOW)
                arguments = {"approval": ApprovalConfig(), "count": 10, "now": NOW}
                decide(provider, plan.plan_id, verdict="approved", approved_by="Ada", **arguments)
            use(client[name], store)
        finally:
            client.drop_database(name)


def test_an_apply_on_mongodb_killed_anywhere_is_completed_trap_25(mongodb: str) -> None:
    chance = random.Random(5)
    measured: list[int] = []
    name = f"crash_{os.getpid()}"
    on_mongodb(mongodb, name, lambda _, store: measured.append(duration("apply", store)[1]))  # type: ignore[arg-type]
    points = measured[0]

    def die(database: Any, store: str) -> None:
        assert kill_at("apply", store, chance.randint(1, points))  # type: ignore[arg-type]
        with open_provider(store) as provider:
            WORK["apply"](provider, NOW + 1_000_000)
        rows = {row["_id"]: row for row in database[CONVERSATION].find()}
        assert {key for key, row in rows.items() if row.get("retention_state") == "suppressed"} == rows.keys() - {
            "kept"
        }
        assert all(rows[f"r{n}"]["x_custom"] == n for n in range(10))
        contents = [json.loads(row["content"]) for row in database["shared_memory"].find()]
        changes = [c["target_record_id"] for c in contents if c.get("record_type") == "memory_history_change"]
        assert sorted(changes) == sorted(rows.keys() - {"kept"})
        assert [c["payload"]["tombstoned"] for c in contents if c.get("event_type") == "memory_forgotten"] == [10]

    for _ in range(4):
        on_mongodb(mongodb, name, die)
