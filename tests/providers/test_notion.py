"""The Notion store on a workspace of its own (SPEC §1, §12; STORES.md, Notion; TRAPS rows named at each test)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fallow.providers.notion import NotionProvider, estimate_requests, estimate_seconds
from fallow.providers.notion_calls import Clock, SharedPace
from fallow.providers.notion_pages import SEGMENT, page_properties, segments, units
from hypothesis import given
from hypothesis import strategies as st

from fallow.model.errors import FallowError, SettingError, StoreNotFoundError, StoreUnreadableError, UsageError
from fallow.model.keys import MISSING, RecordKey
from fallow.model.record import PLANNING_COLUMNS, read_record
from fallow.model.times import iso, parse_time
from fallow.port.protocol import CachePurging, Diagnosing, Outcome, Patch, Provider, Snapshotting, Touching, Unreadable
from fallow.port.registry import open_provider
from tests.providers.notion_fake import TOKEN, Fault, rich
from tests.providers.notion_world import NOW, World, message, world

CONVERSATION = "conversation_memory"


@pytest.fixture
def notion(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def key(record_id: str) -> RecordKey:
    return RecordKey(CONVERSATION, record_id)


def scanned(provider: Provider, memory_type: str = CONVERSATION) -> tuple[list[str], dict[str, str]]:
    batches = list(provider.scan(memory_type, PLANNING_COLUMNS))
    ids = [name for batch in batches for name in batch.frame["record_id"].to_list()]
    return ids, {bad.key.record_id: bad.reason for batch in batches for bad in batch.unreadable}


def put(notion: World, *rows: dict[str, Any], memory_type: str = CONVERSATION) -> None:
    outcomes = notion.provider.insert(memory_type, rows)
    assert [outcome.status for outcome in outcomes] == ["applied"] * len(rows), outcomes


# Reading and inserting


def test_it_is_a_provider_with_its_optional_powers(notion: World) -> None:
    for protocol in (Provider, Touching, CachePurging, Snapshotting, Diagnosing):
        assert isinstance(notion.provider, protocol)
    able = notion.provider.capabilities
    assert (able.conditional_write, able.atomic_touch, able.insert_if_absent) == (False, False, False)


def test_an_inserted_record_reads_back_and_its_page_is_one_that_agents_accept(notion: World) -> None:
    row = message("r/1 ü", namespace="n", thread_id="t", pinned="yes", embedding=[0.5], metadata={"tags": ["x"]})
    put(notion, row)
    stored = {name: value for name, value in row.items() if name != "embedding"}
    assert notion.provider.fetch(CONVERSATION, ["r/1 ü", "other"]) == {"r/1 ü": {**stored, "id": "r/1 ü"}}
    page = notion.page("r/1 ü")
    envelope = notion.envelope("r/1 ü")
    text = notion.fake.text(page, "Memorizz metadata")
    assert text == json.dumps(envelope, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert envelope["format"] == "memorizz.notion.v1"
    assert (envelope["id"], envelope["display_field"], envelope["display_json"]) == ("r/1 ü", "content", False)
    assert "content" not in envelope["data"]
    assert "embedding" not in envelope["data"]
    shown = {
        name: notion.fake.text(page, name) for name in ("Memory ID", "Agent ID", "Thread ID", "Namespace", "Content")
    }
    assert shown == {
        "Memory ID": "m1",
        "Agent ID": "a1",
        "Thread ID": "t",
        "Namespace": "n",
        "Content": "the text of r/1 ü",
    }
    assert parse_time(notion.fake.text(page, "Timestamp")) == parse_time(row["timestamp"])
    assert notion.fake.pages[page]["properties"]["Event time"]["start"] == "2026-06-01T08:00:00.000+00:00"


def test_a_display_field_that_is_no_text_stands_in_content_as_json(notion: World) -> None:
    row = {"_id": "e1", "name": "Skipper", "attributes": [{"name": "boat", "value": "乗船", "pinned": True}]}
    put(notion, row, memory_type="entity_memory")
    assert json.loads(notion.fake.text(notion.page("e1"), "Content")) == row["attributes"]
    [batch] = notion.provider.scan("entity_memory", ["record_id", "pinned", "text"])
    assert batch.frame["pinned"].to_list() == [True]
    assert notion.provider.fetch("entity_memory", ["e1"])["e1"] == {**row, "id": "e1"}


def test_inserting_twice_and_doubled_rows_leave_one_page(notion: World) -> None:
    rows = [message("r1"), message("r1", content="another")]
    assert [outcome.status for outcome in notion.provider.insert(CONVERSATION, rows)] == ["applied", "already"]
    assert [outcome.status for outcome in notion.provider.insert(CONVERSATION, rows)] == ["already", "already"]
    assert len(notion.fake.page_ids("r1")) == 1
    assert notion.provider.insert(CONVERSATION, []) == []


def test_ids_that_differ_only_by_case_are_two_records(notion: World) -> None:
    """Notion's own filters do not tell them apart."""
    put(notion, message("Ab"))
    put(notion, message("aB"))
    assert set(notion.provider.fetch(CONVERSATION, ["aB"])) == {"aB"}
    assert [row["_id"] for row in notion.provider.find(CONVERSATION, "a")] == ["aB"]
    assert scanned(notion.provider)[0] == ["Ab", "aB"]


