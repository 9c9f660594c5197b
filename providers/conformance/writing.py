"""Checks of writing: what was named and nothing else, only where the condition holds, and a true outcome."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
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
    statuses,
)

from fallow.model.keys import MISSING, RecordKey
from fallow.model.record import requirements
from fallow.port.journal import control_row
from fallow.port.protocol import Outcome, Patch, Provider

PATCHING: Final = "conditional writes"
INSERTING: Final = "inserts"

#: What suppressing sets (SPEC §8.1), and what restoring sets.
SUPPRESSION: Final[Mapping[str, Any]] = {
    "retention_state": "suppressed",
    "suppressed_by": "forget-plan-0123456789abcdef0123456789ab",
    "suppressed_at": "2026-12-01T00:00:00+00:00",
    "suppression_reason": "retention 0.033 is below 0.15",
    "suppression_approver": "ann",
    "suppression_note": "old, “quoted”\nand long enough",
    "suppressed_from": "active",
}
RESTORATION: Final[Mapping[str, Any]] = {
    "retention_state": "active",
    "unsuppressed_by": "bea",
    "unsuppressed_at": "2026-12-02T00:00:00+00:00",
    "unsuppression_note": "needed",
}


def key(name: object, memory_type: str = CONVERSATION) -> RecordKey:
    """The key of a record by its name."""
    return RecordKey(memory_type, record_id(name))


def suppress(provider: Provider, *names: str, memory_type: str = CONVERSATION) -> list[Outcome]:
    """Suppresses records the way applying a plan does: on the whole row as it was read."""
    rows = provider.fetch(memory_type, [record_id(name) for name in names])
    patches = [
        Patch(key(name, memory_type), requirements(dict(rows[record_id(name)])), SUPPRESSION)  # type: ignore[arg-type]
        for name in names
    ]
    return provider.patch(patches)


@check("a patch sets the named fields; every other field keeps its bytes, unknown ones too", room=PATCHING)
def patch_sets_only_named_fields(bench: Bench) -> None:
    bench.store.seed(KNOWLEDGE, [note("k", metadata={"x": 1.50, "y": {"b": 1, "a": [None, "ü"]}}), note("other")])
    before = bench.store.stored(KNOWLEDGE)
    with bench.open() as provider:
        expect_equal(statuses(suppress(provider, "k", memory_type=KNOWLEDGE)), ["applied"], "the outcome")
        row = fetched(provider, KNOWLEDGE, record_id("k"))
        expect_equal({name: row.get(name) for name in SUPPRESSION}, dict(SUPPRESSION), "the fields set")
    expect_unchanged(before, bench.store.stored(KNOWLEDGE), {record_id("k"): set(SUPPRESSION)})


@check("unknown top-level fields survive a patch byte for byte", room=PATCHING)
def patch_keeps_unknown_fields(bench: Bench) -> None:
    odd = {
        "x_custom": {"b": 1, "a": 2},
        "x.dotted": 1,
        "$dollar": "$price",
        "x_float": 1.0,
        "x_int": 12345678901234567,
        "x_null": None,
        "x_list": [[], {}, "", 0, False],
        "x_text": "a\u2028b\\u0041 \U0001d518",
    }
    bench.store.seed(CONVERSATION, [message("a", **odd), message("b")])
    before = bench.store.stored(CONVERSATION)
    with bench.open() as provider:
        expect_equal(statuses(suppress(provider, "a")), ["applied"], "the outcome")
    expect_unchanged(before, bench.store.stored(CONVERSATION), {record_id("a"): set(SUPPRESSION)})


@check("suppressing and restoring a record moves no time, no count and no rating of it", room=PATCHING)
def suppressing_moves_nothing_else(bench: Bench) -> None:
    bench.store.seed(KNOWLEDGE, [note("k"), note("other")])
    before = bench.store.stored(KNOWLEDGE)
    with bench.open() as provider:
        suppress(provider, "k", memory_type=KNOWLEDGE)
        columns = ("retention_state", "suppressed_by", "unsuppressed_at", "created_at", "access_count", "importance")
        row = scanned(provider, KNOWLEDGE, *columns)[record_id("k")]
        expect_equal(row["retention_state"], "suppressed", "the state listed")
        expect_equal(row["suppressed_by"], SUPPRESSION["suppressed_by"], "by what it is listed as suppressed")
        [outcome] = provider.patch(
            [Patch(key("k", KNOWLEDGE), requirements(fetched(provider, KNOWLEDGE, record_id("k"))), RESTORATION)]
        )
        expect_equal(outcome.status, "applied", "the outcome of restoring")
        back = scanned(provider, KNOWLEDGE, *columns)[record_id("k")]
        expect_equal(back["retention_state"], "active", "the state after restoring")
        expect(back["unsuppressed_at"] is not None, "unsuppressed_at is not listed after restoring")
        stored = fetched(provider, KNOWLEDGE, record_id("k"))
        expect_equal(stored["suppressed_by"], SUPPRESSION["suppressed_by"], "the audit field after restoring")
    expect_unchanged(before, bench.store.stored(KNOWLEDGE), {record_id("k"): {*SUPPRESSION, *RESTORATION}})


@check("a patch whose condition holds lands, whatever shape the record's fields have", room=PATCHING)
def a_condition_that_holds_lands(bench: Bench) -> None:
    rows = [
        message("plain"),
        message("bare", importance=None, access_count=MISSING, last_accessed_at=MISSING, user_id=None, thread_id=None),
        message("long", content="x" * 20_000),
        message("patterns", content="^.*$ %_ \\d+ {'$gt': 1} $price ${x}"),
        message("quotes", content='it\'s "quoted" \\ and\nbroken\tup \u2028 乗 𝔘'),
        message("empty", content=""),
    ]
    bench.store.seed(CONVERSATION, rows)
    with bench.open() as provider:
        names = ["plain", "bare", "long", "patterns", "quotes", "empty"]
        expect_equal(statuses(suppress(provider, *names)), ["applied"] * len(names), "the outcomes")


@check("the same for records whose fields hold lists and objects", room=PATCHING)
def a_condition_on_nested_values_lands(bench: Bench) -> None:
    rows = [
        message("content", content={"text": "deep", "parts": [1, 2.5, None, {"z": 1, "a": 2}]}),
        message("metadata", metadata={"z": {"b": 1, "a": 2}, "a": [], "e": {}}),
        message("citations", source_ids=["a", "b"], tags=["x", "y"]),
        message("numbers", importance=1, access_count=3.0),
        message("flags", pinned=False, verified=None),
    ]
    bench.store.seed(CONVERSATION, rows)
    with bench.open() as provider:
        names = ["content", "metadata", "citations", "numbers", "flags"]
        expect_equal(statuses(suppress(provider, *names)), ["applied"] * len(names), "the outcomes")


def _refused(bench: Bench, memory_type: str, cases: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Each case: what is stored, and what is expected of it in vain. Nothing may be written."""
    make = note if memory_type == KNOWLEDGE else message
    bench.store.seed(memory_type, [make(name, **stored) for name, (stored, _) in cases.items()])
    before = bench.store.stored(memory_type)
    with bench.open() as provider:
        for name, (_, expected) in cases.items():
            [outcome] = provider.patch([Patch(key(name, memory_type), expected, SUPPRESSION)])
            expect_equal(outcome.status, "changed", f"the outcome where {name}")
            expect_equal(outcome.key, key(name, memory_type), "the key in the outcome")
    expect_unchanged(before, bench.store.stored(memory_type), {})


