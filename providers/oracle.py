"""The Oracle store: one table a memory type, one row a record (STORES.md, Oracle; DESIGN §3 and §5).

Thin python-oracledb, no Oracle client. Reading asks for the columns that a decision rests on and takes them
as Arrow. A write is an UPDATE whose WHERE clause holds the columns it was decided on; ``arraydmlrowcounts``
says which of them landed. A field without a column lives in ``retention_meta``, merged, never overwritten.

A NULL is an absent field here: Oracle keeps neither JSON's null nor an empty text in a column.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, NoReturn, Self
from urllib.parse import parse_qs, unquote, urlsplit

import oracledb
from fallow.providers import oracle_statements as sql
from fallow.providers.kinds import ORACLE

from fallow.model.errors import (
    FallowError,
    SettingError,
    StoreBusyError,
    StoreNotFoundError,
    StoreUnreadableError,
    StoreUnwritableError,
    UsageError,
)
from fallow.model.keys import MISSING, RecordKey, Row, is_unicode
from fallow.model.record import DECISION_FIELDS, PRIMARY_TYPES, TYPE_ALIASES, Record, frame_of, read_record
from fallow.model.times import from_microseconds, iso, parse_time, to_microseconds, zone
from fallow.model.values import holds
from fallow.port.protocol import Batch, Capabilities, Outcome, Patch, Unreadable

BATCH_ROWS: Final = 20_000
#: Milliseconds after which a call that nobody answers, or that waits for a lock, is given up.
CALL_TIMEOUT_MS: Final = 60_000
_CONNECT_SECONDS: Final = 10
_TRIES: Final = 32
_IN_LIST: Final = 500
_MAX_ID_BYTES: Final = 255
#: JSON_MERGEPATCH came with 19c.
_OLDEST: Final = 19
#: Ids beside the RAW key, by type; types that are not here go by the RAW key as UUID text.
LOGICAL_IDS: Final[Mapping[str, str]] = {
    "summaries": "summary_id",
    "semantic_cache": "cache_key",
    "shared_memory": "memory_id",
}
#: Ids of the agents' own that stand beside the RAW key, which is what they name such a record by.
_ALSO_NAMED: Final[Mapping[str, str]] = {"entity_memory": "entity_id", "workflow_memory": "workflow_id"}
#: CLOB columns that hold JSON.
_JSON: Final = frozenset(
    {"metadata", "attributes", "relations", "steps", "outcome", "source_message_ids", "linked_source_ids"}
)
#: Where a type keeps fields that have no column.
_OVERFLOW: Final[Mapping[str, str]] = {
    **dict.fromkeys(PRIMARY_TYPES, "retention_meta"),
    "semantic_cache": "metadata",
    "shared_memory": "content",
}
#: Fields of a control row that agents read from inside its content.
_CONTROL: Final = ("record_type", "agent_id", "trace_memory_id", "thread_id", "user_id", "timestamp")
_CREATION: Final = frozenset({"timestamp", "created_at"})
_TEXT: Final = frozenset(
    {"content", "name", "description", "attributes", "relations", "steps", "outcome", "user_query", "query_text"}
)
_NAMESPACE: Final = uuid.UUID("b3f2c2f0-57c5-5a0f-9d0c-3c1a0e9c7d21")
_TYPE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}\Z", re.ASCII)
_DENIED: Final = frozenset({1017, 1031, 1045, 1950, 28000, 28001, 41900})
_READ_ONLY: Final = frozenset({1031, 1456, 1950, 16000, 41900})
_BUSY: Final = frozenset(
    {51, 54, 60, 1013, 1033, 1034, 1089, 1109, 2049, 3113, 3114, 3135, 3136, 12153, 12170, 12514, 12516, 12520}
    | {12528, 12537, 12541, 12547, 18, 20, 28547}
)
_PASSWORD: Final = "FALLOW_ORACLE_PASSWORD"  # noqa: S105


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as the data dictionary describes it: its qualified name, and data types by lower-case column."""

    memory_type: str
    name: str
    columns: Mapping[str, str]

    @property
    def logical(self) -> str:
        name = LOGICAL_IDS.get(self.memory_type, "")
        return name if name in self.columns else ""

    @property
    def overflow(self) -> str:
        name = _OVERFLOW.get(self.memory_type, "")
        return name if name in self.columns else ""

    def is_json(self, column: str) -> bool:
        return column in _JSON or column == self.overflow