@pytest.mark.parametrize("bad", ["", "x" * 2001, "a\ud800", "n\0"])
def test_ids_that_no_page_can_carry_are_refused_before_anything_is_sent(notion: World, bad: str) -> None:
    """TRAPS 48."""
    before = len(notion.fake.sent)
    [outcome] = notion.provider.insert(CONVERSATION, [message(bad)])
    assert (outcome.status, outcome.detail) == ("failed", "invalid record id: the store cannot hold it")
    assert notion.provider.fetch(CONVERSATION, [bad]) == {}
    assert notion.provider.patch([Patch(key(bad), {}, {"pinned": True})]) == [Outcome(key(bad), "gone")]
    assert len(notion.fake.sent) == before


def test_a_type_that_the_data_source_does_not_have_is_empty(notion: World) -> None:
    assert scanned(notion.provider, "workflow_memory") == ([], {})
    assert notion.provider.fetch("workflow_memory", ["x"]) == {}
    assert list(notion.provider.find("workflow_memory")) == []
    assert notion.fake.sent[-1].status == 200


def test_the_old_name_of_a_type_is_found_under_the_new_one(notion: World) -> None:
    put(notion, {"_id": "k1", "content": "old"}, memory_type="knowledge_base")
    page, envelope = notion.page("k1"), notion.envelope("k1")
    envelope["memory_type"] = "long_term_memory"
    notion.fake.edit_page(page, {"Memory type": {"select": {"name": "long_term_memory"}}})
    notion.write_metadata("k1", json.dumps(envelope))
    notion.provider = notion.open()
    assert scanned(notion.provider, "knowledge_base") == (["k1"], {})
    assert list(notion.provider.fetch("long_term_memory", ["k1"])) == ["k1"]


@given(st.text(max_size=5000) | st.integers(1990, 2010).map(lambda n: "x" * n + "𝔘𝔘" + "y" * 2001))
def test_segments_are_whole_and_never_cut_a_pair(text: str) -> None:
    pieces = segments(text)
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode("utf-16-le", "surrogatepass")) // 2 <= SEGMENT for piece in pieces)
    assert units(text) == len(text.encode("utf-16-le", "surrogatepass")) // 2


def test_a_record_of_more_than_25_segments_is_read_and_patched_whole(notion: World) -> None:
    row = message("long", content="𝔘" * 40_000, notes="ü" * 90_000)
    put(notion, row)
    assert notion.provider.fetch(CONVERSATION, ["long"])["long"] == {**row, "id": "long"}
    [outcome] = notion.provider.patch([Patch(key("long"), {"notes": row["notes"]}, {"retention_state": "suppressed"})])
    assert outcome.status == "applied"
    assert notion.provider.fetch(CONVERSATION, ["long"])["long"]["notes"] == row["notes"]
    assert any("/properties/" in sent.path for sent in notion.fake.sent)


def test_a_property_of_more_segments_than_its_endpoint_gives_at_once_is_read_whole(notion: World) -> None:
    """Somebody who types in Notion makes more segments than the API takes in one request."""
    put(notion, message("r1"))
    notion.fake.pages[notion.page("r1")]["properties"]["Content"] = [rich(f"{number} ") for number in range(250)]
    row = notion.provider.fetch(CONVERSATION, ["r1"])["r1"]
    assert row["content"] == "".join(f"{number} " for number in range(250))
    notion.fake.faults = [
        Fault("alter", path="properties", skip=1, change=lambda answer: {**answer, "next_cursor": None})
    ]
    with pytest.raises(StoreUnreadableError, match="cut short"):
        notion.provider.fetch(CONVERSATION, ["r1"])


def test_what_notion_cannot_hold_is_refused_with_its_size_and_never_sent(notion: World) -> None:
    """STORES.md: 180 000 characters a property, 440 kB a request."""
    rows = [
        message("wide", notes="x" * 181_000),
        message("heavy", content="乗" * 100_000, notes="船" * 48_000),
        message("odd", notes=float("nan")),
        message("fits", notes="x" * 179_000),
    ]
    outcomes = notion.provider.insert(CONVERSATION, rows)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "failed", "applied"]
    assert "180000" in outcomes[0].detail
    assert "440000" in outcomes[1].detail
    assert len(notion.fake.writes()) == 1
    [outcome] = notion.provider.patch([Patch(key("fits"), {}, {"suppression_note": "y" * 2_000})])
    assert (outcome.status, "180000" in outcome.detail) == ("failed", True)
    assert "suppression_note" not in notion.provider.fetch(CONVERSATION, ["fits"])["fits"]