@check("a patch is refused where a value is another one, and writes nothing", room=PATCHING)
def a_changed_value_refuses(bench: Bench) -> None:
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "the text was edited": ({}, {"content": "what was said as somebody else"}),
        "the text differs in case": ({}, {"content": "What was said as the text differs in case"}),
        "the text has a space more": ({"content": "a "}, {"content": "a"}),
        "the text is composed": ({"content": "\u00e9"}, {"content": "e\u0301"}),
        "the count moved": ({"access_count": 2}, {"access_count": 1}),
        "the rating moved": ({"importance": 0.1}, {"importance": 0.2}),
        "the state moved": ({"retention_state": "sealed"}, {"retention_state": "active"}),
        "one of two holds": ({}, {"access_count": 1, "importance": 0.3}),
        "a pattern would match": ({"content": "abc"}, {"content": "a%"}),
    }
    _refused(bench, CONVERSATION, cases)


@check("absent and null are two things in a condition", room=PATCHING)
def absent_is_not_null(bench: Bench) -> None:
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "null was expected to be absent": ({"pinned": None}, {"pinned": MISSING}),
        "absent was expected to be null": ({}, {"pinned": None}),
        "a value was expected to be absent": ({"pinned": True}, {"pinned": MISSING}),
        "a value was expected to be null": ({"pinned": False}, {"pinned": None}),
        "null was expected to be a value": ({"pinned": None}, {"pinned": False}),
        "absent was expected to be a value": ({}, {"pinned": False}),
    }
    _refused(bench, CONVERSATION, cases)


