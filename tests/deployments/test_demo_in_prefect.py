"""fallow demo --serve: one command to a plan that waits in the UI; doctor and approve from elsewhere (SPEC §16)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.flows.driving import hidden, plans_of
from tests.prefect_server import PrefectServer, free_port, wait_until


@pytest.mark.server
@pytest.mark.long
def test_the_demo_asks_in_the_ui_and_takes_the_answer_from_another_terminal(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "memory"
    base = PrefectServer(tmp_path / "home")
    environment = {name: value for name, value in base.environment().items() if name != "PREFECT_API_URL"}
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fallow", "demo", "--serve", "--directory", str(folder), "--port", str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    told: list[str] = []
    try:
        while not told or "Ctrl-C ends it" not in told[-1]:
            line = process.stdout.readline().decode()
            assert line, (tmp_path / "serve.log").read_text()[-2000:]
            told.append(line)
        auth = next(line for line in told if "AUTH_STRING=" in line).rpartition("AUTH_STRING=")[2].strip()
        (plan,) = wait_until(lambda: [p for p in plans_of(folder) if p.state == "open"], "a plan waits")
        another = {
            **environment,
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_API_AUTH_STRING": auth,
            "FALLOW_STORE": str(folder),
        }

        def fallow(*arguments: str) -> Any:
            command = [sys.executable, "-m", "fallow", *arguments, "--json"]
            done = subprocess.run(command, env=another, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert auth not in done.stdout + done.stderr
            return json.loads(done.stdout)

        states = {item["check"]: item["state"] for item in fallow("doctor")["checks"]}
        for name in ("prefect server", "prefect auth", "prefect origins", "deployments", "worker"):
            assert states[name] == "ok", name
        fallow("approve", plan.plan_id, "--approved-by", "Ada", "--count", str(plan.planned))
        wait_until(lambda: plans_of(folder)[0].state == "applied", "the waiting run applied it")
        assert len(hidden(folder)) == plan.planned
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 0
        process.stdout.close()
