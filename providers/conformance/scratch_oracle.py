"""Scratch stores in an Oracle schema: tables of their own names each, dropped afterwards."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

import oracledb
from fallow.providers import oracle_statements as sql
from fallow.providers.conformance.kit import Fault, Gap, NotHeldError
from fallow.providers.gaps import GAPS
from fallow.providers.oracle import LOGICAL_IDS, OracleProvider, connect

from fallow.model.errors import StoreUnwritableError
from fallow.model.keys import Row
from fallow.model.times import from_microseconds, parse_time
from fallow.port.protocol import Provider

_JSON: Final = frozenset({"metadata", "attributes", "relations", "steps", "source_message_ids", "linked_source_ids"})
#: What stands in retention_meta: the audit fields, and where a rating came from (STORES.md).
_IN_META: Final = frozenset(
    {
        *("suppressed_by", "suppressed_at", "suppression_reason", "suppression_approver", "suppression_note"),
        *("suppressed_from", "unsuppressed_by", "unsuppressed_at", "unsuppression_note"),
        *("importance_source", "importance_model", "importance_rated_at"),
    }
)
#: The types whose ``metadata`` takes what has no column.
_WITH_METADATA: Final = frozenset({"knowledge_base", "long_term_memory", "entity_memory", "semantic_cache"})


class OracleStore:
    """Scratch tables; their native side writes as agents do (:class:`~.kit.Store`, doubling)."""

    def __init__(self, pool: Callable[[], Any], schema: str, prefix: str) -> None:
        self._pool, self._schema, self._prefix = pool, schema, prefix
        self._mine = pool()
        self._columns: dict[str, Mapping[str, str]] = {}
        for name, columns in sql.TABLES.items():
            if name != "workflow_memory":
                self._create(name, columns)

    def _create(self, name: str, columns: Mapping[str, str]) -> None:
        self._run(sql.create_table(self._table(name), columns))
        self._columns[name] = columns

    def _table(self, name: str) -> str:
        return sql.table(self._schema, self._prefix + name)

    def _run(
        self, statement: str, binds: Mapping[str, Any] | None = None, sizes: Mapping[str, Any] | None = None
    ) -> Any:
        connection = self._mine.acquire()
        try:
            cursor = connection.cursor()
            cursor.setinputsizes(**(sizes or {}))
            cursor.execute(statement, dict(binds or {}))
            rows = None
            if statement.startswith("SELECT"):
                rows = [tuple(_read(value) for value in row) for row in cursor.fetchall()]
            connection.commit()
            return rows
        finally:
            self._mine.release(connection)

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        pool = self._pool()
        try:
            return OracleProvider(pool, self._schema, naive_timezone, prefix=self._prefix)
        except BaseException:
            pool.close(force=True)
            raise

    def _values(self, memory_type: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Columns of a row as agents write it."""
        columns = self._columns[memory_type]
        values: dict[str, Any] = {}
        meta: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in row.items():
            if name in {"_id", "id"}:
                continue
            if name in columns:
                held = _held(columns[name], name, value)
                if held is not None:
                    values[name] = held
            elif name in _IN_META and "retention_meta" in columns:
                meta[name] = value
            elif memory_type in _WITH_METADATA:
                rest[name] = value
            elif memory_type == "shared_memory":
                continue
            else:
                raise NotHeldError(f"a {memory_type} row has no place for {name}")
        if meta:
            values["retention_meta"] = json.dumps(meta, ensure_ascii=False)
        if rest:
            held = json.loads(values.get("metadata", "{}"))
            if not isinstance(held, dict):
                raise NotHeldError("metadata that is no object, beside fields that it would take")
            values["metadata"] = json.dumps({**held, **rest}, ensure_ascii=False)
        return values

    def seed(self, memory_type: str, rows: Sequence[Row]) -> None:
        if memory_type not in self._columns:
            self._create(
                memory_type, sql.TABLES["knowledge_base" if memory_type == "long_term_memory" else memory_type]
            )
        logical = LOGICAL_IDS.get(memory_type, "")
        for row in rows:
            values = self._values(memory_type, row)
            try:
                values["id"] = uuid.uuid4().bytes if logical else uuid.UUID(row["_id"]).bytes
            except ValueError:
                raise NotHeldError("an id that is no UUID, in a type that goes by its RAW key") from None
            if not logical and str(uuid.UUID(row["_id"])) != row["_id"]:
                raise NotHeldError("another spelling of a UUID than the key's")
            if logical:
                values[logical] = row["_id"]
            self._write(sql.insert(self._table(memory_type), list(values)), memory_type, list(values.items()))

    def _write(self, statement: str, memory_type: str, values: list[tuple[str, Any]], key: bytes | None = None) -> None:
        binds = {f"s{place}": value for place, (_, value) in enumerate(values)}
        kinds = {**self._columns[memory_type], "id": "RAW"}
        sizes = {f"s{place}": _size(kinds[name]) for place, (name, _) in enumerate(values)}
        if key is not None:
            binds["id"], sizes["id"] = key, oracledb.DB_TYPE_RAW
        self._run(statement, binds, sizes)

    def _key(self, memory_type: str, record_id: str) -> bytes:
        column = LOGICAL_IDS.get(memory_type, "")
        if not column:
            return uuid.UUID(record_id).bytes
        where = sql.among(column, 1)
        rows = self._run(sql.select(self._table(memory_type), ["id"], where=where), {"k0": record_id})
        return bytes(rows[0][0])

    def change(self, memory_type: str, record_id: str, fields: Mapping[str, Any]) -> None:
        values = self._values(memory_type, fields)
        merged = "retention_meta" if "retention_meta" in values else ""
        meta = values.pop("retention_meta", None)
        statement = sql.update(self._table(memory_type), list(values), merged, {})
        binds = {f"s{place}": value for place, value in enumerate(values.values())}
        sizes = {f"s{place}": _size(self._columns[memory_type][name]) for place, name in enumerate(values)}
        binds["id"], sizes["id"] = self._key(memory_type, record_id), oracledb.DB_TYPE_RAW
        if merged:
            binds["merged"], sizes["merged"] = meta, oracledb.DB_TYPE_CLOB
        self._run(statement, binds, sizes)

    def remove(self, memory_type: str, record_id: str) -> None:
        key = self._key(memory_type, record_id)
        self._run(sql.delete(self._table(memory_type), {}), {"id": key}, {"id": oracledb.DB_TYPE_RAW})

    def stored(self, memory_type: str) -> dict[str, dict[str, bytes]]:
        names = ["id", *self._columns[memory_type]]
        logical = LOGICAL_IDS.get(memory_type, "")
        found: dict[str, dict[str, bytes]] = {}
        for values in self._run(sql.select(self._table(memory_type), names, order="id")):
            row = dict(zip(names, values, strict=True))
            key = row[logical] if logical else str(uuid.UUID(bytes=bytes(row["id"])))
            meta = json.loads(row.pop("retention_meta", None) or "{}")
            fields = {name: repr(value).encode() for name, value in row.items()}
            found[key] = fields | {name: json.dumps(value).encode() for name, value in sorted(meta.items())}
        return found

    def natives(self) -> Mapping[str, Mapping[str, Any]]:
        """A TIMESTAMP to the microsecond, NUMBERs at the ends of their columns, numbers beside text in JSON."""
        return {
            "a TIMESTAMP with microseconds": {"last_accessed_at": "2026-05-01T02:03:04.567891Z"},
            "a TIMESTAMP without": {"last_accessed_at": "2026-05-01T02:03:04Z"},
            "a NUMBER of two digits": {"importance": 0.05},
            "a NUMBER that is whole": {"importance": 1},
            "a large count": {"access_count": 9_999_999_998},
            "numbers in JSON": {"metadata": {"x": [1, 1.5, 12345678901234567890]}},
            "text in JSON": {"metadata": {"x": ["1", "1.5"]}},
        }

    def fault(self, kind: Fault) -> AbstractContextManager[None]:
        raise NotHeldError(f"a server of others is never {kind}")

    def drop(self) -> None:
        """Removes the tables."""
        for name in self._columns:
            with suppress(oracledb.Error):
                self._run(sql.drop_table(self._table(name)))
        self._mine.close(force=True)


