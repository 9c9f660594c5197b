"""Scratch stores on a MongoDB server: a database of its own each, dropped afterwards."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.errors import InvalidId
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from fallow.providers.conformance.kit import Fault, Gap, NotHeldError
from fallow.providers.gaps import GAPS
from pymongo import MongoClient

from fallow.model.keys import Row
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider

_COLLECTIONS: Final = ("conversation_memory", "knowledge_base", "entity_memory", "summaries", "shared_memory")


def with_database(address: str, name: str) -> str:
    """The address of another database on the same server."""
    head, mark, options = address.partition("?")
    scheme, _, rest = head.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{name}{mark}{options}"


class MongoDBStore:
    """A scratch database; its native side writes as agents do (:class:`~.kit.Store`, doubling)."""

    def __init__(self, address: str, name: str) -> None:
        self._address = with_database(address, name)
        self._client: MongoClient[dict[str, Any]] = MongoClient(address, tz_aware=True)
        self._database = self._client[name]
        for collection in _COLLECTIONS:
            self._database.create_collection(collection)

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        return open_provider(self._address, naive_timezone)

    def seed(self, memory_type: str, rows: Sequence[Row]) -> None:
        documents = [{name: value for name, value in row.items() if name != "id"} for row in rows]
        if documents:
            self._database[memory_type].insert_many(documents)

    def change(self, memory_type: str, record_id: str, fields: Mapping[str, Any]) -> None:
        self._database[memory_type].update_one({"_id": record_id}, {"$set": dict(fields)})

    def remove(self, memory_type: str, record_id: str) -> None:
        self._database[memory_type].delete_one({"_id": record_id})

    def stored(self, memory_type: str) -> dict[str, dict[str, bytes]]:
        return {
            str(row["_id"]): {name: bson.encode({"": value}) for name, value in row.items()}
            for row in self._database[memory_type].find()
        }

    def fault(self, kind: Fault) -> AbstractContextManager[None]:
        raise NotHeldError(f"a server of others is never {kind}")

    def double(self, memory_type: str, record_id: str) -> None:
        (row,) = self._database[memory_type].find({"_id": record_id})
        if not re.fullmatch(r"[0-9a-f]{24}", record_id):
            raise NotHeldError("a second id that reads the same")
        try:
            self._database[memory_type].insert_one({**row, "_id": ObjectId(record_id)})
        except InvalidId:
            raise NotHeldError("a second id that reads the same") from None

    def natives(self) -> Mapping[str, Mapping[str, Any]]:
        """Every type of value that BSON has and a person or a driver would store, in the fields that are decided on."""
        date = datetime(2026, 5, 1, 2, 3, 4, 567000, tzinfo=UTC)
        values: dict[str, Any] = {
            "a date": date,
            "an ObjectId": ObjectId("65a000000000000000000001"),
            "a UUID": Binary(uuid.UUID(int=5).bytes, 4),
            "an old UUID": Binary(uuid.UUID(int=5).bytes, 3),
            "bytes": b"\x00\x01",
            "a decimal": Decimal128("0.1"),
            "a long decimal": Decimal128("12345678901234567890.125"),
            "a decimal NaN": Decimal128("NaN"),
            "a long": Int64(2**53 + 1),
            "NaN": math.nan,
            "infinity": math.inf,
            "a pattern": Regex("a.*", "i"),
            "a timestamp": Timestamp(1_700_000_000, 1),
        }
        return {
            **{f"{name} in metadata": {"metadata": {"x": value}} for name, value in values.items()},
            **{f"{name} deep in metadata": {"metadata": {"x": [1, {"y": value}]}} for name, value in values.items()},
            **{f"{name} as parent_id": {"parent_id": value} for name, value in values.items()},
            **{f"{name} as last_accessed_at": {"last_accessed_at": value} for name, value in values.items()},
            **{f"{name} as importance": {"importance": value} for name, value in values.items()},
            **{f"{name} in content": {"content": {"text": "x", "n": value}} for name, value in values.items()},
            "ObjectIds as source_ids": {"source_ids": [ObjectId("65a000000000000000000002"), "text"]},
            "a date as created_at": {"created_at": date},
        }

    def drop(self) -> None:
        """Removes the database."""
        self._client.drop_database(self._database.name)
        self._client.close()


class MongoDBBackend:
    """Scratch databases on the server at ``address`` (:class:`~fallow.providers.conformance.kit.Backend`)."""

    name = "mongodb"
    faults: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()

    def __init__(self, address: str) -> None:
        self._address = address

    @property
    def gaps(self) -> Mapping[str, Gap]:
        return GAPS["mongodb"]

    @contextmanager
    def store(self) -> Iterator[MongoDBStore]:
        made = MongoDBStore(self._address, f"fallow-conformance-{uuid.uuid4().hex[:12]}")
        try:
            yield made
        finally:
            made.drop()
