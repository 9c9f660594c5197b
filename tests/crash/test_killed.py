"""kill -9 anywhere in apply and restore, then once more to the end (SPEC §8.2, TRAPS.md 25).

82 deaths here, half at random instants and half at points where the process touches the store; ``--long``
runs a thousand.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from tests.crash.harness import (
    CONVERSATION,
    duration,
    kill_after,
    kill_at,
    make_store,
    rows_of,
    run_again,
    violations,
)

WAYS = [("apply",), ("apply", "restore")]


def die_and_recover(root: Path, number: int, seed: int) -> tuple[int, list[str]]:
    """``number`` deaths, each in a fresh store, each followed by a second death or none, and a run to the end."""
    chance = random.Random(seed)
    measured: dict[str, tuple[float, int]] = {}
    before: dict[str, dict[str, dict]] = {}
    for work in ("apply", "restore"):
        template = root / f"before-{work}"
        make_store(template)
        if work == "restore":
            run_again("apply", template)
        else:
            before = {name: rows_of(template, name) for name in (CONVERSATION, "summaries")}
        measured[work] = duration(work, template)
    died, found = 0, []
    for turn in range(number):
        way = WAYS[turn % 2]
        work = way[-1]
        store = root / f"store-{turn}"
        make_store(store)
        if work == "restore":
            run_again("apply", store)
        seconds, points = measured[work]
        for _ in range(chance.choice([1, 1, 2])):
            if turn % 4 < 2:
                died += kill_after(work, store, chance.uniform(0, seconds))
            else:
                died += kill_at(work, store, chance.randint(1, points))
        run_again(work, store)
        found += [f"{turn} {work}: {item}" for item in violations(store, before, way)]
        shutil.rmtree(store)
    return died, found


def test_killed_anywhere_the_work_is_completed_by_running_it_again_trap_25(tmp_path: Path) -> None:
    died, found = die_and_recover(tmp_path, 82, seed=1)
    assert not found
    # Random instants may come after the end; most do not.
    assert died >= 58, died


@pytest.mark.long
def test_killed_a_thousand_times(tmp_path: Path) -> None:
    died, found = die_and_recover(tmp_path, 1000, seed=2)
    assert not found
    assert died >= 700, died


def test_the_harness_sees_what_it_must_see(tmp_path: Path) -> None:
    """Its own test: every kind of broken invariant, made on purpose, is found."""
    make_store(tmp_path / "s")
    root = tmp_path / "s"
    before = {name: rows_of(root, name) for name in (CONVERSATION, "summaries")}
    assert violations(root, before, ["apply"])
    run_again("apply", root)
    assert violations(root, before, ["apply"]) == []

    def breaking(path: Path, change) -> list[str]:
        good = path.read_bytes()
        row = json.loads(good)
        change(row)
        path.write_text(json.dumps(row))
        seen = violations(root, before, ["apply"])
        path.write_bytes(good)
        return seen

    first = root / CONVERSATION / "r0.json"
    assert breaking(first, lambda row: row.update(retention_state="active"))
    assert breaking(first, lambda row: row.update(x_custom=None))
    assert breaking(first, lambda row: row.pop("suppressed_at"))
    assert breaking(root / CONVERSATION / "kept.json", lambda row: row.update(retention_state="suppressed"))
    change = next(path for path in (root / "shared_memory").glob("mem-change-*.json"))
    data = change.read_bytes()
    change.unlink()
    assert violations(root, before, ["apply"])
    change.write_bytes(data)
    (root / "shared_memory" / "mem-change-twice.json").write_bytes(data)
    assert violations(root, before, ["apply"])
    (root / "shared_memory" / "mem-change-twice.json").unlink()
    (root / CONVERSATION / "r0.json.tmp").touch()
    assert violations(root, before, ["apply"])
    (root / CONVERSATION / "r0.json.tmp").unlink()
    assert violations(root, before, ["apply"]) == []
