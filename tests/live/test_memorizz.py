"""MemoRizz's own readers on stores where fallow worked, and fallow on stores where MemoRizz did (TRAPS 62, SPEC §10).

MemoRizz is no dependency: an interpreter that has it is named by PYTHON_WITH_MEMORIZZ, and runs as a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from fallow.cli import main
from fallow.model.settings import RetentionConfig
from fallow.model.times import wall_clock
from fallow.port.journal import SHARED, content_of, content_text
from fallow.port.registry import open_provider
from fallow.usecases.drift import find_drift
from fallow.usecases.planner import RetentionPlanner
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, record
from tests.servers.mongodb import with_database

PYTHON = os.environ.get("PYTHON_WITH_MEMORIZZ")
ROWS = [record(f"c{n}", agent_id="a", memory_id="m", thread_id="t") for n in range(4)]


def memorizz(store: str, command: str, **arguments: Any) -> Any:
    """What MemoRizz answers; skips where there is none."""
    if not PYTHON:
        pytest.skip("MemoRizz did not run: name an interpreter that has memorizz==0.17.16 in PYTHON_WITH_MEMORIZZ")
    child = Path(__file__).with_name("memorizz_child.py")
    done = subprocess.run(
        [PYTHON, str(child), store, command, json.dumps(arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=["filesystem", "mongodb"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of four old records as an agent wrote them."""
    if request.param == "filesystem":
        write_as_agent(tmp_path / "s", {CONVERSATION: ROWS, "shared_memory": []})
        yield str(tmp_path / "s")
        return
    server: str = request.getfixturevalue("mongodb")
    client: MongoClient[dict[str, Any]] = MongoClient(server)
    name = f"fallow-test-{uuid.uuid4().hex[:12]}"
    client[name][CONVERSATION].insert_many([dict(row) for row in ROWS])
    yield with_database(server, name)
    client.drop_database(name)
    client.close()


def forgotten(address: str) -> str:
    """fallow plans and applies; the plan's id."""
    with open_provider(address) as provider:
        planner = RetentionPlanner(provider, "a", RetentionConfig())
        plan = planner.plan()
        planner.apply(plan, approved_by="ann", reason="old", count=len(plan.entries))
        return plan.plan_id


def test_its_reader_lists_and_counts_our_events_trap_62(address: str) -> None:
    plan_id = forgotten(address)
    found = memorizz(address, "events", agent="a", plan_id=plan_id)
    assert (found["forgetting_planned"], found["memory_forgotten"]) == (1, 1)
    assert found["plan"] == {"plan_id": plan_id, "candidates": ["c0", "c1", "c2", "c3"]}


def test_its_apply_is_no_drift_and_can_be_restored_here_trap_62(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    applied = memorizz(address, "apply", agent="a", memory="m")
    assert (applied["applied"], applied["errors"]) == (4, [])
    with open_provider(address) as provider:
        report = find_drift(provider, now=wall_clock())
        assert (report.findings, report.by_agents) == ([], 4)
    assert main(["restore", "--plan", applied["plan_id"], "--approved-by", "bea", "--store", address, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["restored"]) == 4
    with open_provider(address) as provider:
        assert find_drift(provider, now=wall_clock()).findings == []


def test_its_unsuppress_on_our_records_is_a_recorded_restore_trap_62(address: str) -> None:
    forgotten(address)
    assert memorizz(address, "unsuppress", agent="a", record_id="c0") is True
    with open_provider(address) as provider:
        report = find_drift(provider, now=wall_clock())
    assert (report.findings, report.suppressed, report.restored_by_agents) == ([], 3, 1)


def test_events_of_an_earlier_release_are_listed_after_their_repair_62(address: str) -> None:
    plan_id = forgotten(address)
    with open_provider(address) as provider:
        from tests.fallow.test_agents_plans import make_old

        make_old(provider)
    assert memorizz(address, "events", agent="a")["events"] == []
    assert main(["repair-events", "--write", "--store", address]) == 0
    found = memorizz(address, "events", agent="a", plan_id=plan_id)
    assert (found["forgetting_planned"], found["memory_forgotten"]) == (1, 1)
    with open_provider(address) as provider:
        assert find_drift(provider, now=wall_clock()).findings == []
        assert all(content_text(content_of(row)) == row["content"] for row in provider.find(SHARED, "learn-evt-"))
