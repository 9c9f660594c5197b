"""An example of a provider: memories in one SQLite file (docs/providers.md walks through it).

A table ``records (memory_type, record_id, body)`` holds each record as JSON text. That is all a store
needs to be for fallow: something that lists records, gives them by id, and writes on condition.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from fallow.model.errors import StoreBusyError, StoreNotFoundError, StoreUnreadableError, StoreUnwritableError
from fallow.model.keys import MISSING, RecordKey, Row, canonical_id, is_unicode
from fallow.model.record import TYPE_ALIASES, frame_of, read_record
from fallow.model.times import zone
from fallow.port.kinds import StoreKind
from fallow.port.protocol import Batch, Capabilities, Outcome, Patch, Unreadable

BATCH = 1000
TABLES = """
create table if not exists store (identity text not null);
create table if not exists records (
    memory_type text not null, record_id text not null, body text not null, primary key (memory_type, record_id)
);
"""


class SQLiteProvider:
    """One open store (:class:`fallow.port.protocol.Provider`)."""

    capabilities = Capabilities(kind="sqlite", batch_size=BATCH)

    def __init__(self, path: Path, naive_timezone: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.naive_timezone = dict(naive_timezone or {})
        if not path.is_file():
            raise StoreNotFoundError(f"there is no store at {path}", hint="the agent that writes it makes the file")
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=5, check_same_thread=False)
        self._lock = RLock()  # fallow's steps may run in other threads than the one that opened the store

    @classmethod
    def from_uri(cls, uri: str, naive_timezone: Mapping[str, str]) -> Self:
        """What fallow calls for ``sqlite:///path/to/file``."""
        return cls(Path(unquote(urlsplit(uri).path)), naive_timezone)

    def identity(self) -> str:
        """A name given to the store when it was made, and the file it is in: a copy is another store."""
        with self._reading():
            (name,) = self._connection.execute("select identity from store").fetchone()
        file = self.path.stat()
        return f"sqlite:{name}:{file.st_dev:x}-{file.st_ino:x}"

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        """Everything of a type. ``read_record`` knows the fields, their spellings and what is a bad value."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        naive_zone = zone(self.naive_timezone.get(memory_type, "UTC"))
        after = ""
        while True:
            with self._reading():
                found = self._connection.execute(
                    "select record_id, body from records where memory_type = ? and record_id > ? "
                    "order by record_id limit ?",
                    (memory_type, after, BATCH),
                ).fetchall()
            records, embeddings, unreadable = [], [], []
            for record_id, body in found:
                row = decoded(body, record_id)
                if isinstance(row, str):
                    unreadable.append(Unreadable(RecordKey(memory_type, record_id), row))
                else:
                    records.append(read_record(row, memory_type, record_id, naive_zone))
                    embeddings.append(numbers(row.get("embedding")))
            yield Batch(frame_of(records, columns, embeddings), tuple(unreadable))
            if len(found) < BATCH:
                return
            after = found[-1][0]

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        """Whole rows by id."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        answer: dict[str, Row | Unreadable] = {}
        with self._reading():
            for record_id in dict.fromkeys(name for name in record_ids if is_unicode(name)):
                body = self._body(memory_type, record_id)
                if body is not None:
                    row = decoded(body, record_id)
                    key = RecordKey(memory_type, record_id)
                    answer[record_id] = Unreadable(key, row) if isinstance(row, str) else row
        return answer

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        """Rows by the beginning of their id, in order. ``substr`` and not ``like``: a prefix is no pattern."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        with self._reading():
            found = self._connection.execute(
                "select record_id, body from records where memory_type = ? and substr(record_id, 1, ?) = ? "
                "order by record_id",
                (memory_type, len(id_prefix), id_prefix),
            ).fetchall()
        for record_id, body in found:
            row = decoded(body, record_id)
            if not isinstance(row, str):
                yield row

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        """Check and write within one transaction, so that nobody can write between them."""
        return [self._patched(patch) for patch in patches]

    def _patched(self, patch: Patch) -> Outcome:
        memory_type, record_id = TYPE_ALIASES.get(patch.key.memory_type, patch.key.memory_type), patch.key.record_id
        if not is_unicode(record_id):
            return Outcome(patch.key, "failed", "the id is no text that can be stored")
        with self._writing():
            body = self._body(memory_type, record_id)
            if body is None:
                return Outcome(patch.key, "gone")
            row = decoded(body, record_id)
            if isinstance(row, str):
                return Outcome(patch.key, "failed", row)
            if not holds(row, patch.expected):
                return Outcome(patch.key, "changed")
            try:
                text = encoded({**row, **patch.changes})
            except ValueError as error:
                return Outcome(patch.key, "failed", str(error))
            self._connection.execute(
                "update records set body = ? where memory_type = ? and record_id = ?", (text, memory_type, record_id)
            )
        return Outcome(patch.key, "applied")

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        """New rows; an id that is taken keeps what it has."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        return [self._inserted(memory_type, row) for row in rows]

    def _inserted(self, memory_type: str, row: Row) -> Outcome:
        record_id = canonical_id(row.get("_id")) or ""
        key = RecordKey(memory_type, record_id)
        if not record_id or not is_unicode(record_id):
            return Outcome(key, "failed", "the row has no usable _id")
        try:
            text = encoded({**row, "_id": record_id})
        except ValueError as error:
            return Outcome(key, "failed", str(error))
        with self._writing():
            done = self._connection.execute(
                "insert into records values (?, ?, ?) on conflict do nothing", (memory_type, record_id, text)
            )
        return Outcome(key, "applied" if done.rowcount else "already")

    def close(self) -> None:
        """Lets go of the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _body(self, memory_type: str, record_id: str) -> str | None:
        found = self._connection.execute(
            "select body from records where memory_type = ? and record_id = ?", (memory_type, record_id)
        ).fetchone()
        return None if found is None else str(found[0])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise StoreBusyError(f"{self.path} is locked", hint="try again") from None
            raise StoreUnreadableError(f"{self.path} cannot be read: {error}", hint="is it a store?") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that holds the write lock from its beginning."""
        try:
            with self._lock:
                self._connection.execute("begin immediate")
                try:
                    yield
                except BaseException:
                    self._connection.execute("rollback")
                    raise
                self._connection.execute("commit")
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise StoreBusyError(f"{self.path} is locked", hint="try again") from None
            raise StoreUnwritableError(f"{self.path} cannot be written: {error}", hint="permissions, disk") from None