class OracleProvider:
    """One schema (:class:`fallow.port.protocol.Provider`, ``Touching``, ``CachePurging`` and ``Diagnosing``).

    Args:
        pool: what gives connections (``oracledb.create_pool``'s, or a thing of its shape).
        schema: the owner of the agents' tables; empty: the user's own.
        naive_timezone: IANA zone by memory type for naive creation times.
        prefix: what the tables' names begin with; scratch stores have one.

    Raises:
        StoreNotFoundError: no table of the schema is a memory type.
        StoreUnreadableError: the server does not let us read, or is too old.
        StoreBusyError: no server answers.
        SettingError: a zone name is unknown.
    """

    def __init__(
        self, pool: Any, schema: str = "", naive_timezone: Mapping[str, str] | None = None, *, prefix: str = ""
    ) -> None:
        self._pool = pool
        self._prefix = prefix
        self._naive_timezone = dict(naive_timezone or {})
        self._zones = {name: zone(value) for name, value in self._naive_timezone.items()}
        with _reading("the schema"), self._connection() as connection:
            self._version = str(connection.version)
            major = int(re.match(r"\d*", self._version).group() or 0)  # type: ignore[union-attr]
            if major < _OLDEST:
                raise StoreUnreadableError(
                    f"the server's version is {self._version}: too old",
                    hint=f"version {_OLDEST} is the oldest whose JSON functions merge",
                )
            [where] = self._read(connection, sql.DATABASE, {})
            self._schema = (schema or str(where["schema_name"])).upper()
            self._database = f"{where['db_name']}/{where['con_name']}"
            described: dict[str, dict[str, str]] = {}
            for row in self._read(connection, sql.COLUMNS, {"owner": self._schema}):
                described.setdefault(str(row["table_name"]).lower(), {})[str(row["column_name"]).lower()] = str(
                    row["data_type"]
                ).upper()
            self._described = described
            if not any(prefix.lower() + name in described for name in (*sql.TABLES, *TYPE_ALIASES)):
                raise StoreNotFoundError(
                    f"the schema {self._schema} holds no store: none of its tables is a memory type",
                    hint="name the agents' schema as oracle://user@host/service?schema=NAME, and grant the user SELECT",
                )
            self._identity = self._identify(connection)

    @classmethod
    def from_uri(cls, uri: str, naive_timezone: Mapping[str, str]) -> Self:
        """The store at ``oracle://user@host:port/service?schema=S``; the password from FALLOW_ORACLE_PASSWORD.

        ``protocol=tcps`` among the options asks for TLS; ``wallet=FOLDER`` names a wallet's folder.

        Raises:
            UsageError: the address is no Oracle address.
            SettingError: no password is given.
        """
        pool, schema = connect(uri)
        try:
            return cls(pool, schema, naive_timezone)
        except BaseException:
            pool.close(force=True)
            raise

    @property
    def capabilities(self) -> Capabilities:
        return ORACLE.capabilities

    @property
    def naive_timezone(self) -> Mapping[str, str]:
        return self._naive_timezone

    @property
    def schema(self) -> str:
        """The owner of the tables."""
        return self._schema

    def _identify(self, connection: Any) -> str:
        first = next(name for name in (*sql.TABLES, *TYPE_ALIASES) if self._prefix.lower() + name in self._described)
        binds = {"owner": self._schema, "table_name": (self._prefix + first).upper()}
        mark = self._read(connection, sql.CREATED, binds)
        made = f"{mark[0]['object_id']}/{mark[0]['created']}" if mark else ""
        text = "\0".join((self._database, self._schema, self._prefix, made))
        return "oracle:" + sha256(text.encode()).hexdigest()[:24]

    def identity(self) -> str:
        """A hash over the database's unique name, the schema and when its first table was made."""
        return self._identity

    def close(self) -> None:
        """Lets go of connections."""
        with contextlib.suppress(oracledb.Error):
            self._pool.close(force=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Connections

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        connection = self._pool.acquire()
        try:
            connection.call_timeout = CALL_TIMEOUT_MS
            yield connection
        finally:
            with contextlib.suppress(oracledb.Error):
                connection.rollback()
            with contextlib.suppress(oracledb.Error):
                self._pool.release(connection)

    @staticmethod
    def _batches(connection: Any, statement: str, binds: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
        import polars as pl

        for batch in connection.fetch_df_batches(statement, dict(binds), size=BATCH_ROWS):
            frame = pl.DataFrame(batch)
            yield frame.rename(str.lower).rows(named=True)

    def _read(self, connection: Any, statement: str, binds: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [row for rows in self._batches(connection, statement, binds) for row in rows]

    # Reading

    def _tables(self, memory_type: str) -> list[_Table]:
        """The tables that hold a type: under its own name, and under older ones where they are there."""
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        if not _TYPE_NAME.match(canonical):
            return []
        names = (canonical, *(old for old, name in TYPE_ALIASES.items() if name == canonical))
        return [
            _Table(canonical, sql.table(self._schema, self._prefix + name), self._described[known])
            for name in names
            if (known := (self._prefix + name).lower()) in self._described and "id" in self._described[known]
        ]

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        naive_zone = self._zones.get(canonical, UTC)
        tables = self._tables(canonical)
        with _reading(f"the table of {canonical}"), self._connection() as connection:
            doubled = self._doubled(connection, tables)
            first = tuple(Unreadable(RecordKey(canonical, name), "duplicate id") for name in sorted(doubled))
            if first:
                yield Batch(frame_of([], columns), first)
            for table in tables:
                asked = _asked(table, columns)
                for rows in self._batches(connection, sql.select(table.name, asked, order="id"), {}):
                    records: list[Record] = []
                    vectors: list[Any] = []
                    bad: list[Unreadable] = []
                    for stored in rows:
                        row = _decoded(table, stored)
                        if row["_id"] in doubled:
                            continue
                        if fault := _torn(table, stored):
                            bad.append(Unreadable(RecordKey(canonical, row["_id"]), fault))
                            continue
                        records.append(read_record(row, canonical, row["_id"], naive_zone))
                        if "embedding" in columns:
                            vectors.append(row.get("embedding"))
                    yield Batch(frame_of(records, columns, vectors), tuple(bad))

    def _doubled(self, connection: Any, tables: Sequence[_Table]) -> set[str]:
        """Ids that several rows answer to: one logical id twice, or one id in a table and in its older one."""
        doubled: set[str] = set()
        for table in tables:
            if table.logical:
                found = self._read(connection, sql.doubled(table.name, table.logical), {})
                doubled |= {str(row[table.logical]) for row in found}
        if len(tables) > 1:
            seen: set[str] = set()
            for table in tables:
                for stored in self._read(connection, sql.select(table.name, _keys(table)), {}):
                    name = _record_id(table, stored)
                    (doubled if name in seen else seen).add(name)
        return doubled

    def _stored(
        self, connection: Any, canonical: str, record_ids: Iterable[str], columns: Iterable[str] | None = None
    ) -> dict[str, list[tuple[_Table, dict[str, Any]]]]:
        """Rows as they are stored, by record id, with the table that holds each."""
        wanted = [name for name in dict.fromkeys(record_ids) if _is_record_id(name)]
        found: dict[str, list[tuple[_Table, dict[str, Any]]]] = {}
        named = None if columns is None else set(columns)
        for table in self._tables(canonical) if wanted else ():
            kept = [name for name in table.columns if named is None or name in named]
            asked = list(dict.fromkeys([*_keys(table), *kept]))
            raw = {name: value for name in wanted if (value := _raw(name)) is not None}
            ways: list[tuple[str, str, list[Any]]] = []
            if table.logical:
                ways.append((table.logical, "", list(wanted)))
                ways.append(("id", f" AND {table.logical} IS NULL", list(raw.values())))
            else:
                ways.append(("id", "", list(raw.values())))
            for column, also, values in ways:
                for start in range(0, len(values), _IN_LIST):
                    part = values[start : start + _IN_LIST]
                    # Few lengths of the list, so that the server parses few statements.
                    size = next(n for n in (1, 10, 100, _IN_LIST) if n >= len(part))
                    binds = {f"k{n}": part[min(n, len(part) - 1)] for n in range(size)}
                    where = sql.among(column, size) + also
                    for stored in self._read(connection, sql.select(table.name, asked, where=where), binds):
                        found.setdefault(_record_id(table, stored), []).append((table, stored))
        return found

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        if canonical == "agents":
            wanted = set(record_ids)
            return {str(row["_id"]): row for row in self.find("agents") if row["_id"] in wanted}
        answer: dict[str, Row | Unreadable] = {}
        with _reading(f"the table of {canonical}"), self._connection() as connection:
            for name, rows in self._stored(connection, canonical, record_ids).items():
                key = RecordKey(canonical, name)
                table, stored = rows[0]
                if len(rows) > 1:
                    answer[name] = Unreadable(key, "duplicate id")
                elif fault := _torn(table, stored):
                    answer[name] = Unreadable(key, fault)
                else:
                    answer[name] = _decoded(table, stored)
        return answer

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        if canonical == "agents":
            yield from self._agents(id_prefix)
            return
        tables = self._tables(canonical)
        with _reading(f"the table of {canonical}"), self._connection() as connection:
            doubled = self._doubled(connection, tables)
            for table in tables:
                narrow = bool(id_prefix and table.logical)
                pattern = re.sub(r"([!%_])", r"!\1", id_prefix) + "%"
                statement = sql.select(
                    table.name,
                    [name for name in table.columns if name != "embedding"],
                    where=sql.starts_with(table.logical) if narrow else "",
                    order=table.logical or "id",
                )
                for rows in self._batches(connection, statement, {"starting": pattern} if narrow else {}):
                    for stored in rows:
                        row = _decoded(table, stored)
                        name = str(row["_id"])
                        if name.startswith(id_prefix) and name not in doubled and not _torn(table, stored):
                            yield row

    def _agents(self, id_prefix: str) -> Iterator[Row]:
        """Agents with the settings that stand in a table of their own (STORES.md)."""
        names = {name: (self._prefix + name).lower() for name in ("agents", "agent_llm_configs")}
        if names["agents"] not in self._described:
            return
        beside = names["agent_llm_configs"] in self._described
        with _reading("the table of agents"), self._connection() as connection:
            configs = sql.table(self._schema, names["agent_llm_configs"]) if beside else ""
            statement = sql.agents(sql.table(self._schema, names["agents"]), configs)
            for row in self._read(connection, statement, {}):
                name = row["agent_id"]
                if isinstance(name, str) and name.startswith(id_prefix):
                    config = _json(row.get("additional_config"))
                    yield {**(config if isinstance(config, dict) else {}), "_id": name, "agent_id": name}

    # Writing

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waves: list[dict[RecordKey, int]] = []
        for index, item in enumerate(patches):
            key = RecordKey(TYPE_ALIASES.get(item.key.memory_type, item.key.memory_type), item.key.record_id)
            # Two patches of one record in one call are two writes, the second on what the first left.
            wave = next((one for one in waves if key not in one), None)
            if wave is None:
                waves.append(wave := {})
            wave[key] = index
        for wave in waves:
            by_type: dict[str, dict[int, Patch]] = {}
            for key, index in wave.items():
                by_type.setdefault(key.memory_type, {})[index] = patches[index]
            for canonical, items in by_type.items():
                places = list(items)
                for start in range(0, len(places), self.capabilities.batch_size):
                    part = {index: items[index] for index in places[start : start + self.capabilities.batch_size]}
                    self._patch_type(canonical, part, outcomes)
        return [outcomes[index] for index in range(len(patches))]

    def _patch_type(self, canonical: str, items: dict[int, Patch], outcomes: dict[int, Outcome]) -> None:
        """Reads, compares, and writes on what was read, until each patch is written, refused or contested."""
        left = dict(items)
        for _ in range(_TRIES):
            if not left:
                return
            with _reading(f"the table of {canonical}"), self._connection() as connection:
                tables = self._tables(canonical)
                named = {name for item in left.values() for name in (*item.expected, *item.changes)}
                named |= {table.overflow for table in tables}
                there = self._stored(connection, canonical, [item.key.record_id for item in left.values()], named)
            groups: dict[str, list[tuple[int, dict[str, Any], dict[str, Any]]]] = {}
            for index, item in list(left.items()):
                rows = there.get(item.key.record_id, [])
                if not rows:
                    outcomes[index] = Outcome(item.key, "gone")
                    del left[index]
                elif len(rows) > 1:
                    outcomes[index] = Outcome(item.key, "failed", "duplicate id: two rows answer to it")
                    del left[index]
                elif not holds(_decoded(*rows[0]), _absent(item.expected)):
                    outcomes[index] = Outcome(item.key, "changed")
                    del left[index]
                else:
                    table, stored = rows[0]
                    try:
                        statement, binds, sizes = self._update(table, stored, item)
                    except ValueError as error:
                        outcomes[index] = Outcome(item.key, "failed", str(error))
                        del left[index]
                        continue
                    groups.setdefault(statement, []).append((index, binds, sizes))
            for statement, entries in groups.items():
                self._execute(statement, entries, left, outcomes)
        for index, item in left.items():
            outcomes[index] = Outcome(item.key, "failed", "kept changing while it was written")

    def _execute(
        self,
        statement: str,
        entries: list[tuple[int, dict[str, Any], dict[str, Any]]],
        left: dict[int, Patch],
        outcomes: dict[int, Outcome],
    ) -> None:
        """One statement over many rows, one commit; rows that it did not match stay ``left`` to be read again."""
        # One order for everybody: two processes that write the same rows wait for each other and never deadlock.
        entries = sorted(entries, key=lambda entry: bytes(entry[1]["id"]))
        counts, refused, lost = self._many(statement, [binds for _, binds, _ in entries], entries[0][2])
        for place, (index, _, _) in enumerate(entries):
            key = left[index].key
            if lost:
                outcomes[index] = Outcome(key, "unknown")
            elif place in refused:
                outcomes[index] = Outcome(key, "failed", _reason(refused[place]))
            elif counts[place]:
                outcomes[index] = Outcome(key, "applied")
            else:
                continue
            del left[index]

    def _many(
        self, statement: str, binds: list[dict[str, Any]], sizes: Mapping[str, Any]
    ) -> tuple[list[int], dict[int, Any], bool]:
        """Rows changed by place, errors by place, and whether the answer was lost on the way."""
        sent = False
        try:
            with self._connection() as connection:
                cursor = connection.cursor()
                cursor.setinputsizes(**sizes)
                sent = True
                cursor.executemany(statement, binds, batcherrors=True, arraydmlrowcounts=True)
                counts = list(cursor.getarraydmlrowcounts())
                refused = {int(error.offset): error for error in cursor.getbatcherrors()}
                connection.commit()
        except oracledb.Error as error:
            if sent and _lost(error):
                return [], {}, True
            _raise_unwritable(error)
        if any(getattr(error, "code", 0) in _READ_ONLY for error in refused.values()):
            _raise_unwritable(oracledb.DatabaseError(next(iter(refused.values()))))
        if len(counts) != len(binds):
            # The driver counts no row that was refused at the end.
            counts += [0] * (len(binds) - len(counts))
        return counts, refused, False

    def _update(
        self, table: _Table, stored: Mapping[str, Any], item: Patch
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """The statement of a patch, its binds and their types.

        Raises:
            ValueError: a value or field that the table cannot hold; the message is an outcome's detail.
        """
        sets: dict[str, Any] = {}
        merge: dict[str, Any] = {}
        conditions = {name for name in item.expected if name in table.columns and name not in {"id", "embedding"}}
        if any(name not in table.columns for name in item.expected) and table.overflow:
            conditions.add(table.overflow)
        for name, value in item.changes.items():
            _check_field(name, value)
            if name in {"_id", "id", "embedding", "retention_meta", table.logical}:
                raise ValueError(f"the field {name} is not to be changed")
            if name in table.columns:
                sets[name] = _bound(table, name, value, self._zones.get(table.memory_type, UTC))
            elif not table.overflow:
                raise ValueError(f"the table has no place for {name[:40]}: see fallow doctor for the DDL it needs")
            else:
                merge[name] = value
        if merge and (table.overflow in sets or any(v is None or isinstance(v, dict) for v in merge.values())):
            # JSON_MERGEPATCH would drop a null and mix two objects: the whole of it is written, on what was read.
            base = item.changes.get(table.overflow) if table.overflow in sets else stored.get(table.overflow)
            held = _json(base)
            sets[table.overflow] = _dumped({**(held if isinstance(held, dict) else {}), **merge})
            conditions.add(table.overflow)
            merge = {}
        kinds = {name: _comparison(table, name, stored.get(name)) for name in sorted(conditions)}
        merged = table.overflow if merge else ""
        if merged and stored.get(merged) and not isinstance(_json(stored[merged]), dict):
            raise ValueError(f"{merged} holds no JSON object")
        binds: dict[str, Any] = {"id": stored["id"]}
        sizes: dict[str, Any] = {"id": 16}
        for place, (name, value) in enumerate(sets.items()):
            binds[f"s{place}"], sizes[f"s{place}"] = value, _db_type(table, name)
        for place, (name, kind) in enumerate(kinds.items()):
            if kind in {"value", "clob"}:
                binds[f"c{place}"], sizes[f"c{place}"] = stored[name], _db_type(table, name)
        if merge:
            binds["merged"], sizes["merged"] = _dumped(merge), oracledb.DB_TYPE_CLOB
        return sql.update(table.name, list(sets), merged, kinds), binds, _sized(binds, sizes)

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        outcomes: dict[int, Outcome] = {}
        todo: dict[int, tuple[str, dict[str, Any]]] = {}
        taken: set[str] = set()
        table = next(iter(self._tables(canonical)), None)
        for index, row in enumerate(rows):
            name = row.get("_id")
            key = RecordKey(canonical, name if isinstance(name, str) else "")
            if table is None:
                outcomes[index] = Outcome(key, "failed", f"the schema has no table for {canonical[:40]}")
            elif not _is_record_id(key.record_id) or (not table.logical and _raw(key.record_id) is None):
                form = "text of at most 255 bytes" if table.logical else "UUID text"
                outcomes[index] = Outcome(key, "failed", f"invalid record id: the table's ids are {form}")
            elif key.record_id in taken:
                outcomes[index] = Outcome(key, "already")
            else:
                try:
                    todo[index] = (key.record_id, self._values(table, key.record_id, row))
                    taken.add(key.record_id)
                except ValueError as error:
                    outcomes[index] = Outcome(key, "failed", str(error))
        if todo and table is not None:
            with _reading(f"the table of {canonical}"), self._connection() as connection:
                there = self._stored(connection, canonical, [name for name, _ in todo.values()], ())
            groups: dict[tuple[str, ...], list[int]] = {}
            for index, (name, values) in todo.items():
                if name in there:
                    outcomes[index] = Outcome(RecordKey(canonical, name), "already")
                else:
                    groups.setdefault(tuple(values), []).append(index)
            for columns, indexes in groups.items():
                for start in range(0, len(indexes), self.capabilities.batch_size):
                    self._insert(table, columns, indexes[start : start + self.capabilities.batch_size], todo, outcomes)
        return [outcomes[index] for index in range(len(rows))]

    def _insert(
        self,
        table: _Table,
        columns: tuple[str, ...],
        indexes: list[int],
        todo: Mapping[int, tuple[str, dict[str, Any]]],
        outcomes: dict[int, Outcome],
    ) -> None:
        binds = [{f"s{place}": todo[index][1][name] for place, name in enumerate(columns)} for index in indexes]
        sizes = {f"s{place}": _db_type(table, name) for place, name in enumerate(columns)}
        counts, refused, lost = self._many(sql.insert(table.name, columns), binds, sizes)
        for place, index in enumerate(indexes):
            key = RecordKey(table.memory_type, todo[index][0])
            if lost:
                outcomes[index] = Outcome(key, "unknown")
            elif place in refused:
                doubled = getattr(refused[place], "code", 0) == 1
                outcomes[index] = (
                    Outcome(key, "already") if doubled else Outcome(key, "failed", _reason(refused[place]))
                )
            else:
                outcomes[index] = Outcome(key, "applied" if counts[place] else "unknown")

    def _values(self, table: _Table, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row's columns; its RAW key follows from its id, so that two writers of one id meet at the key."""
        naive = self._zones.get(table.memory_type, UTC)
        values: dict[str, Any] = {"id": _raw(name) or uuid.uuid5(_NAMESPACE, f"{table.memory_type}\0{name}").bytes}
        if table.logical:
            values[table.logical] = name
        also = _ALSO_NAMED.get(table.memory_type, "")
        if also in table.columns and not row.get(also):
            values[also] = name
        beside: dict[str, Any] = {}
        for field, value in row.items():
            _check_field(field, value)
            if field in {"_id", "id", table.logical} or value is None:
                continue
            if field == "embedding" and field in table.columns:
                if not isinstance(value, list) or not all(isinstance(one, int | float) for one in value):
                    raise ValueError("the embedding is no list of numbers")
                values[field] = array.array("f", value)
            elif field in table.columns and field != "retention_meta":
                values[field] = _bound(table, field, value, naive)
            elif field not in {"embedding", "memory_type"}:
                beside[field] = value
        if table.memory_type == "shared_memory":
            # What agents look for beside the text, they look for in it.
            content = _json(row.get("content"))
            if isinstance(content, dict) and (lacking := {n: v for n, v in beside.items() if n not in content}):
                values["content"] = _dumped({**content, **lacking}, sort=True)
        elif beside:
            if not table.overflow:
                raise ValueError(f"the table has no place for {next(iter(beside))[:40]}: see fallow doctor")
            held = _json(values.get(table.overflow))
            values[table.overflow] = _dumped({**(held if isinstance(held, dict) else {}), **beside})
        if "created_at" in table.columns and table.memory_type == "shared_memory" and "created_at" not in values:
            moment = parse_time(row.get("timestamp"))
            if moment is not None:
                values["created_at"] = from_microseconds(moment).replace(tzinfo=None)
        return values

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        fields = ("access_count", "recall_count", "hit_count", "last_accessed_at", "last_accessed", "last_recalled_at")
        outcomes: list[Outcome] = []
        for record_id in record_ids:
            key = RecordKey(canonical, record_id)
            outcome = Outcome(key, "failed", "kept changing while it was touched")
            for _ in range(_TRIES):
                row = self.fetch(canonical, [record_id]).get(record_id)
                if row is None or isinstance(row, Unreadable):
                    outcome = Outcome(key, "gone") if row is None else Outcome(key, "failed", row.reason)
                    break
                record = read_record(row, canonical, record_id)
                if record.retention_state == "suppressed":
                    outcome = Outcome(key, "changed", "suppressed")
                    break
                latest = now if record.last_accessed_at is None else max(now, record.last_accessed_at)
                expected = {name: row.get(name, MISSING) for name in (*fields, "retention_state")}
                changes = {"access_count": record.access_count + 1, "last_accessed_at": iso(latest)}
                [outcome] = self.patch([Patch(key, expected, changes)])
                if outcome.status != "changed":
                    break
            outcomes.append(outcome)
        return outcomes

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        canonical = "semantic_cache"
        if not expected:
            return []
        with _reading("the table of semantic_cache"), self._connection() as connection:
            there = self._stored(connection, canonical, expected)
        outcomes: list[Outcome] = []
        for name, fields in expected.items():
            key = RecordKey(canonical, name)
            rows = there.get(name, [])
            if len(rows) != 1:
                outcomes.append(Outcome(key, "failed", "duplicate id") if rows else Outcome(key, "gone"))
                continue
            table, stored = rows[0]
            if not holds(_decoded(table, stored), _absent(fields)):
                outcomes.append(Outcome(key, "changed"))
                continue
            conditions = {
                column: _comparison(table, column, stored[column])
                for column in sorted({n if n in table.columns else table.overflow for n in fields} - {"", "embedding"})
            }
            binds: dict[str, Any] = {"id": stored["id"]}
            sizes: dict[str, Any] = {"id": 16}
            for place, (column, kind) in enumerate(conditions.items()):
                if kind in {"value", "clob"}:
                    binds[f"c{place}"], sizes[f"c{place}"] = stored[column], _db_type(table, column)
            counts, refused, lost = self._many(sql.delete(table.name, conditions), [binds], _sized(binds, sizes))
            if lost:
                outcomes.append(Outcome(key, "unknown"))
            elif refused:
                outcomes.append(Outcome(key, "failed", _reason(refused[0])))
            elif counts[0]:
                outcomes.append(Outcome(key, "applied"))
            else:
                outcomes.append(Outcome(key, "changed" if name in self.fetch(canonical, [name]) else "gone"))
        return outcomes

    # Diagnosis

    def diagnose(self) -> list[tuple[str, str, str]]:
        checks = [("server", "ok", f"Oracle {self._version}, schema {self._schema}")]
        with _reading("the clock"), self._connection() as connection:
            [row] = self._read(connection, sql.CLOCK, {})
        checks.append(("server clock", "info", f"{row['utc_now']} UTC"))
        for name in (*PRIMARY_TYPES, "shared_memory", "agents"):
            if (self._prefix + name).lower() not in self._described and not self._tables(name):
                checks.append(("table", "warning", f"{name}: no such table, or this user may not see it"))
        for statement in self.missing_columns():
            checks.append(("column", "warning", f"missing; its owner adds it with: {statement}"))
        return checks

    def missing_columns(self) -> list[str]:
        """The DDL that the agents' tables lack for suppression and rating; fallow never runs it."""
        return [
            sql.add_column(table.name, column)
            for memory_type in PRIMARY_TYPES
            for table in self._tables(memory_type)
            for column in sql.RETENTION_COLUMNS
            if column not in table.columns
        ]


def connect(uri: str) -> tuple[Any, str]:
    """A pool for the address, which connects when it is asked to, and the schema that the address names.

    Raises:
        UsageError: the address is no Oracle address.
        SettingError: no password is given.
    """
    hint = "write oracle://user@host:1521/service?schema=NAME"
    try:
        parts = urlsplit(uri)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        user, host, port = unquote(parts.username or ""), parts.hostname or "", parts.port or 1521
        given = unquote(parts.password or "")
    except ValueError:
        raise UsageError("the store's address is no Oracle address", hint=hint) from None
    service = unquote(parts.path.strip("/"))
    unknown = sorted(set(options) - {"schema", "protocol", "wallet"})
    if not user or not host or not service or unknown:
        lacks = "it has options that are not known" if unknown else "user, host or service is missing"
        raise UsageError(f"the store's address is no Oracle address: {lacks}", hint=hint)
    schema = options.get("schema", [""])[0]
    protocol = options.get("protocol", ["tcp"])[0]
    if (schema and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_$#]{0,127}", schema)) or protocol not in {"tcp", "tcps"}:
        raise UsageError("the store's address is no Oracle address: its schema or protocol is no such name", hint=hint)
    password = given or os.environ.get(_PASSWORD, "")
    if not password:
        raise SettingError("no Oracle password is given", hint=f"set {_PASSWORD}; keep it out of the address")
    more = {"config_dir": options["wallet"][0], "wallet_location": options["wallet"][0]} if "wallet" in options else {}
    try:
        pool = oracledb.create_pool(
            user=user,
            password=password,
            host=host,
            port=port,
            service_name=service,
            protocol=protocol,
            min=0,
            max=4,
            increment=1,
            getmode=oracledb.POOL_GETMODE_TIMEDWAIT,
            wait_timeout=_CONNECT_SECONDS * 1000,
            tcp_connect_timeout=_CONNECT_SECONDS,
            **more,
        )
    except (oracledb.Error, ValueError, TypeError, OSError) as error:
        raise UsageError(f"the store's address is no Oracle address ({type(error).__name__})", hint=hint) from None
    return pool, schema


# Values


def _keys(table: _Table) -> list[str]:
    return ["id", *([table.logical] if table.logical else [])]


def _asked(table: _Table, columns: Sequence[str]) -> list[str]:
    """The columns that these canonical columns are read from; text and vectors only where they are asked for."""
    wanted = {*DECISION_FIELDS, "agent_id", "owner_agent_id", "memory_id", "user_id", "thread_id", "role"}
    wanted -= _TEXT if "text" not in columns else set()
    wanted |= {"retention_meta", *_keys(table)}
    if "text" in columns:
        wanted |= _TEXT
    if table.memory_type == "entity_memory":
        wanted.add("attributes")
    if "embedding" in columns:
        wanted.add("embedding")
    asked = [name for name in table.columns if name in wanted]
    if "content" in table.columns and "content" not in asked:
        # A text that is an object may hold the time and the state (SPEC §1).
        asked.append(sql.object_text("content"))
    return asked


def _record_id(table: _Table, stored: Mapping[str, Any]) -> str:
    logical = stored.get(table.logical) if table.logical else None
    return logical if isinstance(logical, str) and logical else str(uuid.UUID(bytes=bytes(stored["id"])))


def _torn(table: _Table, stored: Mapping[str, Any]) -> str:
    """Why a row is no record, or nothing: what fallow itself keeps beside it must be readable."""
    text = stored.get("retention_meta")
    if table.overflow == "retention_meta" and isinstance(text, str) and text and not isinstance(_json(text), dict):
        return "retention_meta is no JSON object"
    return ""


def _decoded(table: _Table, stored: Mapping[str, Any]) -> Row:
    """A row as every provider gives it: columns by name, JSON read, NULL left out, the overflow on top level."""
    row: Row = {"_id": _record_id(table, stored)}
    for name, value in stored.items():
        if value is None or value == "" or name in {"id", "retention_meta"}:
            continue
        if table.is_json(name) and isinstance(value, str) and name != "content":
            row[name] = _json(value, value)
        elif isinstance(value, datetime):
            row[name] = value.replace(tzinfo=None).isoformat()
        elif isinstance(value, bytes):
            row[name] = str(uuid.UUID(bytes=value)) if len(value) == 16 else value.hex()
        elif isinstance(value, float | Decimal):
            row[name] = _number(value)
        elif name == "embedding":
            row[name] = [float(one) for one in value]
        else:
            row[name] = value
    if table.overflow in {"retention_meta", "content", "metadata"}:
        held = _json(stored.get(table.overflow))
        if isinstance(held, dict):
            beside = _CONTROL if table.memory_type == "shared_memory" else held
            for name in beside:
                if name in held and name not in row and name not in {"_id", "id"} and held[name] is not None:
                    row[name] = held[name]
    return row


def _number(value: float | Decimal) -> int | float:
    """A NUMBER as JSON has it: whole where it is whole."""
    number = float(value)
    return int(number) if math.isfinite(number) and number.is_integer() and abs(number) < 2**53 else number


def _json(text: Any, otherwise: Any = None) -> Any:
    if not isinstance(text, str):
        return otherwise
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _dumped(value: Any, *, sort: bool = False) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=sort)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value cannot be stored ({type(error).__name__})") from None


def _check_field(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not name or not is_unicode(name):
        raise ValueError("a field's name cannot be stored")
    if isinstance(value, str) and not is_unicode(value):
        raise ValueError("a text that is no Unicode cannot be stored")
    if isinstance(value, list | dict):
        with contextlib.suppress(UnicodeEncodeError):
            _dumped(value).encode()
            return
        raise ValueError("a text that is no Unicode cannot be stored")


def _absent(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions in this store's words: NULL, an empty text and an absent field are one here."""
    return {name: MISSING if value is None or value == "" else value for name, value in expected.items()}


def _comparison(table: _Table, column: str, value: Any) -> sql.Comparison:
    if "CLOB" in table.columns[column]:
        return "clob" if value else "empty"
    return "null" if value is None else "value"


def _bound(table: _Table, column: str, value: Any, naive: tzinfo) -> Any:
    """A field's value as its column takes it.

    Raises:
        ValueError: the column cannot hold it.
    """
    kind = table.columns[column]
    if value is None:
        return None
    if table.is_json(column) and not (column == "content" and isinstance(value, str)):
        return _dumped(value)
    if kind.startswith("TIMESTAMP") or kind == "DATE":
        moment = parse_time(value, naive if column in _CREATION else UTC)
        if moment is None:
            raise ValueError(f"{column} takes a time")
        # The driver drops a zone: creation times stand in the store's own, all others in UTC (STORES.md).
        there = from_microseconds(moment).astimezone(naive if column in _CREATION else UTC)
        return there.replace(tzinfo=None)
    if kind in {"NUMBER", "FLOAT", "BINARY_DOUBLE", "BINARY_FLOAT"}:
        if isinstance(value, int | float) and math.isfinite(value):
            return int(value) if isinstance(value, bool) else value
        moment = parse_time(value) if column.startswith("period_") else None
        if moment is None:
            raise ValueError(f"{column} takes a number")
        return moment / 1e6
    if kind == "RAW":
        raw = _raw(value) if isinstance(value, str) else None
        if raw is None:
            raise ValueError(f"{column} takes UUID text")
        return raw
    if isinstance(value, datetime):
        return iso(to_microseconds(value))
    return value if isinstance(value, str) else _dumped(value)


def _db_type(table: _Table, column: str) -> Any:
    """What a bind of this column is declared as: the driver would cut fractions of seconds and long texts."""
    kind = table.columns[column]
    if "CLOB" in kind:
        return oracledb.DB_TYPE_CLOB
    if kind.startswith("TIMESTAMP"):
        return oracledb.DB_TYPE_TIMESTAMP
    if kind == "RAW":
        return oracledb.DB_TYPE_RAW
    if kind == "VECTOR":
        return oracledb.DB_TYPE_VECTOR
    return oracledb.DB_TYPE_NUMBER if kind in {"NUMBER", "FLOAT"} else oracledb.DB_TYPE_VARCHAR


def _sized(binds: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: oracledb.DB_TYPE_RAW if name == "id" else size for name, size in sizes.items() if name in binds}


def _raw(record_id: str) -> bytes | None:
    """The RAW key that reads as this id: lower-case UUID text and nothing else."""
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", record_id):
        return bytes.fromhex(record_id.replace("-", ""))
    return None


def _is_record_id(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and is_unicode(name) and len(name.encode()) <= _MAX_ID_BYTES


# Errors


def _code(error: Any) -> tuple[int, str]:
    """The number and the full code (``ORA-00942``, ``DPY-6005``) of a driver's error; never its text."""
    detail = error.args[0] if getattr(error, "args", None) else error
    full = str(getattr(detail, "full_code", "") or "")
    return int(getattr(detail, "code", 0) or 0), full


def _lost(error: BaseException) -> bool:
    """Whether a statement may have been carried out though its answer never came."""
    number, full = _code(error)
    return full in {"DPY-4011", "DPY-4024", "DPY-1001", "DPY-6005"} or number in {3113, 3114, 3135, 1013, 28547}


def _reason(error: Any) -> str:
    """A row's error without the values that servers quote in it."""
    number, full = _code(error)
    return {
        12899: "a text is longer than its column",
        1438: "a number is larger than its column",
        2290: "refused by a check of the table",
        1400: "a column must not be empty",
    }.get(number, f"refused by the server ({full or number})")


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """A failing listing is an error with the store, the place and the cause, never an empty answer (SPEC §1.4)."""
    try:
        yield
    except FallowError:
        raise
    except oracledb.Error as error:
        number, full = _code(error)
        if full in {"DPY-3010", "DPY-3001"}:
            raise StoreUnreadableError(
                "the server's version cannot be used by the thin driver", hint="Oracle Database 19 or newer is needed"
            ) from None
        if full.startswith("DPY-6") or full in {"DPY-4005", "DPY-4011", "DPY-4024", "DPY-1001"} or number in _BUSY:
            raise StoreBusyError(
                f"{what} cannot be read now ({full})", hint="check that the server runs and the address is right"
            ) from None
        if number in _DENIED or number == 942:
            raise StoreUnreadableError(
                f"{what} cannot be read: not permitted ({full})", hint="check the user, the password and its grants"
            ) from None
        raise StoreUnreadableError(f"{what} cannot be read ({full})", hint="see the server's log") from None


def _raise_unwritable(error: oracledb.Error) -> NoReturn:
    number, full = _code(error)
    if full.startswith("DPY-6") or full in {"DPY-4005", "DPY-4011", "DPY-1001"} or number in _BUSY:
        raise StoreBusyError(
            f"the store cannot be written now ({full})", hint="check that the server runs; run it again"
        ) from None
    what = "not permitted" if number in _READ_ONLY else "refused"
    raise StoreUnwritableError(
        f"the store refuses writes: {what} ({full})",
        hint="check the user's grants and the server's log; run it again: what is missing is completed",
    ) from None