def test_unreadable_pages_are_named_and_the_others_are_read(notion: World) -> None:
    """SPEC §1.2: torn, of another format, doubled, or in disagreement with themselves."""
    names = ["torn", "format", "doubled", "memory", "time", "kind", "good"]
    put(notion, *(message(name) for name in names))
    notion.write_metadata("torn", notion.fake.text(notion.page("torn"), "Memorizz metadata")[:-20])
    notion.write_metadata("format", json.dumps({**notion.envelope("format"), "format": "memorizz.notion.v2"}))
    notion.twin("doubled")
    notion.fake.edit_page(notion.page("memory"), {"Memory ID": {"rich_text": [{"text": {"content": "m2"}}]}})
    stamp = {"rich_text": [{"text": {"content": "2026-06-01T08:00:01+00:00"}}]}
    notion.fake.edit_page(notion.page("time"), {"Timestamp": stamp})
    notion.write_metadata("kind", json.dumps({**notion.envelope("kind"), "memory_type": "summaries"}))
    empty = notion.fake.add_page(notion.source, {"Memory type": {"select": {"name": CONVERSATION}}})
    reasons = {
        "torn": "'Memorizz metadata' is torn or malformed JSON",
        "format": "'Memorizz metadata' has another format than memorizz.notion.v1",
        "doubled": "duplicate id: on several pages",
        "memory": "'Memory ID' disagrees with the record's memory_id",
        "time": "'Timestamp' disagrees with the record's timestamp",
        "kind": "its memory types disagree",
    }
    for provider in (notion.provider, notion.open(snapshot=False)):
        assert scanned(provider) == (["good"], {**reasons, f"page:{empty}": "'Memorizz metadata' is empty"})
    [batch] = notion.provider.scan(CONVERSATION, ["record_id", "text", "embedding"])
    assert batch.frame.rows() == [("good", "the text of good", None)]
    assert {bad.key.record_id for bad in batch.unreadable} == {*reasons, f"page:{empty}"}
    rows = notion.provider.fetch(CONVERSATION, names)
    assert {name: row.reason for name, row in rows.items() if isinstance(row, Unreadable)} == reasons
    assert [row["_id"] for row in notion.provider.find(CONVERSATION)] == ["good"]
    sent = len(notion.fake.writes())
    outcomes = notion.provider.patch([Patch(key(name), {}, {"retention_state": "suppressed"}) for name in names])
    assert [outcome.status for outcome in outcomes] == ["failed"] * 6 + ["applied"]
    assert len(notion.fake.writes()) == sent + 1


def test_of_doubled_control_rows_the_first_stands_for_everybody(notion: World) -> None:
    """Two processes inserted one journal row at once: no reading may lose it."""
    put(notion, {"_id": "c1", "content": "first", "memory_id": "c1"}, memory_type="shared_memory")
    notion.clock.time += 120
    second = notion.twin("c1")
    notion.fake.edit_page(second, {"Content": {"rich_text": [{"text": {"content": "second"}}]}})
    assert notion.provider.fetch("shared_memory", ["c1"])["c1"]["content"] == "first"
    assert [row["content"] for row in notion.provider.find("shared_memory")] == ["first"]


def test_bad_numbers_that_python_wrote_do_not_hide_a_record(notion: World) -> None:
    """TRAPS 42: bare NaN in the JSON."""
    put(notion, message("r1"), message("r2"))
    notion.rewrite("r1", importance=float("nan"), big=12345678901234567890, tiny=1e-7)
    row = notion.provider.fetch(CONVERSATION, ["r1"])["r1"]
    assert "importance_not_a_number" in read_record(row, CONVERSATION, "r1").breaches
    [outcome] = notion.provider.patch(
        [Patch(key("r1"), {"importance": float("nan")}, {"retention_state": "suppressed"})]
    )
    assert outcome.status == "applied"
    text = notion.fake.text(notion.page("r1"), "Memorizz metadata")
    assert '"importance":NaN' in text
    assert '"big":12345678901234567890' in text
    assert '"tiny":1e-07' in text


@pytest.mark.parametrize(
    "written", ["2026-11-30T23:30:00-05:00", "2026-12-01T04:30:00Z", "2026-12-01T04:30:00", 1796099400, 1796099400000]
)
def test_times_read_back_as_the_same_instant(notion: World, written: Any) -> None:
    """TRAPS 15 and 14."""
    put(notion, message("r1", timestamp=written, last_accessed_at=written))
    [batch] = notion.provider.scan(CONVERSATION, ["created_at", "last_accessed_at"])
    assert [iso(value) for value in batch.frame.row(0)] == ["2026-12-01T04:30:00Z"] * 2


