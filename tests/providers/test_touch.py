"""Reinforcement by several processes at once: every touch is counted (SPEC §4)."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from fallow.acting.touch import touch_many
from fallow.model.arguments import instant
from fallow.port.registry import open_provider
from tests.conftest import REPOSITORY, write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, days_ago, record
from tests.servers.mongodb import with_database

PROCESS = """
import sys
from fallow.port.registry import open_provider
from fallow.acting.touch import touch_many
with open_provider(sys.argv[1]) as provider:
    print("ready", flush=True)
    for turn in range(int(sys.argv[2])):
        names = [f"r{n}" for n in range(5)]
        report = touch_many(provider, "conversation_memory", names, now=int(sys.argv[3]) + turn)
        assert sorted(report.touched) == names, report
"""


ROWS = [record(f"r{n}", access_count=n, last_accessed_at=days_ago(3), x_custom="kept") for n in range(5)]


def two_processes(root: Path, times: int) -> None:
    write_as_agent(root, {CONVERSATION: ROWS, "shared_memory": []})
    touched_twice(str(root), times)
    check([json.loads((root / CONVERSATION / f"r{n}.json").read_text()) for n in range(5)], times)


def touched_twice(address: str, times: int) -> None:
    command = [sys.executable, "-c", PROCESS, address, str(times), str(NOW)]
    running = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=600) for process in running] == [0, 0]


def check(rows: list[dict[str, Any]], times: int) -> None:
    for n, row in enumerate(rows):
        assert row["access_count"] == n + 2 * times
        assert row["x_custom"] == "kept"
        assert instant(row["last_accessed_at"]) == NOW + times - 1


def test_two_processes_count_every_touch_4(tmp_path: Path) -> None:
    two_processes(tmp_path / "s", 15)


@pytest.mark.long
def test_two_processes_count_a_thousand_touches_each_4(tmp_path: Path) -> None:
    two_processes(tmp_path / "s", 1000)


@pytest.mark.parametrize("times", [15, pytest.param(1000, marks=pytest.mark.long)])
def test_two_processes_count_every_touch_on_mongodb_4(mongodb: str, times: int) -> None:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb)
    name = f"fallow-test-{uuid.uuid4().hex[:12]}"
    try:
        client[name][CONVERSATION].insert_many([dict(row) for row in ROWS])
        touched_twice(with_database(mongodb, name), times)
        check(list(client[name][CONVERSATION].find().sort("_id", 1)), times)
    finally:
        client.drop_database(name)
        client.close()


def test_what_cannot_be_touched_is_reported_and_never_created_4(tmp_path: Path) -> None:
    root = tmp_path / "s"
    rows = [record("r1", last_accessed_at=days_ago(-1)), record("hidden", retention_state="suppressed"), record("bad")]
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})
    (root / CONVERSATION / "bad.json").write_text("{")
    with open_provider(str(root)) as provider:
        names = ["r1", "r1", "hidden", "never", "../x", "bad"]
        report = touch_many(provider, CONVERSATION, names, now=NOW)
        assert (report.touched, report.suppressed) == (["r1"], ["hidden"])
        assert "never" in report.gone
        assert sum(map(len, report.failed.values())) + len(report.gone) == 3
        assert touch_many(provider, CONVERSATION, [], now=NOW).to_json()["touched"] == []
    row = json.loads((root / CONVERSATION / "r1.json").read_text())
    assert row["access_count"] == 1
    # Never back: the record was last recalled tomorrow.
    assert row["last_accessed_at"] == days_ago(-1)
    assert not list(root.rglob("never*"))
