"""What MongoDB holds and JSON has no word for is decided on, written and taken back like anything else (TRAPS 53)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from fallow.providers.mongodb import CODEC
from pymongo import MongoClient

from fallow.acting.touch import touch_many
from fallow.importance.backfill import backfill_importance
from fallow.model.record import read_record, requirements
from fallow.model.settings import RetentionConfig
from fallow.model.values import plain, same_value
from fallow.port.journal import version_hash
from fallow.port.protocol import Patch
from fallow.port.registry import open_provider
from fallow.usecases.drift import find_drift
from fallow.usecases.planner import RetentionPlanner
from tests.fallow.small_stores import CONVERSATION, NOW, key, record, store
from tests.servers.mongodb import with_database

MINUTE = 60_000_000
OLD = datetime(2026, 9, 1, 1, 2, 3, 456000, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "date": OLD,
    "objectid": ObjectId("65a000000000000000000001"),
    "uuid": Binary(uuid.UUID(int=5).bytes, 4),
    "legacy uuid": Binary(uuid.UUID(int=6).bytes, 3),
    "bytes": b"\x00\x01",
    "decimal": Decimal128("0.1"),
    "long decimal": Decimal128("12345678901234567890.125"),
    "decimal nan": Decimal128("NaN"),
    "int64": Int64(7),
    "nan": math.nan,
    "infinity": math.inf,
    "regex": Regex("a.*", "i"),
    "timestamp": Timestamp(1_700_000_000, 1),
}
#: The trap's own records, 22 of them and more: what each adds to a record that is eligible without it.
TRAP: dict[str, dict[str, Any]] = {
    "accessed": {"last_accessed_at": OLD},
    "recalled": {"last_recalled_at": OLD},
    "created": {"timestamp": OLD},
    "created at": {"timestamp": None, "created_at": OLD},
    "decimal importance": {"importance": Decimal128("0.1")},
    "long count": {"access_count": Int64(0)},
    "decimal count": {"access_count": Decimal128("0")},
    "parent": {"parent_id": ObjectId("65a0000000000000000000ff")},
    "uuid parent": {"parent_id": Binary(uuid.UUID(int=9).bytes, 4)},
    "messages": {"source_message_ids": [ObjectId("65a0000000000000000000fe"), "text"]},
    "content": {"content": {"text": "said", "n": Decimal128("2.50"), "at": OLD}},
    "odd lists": {"tags": ["x", math.nan], "metadata": [math.nan]},
    "deep": {"metadata": {"l": [{"x": math.nan, "r": ObjectId("65a0000000000000000000fd")}, None], "d": {"at": OLD}}},
    **{f"metadata {name}": {"metadata": {"held": value, "beside": 1}} for name, value in VALUES.items()},
}


@pytest.fixture
def database(mongodb: str) -> Iterator[Any]:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb, tz_aware=True)
    name = f"fallow-test-{uuid.uuid4().hex[:12]}"
    client[name].create_collection(CONVERSATION)
    yield client[name]
    client.drop_database(name)
    client.close()


def test_planned_rated_touched_suppressed_and_restored_like_any_other_trap_53(mongodb: str, database: Any) -> None:
    rows = [record(name, **{"agent_id": "a", **fields}) for name, fields in TRAP.items()]
    database[CONVERSATION].insert_many([*rows, record("plain", agent_id="a")])
    before = {row["_id"]: row for row in database[CONVERSATION].find()}
    with open_provider(with_database(mongodb, database.name)) as provider:
        planner = RetentionPlanner(provider, "a", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        assert {entry.record_id for entry in plan.entries} == {*TRAP, "plain"}
        count = len(plan.entries)
        report = planner.apply(plan, approved_by="ann", reason="old", count=count, now=NOW + MINUTE)
        assert (report.applied, report.skipped, report.failed) == (count, {}, {})
        assert find_drift(provider, now=NOW + MINUTE).findings == []
        back = planner.restore_plan(plan.plan_id, approved_by="bea", reason="back", now=NOW + 2 * MINUTE)
        assert (len(back.restored), back.failed) == (count, {})
        assert find_drift(provider, now=NOW + 3 * MINUTE).findings == []
        for row in database[CONVERSATION].find():
            kept = {name: row[name] for name in before[row["_id"]]}
            assert same_value(kept, before[row["_id"]]), row["_id"]
        touched = touch_many(provider, CONVERSATION, list(TRAP), now=NOW + MINUTE)
        assert (len(touched.touched), touched.failed) == (len(TRAP), {})
    times = {row["_id"]: row["last_accessed_at"] for row in database[CONVERSATION].find({"_id": {"$ne": "plain"}})}
    assert times["accessed"] == datetime(2026, 12, 1, 0, 1, tzinfo=UTC)  # a date stays one
    assert {type(value) for name, value in times.items() if name != "accessed"} == {str}


def test_unrated_records_with_native_values_are_rated_trap_53(mongodb: str, database: Any) -> None:
    rows = [
        record(name, **{"agent_id": "a", **fields, "importance": None})
        for name, fields in TRAP.items()
        if name != "decimal importance"
    ]
    database[CONVERSATION].insert_many(rows)
    with open_provider(with_database(mongodb, database.name)) as provider:
        report = backfill_importance(provider, now=NOW)
    assert (report.rated, report.failed) == (len(rows), {})
    assert database[CONVERSATION].count_documents({"importance_source": {"$exists": True}}) == len(rows)


@pytest.mark.parametrize("held", VALUES)
def test_a_native_value_that_changed_refuses_the_write_trap_22(mongodb: str, database: Any, held: str) -> None:
    """Wherever it stands: as the field itself, in an object, in a list, and against the text that renders it."""
    places = {"object": lambda v: {"k": v}, "list": lambda v: [v], "deep": lambda v: {"l": [{"k": v}]}}
    other: dict[str, Any] = {"date": OLD + timedelta(milliseconds=1), "nan": "nan", "decimal": Decimal128("0.10")}
    database[CONVERSATION].insert_many([record(place, metadata=put(VALUES[held])) for place, put in places.items()])
    changed = {"text": plain(VALUES[held]), "other": other.get(held, ObjectId()), "null": None}
    with open_provider(with_database(mongodb, database.name)) as provider:
        for place, put in places.items():
            row = provider.fetch(CONVERSATION, [place])[place]
            assert isinstance(row, dict)
            patch = Patch(key(place), requirements(row), {"retention_state": "suppressed"})
            for name, value in changed.items():
                if same_value(value, VALUES[held]):
                    continue
                database[CONVERSATION].update_one({"_id": place}, {"$set": {"metadata": put(value)}})
                if name == "other" and held == "decimal":
                    continue  # 0.1 and 0.10 are one number to the server
                assert provider.patch([patch])[0].status == "changed", (place, name)
            database[CONVERSATION].update_one({"_id": place}, {"$set": {"metadata": put(VALUES[held])}})
            assert provider.patch([patch])[0].status == "applied", place


def test_a_date_outside_pythons_years_is_a_breach_and_hides_nothing_trap_53() -> None:
    """The development server refuses to store one: the bytes are decoded as the provider's client decodes them."""
    for milliseconds in (2**62, -(2**62), 253_402_300_800_000 + 1):
        data = bson.encode({"_id": "r", "timestamp": DatetimeMS(milliseconds), "metadata": {"at": DatetimeMS(5)}})
        row = bson.decode(data, CODEC)
        found = read_record(row, CONVERSATION, "r")
        assert found.created_at is None
        assert "created_at_unparsable" in found.breaches
        assert same_value(row, bson.decode(data, CODEC))
        assert version_hash(row) == version_hash(bson.decode(data, CODEC))