@check("a field that is absent, or has come since, is told apart from any value", room=PATCHING)
def a_field_that_came_refuses(bench: Bench) -> None:
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "a summary came": ({"summary_id": record_id("s")}, {"summary_id": MISSING}),
        "a rating came": ({"importance": 0.4}, {"importance": MISSING}),
    }
    bench.store.seed(CONVERSATION, [message("rating still absent", importance=MISSING)])
    with bench.open() as provider:
        row = fetched(provider, CONVERSATION, record_id("rating still absent"))
        [outcome] = provider.patch(
            [Patch(key("rating still absent"), {"importance": row.get("importance", MISSING)}, SUPPRESSION)]
        )
        expect_equal(outcome.status, "applied", "the outcome where the field is as it was read")
        bench.store.remove(CONVERSATION, record_id("rating still absent"))
    _refused(bench, CONVERSATION, cases)


@check("true and 1, false and 0, numbers and their text are different values in a condition", room=PATCHING)
def true_is_not_one(bench: Bench) -> None:
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "true for 1": ({"pinned": 1}, {"pinned": True}),
        "1 for true": ({"pinned": True}, {"pinned": 1}),
        "false for 0": ({"pinned": 0}, {"pinned": False}),
        "0 for false": ({"pinned": False}, {"pinned": 0}),
        "text for a number": ({"access_count": 3}, {"access_count": "3"}),
        "a number for text": ({"importance": "0.7"}, {"importance": 0.7}),
        "true inside": ({"metadata": {"pinned": 1}}, {"metadata": {"pinned": True}}),
    }
    _refused(bench, CONVERSATION, cases)


@check("a change anywhere inside an object or a list refuses the patch", room=PATCHING)
def a_nested_change_refuses(bench: Bench) -> None:
    stored = {"metadata": {"language": "en", "deep": {"er": [1, {"x": 1}]}}}
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "a deep value moved": (stored, {"metadata": {"language": "en", "deep": {"er": [1, {"x": 2}]}}}),
        "a deep field came": (stored, {"metadata": {"language": "en", "deep": {"er": [1, {}]}}}),
        "a deep field went": (stored, {"metadata": {"language": "en", "deep": {"er": [1, {"x": 1, "y": 2}]}}}),
        "the metadata went": ({"metadata": MISSING}, {"metadata": {"language": "en"}}),
        "a part would match": (stored, {"metadata": {"language": "en"}}),
    }
    _refused(bench, KNOWLEDGE, cases)


@check("a list is not its only element, and its order counts", room=PATCHING)
def a_list_is_not_its_element(bench: Bench) -> None:
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "the element for the list": ({"tags": ["x"]}, {"tags": "x"}),
        "the list for the element": ({"tags": "x"}, {"tags": ["x"]}),
        "the other order": ({"tags": ["x", "y"]}, {"tags": ["y", "x"]}),
        "null for a list with null": ({"tags": [None]}, {"tags": None}),
        "an empty list for null": ({"tags": None}, {"tags": []}),
    }
    _refused(bench, CONVERSATION, cases)


@check("a record that is gone stays gone, and an id that never was is gone too", room=PATCHING)
def gone_is_not_created(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    with bench.open() as provider:
        row = fetched(provider, CONVERSATION, record_id("a"))
        bench.store.remove(CONVERSATION, record_id("a"))
        before = bench.store.stored(CONVERSATION)
        outcomes = provider.patch(
            [
                Patch(key("a"), requirements(row), SUPPRESSION),
                Patch(key("a"), {}, SUPPRESSION),
                Patch(key("nobody"), {"importance": MISSING}, SUPPRESSION),
            ]
        )
        expect_equal(statuses(outcomes), ["gone"] * 3, "the outcomes")
        expect_unchanged(before, bench.store.stored(CONVERSATION), {})
        expect_equal(set(scanned(provider, CONVERSATION)), {record_id("b")}, "the records listed")


@check("one refused patch stops no other; outcomes come in the order of the patches", room=PATCHING)
def outcomes_are_in_order(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message(name) for name in "abcd"])
    before = bench.store.stored(CONVERSATION)
    with bench.open() as provider:
        patches = [
            Patch(key("d"), {}, SUPPRESSION),
            Patch(key("nobody"), {}, SUPPRESSION),
            Patch(key("b"), {"importance": 0.9}, SUPPRESSION),
            Patch(key("a"), {"access_count": 1}, SUPPRESSION),
            Patch(key("c"), {"content": MISSING}, SUPPRESSION),
        ]
        outcomes = provider.patch(patches)
        expect_equal([outcome.key for outcome in outcomes], [patch.key for patch in patches], "the keys")
        expect_equal(statuses(outcomes), ["applied", "gone", "changed", "applied", "changed"], "the outcomes")
    named = {record_id("a"): set(SUPPRESSION), record_id("d"): set(SUPPRESSION)}
    expect_unchanged(before, bench.store.stored(CONVERSATION), named)