def test_naive_creation_times_are_read_in_their_zone_and_access_times_are_not(notion: World) -> None:
    put(notion, message("r1", timestamp="2026-10-01T00:00:00", last_accessed_at="2026-10-01T00:00:00"))
    for zone, created in (("UTC", "00"), ("America/New_York", "04"), ("UTC", "00")):
        provider = notion.open(naive_timezone={CONVERSATION: zone})
        [batch] = provider.scan(CONVERSATION, ["created_at", "last_accessed_at"])
        assert [iso(value)[11:13] for value in batch.frame.row(0)] == [created, "00"]


@pytest.mark.parametrize(
    "flag", [{"pinned": True}, {"pinned": "yes"}, {"metadata": {"pinned": "true"}}, {"tags": ["pinned"]}]
)
def test_pins_in_every_spelling_are_seen(notion: World, flag: dict[str, Any]) -> None:
    """TRAPS 29."""
    put(notion, message("r1", **flag), message("r2", parent_id="r2"), message("r3", source_message_ids=["r1"]))
    [batch] = notion.provider.scan(CONVERSATION, ["record_id", "pinned", "citations"])
    assert batch.frame.rows() == [("r1", True, []), ("r2", False, []), ("r3", False, ["r1"])]


# Listing completely


def test_more_rows_than_notion_lists_at_once_are_all_read(notion: World) -> None:
    """TRAPS 26: pages of 100, and a store that stops in the middle."""
    for start in range(0, 640, 40):
        put(notion, *(message(f"r{number:04d}") for number in range(start, start + 40)))
        notion.clock.time += 60
    notion.fake.query_cap = 250
    for provider in (notion.provider, notion.open(snapshot=False)):
        assert scanned(provider) == ([f"r{number:04d}" for number in range(640)], {})
    assert len(list(notion.provider.find(CONVERSATION))) == 640


def test_a_listing_that_cannot_go_on_fails(notion: World) -> None:
    """SPEC §1.4: no part of a scope; here more pages were created in one minute than one query lists."""
    put(notion, *(message(f"r{number}") for number in range(30)))
    notion.fake.query_cap = 20
    with pytest.raises(StoreUnreadableError, match="stopped in the middle"):
        scanned(notion.provider)


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: {name: answer[name] for name in answer if name not in ("has_more", "next_cursor")},
        lambda answer: {**answer, "next_cursor": None},
        lambda answer: {name: answer[name] for name in answer if name != "has_more"},
        lambda answer: {**answer, "results": None},
        lambda answer: {**answer, "results": [{"object": "page", "id": page["id"]} for page in answer["results"]]},
    ],
)
def test_half_answers_fail_the_scan(notion: World, change: Any) -> None:
    put(notion, *(message(f"r{number:03d}") for number in range(120)))
    notion.fake.faults = [Fault("alter", path="query", change=change, times=9)]
    with pytest.raises(StoreUnreadableError):
        scanned(notion.provider)
    notion.fake.faults = []
    assert len(scanned(notion.provider)[0]) == 120


def test_a_page_that_goes_while_it_is_listed_does_not_end_the_listing(notion: World) -> None:
    for number in range(250):
        put(notion, message(f"r{number:03d}"))
        notion.clock.time += 30
    gone = notion.page("r100")
    notion.fake.faults = [Fault("before", path="query", skip=2, change=lambda: notion.fake.trash_page(gone))]
    ids, _ = scanned(notion.provider)
    assert set(ids) == {f"r{number:03d}" for number in range(250)} - {"r100"}


# The scan cache


def fill(notion: World, count: int = 250) -> None:
    """A store that was written an hour ago, but for its last record, and scanned once."""
    put(notion, *(message(f"r{number:03d}") for number in range(count - 1)))
    notion.clock.time += 3600
    put(notion, message(f"r{count - 1:03d}"))
    scanned(notion.provider)


def requests_of_a_scan(notion: World, provider: NotionProvider | None = None) -> int:
    provider = provider or notion.provider
    before = provider.requests
    scanned(provider)
    return provider.requests - before


def test_a_second_scan_asks_for_edits_only_and_sees_every_one(notion: World) -> None:
    fill(notion)
    notion.rewrite("r007", pinned=True)
    put(notion, message("s1"))
    notion.fake.trash_page(notion.page("r003"))
    scanned(notion.provider)
    notion.clock.time += 3600
    assert requests_of_a_scan(notion) == 2
    [batch] = notion.open().scan(CONVERSATION, ["record_id", "pinned"])
    assert batch.frame.filter(batch.frame["pinned"])["record_id"].to_list() == ["r007"]
    assert "s1" in batch.frame["record_id"]
    assert "r003" not in batch.frame["record_id"]
    assert batch.frame.height == 250


