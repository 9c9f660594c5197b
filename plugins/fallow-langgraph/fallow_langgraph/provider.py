"""One open store of LangGraph's on PostgreSQL (:class:`fallow.port.protocol.Provider`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import RLock
from types import TracebackType
from typing import Any, Final, Self

import psycopg
from fallow.model.keys import RecordKey, Row, is_unicode
from fallow.model.record import PRIMARY_TYPES, TYPE_ALIASES, frame_of, read_record
from fallow.model.times import zone
from fallow.port.protocol import Batch, Outcome, Patch, Unreadable
from psycopg import sql as compose

from fallow_langgraph import statements as sql
from fallow_langgraph.connecting import PATIENCE, address, check, connect, errors
from fallow_langgraph.kind import LANGGRAPH
from fallow_langgraph.mapping import SETTING, StoreMapping, load_mapping, places_of
from fallow_langgraph.rendering import Found, Stored, by_id, rendered
from fallow_langgraph.writing import Writing

BATCH: Final = LANGGRAPH.capabilities.batch_size
#: Rows of a scan that become one frame.
_FRAME: Final = 5000


class LangGraphProvider:
    """LangGraph's ``store``, and fallow's own tables beside it (docs/langgraph.md).

    Args:
        conninfo: how PostgreSQL's client library reaches the database.
        naive_timezone: as for every provider.
        mapping: which namespaces are what; None: the setting FALLOW_LANGGRAPH, or the default.
        patience: seconds a statement may take before the store counts as busy.
    """

    capabilities = LANGGRAPH.capabilities

    def __init__(
        self,
        conninfo: str,
        naive_timezone: Mapping[str, str] | None = None,
        *,
        mapping: StoreMapping | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.naive_timezone = dict(naive_timezone or {})
        self.mapping = load_mapping(os.environ.get(SETTING)) if mapping is None else mapping
        self._conninfo, self._patience = conninfo, patience
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._lock = RLock()  # fallow's steps may run in other threads than the one that opened the store
        with self._lock:
            self._open()

    @classmethod
    def from_uri(cls, uri: str, naive_timezone: Mapping[str, str]) -> Self:
        """What fallow calls for ``langgraph+postgresql://user@host/database``."""
        return cls(address(uri), naive_timezone)

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The connection, made anew where it was lost."""
        if self._connection is None or self._connection.closed:
            connection = connect(self._conninfo, self._patience)
            try:
                check(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def identity(self) -> str:
        """The cluster, the database and the table: a dump loaded elsewhere, or a database made from it, is another."""
        with self._lock, errors("read"):
            found = self._open().execute(sql.IDENTITY).fetchone()
        assert found is not None
        return f"langgraph:{found[0]:x}-{found[1]}-{found[2]}"

    # Reading

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        """Every record of a type, shown and suppressed, in one statement's snapshot, by COPY."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        naive_zone = zone(self.naive_timezone.get(memory_type, "UTC"))
        if memory_type not in PRIMARY_TYPES:
            rows = [Found(_nowhere(row), str(row["_id"]), row) for row in self.find(memory_type)]
            yield _batch(rows, memory_type, columns, naive_zone)
            return
        seen: set[str] = set()
        doubled = self._doubled(memory_type)
        pending: list[Found] = []
        for item in self._copied(memory_type, embedding="embedding" in columns):
            if item.record_id in doubled:
                if item.record_id in seen:
                    continue
                item = Found(item.stored, item.record_id, "duplicate id: the key is in two namespaces")
            seen |= {item.record_id} & doubled
            pending.append(item)
            if len(pending) == _FRAME:
                yield _batch(pending, memory_type, columns, naive_zone)
                pending = []
        yield _batch(pending, memory_type, columns, naive_zone)

    def _copied(self, memory_type: str, *, embedding: bool) -> Iterator[Found]:
        where = self._where(memory_type)
        if where is None:
            return
        connection = connect(self._conninfo, self._patience)  # its own: whoever reads this may write meanwhile
        try:
            with errors("read"):
                tables, live, hidden = self._tables(connection)
                text = sql.rows(
                    "{where}", tables=tables, live_vectors=embedding and live, hidden_vectors=embedding and hidden
                )
                statement = compose.SQL("copy ({}) to stdout").format(compose.SQL(text).format(where=where))
                with connection.cursor() as cursor, cursor.copy(statement) as copy:
                    for said in copy.rows():
                        item = rendered(_stored(said), self.mapping, memory_type)
                        if item is not None:
                            yield item
        finally:
            connection.close()

    def _where(self, memory_type: str) -> compose.Composable | None:
        patterns = self.mapping.patterns(memory_type)
        if not patterns:
            return None
        return compose.SQL("({})").format(
            compose.SQL(" or ").join(compose.SQL("s.prefix ~ {}").format(compose.Literal(one)) for one in patterns)
        )

    def _doubled(self, memory_type: str) -> set[str]:
        """Ids that the mapping says are keys alone, and that two namespaces have."""
        wanted = [rule.pattern for rule in self.mapping.rules if rule.memory_type == memory_type and rule.ids == "key"]
        if not wanted:
            return set()
        with self._lock, errors("read"):
            connection = self._open()
            tables, _, _ = self._tables(connection)
            both = "select prefix, key, '' as suffix from store"
            if tables:
                both += " union select prefix, key, suffix from fallow_suppressed"
            found = connection.execute(
                f"select key, array_agg(distinct prefix) from ({both}) s where s.prefix ~ any(%s)"
                " group by key having count(distinct prefix) > 1",
                (wanted,),
            ).fetchall()
        of_type = self.mapping.rule_of
        return {
            key
            for key, prefixes in found
            if sum(rule is not None and rule.memory_type == memory_type for rule in map(of_type, prefixes)) > 1
        }

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        """Whole rows by id."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        names = [name for name in dict.fromkeys(record_ids) if name and is_unicode(name)]
        if memory_type not in PRIMARY_TYPES:
            return self._fetch_control(memory_type, names)
        answer: dict[str, Row | Unreadable] = {}
        for start in range(0, len(names), BATCH):
            with self._lock, errors("read"):
                found = self.found(self._open(), memory_type, names[start : start + BATCH])
            for name, item in found.items():
                if isinstance(item, Unreadable):
                    answer[name] = item
                elif isinstance(item.row, dict):
                    answer[name] = item.row
        return answer

    def found(
        self, connection: psycopg.Connection[tuple[Any, ...]], memory_type: str, names: Sequence[str]
    ) -> dict[str, Found | Unreadable]:
        """What lies under these ids, with where it lies."""
        pairs, keys = places_of(self.mapping, memory_type, names)
        tables, live, hidden = self._tables(connection)
        where = "((s.prefix, s.key) in (select * from unnest(%(prefixes)s::text[], %(keys)s::text[]))"
        binds: dict[str, Any] = {"prefixes": [pair[0] for pair in pairs], "keys": [pair[1] for pair in pairs]}
        if keys:
            where += " or (s.key = any(%(alone)s) and s.prefix ~ any(%(patterns)s))"
            binds |= {"alone": keys, "patterns": self.mapping.patterns(memory_type)}
        text = sql.rows(where + ")", tables=tables, live_vectors=live, hidden_vectors=hidden)
        wanted = set(names)
        items = [
            item
            for said in connection.execute(text, binds)
            if (item := rendered(Stored(*said), self.mapping, memory_type)) is not None and item.record_id in wanted
        ]
        return by_id(items, memory_type)

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        """Rows by the beginning of their id, in order."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        if memory_type not in PRIMARY_TYPES:
            yield from self._find_control(memory_type, id_prefix)
            return
        items = by_id(list(self._copied(memory_type, embedding=False)), memory_type)
        for name in sorted(items):
            item = items[name]
            if name.startswith(id_prefix) and isinstance(item, Found) and isinstance(item.row, dict):
                yield item.row

    def _fetch_control(self, memory_type: str, names: Sequence[str]) -> dict[str, Row | Unreadable]:
        with self._lock, errors("read"):
            connection = self._open()
            if not self._tables(connection)[0]:
                return {}
            found = connection.execute(sql.CONTROL_FETCH, (memory_type, list(names))).fetchall()
        return {name: {**json.loads(body), "_id": name} for name, body in found}

    def _find_control(self, memory_type: str, id_prefix: str) -> list[Row]:
        if not is_unicode(id_prefix):
            return []
        with self._lock, errors("read"):
            connection = self._open()
            if not self._tables(connection)[0]:
                return []
            found = connection.execute(sql.CONTROL_FIND, (memory_type, len(id_prefix), id_prefix)).fetchall()
        return [{**json.loads(body), "_id": name} for name, body in found]

    @staticmethod
    def _tables(connection: psycopg.Connection[tuple[Any, ...]]) -> tuple[bool, bool, bool]:
        """Which tables are there: fallow's own, LangGraph's vectors, fallow's vectors."""
        found = connection.execute(sql.HAS_TABLES).fetchone()
        assert found is not None
        return bool(found[0]), bool(found[1]), bool(found[2])

    # Writing

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        """Conditional writes: rows are locked, read, compared and written in one transaction a batch."""
        with self._lock, errors("write"):
            return self._writing().patch(patches)

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        """Recalls (SPEC §4), kept beside the row: the agent's own value, updated_at and expiry stay as they are."""
        with self._lock, errors("write"):
            return self._writing().touch(TYPE_ALIASES.get(memory_type, memory_type), record_ids, now)

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        """New rows; control rows into a table of fallow's own, records into the store where a rule says where."""
        memory_type = TYPE_ALIASES.get(memory_type, memory_type)
        with self._lock, errors("write"):
            writing = self._writing()
            if memory_type in PRIMARY_TYPES:
                return writing.insert_records(memory_type, rows)
            return writing.insert_control(memory_type, rows)

    def _writing(self) -> Writing:
        return Writing(self._open(), self.mapping, self.found, self._patience)

    # Diagnosing

    def diagnose(self) -> list[tuple[str, str, str]]:
        """What fallow would map here, before anything is planned; what it may do; what has run out."""
        from fallow_langgraph.diagnosis import diagnose

        with self._lock, errors("read"):
            return diagnose(self._open(), self.mapping, self._tables(self._open())[0])

    def close(self) -> None:
        """Lets go of the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stored(said: Sequence[str | None]) -> Stored:
    """A row of a COPY: all texts."""
    prefix, key, suffix, value, created, updated, fields, suppressed, embedding = said
    assert prefix is not None
    assert key is not None
    assert suffix is not None
    assert value is not None
    return Stored(
        prefix,
        key,
        suffix,
        value,
        None if created is None else int(created),
        None if updated is None else int(updated),
        fields,
        suppressed == "t",
        embedding,
    )


def _nowhere(row: Row) -> Stored:
    return Stored("", str(row["_id"]), "", "", None, None, None, False, None)


def _batch(items: Sequence[Found], memory_type: str, columns: Sequence[str], naive_zone: Any) -> Batch:
    records, vectors, torn = [], [], []
    for item in items:
        if isinstance(item.row, str):
            torn.append(Unreadable(RecordKey(memory_type, item.record_id), item.row))
            continue
        records.append(read_record(item.row, memory_type, item.record_id, naive_zone))
        vectors.append(_numbers(item))
    return Batch(frame_of(records, columns, vectors), tuple(torn))


def _numbers(item: Found) -> list[float] | None:
    """The embedding: LangGraph's vector, else one in the value, else None."""
    if item.stored.embedding is not None:
        return [float(number) for number in item.stored.embedding.strip("[]").split(",")]
    value = item.row.get("embedding") if isinstance(item.row, dict) else None
    if not isinstance(value, list) or not value:
        return None
    return value if all(isinstance(one, int | float) and not isinstance(one, bool) for one in value) else None