@check("a value that the store cannot hold fails its own patch alone", room=PATCHING)
def a_bad_value_fails_alone(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    before = bench.store.stored(CONVERSATION)
    with bench.open() as provider:
        outcomes = provider.patch(
            [Patch(key("a"), {}, {"suppression_note": "\ud800"}), Patch(key("b"), {}, SUPPRESSION)]
        )
        expect_equal(statuses(outcomes), ["failed", "applied"], "the outcomes")
        expect(outcomes[0].detail, "the failure has no reason")
    expect_unchanged(before, bench.store.stored(CONVERSATION), {record_id("b"): set(SUPPRESSION)})


@check("two patches of one record in a call are two writes, one after the other", room=PATCHING)
def one_record_twice_in_a_call(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a")])
    with bench.open() as provider:
        outcomes = provider.patch(
            [
                Patch(key("a"), {"access_count": 1}, {"access_count": 2}),
                Patch(key("a"), {"access_count": 1}, {"access_count": 5}),
                Patch(key("a"), {"access_count": 2}, {"access_count": 3}),
            ]
        )
        expect_equal(statuses(outcomes), ["applied", "changed", "applied"], "the outcomes")
        expect_equal(fetched(provider, CONVERSATION, record_id("a"))["access_count"], 3, "the count")


@check("more patches than a batch carries are all written", room=PATCHING)
def a_large_call_is_not_cut(bench: Bench) -> None:
    count = min(1200, bench.capabilities.batch_size + 7)
    bench.store.seed(CONVERSATION, [message(number) for number in range(count)])
    with bench.open() as provider:
        patches = [Patch(key(number), {"access_count": 1}, SUPPRESSION) for number in range(count)]
        expect_equal(set(statuses(provider.patch(patches))), {"applied"}, "the outcomes")
        listed = scanned(provider, CONVERSATION, "retention_state")
        expect_equal({row["retention_state"] for row in listed.values()}, {"suppressed"}, "the states")


@check("null, text of 2000 characters and quotes of every kind are stored as they are", room=PATCHING)
def values_come_back(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a")])
    text = ("“quoted” 'single' \"double\" \\ back\nline\ttab 乗 𝔘 é " * 50)[:2000]
    changes = {**SUPPRESSION, "suppression_note": text, "suppression_reason": "$set {'x': 1} %s :1 ?"}
    with bench.open() as provider:
        [outcome] = provider.patch([Patch(key("a"), {}, changes)])
        expect_equal(outcome.status, "applied", "the outcome")
    with bench.open() as provider:
        row = fetched(provider, CONVERSATION, record_id("a"))
        expect_equal({name: row.get(name) for name in changes}, changes, "the values after reopening")


@check("nothing is done for an empty list", room=PATCHING)
def empty_lists_are_no_ops(bench: Bench) -> None:
    from fallow.port.protocol import CachePurging, Touching

    bench.store.seed(CONVERSATION, [message("a")])
    before = {name: bench.store.stored(name) for name in (CONVERSATION, SHARED)}
    with bench.open() as provider:
        expect_equal(provider.patch([]), [], "the outcomes of no patch")
        expect_equal(provider.insert(SHARED, []), [], "the outcomes of no row")
        expect_equal(provider.fetch(CONVERSATION, []), {}, "what is found of nothing")
        if isinstance(provider, Touching):
            expect_equal(provider.touch_many(CONVERSATION, [], NOW), [], "the outcomes of no recall")
        if isinstance(provider, CachePurging):
            expect_equal(provider.purge_cache({}), [], "the outcomes of no purge")
    for name, rows in before.items():
        expect_unchanged(rows, bench.store.stored(name), {})


@check("of several writers that expect the same value, one is applied", needs=["conditional_write"], room=PATCHING)
def one_of_many_writers_wins(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a", access_count=0)])
    writers, rounds = 3, 5

    def write(provider: Provider, number: int) -> str:
        return provider.patch([Patch(key("a"), {"access_count": number}, {"access_count": number + 1})])[0].status

    providers = [bench.open() for _ in range(writers)]
    try:
        with ThreadPoolExecutor(writers) as pool:
            for number in range(rounds):
                found = sorted(pool.map(write, providers, [number] * writers))
                expect_equal(found, ["applied", *["changed"] * (writers - 1)], "the outcomes of writing at once")
        row = fetched(providers[0], CONVERSATION, record_id("a"))
        expect_equal(row["access_count"], rounds, "the count after all writes")
    finally:
        for provider in providers:
            provider.close()


@check("a record deleted while it is written is not brought back", needs=["conditional_write"], room=PATCHING)
def deleted_while_writing(bench: Bench) -> None:
    rounds = 12
    bench.store.seed(CONVERSATION, [message(number) for number in range(rounds)])
    with bench.open() as provider:
        for number in range(rounds):
            name = record_id(number)
            row = fetched(provider, CONVERSATION, name)
            start = threading.Barrier(2)

            def delete(name: str = name, start: threading.Barrier = start) -> None:
                start.wait()
                bench.store.remove(CONVERSATION, name)

            thread = threading.Thread(target=delete)
            thread.start()
            start.wait()
            [outcome] = provider.patch([Patch(key(number), requirements(row), SUPPRESSION)])
            thread.join()
            expect(outcome.status in {"applied", "gone"}, f"the outcome is {outcome.status}")
            expect(name not in bench.store.stored(CONVERSATION), "a deleted record is there again")
        expect_equal(scanned(provider, CONVERSATION), {}, "the records listed")


@check("a record edited while it is written keeps the edit", needs=["conditional_write"], room=PATCHING)
def edited_while_writing(bench: Bench) -> None:
    rounds = 12
    bench.store.seed(CONVERSATION, [message(number) for number in range(rounds)])
    with bench.open() as provider:
        for number in range(rounds):
            name = record_id(number)
            row = fetched(provider, CONVERSATION, name)
            start = threading.Barrier(2)

            def edit(name: str = name, start: threading.Barrier = start) -> None:
                start.wait()
                bench.store.change(CONVERSATION, name, {"role": "edited"})

            thread = threading.Thread(target=edit)
            thread.start()
            start.wait()
            [outcome] = provider.patch([Patch(key(number), requirements(row), SUPPRESSION)])
            thread.join()
            after = fetched(provider, CONVERSATION, name)
            expect_equal(outcome.status, "applied", "the outcome beside an edit of another field")
            expect_equal(
                (after["role"], after.get("retention_state")), ("edited", "suppressed"), "both writers' fields"
            )


# Inserts


@check("an inserted row is there at once, in every way of reading, and after reopening", room=INSERTING)
def inserted_rows_are_there(bench: Bench) -> None:
    rows = [message("a"), message("b", importance=0.9)]
    bench.store.seed(CONVERSATION, [message("before")])
    before = bench.store.stored(CONVERSATION)
    with bench.open() as provider:
        outcomes = provider.insert(CONVERSATION, rows)
        expect_equal(
            [(outcome.key, outcome.status) for outcome in outcomes],
            [(key("a"), "applied"), (key("b"), "applied")],
            "the outcomes",
        )
        names = {record_id(name) for name in ("before", "a", "b")}
        expect_equal(set(scanned(provider, CONVERSATION)), names, "the records listed")
        expect_equal(fetched(provider, CONVERSATION, record_id("b"))["content"], "what was said as b", "its content")
    stored = bench.store.stored(CONVERSATION)
    expect_equal(set(stored), names, "what agents see")
    expect_unchanged(before, {record_id("before"): stored[record_id("before")]}, {})
    with bench.open() as provider:
        row = scanned(provider, CONVERSATION, "importance", "agent_id", "text")[record_id("b")]
        expect_equal(
            (row["importance"], row["agent_id"], row["text"]),
            (0.9, "conformance-agent", "what was said as b"),
            "the record after reopening",
        )


@check("a second insert of an id changes nothing and says already, in one call and in two", room=INSERTING)
def inserting_twice_is_once(bench: Bench) -> None:
    with bench.open() as provider:
        first = provider.insert(SHARED, [_row("x", 1), _row("x", 2), _row("y", 1)])
        expect_equal(statuses(first), ["applied", "already", "applied"], "the outcomes of the first call")
        before = bench.store.stored(SHARED)
        second = provider.insert(SHARED, [_row("x", 3), _row("z", 1), _row("y", 3)])
        expect_equal(statuses(second), ["already", "applied", "already"], "the outcomes of the second call")
        after = bench.store.stored(SHARED)
        expect_equal(set(after), {"conformance-x", "conformance-y", "conformance-z"}, "the rows stored")
        expect_unchanged(before, {name: after[name] for name in before}, {})
        expect_equal(len(list(provider.find(SHARED, "conformance-"))), 3, "the rows found")


@check("an insert repeated after a restart changes nothing", room=INSERTING)
def inserting_after_a_restart(bench: Bench) -> None:
    rows = [_row(number, 1) for number in range(4)]
    with bench.open() as provider:
        provider.insert(SHARED, rows[:2])
    before = bench.store.stored(SHARED)
    with bench.open() as provider:
        outcomes = provider.insert(SHARED, [_row(number, 2) for number in range(4)])
        expect_equal(statuses(outcomes), ["already", "already", "applied", "applied"], "the outcomes")
    after = bench.store.stored(SHARED)
    expect_unchanged(before, {name: after[name] for name in before}, {})
    expect_equal(len(after), 4, "how many rows are stored")


@check("of inserts of one id at once exactly one is applied", needs=["insert_if_absent"], room=INSERTING)
def one_of_many_inserts_wins(bench: Bench) -> None:
    writers = 3
    providers = [bench.open() for _ in range(writers)]
    try:
        with ThreadPoolExecutor(writers) as pool:
            for number in range(6):
                found = sorted(
                    pool.map(lambda one, n=number: one.insert(SHARED, [_row(n, id(one))])[0].status, providers)
                )
                expect_equal(found, ["already"] * (writers - 1) + ["applied"], "the outcomes of inserting at once")
        expect_equal(len(list(providers[0].find(SHARED, "conformance-"))), 6, "the rows found")
    finally:
        for provider in providers:
            provider.close()


@check("a row without a usable id is refused and stops no other", room=INSERTING)
def rows_without_id_are_refused(bench: Bench) -> None:
    with bench.open() as provider:
        rows = [{**_row("a", 1), "_id": ""}, _row("b", 1), {**_row("c", 1), "_id": "\ud800"}]
        rows.append({name: value for name, value in _row("d", 1).items() if name != "_id"})
        outcomes = provider.insert(SHARED, rows)
        expect_equal(statuses(outcomes), ["failed", "applied", "failed", "failed"], "the outcomes")
        expect(outcomes[0].detail, "the refusal has no reason")
    expect_equal(set(bench.store.stored(SHARED)), {"conformance-b"}, "the rows stored")


@check("a search finds the ids that begin with a prefix, taken literally, and no others", room=INSERTING)
def a_prefix_is_where_ids_begin(bench: Bench) -> None:
    names = ["conformance-a-1", "conformance-a-2", "conformance-ab", "x-conformance-a-3", "conformance.a-4"]
    rows = [{**_row("a", 1), "_id": name, "id": name, "memory_id": name} for name in names]
    with bench.open() as provider:
        expect_equal(set(statuses(provider.insert(SHARED, rows))), {"applied"}, "the outcomes")
        for prefix, right in (
            ("conformance-a-", names[:2]),
            ("conformance-a", names[:3]),
            ("conformance.", names[4:]),
            ("onformance", []),
            ("conformance-a-1-", []),
        ):
            expect_equal(
                [str(row["_id"]) for row in provider.find(SHARED, prefix)], right, f"what begins with {prefix}"
            )


@check("more rows than a batch carries are all inserted", room=INSERTING)
def a_large_insert_is_not_cut(bench: Bench) -> None:
    count = min(1200, bench.capabilities.batch_size + 7)
    with bench.open() as provider:
        outcomes = provider.insert(SHARED, [_row(f"{number:05d}", 1) for number in range(count)])
        expect_equal(set(statuses(outcomes)), {"applied"}, "the outcomes")
        expect_equal(len(list(provider.find(SHARED, "conformance-"))), count, "the rows found")


def _row(name: object, version: int) -> dict[str, Any]:
    return control_row(f"conformance-{name}", "fallow_conformance", {"version": version}, now=NOW)