def test_two_edits_within_the_minute_that_notion_tells_are_both_seen(notion: World) -> None:
    fill(notion, 3)
    for value in range(1, 4):
        notion.rewrite("r001", access_count=value)
        [batch] = notion.provider.scan(CONVERSATION, ["record_id", "access_count"])
        assert batch.frame["access_count"].to_list() == [0, value, 0]
        notion.clock.time += 7


def test_an_edit_by_a_server_whose_clock_is_a_minute_behind_is_seen(notion: World) -> None:
    fill(notion, 3)
    notion.clock.time -= 90
    notion.rewrite("r001", access_count=9)
    notion.clock.time += 90
    [batch] = notion.provider.scan(CONVERSATION, ["access_count"])
    assert batch.frame["access_count"].to_list() == [0, 9, 0]


def test_an_edit_during_a_complete_scan_is_seen_by_the_next(notion: World) -> None:
    put(notion, *(message(f"r{number:03d}") for number in range(250)))
    notion.clock.time += 3600

    def meanwhile() -> None:
        notion.rewrite("r001", access_count=9)
        notion.clock.time += 600
        notion.rewrite("r240", access_count=9)

    notion.fake.faults = [Fault("before", path="query", skip=2, change=meanwhile)]
    scanned(notion.provider)
    [batch] = notion.provider.scan(CONVERSATION, ["record_id", "access_count"])
    assert batch.frame.filter(batch.frame["access_count"] == 9)["record_id"].to_list() == ["r001", "r240"]


def test_after_twenty_hours_everything_is_read_again(notion: World) -> None:
    fill(notion)
    del notion.fake.pages[notion.page("r005")]
    assert "r005" in scanned(notion.provider)[0]
    notion.clock.time += 20 * 3600
    assert "r005" not in scanned(notion.provider)[0]


def test_a_damaged_or_missing_cache_is_built_anew(notion: World) -> None:
    fill(notion)
    [file] = (notion.folder / "notion").glob("*.parquet")
    assert b"the text of" not in file.read_bytes()
    for damage in (b"", file.read_bytes()[:-7], b"x" * 100):
        file.write_bytes(damage)
        assert requests_of_a_scan(notion) == 4
        assert requests_of_a_scan(notion) == 2
    file.unlink()
    assert len(scanned(notion.provider)[0]) == 250
    (notion.folder / "blocked").write_text("no folder")
    provider = notion.open(folder=notion.folder / "blocked")
    assert len(scanned(provider)[0]) == 250


def test_without_the_snapshot_everything_is_read_each_time(notion: World) -> None:
    fill(notion)
    assert requests_of_a_scan(notion, notion.open(snapshot=False)) == 3


# Writing


