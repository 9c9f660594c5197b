"""A real Prefect server of the test session, and workers on it: loopback, a random port, a home of their own."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PREFECT_YAML = REPOSITORY / "deployments" / "prefect.yaml"
PATIENCE = 240.0


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first truthy value of ``condition``; a failure that says what never happened."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process of ours as Ctrl-C would, by its own pid, or the hard way."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


class PrefectServer:
    """``prefect server start`` as a process of its own; it can be killed and started again on its database."""

    def __init__(self, home: Path, auth: str | None = None) -> None:
        self.home, self.auth, self.port = home, auth, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        return f"{self.address}/api"

    def environment(self, **more: str) -> dict[str, str]:
        """For processes that work with this server, and with nothing else of this machine's Prefect."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "FALLOW_"))}
        own = {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
            "PREFECT_CLI_COLORS": "false",
            "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "2",
            "DO_NOT_TRACK": "1",
            "PYTHONPATH": str(REPOSITORY),
        }
        if self.auth:
            own["PREFECT_SERVER_API_AUTH_STRING"] = own["PREFECT_API_AUTH_STRING"] = self.auth
        return {**kept, **own, **more}

    def healthy(self) -> bool:
        request = Request(f"{self.api}/health")
        if self.auth:
            request.add_header("Authorization", "Basic " + base64.b64encode(self.auth.encode()).decode())
        try:
            with urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)],
                env=self.environment(),
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self.process.poll() is not None or self.healthy(), "the Prefect server is up")
        assert self.process.poll() is None, (self.home / "server.log").read_text()[-2000:]

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command ``prefect``, as an operator runs it."""
        return subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=REPOSITORY,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def deploy(self) -> str:
        """Everything in deployments/prefect.yaml, by the commands that stand in it."""
        made = self.prefect("work-pool", "create", "fallow", "--type", "process")
        assert made.returncode == 0, made.stdout + made.stderr
        done = self.prefect("deploy", "--all", "--prefect-file", str(PREFECT_YAML))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def worker(self, log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """A process worker on the pool ``fallow``."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", "fallow", "--name", log.stem],
                cwd=log.parent,
                env=self.environment(PREFECT_WORKER_QUERY_SECONDS="1", **environment),
                stdout=output,
                stderr=output,
            )


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """The session's server, with every deployment of ours on it; its schedules are paused."""
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    try:
        server.start()
        server.deploy()
        with client_of(server) as client:
            for deployment in client.read_deployments():
                for schedule in deployment.schedules:
                    client.update_deployment_schedule(deployment.id, schedule.id, active=False)
        yield server
    finally:
        server.stop()


def client_of(server: PrefectServer) -> Any:
    """A client of the server, whatever this process's own settings are."""
    from prefect.client.orchestration import SyncPrefectClient

    return SyncPrefectClient(server.api, auth_string=server.auth)


@pytest.fixture
def prefect_api(prefect_server: PrefectServer) -> Iterator[Any]:
    """Flows run in this process against the session's server; the value is a client of it."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

    own = {
        PREFECT_API_URL: prefect_server.api,
        PREFECT_HOME: prefect_server.home,
        PREFECT_LOGGING_TO_API_ENABLED: False,
    }
    with temporary_settings(own), client_of(prefect_server) as client:
        yield client
