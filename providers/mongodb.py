"""The MongoDB store: one collection a memory type, one document a record (STORES.md, MongoDB; DESIGN §3 and §5).

Reading asks for the fields that a decision rests on and no others. A write is an update whose filter carries
its whole condition, acknowledged by a majority; what an answer leaves open is read, never guessed. The
agents' store drops owners, so plans find them by lineage (``drops_owners``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.objectid import ObjectId
from fallow.providers.kinds import MONGODB
from pymongo import DeleteOne, MongoClient, UpdateOne
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WTimeoutError,
)
from pymongo.write_concern import WriteConcern

from fallow.model.errors import (
    FallowError,
    StoreBusyError,
    StoreNotFoundError,
    StoreUnreadableError,
    StoreUnwritableError,
    UsageError,
)
from fallow.model.keys import MISSING, RecordKey, Row, canonical_id, is_unicode
from fallow.model.record import DECISION_FIELDS, PRIMARY_TYPES, TYPE_ALIASES, Record, frame_of, read_record
from fallow.model.times import from_microseconds, iso, zone
from fallow.model.values import holds
from fallow.port.protocol import Batch, Capabilities, Outcome, Patch, Unreadable

if TYPE_CHECKING:
    from pymongo.collection import Collection
    from pymongo.database import Database

DEFAULT_DATABASE: Final = "memorizz"
BATCH_ROWS: Final = 20_000
#: Seconds to wait for a server before the store counts as busy, where the address does not say.
_SELECTION_MS: Final = 10_000
#: How often a touch is decided anew on a record that keeps changing.
_TOUCHES: Final = 64
_MAX_ID_BYTES: Final = 1000
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z", re.ASCII)
#: Collections by which a database is known to be a store.
_KNOWN: Final = frozenset(
    {*PRIMARY_TYPES, *TYPE_ALIASES, "shared_memory", "semantic_cache", "agents", "personas", "toolbox", "tool_log"}
)
#: Stored fields beside the decision's that a canonical record is read from.
_IDENTITY: Final = (
    *("id", "record_id", "agent_id", "owner_agent_id", "memory_id", "user_id", "thread_id", "conversation_id"),
    *("role", "suppressed_at", "summary_type"),
)
#: What a person would read; fetched only where text is asked for.
_TEXT: Final = frozenset(
    {
        *(
            "content",
            "text",
            "summary",
            "instruction",
            "instructions",
            "name",
            "description",
            "attributes",
            "relations",
        ),
        *("steps", "outcome", "user_query", "query_text", "query"),
    }
)
_DENIED: Final = frozenset({13, 18, 8000})
#: How documents are decoded. A date outside Python's years is a value like another: raising would fail every listing.
CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    unicode_decode_error_handler="replace",
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)


class MongoDBProvider:
    """One database (:class:`fallow.port.protocol.Provider`, ``Touching``, ``CachePurging`` and ``Diagnosing``).

    Args:
        client: a client whose options the address gave.
        database: the database's name.
        naive_timezone: IANA zone by memory type for naive creation times.

    Raises:
        StoreNotFoundError: no collection of the database is a memory type.
        StoreUnreadableError: the server does not let us read.
        StoreBusyError: no server answers.
        SettingError: a zone name is unknown.
    """

    def __init__(
        self, client: MongoClient[dict[str, Any]], database: str, naive_timezone: Mapping[str, str] | None = None
    ) -> None:
        self._client = client
        self._naive_timezone = dict(naive_timezone or {})
        self._zones = {name: zone(value) for name, value in self._naive_timezone.items()}
        self._database: Database[dict[str, Any]] = client.get_database(
            database, codec_options=CODEC, write_concern=WriteConcern("majority")
        )
        with _reading(f"the database {database}"):
            self._present = {
                item["name"]: item.get("info", {}).get("uuid") for item in self._database.list_collections()
            }
            hello = client.admin.command("hello")
        self._server = str(hello.get("setName") or ",".join(sorted(f"{host}:{port}" for host, port in client.nodes)))
        if not self._present.keys() & _KNOWN:
            raise StoreNotFoundError(
                f"the database {database} holds no store: none of its collections is a memory type",
                hint="name the database that the agents write to, as mongodb://host/database",
            )

    @classmethod
    def from_uri(cls, uri: str, naive_timezone: Mapping[str, str]) -> Self:
        """The store at ``mongodb://…/database``; TLS, credentials and read preference as the address says.

        Raises:
            UsageError: the address is no MongoDB address.
        """
        try:
            client: MongoClient[dict[str, Any]] = MongoClient(
                uri, appname="fallow", serverSelectionTimeoutMS=_timeout_of(uri), connect=False
            )
            database = client.get_default_database(DEFAULT_DATABASE).name
        except (InvalidURI, ConfigurationError, ValueError, TypeError) as error:
            raise UsageError(
                f"the store's address is no MongoDB address ({type(error).__name__})",
                hint="write mongodb://host:27017/database; percent-encode special characters of a password",
            ) from None
        try:
            return cls(client, database, naive_timezone)
        except BaseException:
            client.close()
            raise

    @property
    def capabilities(self) -> Capabilities:
        return MONGODB.capabilities

    @property
    def naive_timezone(self) -> Mapping[str, str]:
        return self._naive_timezone

    def identity(self) -> str:
        """A hash over the server's set, the database and its oldest known collection: another for a copy."""
        first = next((name for name in (*PRIMARY_TYPES, "agents", "shared_memory") if name in self._present), "")
        mark = self._present.get(first) if first else None
        text = f"{self._server}\0{self._database.name}\0{first}\0{'' if mark is None else bytes(mark).hex()}"
        return "mongodb:" + sha256(text.encode()).hexdigest()[:24]

    def close(self) -> None:
        """Lets go of connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Reading

    def _collections(self, memory_type: str) -> list[Collection[dict[str, Any]]]:
        """The collections that hold a type: under its own name, and under older ones where they are there."""
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        if not _TYPE_NAME.match(canonical):
            return []
        older = [old for old, name in TYPE_ALIASES.items() if name == canonical and old in self._present]
        return [self._database[name] for name in (canonical, *older)]

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        naive_zone = self._zones.get(canonical, UTC)
        projection = dict.fromkeys(_projected(canonical, columns), 1)
        records: list[Record] = []
        vectors: list[Any] = []
        bad: list[Unreadable] = []

        def batch() -> Batch:
            made = Batch(frame_of(records, columns, vectors), tuple(bad))
            records.clear()
            vectors.clear()
            bad.clear()
            return made

        doubled = self._doubled(canonical)
        bad += [Unreadable(RecordKey(canonical, name), "duplicate id") for name in sorted(doubled)]
        for collection in self._collections(canonical):
            with _reading(f"the collection {collection.name}"):
                told = {} if "text" in columns else self._told(collection)
                for row in collection.find({}, projection).sort("_id", 1).batch_size(5000):
                    if told and (text := told.get(_hashable(row["_id"]))) is not None:
                        row["content"] = text
                    record_id = canonical_id(row["_id"])
                    if record_id is None or not is_unicode(record_id):
                        bad.append(Unreadable(RecordKey(canonical, str(row["_id"])[:100]), "id that is no text"))
                        continue
                    if record_id in doubled:
                        continue
                    records.append(read_record(row, canonical, record_id, naive_zone))
                    if "embedding" in columns:
                        vectors.append(_vector(row.get("embedding")))
                    if len(records) >= BATCH_ROWS:
                        yield batch()
        if records or bad:
            yield batch()

    def _told(self, collection: Collection[dict[str, Any]]) -> dict[Any, str]:
        """Contents that are objects written as text: their time and state stand inside, out of a projection's reach."""
        found = collection.find({"content": {"$regex": r"^\s*\{"}}, {"content": 1})
        return {_hashable(row["_id"]): row["content"] for row in found if isinstance(row.get("content"), str)}

    def _doubled(self, canonical: str) -> set[str]:
        """Record ids that several documents answer to: an ObjectId and a text of its digits, or two collections."""
        seen: set[str] = set()
        doubled: set[str] = set()
        for collection in self._collections(canonical):
            with _reading(f"the collection {collection.name}"):
                for row in collection.find({}, {"_id": 1}).batch_size(20_000):
                    name = canonical_id(row["_id"])
                    if name is not None:
                        (doubled if name in seen else seen).add(name)
        return doubled

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        found: dict[str, Row | Unreadable] = {}
        for record_id, rows in self._natives(canonical, record_ids).items():
            key = RecordKey(canonical, record_id)
            found[record_id] = {**rows[0][1], "_id": record_id} if len(rows) == 1 else Unreadable(key, "duplicate id")
        return found

    def _natives(
        self, canonical: str, record_ids: Iterable[str], projection: Mapping[str, int] | None = None
    ) -> dict[str, list[tuple[Collection[dict[str, Any]], dict[str, Any]]]]:
        """Documents by record id, with the collection that holds each, native ids under ``_id``."""
        wanted = [name for name in dict.fromkeys(record_ids) if is_unicode(name)]
        found: dict[str, list[tuple[Collection[dict[str, Any]], dict[str, Any]]]] = {}
        for collection in self._collections(canonical) if wanted else ():
            for start in range(0, len(wanted), 2000):
                natives = [native for name in wanted[start : start + 2000] for native in _native_ids(name)]
                with _reading(f"the collection {collection.name}"):
                    for row in collection.find({"_id": {"$in": natives}}, projection):
                        name = canonical_id(row["_id"])
                        if name is not None:
                            found.setdefault(name, []).append((collection, row))
        return found

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        condition: dict[str, Any] = {"_id": {"$regex": "^" + re.escape(id_prefix)}} if id_prefix else {}
        collections = self._collections(memory_type)
        several = len(collections) > 1
        for collection in collections:
            with _reading(f"the collection {collection.name}"):
                for row in collection.find(condition).sort("_id", 1):
                    name = canonical_id(row["_id"])
                    if name is None or not is_unicode(name) or not name.startswith(id_prefix):
                        continue
                    if (several or len(_native_ids(name)) > 1) and len(self._natives(memory_type, [name])[name]) > 1:
                        continue
                    yield {**row, "_id": name}

    # Writing

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        by_type: dict[str, list[int]] = {}
        for index, item in enumerate(patches):
            by_type.setdefault(TYPE_ALIASES.get(item.key.memory_type, item.key.memory_type), []).append(index)
        for canonical, indexes in by_type.items():
            self._patch_type(canonical, [(index, patches[index]) for index in indexes], outcomes)
        return [outcomes[index] for index in range(len(patches))]

    def _patch_type(self, canonical: str, items: list[tuple[int, Patch]], outcomes: dict[int, Outcome]) -> None:
        names = {name for _, item in items for name in item.expected}
        there = self._natives(canonical, [item.key.record_id for _, item in items], dict.fromkeys(["_id", *names], 1))
        waves: list[list[tuple[int, Patch]]] = []
        for index, item in items:
            # Two patches of one record in one call are two writes, the second on what the first left.
            wave = next((w for w in waves if all(other.key.record_id != item.key.record_id for _, other in w)), None)
            if wave is None:
                waves.append(wave := [])
            wave.append((index, item))
        for wave in waves:
            by_collection: dict[str, list[tuple[int, Patch, Any]]] = {}
            for index, item in wave:
                rows = there.get(item.key.record_id, [])
                if not rows:
                    outcomes[index] = Outcome(item.key, "gone")
                elif len(rows) > 1:
                    outcomes[index] = Outcome(item.key, "failed", "duplicate id: two documents answer to it")
                elif fault := _unstorable(item.changes):
                    outcomes[index] = Outcome(item.key, "failed", fault)
                elif wave is waves[0] and not holds(rows[0][1], item.expected):
                    # The filter holds while it is written; what it holds on is compared here, type by type.
                    outcomes[index] = Outcome(item.key, "changed")
                else:
                    collection, row = rows[0]
                    by_collection.setdefault(collection.name, []).append((index, item, row["_id"]))
            for name, todo in by_collection.items():
                self._update(self._database[name], todo, outcomes)

    def _update(
        self, collection: Collection[dict[str, Any]], todo: list[tuple[int, Patch, Any]], outcomes: dict[int, Outcome]
    ) -> None:
        """One bulk of conditional updates; which of them landed is read where the count does not say."""
        writes = [
            UpdateOne({"_id": native, **_condition(item.expected)}, {"$set": dict(item.changes)})
            if item.changes
            else UpdateOne({"_id": native, **_condition(item.expected)}, {"$setOnInsert": {"_id": native}})
            for _, item, native in todo
        ]
        refused: dict[int, str] = {}
        matched: int | None = None
        try:
            matched = collection.bulk_write(writes, ordered=False).matched_count
        except BulkWriteError as error:
            details = error.details or {}
            refused = {int(one["index"]): _reason(one) for one in details.get("writeErrors", ())}
            matched = None if details.get("writeConcernErrors") else int(details.get("nMatched", 0))
        except (AutoReconnect, WTimeoutError):
            matched = None
        except (OperationFailure, BSONError, OverflowError) as error:
            _raise_unwritable(error)
        left = [(place, entry) for place, entry in enumerate(todo) if place not in refused]
        for place, reason in refused.items():
            outcomes[todo[place][0]] = Outcome(todo[place][1].key, "failed", reason)
        if matched is not None and matched == len(left):
            for _, (index, item, _) in left:
                outcomes[index] = Outcome(item.key, "applied")
            return
        self._settle(collection, [entry for _, entry in left], matched, outcomes)

    def _settle(
        self,
        collection: Collection[dict[str, Any]],
        todo: list[tuple[int, Patch, Any]],
        matched: int | None,
        outcomes: dict[int, Outcome],
    ) -> None:
        """What became of updates of which some did not match, or whose answer was lost."""
        try:
            rows = {_hashable(row["_id"]): row for row in collection.find({"_id": {"$in": [n for _, _, n in todo]}})}
        except PyMongoError:
            for index, item, _ in todo:
                outcomes[index] = Outcome(item.key, "unknown")
            return
        shows = [
            bool(item.changes) and (row := rows.get(_hashable(native))) is not None and holds(row, item.changes)
            for _, item, native in todo
        ]
        if matched == 0:
            shows = [False] * len(todo)
        certain = matched is not None and sum(shows) == matched
        for (index, item, native), shown in zip(todo, shows, strict=True):
            if _hashable(native) not in rows:
                outcomes[index] = Outcome(item.key, "gone" if matched is not None else "unknown")
            elif shown:
                outcomes[index] = Outcome(item.key, "applied" if certain else "unknown")
            else:
                status = "changed" if matched is not None else "unknown"
                outcomes[index] = Outcome(item.key, status)  # type: ignore[arg-type]

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        outcomes: list[Outcome | None] = [None] * len(rows)
        todo: list[tuple[int, str, dict[str, Any]]] = []
        taken: set[str] = set()
        for index, row in enumerate(rows):
            name = row.get("_id")
            key = RecordKey(canonical, name if isinstance(name, str) else "")
            document = {field: value for field, value in row.items() if field != "id"}
            if not _TYPE_NAME.match(canonical):
                outcomes[index] = Outcome(key, "failed", "invalid memory type: the store cannot hold it")
            elif not _is_record_id(key.record_id):
                outcomes[index] = Outcome(key, "failed", "invalid record id: the store cannot hold it")
            elif fault := _unstorable(document):
                outcomes[index] = Outcome(key, "failed", fault)
            elif key.record_id in taken:
                outcomes[index] = Outcome(key, "already")
            else:
                taken.add(key.record_id)
                todo.append((index, key.record_id, document))
        if todo:
            there = self._natives(canonical, [name for _, name, _ in todo], {"_id": 1})
            for index, name, _ in todo:
                if name in there:
                    outcomes[index] = Outcome(RecordKey(canonical, name), "already")
            self._insert(canonical, [entry for entry in todo if entry[1] not in there], outcomes)
        return [
            outcome or Outcome(RecordKey(canonical, str(row.get("_id"))), "unknown")
            for outcome, row in zip(outcomes, rows, strict=True)
        ]

    def _insert(
        self, canonical: str, todo: list[tuple[int, str, dict[str, Any]]], outcomes: list[Outcome | None]
    ) -> None:
        if not todo:
            return
        status: Any = "applied"
        failed: dict[int, tuple[str, str]] = {}
        try:
            self._database[canonical].insert_many([document for _, _, document in todo], ordered=False)
        except BulkWriteError as error:
            details = error.details or {}
            for one in details.get("writeErrors", ()):
                doubled = one.get("code") == 11000
                failed[int(one["index"])] = ("already", "") if doubled else ("failed", _reason(one))
            status = "unknown" if details.get("writeConcernErrors") else "applied"
        except (AutoReconnect, WTimeoutError):
            status = "unknown"
        except (OperationFailure, BSONError, OverflowError) as error:
            _raise_unwritable(error)
        for place, (index, name, _) in enumerate(todo):
            state, detail = failed.get(place, (status, ""))
            outcomes[index] = Outcome(RecordKey(canonical, name), state, detail)
        self._present.setdefault(canonical, None)

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        fields = ("access_count", "recall_count", "hit_count", "last_accessed_at", "last_accessed", "last_recalled_at")
        outcomes: list[Outcome] = []
        for record_id in record_ids:
            key = RecordKey(canonical, record_id)
            outcome = Outcome(key, "failed", "kept changing while it was touched")
            for _ in range(_TOUCHES):
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
                native = isinstance(row.get("last_accessed_at"), datetime)  # a date stays one: other readers sort by it
                accessed = from_microseconds(latest) if native else iso(latest)
                changes = {"access_count": record.access_count + 1, "last_accessed_at": accessed}
                (tried,) = self.patch([Patch(key, expected, changes)])
                outcome = tried
                if tried.status != "changed":
                    break
            outcomes.append(outcome)
        return outcomes

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        canonical = "semantic_cache"
        there = self._natives(canonical, expected, {"_id": 1})
        outcomes: list[Outcome] = []
        for name, fields in expected.items():
            key = RecordKey(canonical, name)
            rows = there.get(name, [])
            if len(rows) != 1:
                outcomes.append(Outcome(key, "failed", "duplicate id") if rows else Outcome(key, "gone"))
                continue
            collection, row = rows[0]
            try:
                write = DeleteOne({"_id": row["_id"], **_condition(fields)})
                removed = collection.bulk_write([write]).deleted_count
            except (AutoReconnect, WTimeoutError):
                outcomes.append(Outcome(key, "unknown"))
                continue
            except (BulkWriteError, OperationFailure) as error:
                _raise_unwritable(error)
            if removed:
                outcomes.append(Outcome(key, "applied"))
            else:
                left = self._natives(canonical, [name], {"_id": 1})
                outcomes.append(Outcome(key, "changed") if left else Outcome(key, "gone"))
        return outcomes

    # Diagnosis

    def diagnose(self) -> list[tuple[str, str, str]]:
        checks: list[tuple[str, str, str]] = []
        with _reading("the server"):
            info = self._client.server_info()
        checks.append(("server", "ok", f"MongoDB {info.get('version', '?')}, {self._server}"))
        for name, wanted in INDEXES:
            if name not in self._present:
                continue
            with _reading(f"the indexes of {name}"):
                present = {tuple(index["key"]) for index in self._database[name].list_indexes()}
            if tuple(wanted) not in present:
                checks.append(
                    ("index", "info", f"{name} has none on ({', '.join(wanted)}): fallow doctor --create-indexes")
                )
        return checks

    def create_indexes(self) -> list[str]:
        made = []
        for name, wanted in INDEXES:
            if name not in self._present:
                continue
            with _reading(f"the indexes of {name}"):
                if tuple(wanted) in {tuple(index["key"]) for index in self._database[name].list_indexes()}:
                    continue
                try:
                    index = self._database[name].create_index([(field, 1) for field in wanted])
                except OperationFailure as error:
                    _raise_unwritable(error)
                made.append(f"{name}.{index}")
        return made