def test_a_patch_sends_one_property_and_keeps_every_other_byte(notion: World) -> None:
    """TRAPS 23, 45 and 47: unknown fields survive, nothing else is sent, never the trash."""
    put(notion, message("r1"), message("r2"))
    notion.rewrite("r1", x_custom={"b": 1.50, "a": [1e5, None]}, access_count=2)
    others = {name: notion.fake.text(notion.page("r1"), name) for name in ("Content", "Timestamp", "Agent ID")}
    second, first = notion.fake.pages[notion.page("r2")], notion.envelope("r1")["data"]
    expected = {"access_count": 2, "pinned": MISSING, "content": "the text of r1"}
    changes = {"retention_state": "suppressed", "suppressed_by": "p", "suppression_note": "wegen Ü „x“"}
    assert notion.provider.patch([Patch(key("r1"), expected, changes)]) == [Outcome(key("r1"), "applied")]
    [sent] = [one for one in notion.fake.sent if one.method == "PATCH"]
    assert list(sent.body) == ["properties"]
    assert list(sent.body["properties"]) == ["Memorizz metadata"]
    assert notion.envelope("r1")["data"] == {**first, **changes}
    assert {name: notion.fake.text(notion.page("r1"), name) for name in others} == others
    assert notion.fake.pages[notion.page("r2")] == second
    text = notion.fake.text(notion.page("r1"), "Memorizz metadata")
    assert text == json.dumps(notion.envelope("r1"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert not any("in_trash" in json.dumps(one.body) for one in notion.fake.writes())


@pytest.mark.parametrize(
    "expected",
    [
        {"access_count": 3},
        {"access_count": MISSING},
        {"absent": None},
        {"flag": 1},
        {"nothing": MISSING},
        {"content": "x"},
    ],
)
def test_a_patch_whose_condition_fails_changes_nothing(notion: World, expected: dict[str, Any]) -> None:
    put(notion, message("r1", access_count=2, flag=True, nothing=None))
    before = dict(notion.fake.pages)
    [outcome] = notion.provider.patch([Patch(key("r1"), expected, {"retention_state": "suppressed"})])
    assert outcome.status == "changed"
    assert notion.fake.pages == before


def test_a_change_of_a_mirrored_field_moves_its_property_too(notion: World) -> None:
    """A journal head moves on: content and timestamp are properties, and the page must stay one that agents accept."""
    row = {"_id": "h1", "content": "old", "memory_id": "h1", "timestamp": "2026-11-01T00:00:00+00:00"}
    put(notion, row, memory_type="shared_memory")
    changes = {"content": "new", "timestamp": "2026-11-02T00:00:00+00:00"}
    [outcome] = notion.provider.patch([Patch(RecordKey("shared_memory", "h1"), {"content": "old"}, changes)])
    assert outcome.status == "applied"
    assert notion.open().fetch("shared_memory", ["h1"])["h1"] == {**row, "id": "h1", **changes}
    assert notion.fake.text(notion.page("h1"), "Content") == "new"


def test_an_alias_of_the_display_field_can_be_changed_and_is_kept(notion: World) -> None:
    put(notion, {"_id": "q1", "query_text": "hello"}, memory_type="semantic_cache")
    envelope = {**notion.envelope("q1"), "display_aliases": ["query"]}
    notion.write_metadata("q1", json.dumps(envelope))
    cache = RecordKey("semantic_cache", "q1")
    assert notion.provider.patch([Patch(cache, {"query": "hello"}, {"query": "bye"})])[0].status == "applied"
    row = notion.provider.fetch("semantic_cache", ["q1"])["q1"]
    assert (row["query_text"], row["query"]) == ("hello", "bye")


def test_what_left_is_gone_and_never_brought_back(notion: World) -> None:
    """TRAPS 24 and 47: in the trash, deleted, moved to another data source, or gone between check and write."""
    names = ["trashed", "deleted", "moved", "late", "here"]
    put(notion, *(message(name) for name in names))
    late = notion.page("late")
    notion.fake.trash_page(notion.page("trashed"))
    del notion.fake.pages[notion.page("deleted")]
    notion.fake.pages[notion.page("moved")]["source"] = notion.fake.create_source((CONVERSATION,))
    notion.fake.faults = [Fault("before", "PATCH", late, change=lambda: notion.fake.trash_page(late))]
    outcomes = notion.provider.patch([Patch(key(name), {}, {"retention_state": "suppressed"}) for name in names])
    assert [outcome.status for outcome in outcomes] == ["gone"] * 4 + ["applied"]
    assert set(notion.provider.fetch(CONVERSATION, names)) == {"here"}
    assert not any("in_trash" in json.dumps(one.body) for one in notion.fake.writes())


def test_a_page_that_moved_between_listing_and_reading_is_gone(notion: World) -> None:
    put(notion, message("r1"))
    page, elsewhere = notion.page("r1"), notion.fake.create_source((CONVERSATION,))
    move = Fault("before", "GET", page, change=lambda: notion.fake.pages[page].update(source=elsewhere))
    notion.fake.faults = [move]
    assert notion.provider.patch([Patch(key("r1"), {}, {"pinned": True})]) == [Outcome(key("r1"), "gone")]
    assert len(notion.fake.writes()) == 1


def test_a_write_on_top_of_ours_that_keeps_it_leaves_it_applied(notion: World) -> None:
    put(notion, message("r1"))
    notion.fake.faults = [
        Fault("before", "GET", notion.page("r1"), skip=1, change=lambda: notion.rewrite("r1", x_custom=1))
    ]
    patch = Patch(key("r1"), {"retention_state": MISSING}, {"retention_state": "suppressed"})
    assert notion.provider.patch([patch]) == [Outcome(key("r1"), "applied")]
    notion.fake.faults = [
        Fault("before", "GET", notion.page("r1"), skip=1, change=lambda: notion.rewrite("r1", access_count=2))
    ]
    notion.rewrite("r1", retention_state="active", access_count=0)
    assert notion.open().touch_many(CONVERSATION, ["r1"], NOW)[0].status == "applied"
    assert notion.envelope("r1")["data"]["access_count"] == 2


def test_of_two_inserts_at_once_the_first_page_stands_and_the_other_says_already(notion: World) -> None:
    row = {"_id": "d1", "content": "theirs", "memory_id": "d1"}

    def faster() -> None:
        notion.clock.time -= 120
        notion.fake.add_page(notion.source, page_properties(row, "shared_memory"))
        notion.clock.time += 120

    notion.fake.faults = [Fault("before", "POST", "pages$", change=faster)]
    [outcome] = notion.provider.insert("shared_memory", [{**row, "content": "ours"}])
    assert outcome.status == "already"
    assert notion.provider.fetch("shared_memory", ["d1"])["d1"]["content"] == "theirs"


def test_one_refused_record_does_not_stop_the_others(notion: World) -> None:
    """TRAPS 34."""
    put(notion, *(message(f"r{number}") for number in range(10)))
    refused = notion.page("r4")
    notion.fake.faults = [Fault("error", "PATCH", refused, status=400, code="validation_error", times=9)]
    outcomes = notion.provider.patch([Patch(key(f"r{n}"), {}, {"retention_state": "suppressed"}) for n in range(10)])
    assert [outcome.status for outcome in outcomes].count("applied") == 9
    assert (outcomes[4].status, outcomes[4].detail) == ("failed", "Notion refused it: 400 validation_error")


def test_a_write_that_another_overwrote_is_decided_again(notion: World) -> None:
    """The declared gap, and what is done about it: the verifying GET finds it."""
    put(notion, message("r1"), message("r2"))
    stale = {name: notion.fake.text(notion.page(name), "Memorizz metadata") for name in ("r1", "r2")}

    def overwrite(name: str, **data: Any) -> None:
        notion.write_metadata(name, stale[name])
        if data:
            notion.rewrite(name, **data)

    for name, change in (
        ("r1", lambda: overwrite("r1")),
        ("r2", lambda: overwrite("r2", access_count=7)),
    ):
        notion.fake.faults = [Fault("before", "GET", notion.page(name), skip=1, change=change)]
        [outcome] = notion.provider.patch(
            [Patch(key(name), {"access_count": MISSING}, {"retention_state": "suppressed"})]
        )
        assert outcome.status == ("applied" if name == "r1" else "changed")
    assert notion.envelope("r1")["data"]["retention_state"] == "suppressed"
    assert "retention_state" not in notion.envelope("r2")["data"]


def test_touching_counts_and_never_moves_time_back(notion: World) -> None:
    """SPEC §4."""
    put(
        notion,
        message("r1"),
        message("later", last_accessed_at=iso(NOW + 10**12), access_count=4),
        message("hidden", retention_state="suppressed"),
    )
    outcomes = notion.provider.touch_many(CONVERSATION, ["r1", "later", "hidden", "none", "r1"], NOW)
    assert [outcome.status for outcome in outcomes] == ["applied", "applied", "changed", "gone", "applied"]
    assert outcomes[2].detail == "suppressed"
    data = {name: notion.envelope(name)["data"] for name in ("r1", "later", "hidden")}
    assert (data["r1"]["access_count"], parse_time(data["r1"]["last_accessed_at"])) == (2, NOW)
    assert (data["later"]["access_count"], data["later"]["last_accessed_at"]) == (5, iso(NOW + 10**12))
    assert "access_count" not in data["hidden"]


def test_purging_moves_expired_cache_entries_to_the_trash_and_nothing_else(notion: World) -> None:
    """SPEC §11: the only removal there is."""
    kind = "semantic_cache"
    put(notion, *({"_id": name, "query_text": name, "hit_count": 1} for name in ("q1", "q2", "q3")), memory_type=kind)
    put(notion, message("q1"))
    cached = {notion.fake.text(page, "Content"): page for page in notion.fake.pages}
    outcomes = notion.provider.purge_cache({"q1": {"hit_count": 1}, "q2": {"hit_count": 2}, "q9": {}})
    assert [outcome.status for outcome in outcomes] == ["applied", "changed", "gone"]
    assert {text: notion.fake.pages[page]["in_trash"] for text, page in cached.items()} == {
        "q1": True,
        "q2": False,
        "q3": False,
        "the text of q1": False,
    }
    assert scanned(notion.provider, kind)[0] == ["q2", "q3"]


def test_what_was_written_is_known_while_queries_lag_behind(notion: World) -> None:
    notion.fake.lag = 3
    put(notion, message("r1"), message("r2"))
    assert [outcome.status for outcome in notion.provider.insert(CONVERSATION, [message("r1")])] == ["already"]
    assert [row["_id"] for row in notion.provider.find(CONVERSATION)] == ["r1", "r2"]
    [outcome] = notion.provider.patch([Patch(key("r1"), {}, {"retention_state": "suppressed"})])
    assert outcome.status == "applied"
    for _ in range(4):
        assert notion.provider.fetch(CONVERSATION, ["r1"])["r1"]["retention_state"] == "suppressed"


# Opening, errors, pace


def test_opening_by_uri_takes_the_token_from_the_environment(
    notion: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NOTION_TOKEN", raising=False)
    uri = f"notion://{notion.source.replace('-', '')}?base_url={notion.url}"
    with pytest.raises(SettingError, match="token"):
        open_provider(uri)
    monkeypatch.setenv("NOTION_TOKEN", TOKEN)
    with open_provider(uri, {CONVERSATION: "Asia/Tokyo"}) as provider:
        assert isinstance(provider, NotionProvider)
        assert provider.identity() == f"notion:{notion.source}"
        assert provider.naive_timezone == {CONVERSATION: "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("notion://", UsageError),
        ("notion://not-an-id", UsageError),
        ("notion://{id}?base_url=http://example.org", UsageError),
        ("notion://00000000-0000-4000-8000-000000000000?base_url={url}", StoreNotFoundError),
    ],
)
def test_addresses_that_name_no_store(
    notion: World, monkeypatch: pytest.MonkeyPatch, uri: str, error: type[FallowError]
) -> None:
    monkeypatch.setenv("NOTION_TOKEN", TOKEN)
    with pytest.raises(error) as caught:
        open_provider(uri.format(id=notion.source, url=notion.url))
    assert TOKEN not in str(caught.value)
    assert caught.value.hint


def test_a_data_source_that_is_no_memory_store_is_said(notion: World) -> None:
    del notion.fake.sources[notion.source]["properties"]["Session ID"]
    with pytest.raises(StoreUnreadableError, match="lacks Session ID"):
        notion.open()


def test_no_token_and_no_memory_text_in_errors_logs_or_representations(
    notion: World, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """SPEC §14. Notion's own messages quote what was sent."""
    caplog.set_level("DEBUG")
    put(notion, message("r1", content="a secret text"))
    wrong = "ntn_wrong0token"
    with pytest.raises(StoreUnreadableError, match="does not accept the token") as caught:
        NotionProvider(notion.source, wrong, base_url=notion.url)
    page = notion.page("r1")
    notion.fake.faults = [Fault("error", "PATCH", page, status=400, code="validation_error a secret text")]
    notion.provider.patch([Patch(key("r1"), {}, {"retention_state": "suppressed"})])
    said = caplog.text + repr(notion.provider) + repr(caught.value) + "".join(capfd.readouterr())
    for secret in (TOKEN, wrong, "a secret text"):
        assert secret not in said


def test_the_pace_is_kept_over_all_objects_that_share_the_token(notion: World) -> None:
    """Three requests a second, with three at once after a pause."""
    others = [notion.open(), notion.open()]
    start, before = notion.clock.time, len(notion.fake.sent)
    for _ in range(20):
        for provider in (notion.provider, *others):
            provider.fetch(CONVERSATION, ["x"])
    sent = len(notion.fake.sent) - before
    assert sent == 60
    assert notion.clock.time - start >= (sent - 3) / 3 - 0.01


def test_the_pace_is_kept_over_processes(tmp_path: Path) -> None:
    """No promise is lost when several processes take at once: the clock stands still, so each take adds its share."""
    path = tmp_path / "pace"
    program = (
        "import sys; from pathlib import Path; from fallow.providers.notion_calls import Clock, SharedPace\n"
        "pace = SharedPace(Path(sys.argv[1]), Clock(lambda: 1000.0, lambda seconds: None), per_second=300.0)\n"
        "print(flush=True); sys.stdin.read()\n"
        "for _ in range(3000): pace.take()\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.stdout and process.stdout.readline() for process in running] == [b"\n"] * 3
    for process in running:
        if process.stdin:
            process.stdin.close()
    assert [process.wait(60) for process in running] == [0, 0, 0]
    for process in running:
        if process.stdout:
            process.stdout.close()
    assert float(path.read_text()) == pytest.approx(1000.0 + 9000 / 300, abs=0.01)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "torn", "inf", "9e99"])
def test_a_damaged_pace_file_holds_nothing_up(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pace"
    path.write_text(text)
    slept: list[float] = []
    SharedPace(path, Clock(lambda: 1000.0, slept.append)).take()
    assert slept == []


def test_notion_s_own_limit_is_not_hit_at_this_pace(notion: World) -> None:
    notion.fake.rate = 3.2
    put(notion, *(message(f"r{number}") for number in range(40)))
    assert all(one.status == 200 for one in notion.fake.sent)


def test_long_work_is_estimated_before_it_begins(notion: World) -> None:
    assert estimate_seconds(scanned=10_000) == pytest.approx(100 / 3)
    put(notion, *(message(f"r{number}") for number in range(120)))
    before = notion.provider.requests
    patches = [Patch(key(f"r{number}"), {}, {"retention_state": "suppressed"}) for number in range(120)]
    assert {outcome.status for outcome in notion.provider.patch(patches)} == {"applied"}
    needed = notion.provider.requests - before
    assert needed == pytest.approx(estimate_requests(patched=120), rel=0.05)
    assert any("minutes" in text for _, _, text in notion.provider.diagnose())