def make(path: Path) -> None:
    """A new, empty store: what an agent's own code would do once."""
    with sqlite3.connect(path) as connection:
        connection.executescript(TABLES)
        connection.execute("insert into store values (?)", (uuid4().hex,))
    connection.close()


def decoded(body: str, record_id: str) -> Row | str:
    """A row, or in words why it is none."""
    try:
        row = json.loads(body)
    except ValueError:
        return "torn or malformed JSON"
    if not isinstance(row, dict):
        return "the row's root is no object"
    if row.get("_id") is not None and canonical_id(row["_id"]) != record_id:
        return "the row's _id contradicts its key"
    return row


def encoded(row: Mapping[str, Any]) -> str:
    """A row as JSON text.

    Raises:
        ValueError: it holds what JSON cannot say.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, UnicodeEncodeError):
        raise ValueError("a value that JSON cannot say") from None
    return text


def holds(row: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether every named field is still what it was. As JSON text, since for Python True equals 1."""
    return all(
        name not in row if value is MISSING else name in row and same(row[name], value)
        for name, value in expected.items()
    )


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values: true is not 1, but 1 is 1.0."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return bool(left == right) or (left != left and right != right)


def numbers(value: Any) -> list[float] | None:
    """An embedding, or None where there is none."""
    if not isinstance(value, list) or not value:
        return None
    return value if all(isinstance(item, int | float) and not isinstance(item, bool) for item in value) else None


#: What pyproject.toml names under the entry points ``fallow.providers``: all that fallow asks of this kind of store.
SQLITE = StoreKind(
    name="sqlite",
    schemes=("sqlite",),
    open=SQLiteProvider.from_uri,
    capabilities=SQLiteProvider.capabilities,
    address="sqlite:///path/to/memories.sqlite3",
    docs="An example: one SQLite file.",
)
