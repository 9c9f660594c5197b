"""A third party's provider: installed beside fallow, found by its entry point, held by the conformance kit."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fallow.providers.conformance import CHECKS, run_check
from fallow.providers.conformance.kit import Fault, Gap, NotHeldError

from fallow.model.keys import Row
from fallow.model.record import TYPE_ALIASES
from fallow.model.times import iso, to_microseconds
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider
from tests.conftest import REPOSITORY

PROJECT = REPOSITORY / "tests" / "providers" / "example_provider"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package in a folder of its own, as pip installs it; nothing is fetched."""
    target = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "project"
    shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sys.path.insert(0, str(target))
    yield target
    sys.path.remove(str(target))


class SQLiteStore:
    """A scratch file; its native side speaks SQL, as an agent would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        import fallow_sqlite

        provider: Provider = fallow_sqlite.SQLiteProvider(self.path, naive_timezone)
        return provider

    @contextmanager
    def native(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=20)
        try:
            yield connection
        finally:
            connection.close()

    def seed(self, memory_type: str, rows: Sequence[Row]) -> None:
        if memory_type in TYPE_ALIASES:
            raise NotHeldError("a type's old name")
        with self.native() as connection, transaction(connection):
            for row in rows:
                if not isinstance(row["_id"], str):
                    raise NotHeldError("an id that is no text")
                connection.execute(
                    "insert or replace into records values (?, ?, ?)",
                    (memory_type, row["_id"], json.dumps(row, ensure_ascii=False, default=plain)),
                )

    def change(self, memory_type: str, record_id: str, fields: Mapping[str, Any]) -> None:
        with self.native() as connection:
            connection.execute("begin immediate")
            (body,) = connection.execute(
                "select body from records where memory_type = ? and record_id = ?", (memory_type, record_id)
            ).fetchone()
            connection.execute(
                "update records set body = ? where memory_type = ? and record_id = ?",
                (json.dumps({**json.loads(body), **fields}, ensure_ascii=False), memory_type, record_id),
            )
            connection.execute("commit")

    def remove(self, memory_type: str, record_id: str) -> None:
        with self.native() as connection:
            connection.execute("delete from records where memory_type = ? and record_id = ?", (memory_type, record_id))

    def spoil(self, memory_type: str, record_id: str) -> None:
        with self.native() as connection:
            connection.execute(
                'update records set body = \'{"content": "wh\' where memory_type = ? and record_id = ?',
                (memory_type, record_id),
            )

    def stored(self, memory_type: str) -> dict[str, dict[str, bytes]]:
        with self.native() as connection:
            found = connection.execute(
                "select record_id, body from records where memory_type = ? order by record_id", (memory_type,)
            ).fetchall()
        rows: dict[str, dict[str, bytes]] = {}
        for record_id, body in found:
            try:
                rows[record_id] = {name: json.dumps(value).encode() for name, value in json.loads(body).items()}
            except ValueError:
                rows[record_id] = {"": body.encode()}
        return rows

    @contextmanager
    def copy(self) -> Iterator[SQLiteStore]:
        target = self.path.with_suffix(".copy")
        shutil.copy(self.path, target)
        yield SQLiteStore(target)
        target.unlink()

    def fault(self, kind: Fault) -> AbstractContextManager[None]:
        raise NotHeldError(f"a file is never {kind}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("begin immediate")
    yield
    connection.execute("commit")


def plain(value: Any) -> str:
    if isinstance(value, datetime):
        return iso(to_microseconds(value))
    raise NotHeldError(f"a value of type {type(value).__name__}")


class SQLiteBackend:
    """Scratch stores for the kit."""

    name = "sqlite"
    #: Strict: it must fail as declared. (Nobody has written such a store under the types' old names.)
    gaps: Mapping[str, Gap] = {
        "the_old_type_name_is_read": Gap("this store has known no older names of types", NotHeldError)
    }
    faults: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()

    @contextmanager
    def store(self) -> Iterator[SQLiteStore]:
        import fallow_sqlite

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "memories.sqlite3"
            fallow_sqlite.make(path)
            yield SQLiteStore(path)


@pytest.mark.parametrize("name", CHECKS)
def test_the_example_conforms(name: str, installed: Path) -> None:
    result = run_check(CHECKS[name], SQLiteBackend())
    assert result.good, result.detail


def test_it_is_found_by_its_entry_point_and_planned_by_the_command_line(installed: Path, tmp_path: Path) -> None:
    import fallow_sqlite

    path = tmp_path / "memories.sqlite3"
    fallow_sqlite.make(path)
    old = {"content": "hm", "timestamp": "2025-01-01T00:00:00Z", "agent_id": "a", "importance": 0.05, "role": "user"}
    SQLiteStore(path).seed("conversation_memory", [{"_id": f"m{n}", **old} for n in range(5)])
    with open_provider(f"sqlite://{path}") as provider:
        assert provider.capabilities.kind == "sqlite"
        assert provider.identity().startswith("sqlite:")
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from fallow.cli import main; main()"
    command = [sys.executable, "-c", code, "retention-plan", "--store", f"sqlite://{path}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [entry["record_id"] for entry in plan["entries"]] == [f"m{n}" for n in range(5)]
    assert plan["store"]["kind"] == "sqlite"


def test_a_scheme_that_nobody_registers_names_those_that_are(installed: Path) -> None:
    from fallow.model.errors import ProviderMissingError

    with pytest.raises(ProviderMissingError) as caught:
        open_provider("nosuch://x")
    assert "sqlite" in str(caught.value)
