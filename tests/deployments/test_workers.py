"""Servers, workers and what happens when they die: real processes (DESIGN §6)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from prefect.states import Completed, Pending, Running

from fallow.acting.deciding import decide
from fallow.model.settings import ApprovalConfig
from fallow.model.times import iso, wall_clock
from fallow.port.registry import open_provider
from tests.flows.driving import (
    APPLY,
    ASK,
    EXPIRE,
    PLAN,
    RESTORE,
    answer,
    create,
    hidden,
    plans_of,
    resume,
    start,
    state_of,
)
from tests.prefect_server import PREFECT_YAML, REPOSITORY, PrefectServer, client_of, free_port, stop, wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path / "prefect")
    try:
        server.start()
        server.deploy()
        yield server
    finally:
        server.stop()


@pytest.fixture
def store(make_sample_store: Any) -> Path:
    found: Path = make_sample_store(now=iso(wall_clock()))
    return found


def changed_code(folder: Path) -> Path:
    """A copy of the flows and tasks in which planning would suppress everything."""
    for room in ("flows", "tasks"):
        shutil.copytree(REPOSITORY / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    planning = folder / "tasks" / "planning.py"
    text = planning.read_text()
    changed = text.replace("variable, now = settings_variable(), wall_clock()", 'raise RuntimeError("planned again")')
    assert changed != text
    planning.write_text(changed)
    return folder


def test_server_and_worker_killed_and_results_deleted_the_stored_plan_is_applied_trap_35(
    own_server: PrefectServer, store: Path, tmp_path: Path
) -> None:
    """The second worker even runs other code of planning: it must never be asked."""
    worker = own_server.worker(tmp_path / "first.log")
    with client_of(own_server) as client:
        run_id = create(client, PLAN, store=str(store), **ASK)
        wait_until(lambda: state_of(client, run_id) == "Suspended", "the run waits")
    plan = plans_of(store)[0]
    worker.kill()
    worker.wait(30)
    own_server.kill()
    shutil.rmtree(own_server.home / "storage")
    own_server.start()
    worker = own_server.worker(tmp_path / "second.log", PYTHONPATH=str(changed_code(tmp_path / "changed")))
    try:
        with client_of(own_server) as client:
            assert state_of(client, run_id) == "Suspended"
            assert resume(client, run_id, answer(plan)) == "ACCEPT"
            wait_until(lambda: client.read_flow_run(run_id).state.is_final(), "the resumed run ends")
            assert state_of(client, run_id) == "Applied"
    finally:
        stop(worker)
    assert len(hidden(store)) == plan.planned
    assert [item.plan_id for item in plans_of(store)] == [plan.plan_id]


def test_approved_while_another_run_holds_the_only_slot_applied_not_cancelled(
    prefect_server: PrefectServer, prefect_api: Any, store: Path, tmp_path: Path
) -> None:
    run_id, _ = start(prefect_api, PLAN, store=str(store), **ASK)
    plan = plans_of(store)[0]
    holder = create(prefect_api, PLAN, store=str(store))
    assert prefect_api.set_flow_run_state(holder, Pending()).status.value == "ACCEPT"
    prefect_api.set_flow_run_state(holder, Running())
    worker = prefect_server.worker(tmp_path / "worker.log")
    try:
        assert resume(prefect_api, run_id, answer(plan)) == "ACCEPT"
        wait_until(lambda: state_of(prefect_api, run_id) == "AwaitingConcurrencySlot", "the approved run queues")
        assert hidden(store) == set()
        prefect_api.set_flow_run_state(holder, Completed())
        wait_until(lambda: prefect_api.read_flow_run(run_id).state.is_final(), "the approved run ends")
    finally:
        stop(worker)
    assert state_of(prefect_api, run_id) == "Applied"
    assert len(hidden(store)) == plan.planned


def test_a_scheduled_run_of_each_flow_through_a_process_worker_15(
    prefect_server: PrefectServer, prefect_api: Any, store: Path, tmp_path: Path
) -> None:
    start(prefect_api, PLAN, store=str(store), **ASK)
    plan = plans_of(store)[0]
    with open_provider(str(store)) as provider:
        decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="Ada",
            count=plan.planned,
            approval=ApprovalConfig(),
            now=wall_clock(),
        )
    document = yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))
    scheduled = {
        f"{prefect_api.read_flow(item.flow_id).name}/{item.name}"
        for item in prefect_api.read_deployments(limit=200)
        if item.schedules
    }
    assert {PLAN, EXPIRE} <= scheduled
    assert len(scheduled) == sum(bool(item.get("schedules")) for item in document["deployments"])
    worker = prefect_server.worker(tmp_path / "worker.log", FALLOW_STORE=str(store))
    try:
        runs = {name: create(prefect_api, name, at=datetime.now(UTC)) for name in scheduled}
        runs[APPLY] = create(prefect_api, APPLY, at=datetime.now(UTC), plan_id=plan.plan_id)
        for name, found in runs.items():
            wait_until(lambda found=found: prefect_api.read_flow_run(found).state.is_final(), f"{name} ends")
        restored = create(prefect_api, RESTORE, at=datetime.now(UTC), plan_id=plan.plan_id, approved_by="Ada")
        wait_until(lambda: prefect_api.read_flow_run(restored).state.is_final(), "restore ends")
    finally:
        stop(worker)
    assert state_of(prefect_api, runs[PLAN]) == "NothingToDo"
    assert state_of(prefect_api, runs[APPLY]) == "Applied"
    assert state_of(prefect_api, runs[EXPIRE]) in {"NothingToDo", "Expired"}
    assert state_of(prefect_api, restored) == "Applied"
    assert hidden(store) == set()
    # In the sample store somebody has suppressed records without a plan: that is drift, and is said.
    drift = runs.pop("check-drift/nightly-drift")
    assert state_of(prefect_api, drift) == "NeedsAttention"
    for name, found in runs.items():
        assert prefect_api.read_flow_run(found).state.type.value == "COMPLETED", name


def test_serve_answers_no_page_but_its_own_and_ends_with_ctrl_c(store: Path, tmp_path: Path) -> None:
    """A page from another origin cannot resume a run: the preflight that its browser must ask is refused."""
    port = free_port()
    base = PrefectServer(tmp_path / "home")
    environment = {name: value for name, value in base.environment().items() if name != "PREFECT_API_URL"}
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fallow", "serve", "--port", str(port), "--store", str(store)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().decode() for _ in range(4)]
        assert lines[0] == f"Prefect's UI: http://127.0.0.1:{port}\n", (tmp_path / "serve.log").read_text()[-2000:]
        auth = lines[1].rpartition("PREFECT_API_AUTH_STRING=")[2].strip()
        address = f"http://127.0.0.1:{port}"

        def preflight(origin: str) -> str | None:
            request = Request(f"{address}/api/flow_runs/{'0' * 8}-0000-4000-8000-{'0' * 12}/resume", method="OPTIONS")
            request.add_header("Origin", origin)
            request.add_header("Access-Control-Request-Method", "POST")
            request.add_header("Access-Control-Request-Headers", "content-type")
            try:
                with urlopen(request, timeout=20) as reply:
                    found: str | None = reply.headers.get("Access-Control-Allow-Origin")
                    return found
            except HTTPError as error:
                return error.headers.get("Access-Control-Allow-Origin")

        assert preflight(address) == address
        for origin in ("http://evil.example", "null", f"http://localhost:{port}", f"http://127.0.0.1:{port + 1}"):
            assert preflight(origin) is None
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(f"{address}/api/deployments/filter", method="POST", data=b"{}"), timeout=20)
        assert refused.value.code == 401
        server = PrefectServer(tmp_path / "client", auth=auth)
        server.port = port
        with client_of(server) as client:
            names = {item.name for item in client.read_deployments(limit=200)}
            assert {item["name"] for item in yaml.safe_load(PREFECT_YAML.read_text())["deployments"]} == names
            run_id = create(client, PLAN, **ASK)
            wait_until(lambda: state_of(client, run_id) == "Suspended", "the served run waits")
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
        ).stdout.split()
        assert len(children) == 2
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(90)
        process.stdout.close()
    assert process.returncode == 0
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)


def test_serve_says_when_its_port_is_taken(prefect_server: PrefectServer) -> None:
    environment = {name: value for name, value in prefect_server.environment().items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "fallow", "serve", "--port", str(prefect_server.port)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert f"port {prefect_server.port} is in use" in done.stderr
