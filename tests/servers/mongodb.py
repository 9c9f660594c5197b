"""A MongoDB server for tests: MONGODB_URI names one, else SecantusDB is started as a process of its own.

It listens on loopback only, on a free port, keeps its data in a temporary folder, and is stopped by its pid.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def mongodb_server(folder: Path) -> Iterator[str]:
    """The address of a server, without a database."""
    named = os.environ.get("MONGODB_URI")
    if named:
        yield named
        return
    program = shutil.which("secantusd-py", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("no MongoDB server: install secantusdb, or name one in MONGODB_URI")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [program, "--host", "127.0.0.1", "--port", str(port), "--storage-path", str(folder)]
    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            if server.poll() is not None:
                raise AssertionError(f"the server ended: {(folder / 'log.txt').read_text()[-2000:]}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if time.monotonic() > deadline:
                raise AssertionError("the server did not start within a minute")
            time.sleep(0.05)
        yield f"mongodb://127.0.0.1:{port}/?directConnection=true"
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def with_database(address: str, name: str) -> str:
    """The address of a database on that server."""
    head, _, options = address.partition("?")
    base = head if head.count("/") > 2 else head + "/"
    return base.rsplit("/", 1)[0] + f"/{name}" + (f"?{options}" if options else "")