#: Indexes that agents do not make themselves, by collection.
INDEXES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("shared_memory", ("record_type", "timestamp")),
    ("summaries", ("summary_type",)),
)


def _timeout_of(uri: str) -> int:
    found = re.search(r"[?&]serverSelectionTimeoutMS=(\d{1,7})(?:&|\Z)", uri, re.IGNORECASE)
    return int(found.group(1)) if found else _SELECTION_MS


def _projected(memory_type: str, columns: Sequence[str]) -> list[str]:
    """The stored fields that these columns are read from; text and vectors only where they are asked for."""
    fields = {*_IDENTITY, *DECISION_FIELDS} - _TEXT
    fields |= {"content.timestamp", "content.retention_state"}
    if "text" in columns:
        fields = {name for name in fields if not name.startswith("content.")} | _TEXT
    elif memory_type == "entity_memory":
        fields.add("attributes")
    if "embedding" in columns:
        fields.add("embedding")
    return sorted(fields)


def _vector(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
        return None
    return [float(item) for item in value]


def _hashable(native: Any) -> Any:
    return native if isinstance(native, str | int | ObjectId | bytes | UUID) else str(native)


def _native_ids(record_id: str) -> list[Any]:
    """Every native id that reads as this record id."""
    natives: list[Any] = [record_id]
    if re.fullmatch(r"[0-9a-f]{24}", record_id):
        natives.append(ObjectId(record_id))
    if re.fullmatch(r"-?[1-9]\d{0,17}|0", record_id):
        natives.append(int(record_id))
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", record_id):
        digits = bytes.fromhex(record_id.replace("-", ""))
        natives += [digits, bson.Binary(digits, 4), bson.Binary(digits, 3)]
    return natives


def _is_record_id(name: str) -> bool:
    return bool(name) and is_unicode(name) and len(name.encode()) <= _MAX_ID_BYTES


def _condition(expected: Mapping[str, Any]) -> dict[str, Any]:
    """A filter that holds exactly while every field is what ``expected`` says, its type and its absence included.

    The server compares, on the native value (STORES.md, MongoDB). NaN inside an object or a list is the one thing
    that servers disagree about in an expression; there the whole value is matched by the query operator, which
    also matches a list that holds it, so that the type is named beside it.
    """
    clauses: list[dict[str, Any]] = []
    for name, value in expected.items():
        if value is MISSING:
            clauses.append({name: {"$exists": False}})
        elif isinstance(value, Mapping | list) and _holds_nan(value):
            kind = "object" if isinstance(value, Mapping) else "array"
            clauses.append({"$expr": {"$eq": [{"$type": f"${name}"}, kind]}})
            clauses.append({name: {"$eq": value, "$not": {"$elemMatch": {"$eq": value}}}})
        else:
            clauses.append({"$expr": {"$eq": [f"${name}", {"$literal": value}]}})
    return {"$and": clauses} if clauses else {}


def _holds_nan(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_nan, value.values()))
    if isinstance(value, list):
        return any(map(_holds_nan, value))
    return isinstance(value, float) and value != value