def test_one_equality_and_one_rendering() -> None:
    for name, value in VALUES.items():
        assert same_value({"a": [value]}, {"a": [bson.decode(bson.encode({"v": value}), CODEC)["v"]]}), name
        for other, another in VALUES.items():
            assert same_value(value, another) == (name == other), (name, other)
        assert not same_value(value, None)
        assert not same_value(value, plain(value)) or name in {"int64"}
        assert "0x" not in str(plain(value))
    assert plain({"d": OLD, "n": Decimal128("0.5"), "u": Binary(uuid.UUID(int=5).bytes, 4), "gone": None}) == {
        "d": "2026-09-01T01:02:03.456000Z",
        "n": 0.5,
        "u": str(uuid.UUID(int=5)),
    }


def test_the_same_record_with_native_times_has_one_fingerprint_everywhere_12(
    mongodb: str, database: Any, tmp_path: Path
) -> None:

    native = [
        record(f"r{n}", agent_id="a", timestamp=OLD, last_accessed_at=OLD, importance=Decimal128("0.1"))
        for n in range(3)
    ]
    text = [
        record(f"r{n}", agent_id="a", timestamp="2026-09-01T01:02:03.456Z", last_accessed_at=OLD.isoformat())
        for n in range(3)
    ]
    database[CONVERSATION].insert_many(native)
    with open_provider(with_database(mongodb, database.name)) as provider:
        theirs = RetentionPlanner(provider, "a", RetentionConfig()).plan(as_of=NOW, now=NOW)
    with store(tmp_path / "files", *text) as provider:
        ours = RetentionPlanner(provider, "a", RetentionConfig()).plan(as_of=NOW, now=NOW)
    assert len(ours.entries) == 3
    assert theirs.plan_id == ours.plan_id


def test_the_kit_rejects_json_only_equality_on_mongodb(mongodb: str) -> None:
    from fallow.providers.conformance import CHECKS, run_check
    from fallow.providers.conformance.scratch_mongodb import MongoDBBackend

    from tests.providers.mutants import JsonOnlyEquality

    class Backend(MongoDBBackend):
        @contextmanager
        def store(self) -> Iterator[Any]:
            with super().store() as good:
                opened = good.open
                good.open = lambda zones=None: JsonOnlyEquality(opened(zones))  # type: ignore[assignment,return-value]
                yield good

    result = run_check(CHECKS["native_values_live_a_whole_life"], Backend(mongodb))
    assert result.verdict == "fails"
    assert "found 'changed'" in result.detail
