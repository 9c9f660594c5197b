"""Connections to the store's database, their errors in fallow's words, and whether it is a store at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
from fallow.model.errors import (
    FallowError,
    StoreBusyError,
    StoreNotFoundError,
    StoreUnreadableError,
    StoreUnwritableError,
    UsageError,
)

from fallow_langgraph import statements as sql

SCHEME: Final = "langgraph+postgresql"
#: Waited for: nothing is wrong with the store, somebody holds it or it is not up (SQLSTATE classes and codes).
_BUSY: Final = ("08", "40", "53", "55", "57")
_DENIED: Final = ("42501", "25006", "28000", "28P01")
#: How long a statement of an operator's own reading may take, in seconds, before the store counts as busy.
PATIENCE: Final = 120.0


def address(uri: str) -> str:
    """The address that PostgreSQL's own client library reads.

    Raises:
        UsageError: it is none.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() != SCHEME or not parts.path.strip("/"):
        raise UsageError("the store's address names no database", hint=f"{SCHEME}://user@host:5432/database")
    said = urlunsplit(("postgresql", parts.netloc, parts.path, parts.query, ""))
    try:
        psycopg.conninfo.conninfo_to_dict(said)
    except psycopg.ProgrammingError:
        raise UsageError("the store's address cannot be read", hint=f"{SCHEME}://user@host:5432/database") from None
    return said


def connect(conninfo: str, patience: float = PATIENCE) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection in autocommit, its times in UTC, its waiting bounded. Raises as :func:`errors`."""
    milliseconds = int(patience * 1000)
    with errors("read"):
        connection = psycopg.connect(
            conninfo, autocommit=True, connect_timeout=max(2, int(min(patience, 10))), application_name="fallow"
        )
        try:
            connection.execute(
                "select set_config('timezone', 'UTC', false), set_config('statement_timeout', %s, false),"
                " set_config('lock_timeout', %s, false), set_config('client_encoding', 'UTF8', false)",
                (str(milliseconds), str(min(milliseconds, 10_000))),
            )
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def errors(what: str) -> Iterator[None]:
    """psycopg's errors as fallow's: ``what`` is ``read`` or ``write``. No password, no value in them."""
    try:
        yield
    except psycopg.Error as error:
        raise _said(error, what) from None


def _said(error: psycopg.Error, what: str) -> FallowError:
    state = error.sqlstate or ""
    if state in _DENIED:
        if what == "write":
            return StoreUnwritableError(
                f"PostgreSQL does not let this role write: {_line(error)}",
                hint="the role needs INSERT, UPDATE and DELETE on store and store_vectors, and CREATE on their schema",
            )
        return StoreUnreadableError(
            f"PostgreSQL does not let this role in: {_line(error)}", hint="name a role that may SELECT from store"
        )
    if not state or state.startswith(_BUSY) or isinstance(error, psycopg.OperationalError):
        said = "PostgreSQL does not answer" if not state else f"PostgreSQL is busy: {_line(error)}"
        return StoreBusyError(said, hint="is the server up and reachable? try again")
    if what == "write":
        return StoreUnwritableError(f"PostgreSQL refuses the write: {_line(error)}", hint="permissions, disk, schema")
    return StoreUnreadableError(f"PostgreSQL cannot read the store: {_line(error)}", hint="is it LangGraph's store?")


def _line(error: psycopg.Error) -> str:
    """The server's first words: never its detail, which quotes rows."""
    primary = error.diag.message_primary
    return (primary or type(error).__name__)[:200]


def check(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """That this is LangGraph's store, of a version that is known here.

    Raises:
        StoreNotFoundError: there is no table ``store``.
        StoreUnreadableError: it has other columns, another key, or migrations of a version that is not known here.
    """
    with errors("read"):
        found = dict(connection.execute(sql.COLUMNS, ("store",)).fetchall())
        if not found:
            raise StoreNotFoundError(
                "there is no table store in this database's search path",
                hint="PostgresStore(...).setup() makes it; ?options=-csearch_path%3DNAME names another schema",
            )
        other = [f"{name} {kind}" for name, kind in sql.STORE_COLUMNS.items() if found.get(name) != kind]
        if other:
            raise StoreUnreadableError(
                f"the table store is of another schema version: no column {', no column '.join(other)}",
                hint="run LangGraph's own PostgresStore.setup() with langgraph-checkpoint-postgres 3",
            )
        key = connection.execute(sql.PRIMARY_KEY).fetchone()
        if key is None or sorted(key[0] or ()) != ["key", "prefix"]:
            raise StoreUnreadableError("the table store has another primary key", hint="prefix and key are wanted")
        _check_versions(connection)


def _check_versions(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    for table, known in (("store_migrations", sql.STORE_VERSION), ("vector_migrations", sql.VECTOR_VERSION)):
        if not connection.execute(sql.COLUMNS, (table,)).fetchall():
            continue
        row = connection.execute(f"select max(v) from {table}").fetchone()
        version = row[0] if row is not None else None
        if version is not None and version > known:
            raise StoreUnreadableError(
                f"{table} is at version {version}, and {known} is the latest known here",
                hint="a newer fallow-langgraph is wanted; nothing was written",
            )
    vectors = dict(connection.execute(sql.COLUMNS, ("store_vectors",)).fetchall())
    other = [name for name in sql.VECTOR_COLUMNS if vectors and name not in vectors]
    other += [name for name in vectors if name not in sql.VECTOR_COLUMNS]
    if other:
        raise StoreUnreadableError(
            f"the table store_vectors is of another schema version: {', '.join(other)}", hint="nothing was written"
        )