def _unstorable(fields: Mapping[str, Any]) -> str:
    """Why a document cannot hold these fields, or nothing."""
    for name in fields:
        if not name or name.startswith("$") or "." in name or "\0" in name:
            return "a field's name cannot be stored"
    try:
        size = len(bson.encode(dict(fields)))
    except (BSONError, OverflowError, TypeError, ValueError, UnicodeError) as error:
        return f"a value cannot be stored ({type(error).__name__})"
    return "larger than a document may be" if size > 16_000_000 else ""


def _reason(error: Mapping[str, Any]) -> str:
    """A write error without the values that servers quote in it."""
    code = error.get("code")
    return {121: "refused by the collection's validation", 50: "took too long"}.get(
        code if isinstance(code, int) else 0, f"refused by the server (code {code})"
    )


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """A failing listing is an error with the store, the place and the cause, never an empty answer (SPEC §1.4)."""
    try:
        yield
    except FallowError:
        raise
    except ServerSelectionTimeoutError as error:
        raise StoreBusyError("no MongoDB server answers", hint="check that it runs and the address is right") from error
    except OperationFailure as error:
        if error.code in _DENIED:
            raise StoreUnreadableError(
                f"{what} cannot be read: not permitted (code {error.code})", hint="check the user and its roles"
            ) from error
        raise StoreUnreadableError(f"{what} cannot be read: code {error.code}", hint="see the server's log") from error
    except ConfigurationError as error:
        raise StoreUnreadableError(
            f"{what} cannot be read: {type(error).__name__}", hint="the server may be too old, or its options wrong"
        ) from error
    except ConnectionFailure as error:
        raise StoreBusyError(f"{what} could not be read to its end", hint="run it again") from error
    except (PyMongoError, BSONError) as error:
        raise StoreUnreadableError(
            f"{what} cannot be read: {type(error).__name__}", hint="run fallow doctor"
        ) from error


def _raise_unwritable(error: Exception) -> None:
    code = getattr(error, "code", None)
    raise StoreUnwritableError(
        f"the store refuses writes ({'not permitted' if code in _DENIED else type(error).__name__})",
        hint="check the user's roles and the server's log; run it again: what is missing is completed",
    ) from error
