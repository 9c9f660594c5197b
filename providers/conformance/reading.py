"""Checks of reading: all records or an error, the same fields whatever is asked, and no byte changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from fallow.providers.conformance.kit import Bench, check, expect, expect_equal
from fallow.providers.conformance.rows import (
    CONVERSATION,
    KNOWLEDGE,
    NOW,
    SHARED,
    expect_unchanged,
    fetched,
    message,
    note,
    record_id,
    scanned,
)

from fallow.model.arguments import instant
from fallow.model.errors import StoreUnreadableError
from fallow.model.keys import MISSING, RecordKey, Row
from fallow.model.record import PLANNING_COLUMNS, read_record, schema
from fallow.model.times import iso, zone
from fallow.port.journal import control_row
from fallow.port.protocol import Patch, Unreadable

ROOM: Final = "reading"


@check("a scan lists every record of the type once, over all its pages", room=ROOM)
def scan_is_complete(bench: Bench) -> None:
    names = [record_id(number) for number in range(237)]
    bench.store.seed(CONVERSATION, [message(number) for number in range(237)])
    with bench.open() as provider:
        expect_equal(sorted(scanned(provider, CONVERSATION)), sorted(names), "the records listed")


@check(
    "a listing goes past 1,000, 10,000 and 20,000 rows, or past as many as the kind declares, or it raises", room=ROOM
)
def a_listing_has_no_cap(bench: Bench) -> None:
    limit = bench.capabilities.listing_rows
    expect(limit >= 1_000, f"the kind declares a listing of {limit} rows: at 1,000 many interfaces stop")
    bench.store.seed(CONVERSATION, [message(number) for number in range(limit + 1)])
    listed: list[str] = []
    with bench.open() as provider:
        try:
            for batch in provider.scan(CONVERSATION, ("record_id",)):
                expect(not batch.unreadable, f"{len(batch.unreadable)} records are unreadable")
                listed += batch.frame["record_id"].to_list()
        except StoreUnreadableError:
            return
    expect_equal(len(listed), limit + 1, "how many records are listed, without an error")
    expect(set(listed) == {record_id(number) for number in range(limit + 1)}, "not every record is listed once")


@check("frames have exactly the asked columns, in order, with the types of the canonical schema", room=ROOM)
def scan_gives_the_asked_columns(bench: Bench) -> None:
    types = schema()
    bench.store.seed(CONVERSATION, [message("a"), message("b", importance=0.5)])
    asked: list[tuple[str, ...]] = [
        ("record_id",),
        ("importance", "record_id"),
        ("text", "record_id", "role"),
        ("record_id", "embedding"),
        PLANNING_COLUMNS,
        tuple(types),
    ]
    with bench.open() as provider:
        for columns in asked:
            batches = list(provider.scan(CONVERSATION, columns))
            for batch in batches:
                expect_equal(batch.frame.columns, list(columns), "the columns")
                expect_equal(batch.frame.dtypes, [types[name] for name in columns], "their types")
            expect_equal(sum(batch.frame.height for batch in batches), 2, "the records listed")


@check("a column has the same values whichever others are asked beside it", room=ROOM)
def scan_does_not_depend_on_the_projection(bench: Bench) -> None:
    rows = [
        message("a", summary_id=record_id("s")),
        message("b", retention_state="suppressed", suppressed_by="p", access_count=7),
        message("c", importance=MISSING, last_accessed_at=None),
    ]
    bench.store.seed(CONVERSATION, rows)
    with bench.open() as provider:
        names = [name for name in schema() if name != "record_id"]
        whole = scanned(provider, CONVERSATION, *names)
        planning = scanned(provider, CONVERSATION, *(name for name in PLANNING_COLUMNS if name != "record_id"))
        for key, row in planning.items():
            expect_equal(row, {name: whole[key][name] for name in row}, "a record in two projections")
        for name in names:
            for key, row in scanned(provider, CONVERSATION, name).items():
                expect_equal(row[name], whole[key][name], f"{name}, alone and with all others")


@check("a type that the store does not have is empty, in every way of reading", room=ROOM)
def a_type_that_is_not_there_is_empty(bench: Bench) -> None:
    with bench.open() as provider:
        expect_equal(scanned(provider, "workflow_memory"), {}, "the records of a type without any")
        expect_equal(provider.fetch("workflow_memory", [record_id("a")]), {}, "what a fetch finds there")
        expect_equal(list(provider.find("workflow_memory")), [], "what a search finds there")


@check("scan and fetch tell the same record", room=ROOM)
def scan_agrees_with_fetch(bench: Bench) -> None:
    rows = [
        message("plain"),
        message("rated", importance=0.75, importance_source="llm", access_count=12),
        message("suppressed", retention_state="Suppressed", suppressed_by="forget-plan-x", suppressed_from="active"),
        message("sealed", retention_state="SEALED"),
        message("bare", importance=None, access_count=None, last_accessed_at=None, user_id=None),
        message("summarised", summary_id=record_id("s")),
    ]
    bench.store.seed(CONVERSATION, rows)
    _scan_equals_fetch(bench, CONVERSATION)


def _scan_equals_fetch(bench: Bench, memory_type: str) -> None:
    with bench.open() as provider:
        columns = [name for name in schema() if name not in {"record_id", "embedding"}]
        listed = scanned(provider, memory_type, *columns)
        whole = provider.fetch(memory_type, listed)
        expect_equal(set(whole), set(listed), "the records that a fetch finds")
        for key, row in whole.items():
            if isinstance(row, Unreadable):
                expect(False, "a listed record is unreadable by fetch")
                continue
            record = read_record(row, memory_type, key)
            for name in columns:
                value = listed[key][name]
                value = tuple(value) if isinstance(value, list) else value
                expect_equal(value, getattr(record, name), name)


@check("scan, fetch, find and identity change nothing that is stored", room=ROOM)
def reading_changes_nothing(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b", importance=None)])
    bench.store.seed(KNOWLEDGE, [note("k")])
    before = {name: bench.store.stored(name) for name in (CONVERSATION, KNOWLEDGE, SHARED)}
    with bench.open() as provider:
        for name in before:
            scanned(provider, name, "importance", "text")
            provider.fetch(name, [record_id("a"), record_id("k"), "not-there"])
            list(provider.find(name))
        provider.identity()
    for name, rows in before.items():
        expect_unchanged(rows, bench.store.stored(name), {})


@check("records under a type's old name are read under its present one", room=ROOM)
def the_old_type_name_is_read(bench: Bench) -> None:
    bench.store.seed(KNOWLEDGE, [note("new")])
    bench.store.seed("long_term_memory", [note("old")])
    with bench.open() as provider:
        expect_equal(set(scanned(provider, KNOWLEDGE)), {record_id("new"), record_id("old")}, "the records listed")
        expect_equal(fetched(provider, KNOWLEDGE, record_id("old"))["content"], "what is known as old", "its content")


@check("types are apart: one id in two of them is two records", room=ROOM)
def types_are_apart(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("one", importance=0.2)])
    bench.store.seed(KNOWLEDGE, [note("one", importance=0.9), note("two")])
    with bench.open() as provider:
        expect_equal(set(scanned(provider, CONVERSATION)), {record_id("one")}, "the conversation's records")
        expect_equal(scanned(provider, KNOWLEDGE, "importance")[record_id("one")]["importance"], 0.9, "its importance")
        expect_equal(set(provider.fetch(CONVERSATION, [record_id("two")])), set(), "another type's record")


#: One instant, 2026-03-26T07:15:33Z, in the forms that stores hold (SPEC §1.1, TRAPS 12 and 14).
_INSTANT: Final = instant("2026-03-26T07:15:33Z")
_FORMS: Final[dict[str, Any]] = {
    "Z": "2026-03-26T07:15:33Z",
    "offset": "2026-03-26T09:15:33+02:00",
    "offset west": "2026-03-26T02:15:33-05:00",
    "naive": "2026-03-26T07:15:33",
    "space": "2026-03-26 07:15:33",
    "seconds": 1774509333,
    "seconds with fraction": 1774509333.0,
    "milliseconds": 1774509333000,
    "text seconds": "1774509333",
    "text milliseconds": "1774509333000",
}


@check("a time in any stored form is one and the same instant", room=ROOM)
def time_forms_are_one_instant(bench: Bench) -> None:
    bench.store.seed(
        CONVERSATION, [message(name, timestamp=form, last_accessed_at=form) for name, form in _FORMS.items()]
    )
    with bench.open() as provider:
        listed = scanned(provider, CONVERSATION, "created_at", "last_accessed_at", "breaches")
        for name in _FORMS:
            row = listed[record_id(name)]
            right: tuple[Any, ...] = (_INSTANT, _INSTANT, [])
            expect_equal((row["created_at"], row["last_accessed_at"], row["breaches"]), right, f"the form {name}")


@check("the store's own date and time values are instants in UTC", room=ROOM)
def native_times_are_utc(bench: Bench) -> None:
    moment = datetime(2026, 3, 26, 7, 15, 33, tzinfo=UTC)
    bench.store.seed(CONVERSATION, [message("a", timestamp=moment, last_accessed_at=moment)])
    with bench.open() as provider:
        row = scanned(provider, CONVERSATION, "created_at", "last_accessed_at")[record_id("a")]
        expect_equal((row["created_at"], row["last_accessed_at"]), (_INSTANT, _INSTANT), "the instants")


@check("naive creation times are read in the zone named for their type, access times in UTC", room=ROOM)
def naive_times_have_their_zone(bench: Bench) -> None:
    naive = "2026-03-26T07:15:33"
    bench.store.seed(CONVERSATION, [message("a", timestamp=naive, last_accessed_at=naive)])
    bench.store.seed(KNOWLEDGE, [note("k", created_at=naive)])
    with bench.open({CONVERSATION: "America/New_York"}) as provider:
        row = scanned(provider, CONVERSATION, "created_at", "last_accessed_at")[record_id("a")]
        there = datetime(2026, 3, 26, 7, 15, 33, tzinfo=zone("America/New_York")).astimezone(UTC).isoformat()
        expect_equal(iso(row["created_at"]), there.replace("+00:00", "Z"), "a naive creation time in New York")
        expect_equal(row["last_accessed_at"], _INSTANT, "a naive access time")
        other = scanned(provider, KNOWLEDGE, "created_at")[record_id("k")]
        expect_equal(other["created_at"], _INSTANT, "a naive creation time of another type")
        expect_equal(dict(provider.naive_timezone), {CONVERSATION: "America/New_York"}, "the zones it says it uses")


_IDS: Final = (
    "plain",
    "with space",
    "punctuated.a:b@c",
    "%percent_under",
    "a*b?c[d]",
    "Ünïcode-乗-𝔘",
    "e\u0301 decomposed",
    "\u00e9 composed",
    "UPPER-lower",
    "upper-LOWER",
    "690000010147000000000001",
    "00000000-0000-5000-8000-00000000000A",
    "42",
    "007",
    "n" * 200,
)


@check("ids of every form are kept byte for byte, by scan, fetch, find and patch", room=ROOM)
def ids_are_kept(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("x", _id=name, content=f"of {name[:20]}") for name in _IDS])
    with bench.open() as provider:
        expect_equal(sorted(scanned(provider, CONVERSATION)), sorted(_IDS), "the ids listed")
        found = provider.fetch(CONVERSATION, _IDS)
        expect_equal(sorted(found), sorted(_IDS), "the ids fetched")
        for name, row in found.items():
            text = None if isinstance(row, Unreadable) else row["content"]
            expect_equal(text, f"of {name[:20]}", "the record under the id")
        expect_equal([str(row["_id"]) for row in provider.find(CONVERSATION)], sorted(_IDS), "the ids in order")


def _spellings() -> dict[str, Row]:
    """One record a spelling: what read_record says of the row is what every scan must say."""
    odd: dict[str, dict[str, Any]] = {
        "pinned true": {"pinned": True},
        "pinned yes": {"pinned": "yes"},
        "pinned 1": {"pinned": 1},
        "pinned no": {"pinned": "no"},
        "metadata pinned": {"metadata": {"pinned": "true"}},
        "metadata text": {"metadata": '{"pinned": "on", "importance": 0.3}'},
        "metadata importance": {"importance": None, "metadata": {"importance": 0.7}},
        "metadata list": {"metadata": [{"pinned": True}]},
        "metadata state": {"metadata": {"retention_state": "sealed"}},
        "metadata citations": {"metadata": {"source_ids": ["m1", "m2"], "derived_from": "m3"}},
        "tags": {"tags": ["later", "Pinned"]},
        "tags text": {"tags": "pinned, later"},
        "tags object": {"tags": {"verified": True}},
        "metadata tags": {"metadata": {"tags": ["verified"]}},
        "verified": {"verified": "ON"},
        "content object": {
            "content": {"text": "deep", "timestamp": "2026-01-02T03:04:05Z", "retention_state": "sealed"},
            "timestamp": None,
        },
        "content text object": {
            "content": ' {"text": "deep", "timestamp": 1774509333, "retention_state": "suppressed"}',
            "timestamp": None,
        },
        "content list": {"content": ["one", "two"]},
        "created_at": {"timestamp": None, "created_at": 1774509333.5},
        "createdAt": {"timestamp": "", "createdAt": "2026-01-02T03:04:05+01:00"},
        "first time is bad": {"timestamp": "soon", "created_at": "2026-01-02"},
        "no time": {"timestamp": None},
        "time is true": {"timestamp": True},
        "access times": {"last_accessed": "2026-07-02T00:00:00Z", "last_recalled_at": "2026-08-02T00:00:00Z"},
        "access time is bad": {"last_accessed_at": "never"},
        "recall_count": {"access_count": None, "recall_count": "12"},
        "hit_count": {"access_count": "many", "hit_count": 3.0},
        "negative count": {"access_count": -1},
        "count is true": {"access_count": True},
        "half count": {"access_count": 2.5},
        "importance text": {"importance": "0.7"},
        "importance 7": {"importance": 7},
        "importance true": {"importance": True},
        "importance 1": {"importance": 1},
        "importance negative": {"importance": -0.1},
        "importance blank": {"importance": " "},
        "citations": {"source_id": "a", "source_ids": ["b", "c"], "supersedes": "d", "message_ids": '["e", "f"]'},
        "citation objects": {"linked_source_ids": [{"record_id": "g"}, {"_id": "h"}, {"name": "i"}]},
        "cites a number": {"parent_id": 17},
        "old thread": {"thread_id": None, "conversation_id": "conversation"},
        "owner": {"agent_id": None, "owner_agent_id": "owner"},
        "agent is a number": {"agent_id": 5},
        "agent is a list": {"agent_id": ["a"]},
        "state unknown": {"retention_state": "Archived"},
        "state spaced": {"retention_state": " Suppressed "},
        "restored": {"unsuppressed_at": "2026-10-01T00:00:00+00:00", "unsuppressed_by": "ann"},
        "suppressed": {"retention_state": "suppressed", "suppressed_by": "forget-plan-x"},
        "role": {"role": "assistant"},
        "role is a number": {"role": 3},
        "attributes pin": {"attributes": [{"name": "status", "value": "x", "pinned": True}]},
        "attributes object": {"attributes": {"status": {"pinned": "yes", "value": "x"}}},
        "attributes text": {"attributes": '[{"name": "status", "pinned": 1}]'},
        "attributes plain": {"attributes": [{"name": "status", "value": "x"}, {"pinned": "no"}]},
    }
    return {name: message(name, **fields) for name, fields in odd.items()}


def _spellings_are_read(bench: Bench, memory_type: str) -> None:
    spellings = _spellings()
    rows = list(spellings.values())
    by_id = {row["_id"]: name for name, row in spellings.items()}
    bench.store.seed(memory_type, rows)
    columns = [name for name in schema() if name not in {"record_id", "embedding"}]
    with bench.open() as provider:
        planning = [name for name in PLANNING_COLUMNS if name != "record_id"]
        for asked in (columns, planning):
            listed = scanned(provider, memory_type, *asked)
            expect_equal(len(listed), len(rows), "how many records are listed")
            for row in rows:
                record = read_record(row, memory_type, row["_id"])
                for name in asked:
                    value = listed[row["_id"]][name]
                    value = tuple(value) if isinstance(value, list) else value
                    expect_equal(value, getattr(record, name), f"{name} of {by_id[row['_id']]!r}")


@check("every spelling of every field that stores hold is read by the one rule of fallow.model.record", room=ROOM)
def every_spelling_is_read(bench: Bench) -> None:
    _spellings_are_read(bench, CONVERSATION)


@check("the same in entities, whose attributes may be pinned", room=ROOM)
def every_spelling_is_read_in_entities(bench: Bench) -> None:
    _spellings_are_read(bench, "entity_memory")


@check("a value that cannot be used is absent and named, and the record is there all the same", room=ROOM)
def bad_values_hide_no_record(bench: Bench) -> None:
    bad = {"importance": 7, "access_count": -1, "last_accessed_at": "never"}
    bench.store.seed(CONVERSATION, [message("bad", **bad), message("good")])
    with bench.open() as provider:
        row = scanned(provider, CONVERSATION, "importance", "access_count", "breaches")[record_id("bad")]
        expect_equal((row["importance"], row["access_count"]), (None, 0), "the unusable values")
        expect_equal(
            set(row["breaches"]),
            {"importance_out_of_range", "access_count_negative", "last_accessed_at_unparsable"},
            "the breaches",
        )


@check(
    "what is no record is reported with its id, in scan and fetch, and hides no other", needs=["spoiling"], room=ROOM
)
def unreadable_records_are_reported(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message(name) for name in "abc"])
    bench.store.spoil(CONVERSATION, record_id("b"))  # type: ignore[attr-defined]
    with bench.open() as provider:
        batches = list(provider.scan(CONVERSATION, ("record_id", "importance")))
        listed = {name for batch in batches for name in batch.frame["record_id"].to_list()}
        found = [item for batch in batches for item in batch.unreadable]
        expect_equal(listed, {record_id("a"), record_id("c")}, "the readable records")
        expect_equal([item.key for item in found], [RecordKey(CONVERSATION, record_id("b"))], "the unreadable ones")
        expect(found[0].reason and "what was said" not in found[0].reason, "the reason is empty or quotes the record")
        row = provider.fetch(CONVERSATION, [record_id("b")]).get(record_id("b"))
        expect(isinstance(row, Unreadable), "fetch does not report it")
        names = {str(row["_id"]) for row in provider.find(CONVERSATION)}
        expect_equal(names, {record_id("a"), record_id("c")}, "what a search passes over")


@check("two things under one id are unreadable, both; neither is read, found or written", needs=["doubling"], room=ROOM)
def doubled_ids_are_unreadable(bench: Bench) -> None:
    twin = "690000010147000000000001"
    bench.store.seed(KNOWLEDGE, [note("a"), note("b", _id=twin), note("c")])
    bench.store.double(KNOWLEDGE, twin)  # type: ignore[attr-defined]
    with bench.open() as provider:
        batches = list(provider.scan(KNOWLEDGE, ("record_id", "importance")))
        listed = [name for batch in batches for name in batch.frame["record_id"].to_list()]
        expect_equal(sorted(listed), sorted([record_id("a"), record_id("c")]), "the readable records")
        found = {item.key for batch in batches for item in batch.unreadable}
        expect_equal(found, {RecordKey(KNOWLEDGE, twin)}, "the doubled ids")
        expect(isinstance(provider.fetch(KNOWLEDGE, [twin]).get(twin), Unreadable), "fetch picks one of them")
        expect(twin not in {str(row["_id"]) for row in provider.find(KNOWLEDGE)}, "a search picks one of them")
        before = bench.store.stored(KNOWLEDGE)
        [outcome] = provider.patch([Patch(RecordKey(KNOWLEDGE, twin), {}, {"retention_state": "suppressed"})])
        expect_equal(outcome.status, "failed", "the outcome of writing to it")
        expect_unchanged(before, bench.store.stored(KNOWLEDGE), {})


@check("a fetch gives what is there, once, and nothing for other ids", room=ROOM)
def fetch_gives_what_is_there(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message(name) for name in "abc"])
    with bench.open() as provider:
        wanted = [record_id("c"), record_id("nobody"), record_id("a"), record_id("c"), "no-such-id", "", "a/b", "\0"]
        found = provider.fetch(CONVERSATION, iter(wanted))
        expect_equal(set(found), {record_id("a"), record_id("c")}, "the records found")
        expect_equal(fetched(provider, CONVERSATION, record_id("a"))["content"], "what was said as a", "the content")
        expect_equal(provider.fetch(CONVERSATION, []), {}, "what is found of nothing")


@check("a fetch of more ids than a batch finds them all", room=ROOM)
def fetch_is_not_cut(bench: Bench) -> None:
    count = min(1500, 2 * bench.capabilities.batch_size + 1)
    names = [record_id(number) for number in range(count)]
    bench.store.seed(CONVERSATION, [message(number) for number in range(0, count, 3)])
    with bench.open() as provider:
        expect_equal(set(provider.fetch(CONVERSATION, names)), set(names[::3]), "the records found")


@check("whole rows carry every field of the record, those unknown to fallow too", room=ROOM)
def fetch_gives_unknown_fields(bench: Bench) -> None:
    deep: dict[str, Any] = {"b": [1, {"c": None}], "a": "ü\u2028\t", "empty": {}, "none": None}
    bench.store.seed(KNOWLEDGE, [note("k", metadata={"x_custom": deep, "big": 2**53, "small": 1e-7})])
    with bench.open() as provider:
        row = fetched(provider, KNOWLEDGE, record_id("k"))
        expect_equal(row["_id"], record_id("k"), "its _id")
        expect_equal(row["metadata"]["x_custom"], deep, "an unknown field")
        expect_equal((row["metadata"]["big"], row["metadata"]["small"]), (2**53, 1e-7), "unknown numbers")


@check("find gives rows by the beginning of their id, in the order of their ids, and takes no pattern", room=ROOM)
def find_goes_by_prefix(bench: Bench) -> None:
    names = [
        "fallow-a-2",
        "fallow-a-10",
        "fallow-a-1",
        "fallow-b-1",
        "fallow%a",
        "fallow_a",
        "fallow.a",
        "fallowxa",
        "f",
    ]
    bench.store.seed(SHARED, [_control(name) for name in names])
    with bench.open() as provider:

        def found(prefix: str) -> list[str]:
            return [str(row["_id"]) for row in provider.find(SHARED, prefix)]

        expect_equal(found("fallow-a-"), ["fallow-a-1", "fallow-a-10", "fallow-a-2"], "a prefix")
        for prefix in ("fallow%", "fallow_", "fallow.", "fallow.*", "^f", "FALLOW", ""):
            right = sorted(name for name in names if name.startswith(prefix))
            expect_equal(found(prefix), right, f"the prefix {prefix!r}")


def _control(name: str) -> Row:
    return control_row(name, "fallow_conformance", {"name": name}, now=NOW)
