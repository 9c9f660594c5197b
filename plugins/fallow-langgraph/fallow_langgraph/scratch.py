"""Scratch stores for the conformance kit: databases of their own on the same server, dropped afterwards.

The native side speaks SQL as LangGraph's store does; a record's fields are its value, its id the key.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Final

import psycopg
from fallow.model.errors import StoreUnwritableError
from fallow.model.keys import Row, is_unicode
from fallow.model.record import PRIMARY_TYPES, TYPE_ALIASES
from fallow.model.times import iso, to_microseconds
from fallow.port.protocol import Provider
from fallow.providers.conformance.kit import Fault, Gap, NotHeldError
from psycopg.conninfo import make_conninfo

from fallow_langgraph.kind import LANGGRAPH
from fallow_langgraph.mapping import Rule, StoreMapping
from fallow_langgraph.provider import LangGraphProvider

#: The kit's rows have ids of every form, so ids are keys here; every type lies in a namespace of its own name.
MAPPING: Final = StoreMapping(
    tuple(Rule(f"{name}.**", name, ids="key") for name in PRIMARY_TYPES), origin="the conformance kit"
)
TABLES: Final = """
create table store (
    prefix text not null, key text not null, value jsonb not null,
    created_at timestamptz default current_timestamp, updated_at timestamptz default current_timestamp,
    expires_at timestamptz, ttl_minutes int, primary key (prefix, key)
)
"""


class LangGraphStore:
    """A scratch database (:class:`~.kit.Store`, doubling, spoiling, copying)."""

    def __init__(self, server: str, name: str) -> None:
        self._server, self.name = server, name
        self.conninfo = make_conninfo(server, dbname=name)

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        return LangGraphProvider(self.conninfo, naive_timezone, mapping=MAPPING)

    @contextmanager
    def native(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            yield connection

    def seed(self, memory_type: str, rows: Sequence[Row]) -> None:
        if memory_type in TYPE_ALIASES:
            raise NotHeldError("a type's old name")
        with self.native() as connection:
            for row in rows:
                name = row["_id"]
                if not isinstance(name, str) or not is_unicode(name):
                    raise NotHeldError("an id that is no text of PostgreSQL's")
                value = {field: item for field, item in row.items() if field != "_id"}
                text = json.dumps(value, ensure_ascii=False, default=_plain)
                if memory_type in PRIMARY_TYPES:
                    connection.execute(
                        "insert into store (prefix, key, value, created_at, updated_at)"
                        " values (%s, %s, %s::jsonb, null, null)",
                        (memory_type, name, text),
                    )
                else:
                    self._make(connection)
                    connection.execute("insert into fallow_rows values (%s, %s, %s)", (memory_type, name, text))

    @staticmethod
    def _make(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        from fallow_langgraph.statements import TABLES as OWN

        connection.execute(OWN)

    def change(self, memory_type: str, record_id: str, fields: Mapping[str, Any]) -> None:
        text = json.dumps(dict(fields), ensure_ascii=False, default=_plain)
        with self.native() as connection:
            for table in self._tables(connection):
                done = connection.execute(
                    f"update {table} set value = value || %s::jsonb where prefix like %s and key = %s",
                    (text, f"{memory_type}%", record_id),
                )
                if done.rowcount:
                    return

    def remove(self, memory_type: str, record_id: str) -> None:
        with self.native() as connection:
            for table in self._tables(connection):
                connection.execute(
                    f"delete from {table} where prefix like %s and key = %s", (f"{memory_type}%", record_id)
                )

    @staticmethod
    def _tables(connection: psycopg.Connection[tuple[Any, ...]]) -> list[str]:
        found = connection.execute("select to_regclass('fallow_suppressed') is not null").fetchone()
        return ["store", "fallow_suppressed"] if found is not None and found[0] else ["store"]

    def double(self, memory_type: str, record_id: str) -> None:
        with self.native() as connection:
            connection.execute(
                'insert into store (prefix, key, value) values (%s, %s, \'{"content": "the other one"}\')',
                (f"{memory_type}.twin", record_id),
            )

    def spoil(self, memory_type: str, record_id: str) -> None:
        with self.native() as connection:
            connection.execute(
                "update store set value = '[\"what was sa\"]' where prefix = %s and key = %s", (memory_type, record_id)
            )

    def stored(self, memory_type: str) -> dict[str, dict[str, bytes]]:
        with self.native() as connection:
            own = len(self._tables(connection)) == 2
            if memory_type not in PRIMARY_TYPES:
                text = "select record_id, body, null from fallow_rows where memory_type = %s order by record_id"
                rows = connection.execute(text, (memory_type,)).fetchall() if own else []
            else:
                text = "select key, value::text, null from store s where prefix = %(type)s"
                if own:
                    text = (
                        "select s.key, s.value::text, f.fields::text from store s left join fallow_fields f"
                        " on f.prefix = s.prefix and f.key = s.key where s.prefix = %(type)s"
                        " union all select key, value::text, fields::text from fallow_suppressed"
                        " where prefix = %(type)s"
                    )
                rows = connection.execute(text, {"type": memory_type}).fetchall()
        found: dict[str, dict[str, bytes]] = {}
        for name, body, fields in sorted(rows):
            value = json.loads(body)
            held = {**value, **json.loads(fields or "{}")} if isinstance(value, dict) else {"": value}
            found[name] = {field: json.dumps(item).encode() for field, item in held.items()}
        return found

    @contextmanager
    def copy(self) -> Iterator[LangGraphStore]:
        name = f"{self.name}_copy"
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (self.name,)
            )
            connection.execute(f'create database "{name}" template "{self.name}"')
            try:
                yield LangGraphStore(self._server, name)
            finally:
                connection.execute(f'drop database if exists "{name}" with (force)')

    def fault(self, kind: Fault) -> AbstractContextManager[None]:
        raise NotHeldError(f"a scratch database is never {kind}")


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return iso(to_microseconds(value))
    raise NotHeldError(f"a value of type {type(value).__name__}")


class LangGraphBackend:
    """Scratch databases on the server that ``conninfo`` names (:class:`~.kit.Backend`)."""

    name = "langgraph"
    faults: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()
    made: type[LangGraphStore] = LangGraphStore

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    @property
    def gaps(self) -> Mapping[str, Gap]:
        return LANGGRAPH.gaps

    @contextmanager
    def store(self) -> Iterator[LangGraphStore]:
        name = f"fallow_scratch_{uuid.uuid4().hex[:12]}"
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            connection.execute(f'create database "{name}"')
        except psycopg.Error as error:
            raise StoreUnwritableError(
                f"no scratch database can be made: {(error.diag.message_primary or type(error).__name__)[:200]}",
                hint="the kit works in a database of its own beside the store's: the role needs CREATEDB",
            ) from None
        try:
            store = self.made(self._conninfo, name)
            with store.native() as inside:
                inside.execute(TABLES)
            yield store
        finally:
            connection.execute(f'drop database if exists "{name}" with (force)')
            connection.close()
