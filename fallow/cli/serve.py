"""``fallow serve``: the whole pipeline in one command (SPEC §16, DESIGN §6, Running).

A Prefect server of its own where none is named, every deployment on it, and a worker. The server answers
no page but its own and asks for an auth string: otherwise any page open in the operator's browser could
resume a waiting run.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import typer

from fallow.cli.app import Store, note, say
from fallow.model.errors import FallowError

_PATIENCE_SECONDS: Final = 180.0
_POOL: Final = "fallow"


def serve(
    store: Store = None,
    host: Annotated[str, typer.Option("--host", help="Where the server listens, if one is started.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Its port.", min=1, max=65535)] = 4200,
) -> None:
    """Run the pipeline: a Prefect server if none is named, every deployment, a worker; until Ctrl-C.

    PREFECT_API_URL names a server to use instead.
    """
    run_pipeline(store, host, port)


def run_pipeline(
    store: str | None, host: str, port: int, deployment: str = "", parameters: Mapping[str, Any] | None = None
) -> None:
    """Serves every deployment until Ctrl-C; a run of ``deployment`` is started once all is up.

    Raises:
        FallowError: the port is taken, the server does not come up, a deployment fails, the worker ends.
    """
    if find_spec("prefect") is None:
        raise FallowError("Prefect is not installed here", hint="pip install 'fallow[prefect]'")
    deployments = Path(str(files("fallow.deployments") / "prefect.yaml"))
    environment = {**os.environ, **({"FALLOW_STORE": store} if store else {})}
    environment.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    named = environment.get("PREFECT_API_URL", "").strip()
    ui = named.removesuffix("/").removesuffix("/api") if named else f"http://{host}:{port}"
    if not named:
        if _taken(host, port):
            raise FallowError(
                f"port {port} is in use", hint="--port gives another; or set PREFECT_API_URL to use the server there"
            )
        auth = environment.get("PREFECT_SERVER_API_AUTH_STRING") or f"fallow:{secrets.token_urlsafe(18)}"
        environment |= {
            "PREFECT_API_URL": f"{ui}/api",
            "PREFECT_SERVER_API_AUTH_STRING": auth,
            "PREFECT_API_AUTH_STRING": auth,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ui,
            "PREFECT_SERVER_UI_API_URL": f"{ui}/api",
        }
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped like Ctrl-C: the children end with us
    with ExitStack() as running:
        if not named:
            arguments = ("server", "start", "--host", host, "--port", str(port))
            server = running.enter_context(_Child(arguments, environment))
            note("starting a Prefect server")
            _wait_for(environment, server)
        _prefect(environment, deployments, named_pool=_answers(environment, f"/work_pools/{_POOL}"))
        worker = running.enter_context(_Child(("worker", "start", "--pool", _POOL), environment))
        say(f"Prefect's UI: {ui}")
        if not named:
            say(f"Its login and the command line's: PREFECT_API_AUTH_STRING={environment['PREFECT_API_AUTH_STRING']}")
            say(f"For fallow approve from another terminal: PREFECT_API_URL={ui}/api")
        if deployment:
            _run(environment, ("deployment", "run", deployment, "--params", json.dumps(parameters or {})))
            say(f"A run of {deployment} is on its way: open it under Runs, and answer it from its menu, Resume.")
        say("Every deployment is served. Ctrl-C ends it; plans that wait go on waiting in the store.")
        sys.stdout.flush()
        try:
            # Not wait(): a library (Polars) may have had Ctrl-C restart system calls, and it would then wait on.
            while (code := worker.process.poll()) is None:
                time.sleep(0.3)
        except KeyboardInterrupt:
            note("stopping")
            return
        raise FallowError(f"the worker ended by itself (exit {code})", hint="its output is above; start serve again")


class _Child:
    """A process of ours in a session of its own, so that one Ctrl-C reaches it once, from us, by its pid."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603  # our own interpreter, arguments from this file
            [sys.executable, "-m", "prefect", *arguments],
            env=environment,
            stdout=sys.stderr,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((host, port)) == 0


def _answers(environment: dict[str, str], path: str) -> bool:
    request = Request(environment["PREFECT_API_URL"].rstrip("/") + path)  # noqa: S310  # the server's own address
    auth = environment.get("PREFECT_API_AUTH_STRING")
    if auth:
        request.add_header("Authorization", "Basic " + base64.b64encode(auth.encode()).decode())
    try:
        with urlopen(request, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (HTTPError, URLError, TimeoutError, OSError):
        return False


def _wait_for(environment: dict[str, str], server: _Child) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not _answers(environment, "/health"):
        if server.process.poll() is not None or time.monotonic() > end:
            raise FallowError("the Prefect server did not start", hint="its output is above")
        time.sleep(0.3)


def _prefect(environment: dict[str, str], deployments: Path, *, named_pool: bool) -> None:
    """The commands that deployments/prefect.yaml gives, as an operator would type them."""
    commands: list[tuple[str, ...]] = [] if named_pool else [("work-pool", "create", _POOL, "--type", "process")]
    commands.append(("deploy", "--all", "--prefect-file", str(deployments)))
    for arguments in commands:
        _run(environment, arguments, deployments.parent)


def _run(environment: dict[str, str], arguments: tuple[str, ...], folder: Path | None = None) -> None:
    done = subprocess.run(  # noqa: S603  # as above
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        note(done.stdout[-2000:] + done.stderr[-2000:])
        raise FallowError(f"prefect {' '.join(arguments[:2])} failed", hint="its output is above")
