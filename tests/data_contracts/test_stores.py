"""Contracts across stores: where a field stands, and the same faults in the same records (SPEC §12, §13)."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from fallow.data_contracts.compiler import tables
from fallow.data_contracts.frames import primary_frames
from fallow.providers.mongodb import _projected

from fallow.model.record import _CONTENT, DECISION_FIELDS, PRIMARY_TYPES, display_text, read_record
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider
from tests.providers.notion_world import NOW
from tests.providers.test_mongodb import database, load_fixture  # noqa: F401
from tests.providers.test_notion_fixture import store as notion_fixture  # noqa: F401
from tests.providers.test_oracle_fixture import loaded  # noqa: F401
from tests.providers.test_oracle_fixture import provider as oracle_fixture  # noqa: F401
from tests.providers.test_parity import data_set, filesystem, mongo, notion, oracle
from tests.servers.mongodb import with_database

#: A value that a field's reader can use, by column.
USABLE: dict[str, Any] = {
    "created_at": "2026-01-02T03:04:05Z",
    "last_accessed_at": "2026-01-02T03:04:05Z",
    "unsuppressed_at": "2026-01-02T03:04:05Z",
    "access_count": 3,
    "importance": 0.5,
    "pinned": True,
    "verified": True,
    "retention_state": "sealed",
    "citations": ["another"],
}
#: Read from the row itself, not from its record.
OF_THE_ROW = {"record_id", "suppressed_at", "suppression_reason", "suppression_approver"}


def at(path: str, value: Any) -> dict[str, Any]:
    """A row in which only the field at a dotted path is set."""
    first, _, inner = path.partition(".")
    if first == "attributes" and inner:
        return {"attributes": [{"name": "colour", inner: value}]}
    for step in reversed(path.split(".")):
        value = {step: value}
    return value


def mapped(kind: str) -> list[tuple[str, str, str]]:
    """(type, column, path) of everything that the contracts say is read from a kind of store."""
    return [
        (name, column.name, path)
        for name in PRIMARY_TYPES
        for column in tables()[name].columns.values()
        for path in (column.sources or {}).get(kind, ())
    ]


@pytest.mark.parametrize("kind", ["filesystem", "mongodb", "notion"])
def test_every_mapped_field_is_read_into_its_column_13(kind: str) -> None:
    empty = {name: read_record({"_id": "x"}, name, "x") for name in PRIMARY_TYPES}
    checked = 0
    for name, column, path in mapped(kind):
        if column in OF_THE_ROW:
            continue
        if column == "text_length":
            told = [{"name": "x", "value": "hello"}] if path == "attributes" else "hello"
            assert "hello" in display_text(at(path, told)), path
            continue
        value = [column] if path.endswith("tags") else USABLE.get(column, "some-text")
        record = read_record({"_id": "x", **at(path, value)}, name, "x")
        assert getattr(record, column) != getattr(empty[name], column), (name, column, path)
        checked += 1
    assert checked > 150


@pytest.mark.parametrize("kind", ["filesystem", "mongodb", "notion"])
def test_every_field_that_a_decision_rests_on_is_mapped_13(kind: str) -> None:
    for name in PRIMARY_TYPES:
        said = {path.partition(".")[0] for of, _, path in mapped(kind) if of == name}
        inner = {"metadata", "content", "suppressed_from", "unsuppressed_by"}
        inner |= set() if name == "conversation_memory" else {"summary_id"}
        assert set(DECISION_FIELDS) - said - inner - set(_CONTENT) == set(), name


def test_what_mongodb_is_asked_for_is_what_its_contract_maps_13() -> None:
    for name, column, path in mapped("mongodb"):
        columns = ["text"] if column == "text_length" else [column]
        asked = set(_projected(name, columns))
        if column in OF_THE_ROW:
            continue
        assert {path, path.partition(".")[0], "_id"} & asked, (name, column, path)


def broken_rows(provider: Provider) -> dict[tuple[str, str], set[str]]:
    """Ids by table and rule, for every row rule that this store can carry."""
    kind = provider.capabilities.kind
    found: dict[tuple[str, str], set[str]] = {}
    for name, (frame, _) in primary_frames(provider).items():
        table, types = tables()[name], dict(frame.schema)
        for rule in table.rules:
            if table.applies(rule, kind):
                ids = frame.filter(rule.broken(types, NOW)).get_column("record_id").to_list()
                found[name, rule.id] = set(ids)
    return found


FAULTS: list[dict[str, Any]] = [
    {"importance": 1.7},
    {"importance": 0.05, "importance_source": "llm"},
    {"importance_source": "guess"},
    {"access_count": -3},
    {"last_accessed_at": "2019-01-01T00:00:00Z", "access_count": 2},
    {"last_accessed_at": "one day", "access_count": 2},
    {"timestamp": "yesterday"},
    {"timestamp": "2031-01-01T00:00:00Z"},
    {"retention_state": "on holiday"},
    {"suppressed_by": "forget-plan-of-nobody"},
    {"source_ids": ["nowhere"]},
    {"content": "   "},
]


@pytest.mark.parametrize("other", [notion, mongo, oracle], ids=["notion", "mongodb", "oracle"])
def test_the_same_faults_are_found_in_the_same_records_of_every_store_12(
    tmp_path: Path, request: pytest.FixtureRequest, other: Any
) -> None:
    rows = data_set()
    for number, fault in enumerate(FAULTS):
        # A column of a time type holds no words.
        if other is not oracle or fault.get("last_accessed_at") != "one day":
            rows["knowledge_base"][number] |= fault
    found = []
    for made in (filesystem, other):
        with made(tmp_path, request) as provider:
            for memory_type, some in rows.items():
                provider.insert(memory_type, some)
            found.append(broken_rows(provider))
    ours, theirs = found
    assert sum(len(ids) for (name, _), ids in ours.items() if name == "knowledge_base") >= len(FAULTS) - 1
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 140
    assert {key: theirs[key] for key in shared} == {key: ours[key] for key in shared}


def test_the_fixtures_have_the_same_breaches_where_a_store_carries_the_field(
    shared: Path,
    tmp_path: Path,
    database: Any,  # noqa: F811 (the fixture)
    mongodb: str,
    notion_fixture: Provider,  # noqa: F811 (the fixture)
    oracle_fixture: Provider,  # noqa: F811 (the fixture)
) -> None:
    """The stores were written apart, so most ids differ: what is compared is how many break each rule."""
    with tarfile.open(shared / "fixtures" / "fs_store.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    load_fixture(shared, database)
    found = []
    with open_provider(str(tmp_path / "fs_store")) as provider:
        found.append(broken_rows(provider))
    with open_provider(with_database(mongodb, database.name)) as provider:
        found.append(broken_rows(provider))
    found += [broken_rows(notion_fixture), broken_rows(oracle_fixture)]
    counts = [{key: len(ids) for key, ids in one.items()} for one in found]
    assert counts[0]["conversation_memory", "importance_readable"] == 25
    # Its numeric and time columns took none of the values out of range, so the export has them as absent.
    not_taken = {
        ("conversation_memory", "importance_readable"),
        ("conversation_memory", "last_accessed_at_where_counted"),
    }
    for other in counts[1:]:
        shared_rules = counts[0].keys() & other.keys()
        if other is counts[-1]:
            assert all(other[key] < counts[0][key] for key in not_taken)
            shared_rules -= not_taken
        assert len(shared_rules) > 140
        assert {key: other[key] for key in shared_rules} == {key: counts[0][key] for key in shared_rules}