def _read(value: Any) -> Any:
    return value.read() if hasattr(value, "read") else value


def _held(kind: str, name: str, value: Any) -> Any:
    """A value as its column holds it; NotHeldError where it cannot."""
    if value is None:
        return None
    if name in _JSON:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if kind.startswith("TIMESTAMP"):
        moment = parse_time(value)
        if moment is None:
            raise NotHeldError(f"{name} that is no time")
        with suppress(TypeError, ValueError):
            if isinstance(value, str) and (text := datetime.fromisoformat(value)).tzinfo is None:
                return text
        return from_microseconds(moment).astimezone(UTC).replace(tzinfo=None)
    if kind.startswith("NUMBER"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise NotHeldError(f"{name} that is no number")
        if name == "importance" and not -10 < value < 10:
            raise NotHeldError("an importance of two digits before the point")
        return value
    if isinstance(value, str):
        return value
    raise NotHeldError(f"{name} that is no text")


def _size(kind: str) -> Any:
    if kind.startswith("CLOB"):
        return oracledb.DB_TYPE_CLOB
    if kind.startswith("TIMESTAMP"):
        return oracledb.DB_TYPE_TIMESTAMP
    if kind.startswith("RAW"):
        return oracledb.DB_TYPE_RAW
    return oracledb.DB_TYPE_NUMBER if kind.startswith("NUMBER") else oracledb.DB_TYPE_VARCHAR


def current_schema(pool: Any) -> str:
    """The schema in which a pool's user works unless told otherwise.

    Raises:
        StoreUnwritableError: the database does not let us in.
    """
    try:
        connection = pool.acquire()
        try:
            cursor = connection.cursor()
            cursor.execute(sql.DATABASE)
            return str(cursor.fetchall()[0][2])
        finally:
            pool.release(connection)
    except oracledb.Error as error:
        code = getattr(error.args[0], "full_code", "")
        raise StoreUnwritableError(
            f"no scratch table can be made there ({code})", hint="check the address, the user and the password"
        ) from None


class OracleBackend:
    """Scratch tables in a schema whose user may create tables (:class:`~fallow.providers.conformance.kit.Backend`).

    Args:
        pool: what opens a pool of connections.
        schema: the schema of the scratch tables.
    """

    name = "oracle"
    faults: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()

    def __init__(self, pool: Callable[[], Any], schema: str) -> None:
        self._pool, self._schema = pool, schema

    @classmethod
    def at(cls, uri: str) -> OracleBackend:
        """Scratch tables in the schema that an address names, or the user's own."""
        pool, schema = connect(uri)
        try:
            return cls(lambda: connect(uri)[0], schema or current_schema(pool))
        finally:
            pool.close(force=True)

    @property
    def gaps(self) -> Mapping[str, Gap]:
        return GAPS["oracle"]

    def made(self, prefix: str) -> OracleStore:
        """A scratch store whose tables' names begin so."""
        return OracleStore(self._pool, self._schema, prefix)

    @contextmanager
    def store(self) -> Iterator[OracleStore]:
        try:
            made = self.made(f"FC{uuid.uuid4().hex[:8]}_")
        except oracledb.Error as error:
            code = getattr(error.args[0], "full_code", "")
            raise StoreUnwritableError(
                f"no scratch table can be made in {self._schema} ({code})",
                hint="the kit works in tables of its own; grant CREATE TABLE and a quota, or run it as the owner",
            ) from None
        try:
            yield made
        finally:
            made.drop()
