"""The MongoDB store against a real server (STORES.md, MongoDB; SPEC §12)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bson.json_util
import pytest
from bson.objectid import ObjectId
from fallow.providers.mongodb import MongoDBProvider
from pymongo import MongoClient, monitoring

from fallow.cli import main
from fallow.model.arguments import instant
from fallow.model.errors import FallowError, StoreBusyError, StoreNotFoundError, UsageError
from fallow.model.keys import MISSING, RecordKey
from fallow.model.scope import Scope
from fallow.model.times import iso
from fallow.port.protocol import Patch
from fallow.port.reading import read_store
from fallow.port.registry import open_provider
from fallow.usecases.suppressed import suppressed_records
from tests.conftest import FIXTURE_NAIVE_TIMEZONE
from tests.fallow.peer import Rows, differences, raw_rows
from tests.fallow.small_stores import CONVERSATION, NOW, ids, planned, protected, record
from tests.servers.mongodb import with_database


@pytest.fixture
def database(mongodb: str) -> Iterator[Any]:
    """An empty database of the server, as pymongo's own; dropped afterwards."""
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb, tz_aware=True)
    name = f"fallow-test-{uuid.uuid4().hex[:12]}"
    client[name].create_collection(CONVERSATION)
    client[name].create_collection("shared_memory")
    yield client[name]
    client.drop_database(name)
    client.close()


@pytest.fixture
def address(mongodb: str, database: Any) -> str:
    return with_database(mongodb, database.name)


