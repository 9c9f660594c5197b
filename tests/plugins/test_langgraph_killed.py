"""kill -9 anywhere in apply and restore on a real PostgreSQL, then once more to the end (SPEC §8.2).

12 deaths here, half at random instants and half before or after a statement; ``--long`` runs 300.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("langgraph.store.postgres", reason="langgraph-checkpoint-postgres is not installed")

from fallow.acting.deciding import decide
from fallow.model.settings import ApprovalConfig
from tests.conftest import REPOSITORY
from tests.crash.child import NOW, WORK
from tests.fallow.small_stores import planned
from tests.plugins.langgraph_world import World, world
from tests.servers.postgresql import PostgreSQL

RECORDS = 12
MINE = ("memories", "u1")
BORN = "timestamptz '2026-08-01 08:00:00Z'"


def make_store(made: World) -> dict[tuple[str, str], Any]:
    """Twelve records that are planned and approved, two that are not; what all of them are in bytes."""
    with made.langgraph() as store:
        for number in range(RECORDS):
            store.put(MINE, f"r{number}", {"content": f"small talk {number}", "importance": 0.05, "x": [number, None]})
        store.put(MINE, "kept", {"content": "allergic to nuts", "importance": 0.9}, ttl=10_000)
        store.put(("prompts", "a", "b", "c"), "p", {"content": "no memory"})
    made.run(f"update store set created_at = {BORN}, updated_at = {BORN}")
    made.run("update store set expires_at = now() + interval '1 day', ttl_minutes = 60 where key in ('r1', 'r2')")
    with made.open() as provider:
        plan = planned(provider, as_of=NOW)
        assert len(plan.entries) == RECORDS
        approval = {"approval": ApprovalConfig(), "count": RECORDS, "reason": "spring"}
        decide(provider, plan.plan_id, verdict="approved", approved_by="Ada", now=NOW, **approval)
    return made.bytes()


def start(work: str, made: World, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.plugins.langgraph_child", work, made.address, *options]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    child = subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def finish(child: subprocess.Popen[str]) -> str:
    with child:
        said, _ = child.communicate(timeout=120)
    return said


def run_again(work: str, made: World) -> None:
    with made.open() as provider:
        WORK[work](provider, NOW + 1_000_000)


def violations(made: World, before: dict[tuple[str, str], Any], done: list[str]) -> list[str]:
    """Everything that is not as it must be once ``done`` has ended, read past fallow."""
    found: list[str] = []
    shown = made.bytes()
    planned_keys = {f"r{number}" for number in range(RECORDS)}
    if done[-1] == "restore":
        if shown != before:
            found.append("the store is not what it was")
    elif shown != {place: row for place, row in before.items() if place[1] not in planned_keys}:
        found.append("the store shows something else than what was not planned")
    hidden = made.run(
        "select key, (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)::text from fallow_suppressed"
    )
    right = (
        {} if done[-1] == "restore" else {place[1]: row[0] for place, row in before.items() if place[1] in planned_keys}
    )
    if sorted(hidden) != sorted(right.items()):
        found.append(f"{len(hidden)} rows are kept hidden, and not as they were")
    if made.server.vectors:
        vectors = made.run("select count(*) from fallow_suppressed_vectors")[0][0]
        if vectors != sum(len(row) - 1 for place, row in before.items() if place[1] in right):
            found.append(f"{vectors} vectors are kept")
    found += _journal(made, planned_keys, done)
    return found


def _journal(made: World, planned_keys: set[str], done: list[str]) -> list[str]:
    contents = [json.loads(json.loads(body)["content"]) for (body,) in made.run("select body from fallow_rows")]
    kinds = Counter(
        ("restore" if content["source"] == "forgetting:unsuppress" else "apply", content["target_record_id"])
        for content in contents
        if content.get("record_type") == "memory_history_change"
    )
    right = Counter((work, f"memories.u1:{key}") for work in done for key in planned_keys)
    found = [] if kinds == right else [f"journal: {dict(kinds - right)} too many, {dict(right - kinds)} missing"]
    events = Counter(content.get("event_type") for content in contents if content.get("event_type"))
    return found if events == {"forgetting_planned": 1, "memory_forgotten": 1} else [*found, f"events: {dict(events)}"]


def die_and_recover(server: PostgreSQL, number: int, seed: int) -> tuple[int, list[str]]:
    """``number`` deaths, each in a fresh database, each followed by a second one or none, and a run to the end."""
    chance = random.Random(seed)
    measured: dict[str, tuple[float, int]] = {}
    for work in ("apply", "restore"):
        with world(server) as made:
            make_store(made)
            if work == "restore":
                run_again("apply", made)
            child = start(work, made)
            began = time.monotonic()
            points = int(finish(child))
            measured[work] = (time.monotonic() - began, points)
    died, found = 0, []
    for turn in range(number):
        done = [["apply"], ["apply", "restore"]][turn % 2]
        with world(server) as made:
            before = make_store(made)
            for work in done[:-1]:
                run_again(work, made)
            seconds, points = measured[done[-1]]
            for _ in range(chance.choice([1, 1, 2])):
                if turn % 4 < 2:
                    child = start(done[-1], made)
                    time.sleep(chance.uniform(0, seconds))
                    child.kill()
                else:
                    child = start(done[-1], made, "--die-at", str(chance.randint(1, points)))
                finish(child)
                died += child.returncode != 0
            run_again(done[-1], made)
            found += [f"{turn} {done[-1]}: {item}" for item in violations(made, before, done)]
    return died, found


def test_killed_anywhere_nothing_is_lost_doubled_or_half_moved(server: PostgreSQL) -> None:
    died, found = die_and_recover(server, 12, seed=1)
    assert not found
    assert died >= 8, died


@pytest.mark.long
def test_killed_300_times(server: PostgreSQL) -> None:
    died, found = die_and_recover(server, 300, seed=2)
    print(f"{died} deaths")
    assert not found
    assert died >= 210, died


BROKEN = {
    "a row is lost": "delete from fallow_suppressed where key = 'r3'",
    "a row is another": "update fallow_suppressed set updated_at = now() where key = 'r3'",
    "a row is in both": "insert into store (prefix, key, value) values ('memories.u1', 'r3', '{}')",
    "another row moved": "update store set value = '{}' where key = 'kept'",
    "an entry is missing": "delete from fallow_rows where record_id like 'mem-change-%'",
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_harness_sees_what_it_must_see(server: PostgreSQL, what: str) -> None:
    """Its own test: every kind of broken invariant, made on purpose, is found."""
    with world(server) as made:
        before = make_store(made)
        run_again("apply", made)
        assert violations(made, before, ["apply"]) == []
        made.run(BROKEN[what])
        assert violations(made, before, ["apply"])