def load_fixture(shared: Path, database: Any) -> Rows:
    """The store that MemoRizz wrote, as it was exported; its rows by (type, id) as text."""
    rows = []
    for path in sorted((shared / "fixtures" / "mongo").glob("*.jsonl")):
        documents = [bson.json_util.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if documents:
            database[path.stem].insert_many(documents)
        rows += [(path.stem, str(row["_id"]), row) for row in documents]
    return raw_rows(rows)


def test_candidates_are_memorizzs_but_for_what_stores_md_lists_e(shared: Path, database: Any, address: str) -> None:
    """Differences: as on files, and records whose owner the agents' store dropped are found by lineage."""
    rows = load_fixture(shared, database)
    expected = json.loads((shared / "fixtures" / "expected-mongo.json").read_text())
    as_of = instant(expected["now"])
    compared = 0
    with open_provider(address, FIXTURE_NAIVE_TIMEZONE) as provider:
        for scenario in expected["scenarios"]:
            found = differences(provider, scenario, rows, as_of)
            if scenario["agent_id"]:
                by_lineage = {str(key) for key, row in rows.items() if not row.get("agent_id")}
                found = [item for item in found if not any(key in item for key in by_lineage)]
                # A wider set has another maximum of access counts: retention of the others moves with it.
                found = [item for item in found if not item.startswith(("retention of", "only ours", "the order"))]
            compared += 1
            assert found == [], f"{scenario['name']} {scenario['agent_id']}"
        theirs = {(item["memory_type"], item["record_id"]) for item in expected["scenarios"][0]["suppressed"]}
        assert {(item.memory_type, item.record_id) for item in suppressed_records(provider)} == theirs
    assert compared == len(expected["scenarios"]) >= 30


def test_an_owner_that_the_agents_store_dropped_is_found_by_lineage_6_4(database: Any, address: str) -> None:
    message = ObjectId()
    database[CONVERSATION].insert_many(
        [
            {**record("m1"), "_id": message},
            record("m2", agent_id="other", memory_id="shared"),
            record("m3", memory_id="shared"),
        ]
    )
    database["summaries"].insert_many(
        [
            record("s1", agent_id=None, memory_id=None, source_message_ids=[str(message)]),
            record("s2", agent_id=None, memory_id=None, source_message_ids=[str(message), "m2"]),
        ]
    )
    database["workflow_memory"].insert_many(
        [
            record("w1", agent_id=None),
            record("w2", agent_id=None, memory_id="shared"),
            record("w3", agent_id=None, memory_id=None),
        ]
    )
    with open_provider(address) as provider:
        view = read_store(provider)
        owners = {
            name: owner
            for frame in view.frames.values()
            for name, owner in frame.select("record_id", "agent_id").rows()
        }
        assert (owners["s1"], owners["s2"]) == ("gardener", None)
        assert (owners["w1"], owners["w2"], owners["w3"]) == ("gardener", None, None)
        assert "w1" in ids(planned(provider, scope=Scope(agent_id="gardener")))
        assert "w1" not in ids(planned(provider, scope=Scope(unowned=True)))


def test_ids_of_every_kind_are_read_in_one_form_and_written_back_in_theirs_1_30(database: Any, address: str) -> None:
    native = [ObjectId(), 4711, uuid.uuid4().hex, "text id/with \u00e9"]
    database[CONVERSATION].insert_many([{**record("x"), "_id": name} for name in native])
    database["summaries"].insert_one(record("s", days=1, source_message_ids=[native[0], str(native[1])]))
    with open_provider(address) as provider:
        plan = planned(provider)
        assert sorted(ids(plan)) == sorted(map(str, native[2:]))
        assert protected(plan) == {"cited": 2}
        patches = [Patch(RecordKey(CONVERSATION, str(name)), {"x_n": MISSING}, {"x_n": 1}) for name in native]
        assert {outcome.status for outcome in provider.patch(patches)} == {"applied"}
        assert {outcome.status for outcome in provider.patch(patches)} == {"changed"}
    assert sorted(map(str, (row["_id"] for row in database[CONVERSATION].find({"x_n": 1})))) == sorted(map(str, native))
    assert database[CONVERSATION].count_documents({}) == 4


def test_times_of_every_kind_are_the_same_instant_trap_14(database: Any, address: str) -> None:
    moment = instant("2026-10-01T00:00:00Z")
    from fallow.model.times import from_microseconds

    forms = [from_microseconds(moment), "2026-10-01T02:00:00+02:00", moment / 1e6, moment // 1000, iso(moment)]
    database[CONVERSATION].insert_many([record(f"r{n}", timestamp=form) for n, form in enumerate(forms)])
    with open_provider(address, {CONVERSATION: "America/New_York"}) as provider:
        frame = read_store(provider).frames[CONVERSATION]
        assert set(frame["created_at"].to_list()) == {moment}


def test_only_projected_fields_cross_the_wire(database: Any, mongodb: str) -> None:
    """Planning fetches no text, no embedding, and nothing of fields unknown to us (SPEC §12)."""
    secret = "what nobody needs to know for a plan"
    rows = [record(f"r{n:04d}", content=secret, embedding=[0.5] * 384, x_custom=secret) for n in range(300)]
    database[CONVERSATION].insert_many(rows)
    seen: list[Any] = []

    class Listener(monitoring.CommandListener):
        def started(self, event: Any) -> None:
            pass

        def failed(self, event: Any) -> None:
            pass

        def succeeded(self, event: Any) -> None:
            if event.command_name in {"find", "getMore", "aggregate"}:
                cursor = event.reply["cursor"]
                seen.extend(cursor.get("firstBatch") or cursor.get("nextBatch") or [])

    client: MongoClient[dict[str, Any]] = MongoClient(mongodb, event_listeners=[Listener()])
    with MongoDBProvider(client, database.name) as provider:
        read_store(provider)
    assert sum("importance" in row for row in seen) == 300
    assert secret not in str(seen)
    assert not [row for row in seen if row.keys() & {"content", "embedding", "x_custom"}]


def test_a_bulk_in_which_some_do_not_match_tells_each_ones_fate(database: Any, address: str) -> None:
    database[CONVERSATION].insert_many([record(f"r{n}") for n in range(40)])
    with open_provider(address) as provider:
        rows = provider.fetch(CONVERSATION, [f"r{n}" for n in range(40)])
        for n in range(0, 40, 4):
            database[CONVERSATION].update_one({"_id": f"r{n}"}, {"$set": {"access_count": 9}})
        database[CONVERSATION].delete_one({"_id": "r1"})
        patches = [
            Patch(RecordKey(CONVERSATION, name), {"access_count": row["access_count"]}, {"x_mark": name})
            for name, row in rows.items()
        ]
        found = {outcome.key.record_id: outcome.status for outcome in provider.patch(patches)}
    assert found == {f"r{n}": "gone" if n == 1 else "changed" if n % 4 == 0 else "applied" for n in range(40)}
    assert database[CONVERSATION].count_documents({"x_mark": {"$exists": True}}) == 29


def test_indexes_are_made_only_when_asked_for(database: Any, address: str) -> None:
    with open_provider(address) as provider:
        planned(provider)
        assert [check[:2] for check in provider.diagnose()] == [("server", "ok"), ("index", "info")]
        assert len(list(database["shared_memory"].list_indexes())) == 1
        assert provider.create_indexes() == ["shared_memory.record_type_1_timestamp_1"]
        assert provider.create_indexes() == []
        assert [check[0] for check in provider.diagnose()] == ["server"]


def test_doctor_makes_them_with_its_option(database: Any, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*options: str) -> dict[str, list[str]]:
        main(["doctor", "--store", address, "--json", *options])
        found: dict[str, list[str]] = {}
        for one in json.loads(capsys.readouterr().out)["checks"]:
            found.setdefault(one["check"], []).append(one["detail"])
        return found

    assert "--create-indexes" in told()["index"][0]
    assert len(list(database["shared_memory"].list_indexes())) == 1
    made = told("--create-indexes")
    assert made["indexes"] == ["made shared_memory.record_type_1_timestamp_1"]
    assert "index" not in made
    assert told("--create-indexes")["indexes"] == ["all are there"]


def test_indexes_without_a_store_or_where_none_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--create-indexes"]) == 2
    (tmp_path / "agents").mkdir()
    capsys.readouterr()
    main(["doctor", "--store", str(tmp_path), "--create-indexes", "--json"])
    details = {one["check"]: one["detail"] for one in json.loads(capsys.readouterr().out)["checks"]}
    assert details["indexes"] == "a store of kind filesystem needs none of fallow's"


SECRET = "hunter2-secret"


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        (f"mongodb://user:{SECRET}@127.0.0.1:1/db?serverSelectionTimeoutMS=200", StoreBusyError),
        (f"mongodb://user:{SECRET}@[::1/db", UsageError),
        ("mongodb://", UsageError),
        (f"mongodb://user:{SECRET}@127.0.0.1:99999/db", UsageError),
    ],
)
def test_an_address_that_leads_nowhere_is_one_clear_line_without_its_password(
    uri: str, error: type[FallowError]
) -> None:
    with pytest.raises(error) as caught:
        open_provider(uri)
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_a_database_without_a_store_is_none(mongodb: str) -> None:
    with pytest.raises(StoreNotFoundError):
        open_provider(with_database(mongodb, "nothing-here"))


def test_the_identity_survives_a_restart_and_is_another_for_a_copy(database: Any, address: str, mongodb: str) -> None:
    database[CONVERSATION].insert_one(record("r1"))
    with open_provider(address) as provider:
        first = provider.identity()
        planned(provider)
        assert provider.identity() == first
    with open_provider(address) as provider:
        assert provider.identity() == first
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb)
    copy = database.name + "-copy"
    client[copy][CONVERSATION].insert_one(record("r1"))
    try:
        with open_provider(with_database(mongodb, copy)) as provider:
            assert provider.identity() != first
    finally:
        client.drop_database(copy)
        client.close()
    assert NOW
