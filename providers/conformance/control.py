"""Checks of what fallow adds and removes: journal, events, plans, recalls, cache entries, identity; and whole lives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from fallow.providers.conformance.kit import Bench, NotHeldError, Showing, check, expect, expect_equal
from fallow.providers.conformance.rows import (
    CONVERSATION,
    MINUTE,
    NOW,
    SHARED,
    expect_unchanged,
    fetched,
    message,
    record_id,
    scanned,
    statuses,
)

from fallow.model.keys import RecordKey, Row
from fallow.model.record import read_record
from fallow.model.scope import Scope
from fallow.model.settings import RetentionConfig, resolve
from fallow.model.times import MICROSECONDS_PER_DAY, parse_time
from fallow.plans.storage import load_plan, store_plan
from fallow.port.journal import change_id, content_of, control_event, control_row
from fallow.port.journal_writing import Change, find_heads, write_journal
from fallow.port.protocol import CachePurging, Provider, Touching
from fallow.usecases.planner import RetentionPlanner
from fallow.usecases.planning import make_plan

JOURNAL: Final = "journal, events and plans"
TOUCHING: Final = "recalls"
CACHE: Final = "semantic cache"
IDENTITY: Final = "identity"
CACHED: Final = "semantic_cache"


@check("journal rows, heads and events come back as they were written", room=JOURNAL)
def control_rows_come_back(bench: Bench) -> None:
    before = message("a")
    after = {**before, "retention_state": "suppressed"}
    change = Change(
        change_id("suppress", "forget-plan-x", RecordKey(CONVERSATION, before["_id"])),
        read_record(after, CONVERSATION, before["_id"]),
        actor="ann “the” approver",
        source="forgetting:forget-plan-x",
        before=before,
        after=after,
        changed=("retention_state",),
        now=NOW,
    )
    event = control_event("memory_forgotten", "conformance:1", {"plan_id": "p", "n": 1, "none": None}, now=NOW)
    with bench.open() as provider:
        write_journal(provider, [change], {})
        write_journal(provider, [change], {})
        expect_equal(statuses(provider.insert(SHARED, [event])), ["applied"], "the outcome of the event")
    with bench.open() as provider:
        [row] = provider.find(SHARED, "mem-change-")
        content = content_of(row)
        expect_equal(content["actor"], "ann “the” approver", "the journal's actor")
        expect_equal(content["field_changes"], {"retention_state": "added"}, "the journal's changes")
        heads = find_heads(provider, {before["_id"]})
        expect_equal(set(heads), {before["_id"]}, "the records that have a head")
        stored = provider.fetch(SHARED, [event["_id"]])[event["_id"]]
        expect_equal(content_of(cast("Row", stored)), content_of(event), "the event's content")
        expect_equal(sum(len(list(provider.find(SHARED, name))) for name in ("mem-change-", "mem-head-")), 2, "rows")


@check("a control row as large as the store promises comes back whole", room=JOURNAL)
def large_rows_come_back(bench: Bench) -> None:
    limit = bench.capabilities.max_row_bytes
    size = 400_000 if limit is None else limit // 2
    text = ("A line of text, with “quotes”, \\ and 乗.\n" * (size // 40 + 1))[: size // 2]
    row = control_row("conformance-large", "fallow_plan", {"text": text}, now=NOW)
    with bench.open() as provider:
        expect_equal(statuses(provider.insert(SHARED, [row])), ["applied"], "the outcome")
    with bench.open() as provider:
        found = content_of(fetched(provider, SHARED, "conformance-large"))
        expect(found.get("text") == text, "the text is not what was stored")


@check("a plan of 500 records is stored, in parts where it must be, and loaded as it was", room=JOURNAL)
def a_large_plan_comes_back(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message(number, access_count=0) for number in range(510)])
    with bench.open() as provider:
        plan = make_plan(provider, resolve(), scope=Scope(), as_of=NOW, now=NOW)
        expect_equal(
            (len(plan.entries), plan.counts["eligible"], plan.counts["deferred"]), (500, 510, 10), "the plan's counts"
        )
        store_plan(provider, plan)
        rows = len(bench.store.stored(SHARED))
        store_plan(provider, plan)
        expect_equal(len(bench.store.stored(SHARED)), rows, "the rows after storing it twice")
        if bench.capabilities.max_row_bytes is not None:
            expect(len(list(provider.find(SHARED, "fallow-planpart-"))) > 1, "the plan is not in parts")
    with bench.open() as provider:
        loaded = load_plan(provider, plan.plan_id)
        expect_equal((loaded.plan_id, loaded.document_sha256), (plan.plan_id, plan.document_sha256), "the plan loaded")


@check("plan, apply, restore: records end as they began, but for the audit fields", room=JOURNAL)
def a_whole_life(bench: Bench) -> None:
    bench.store.seed(
        CONVERSATION, [*(message(number, access_count=0) for number in range(6)), message("kept", importance=1.0)]
    )
    before = bench.store.stored(CONVERSATION)
    with bench.open() as provider:
        planner = RetentionPlanner(provider, "conformance-agent", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        expect_equal({entry.record_id for entry in plan.entries}, {record_id(n) for n in range(6)}, "what is planned")
        expect_unchanged(before, bench.store.stored(CONVERSATION), {})
        report = planner.apply(plan, approved_by="ann", reason="old", count=6, now=NOW + MINUTE).to_json()
        expect_equal(
            (report["applied"], report["state"], report["skipped"], report["failed"]),
            (6, "Applied", {}, {}),
            "the report",
        )
        again = planner.apply(plan, approved_by="ann", reason="old", count=6, now=NOW + 2 * MINUTE).to_json()
        expect_equal((again["applied"], again["already"], again["state"]), (0, 6, "Applied"), "the second report")
        listed = scanned(provider, CONVERSATION, "retention_state")
        expect_equal(
            {name for name, row in listed.items() if row["retention_state"] == "suppressed"},
            {record_id(n) for n in range(6)},
            "what is suppressed",
        )
        back = planner.restore_plan(plan.plan_id, approved_by="bea", reason="back", now=NOW + 3 * MINUTE)
        expect_equal(len(back.restored), 6, "how many are restored")
        journal = [content_of(row)["target_record_id"] for row in provider.find(SHARED, "mem-change-")]
        expect_equal(len(journal), 12, "the entries of the journal")
        later = RetentionPlanner(provider, "conformance-agent", RetentionConfig())
        expect_equal(later.plan(as_of=NOW + 4 * MINUTE, now=NOW + 4 * MINUTE).entries, (), "what is planned after it")
    audit = {
        "retention_state",
        "suppressed_by",
        "suppressed_at",
        "suppression_reason",
        "suppression_approver",
        "suppression_note",
        "suppressed_from",
        "unsuppressed_by",
        "unsuppressed_at",
        "unsuppression_note",
    }
    after = bench.store.stored(CONVERSATION)
    expect_unchanged(before, after, {record_id(n): audit for n in range(6)})


@check(
    "the agents' own reader does not show what is suppressed, and shows it again once restored",
    needs=["agents_reading"],
    room=JOURNAL,
)
def agents_see_what_is_kept(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a", access_count=0), message("kept", importance=1.0)])

    def seen() -> list[bool | None]:
        see = cast("Showing", bench.store).agents_see
        return [see(CONVERSATION, record_id(name)) for name in ("a", "kept")]

    if None in (before := seen()):
        raise NotHeldError("a reader of conversations")
    expect_equal(before, [True, True], "whether agents see both before")
    with bench.open() as provider:
        planner = RetentionPlanner(provider, "conformance-agent", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        report = planner.apply(plan, approved_by="ann", reason="old", count=1, now=NOW + MINUTE)
        expect_equal(report.to_json()["applied"], 1, "how many are suppressed")
        expect_equal(seen(), [False, True], "whether agents see the suppressed one and the other")
        back = planner.restore_plan(plan.plan_id, approved_by="bea", reason="back", now=NOW + 2 * MINUTE)
        expect_equal(len(back.restored), 1, "how many are restored")
        expect_equal(seen(), [True, True], "whether agents see both after the restore")


# Recalls


def _touch(provider: Provider, names: list[str], now: int) -> list[str]:
    return statuses(cast("Touching", provider).touch_many(CONVERSATION, names, now))


@check(
    "a recall counts one and moves the access time forward, never back, and nothing else",
    needs=["touching"],
    room=TOUCHING,
)
def a_recall_counts(bench: Bench) -> None:
    late = "2027-01-01T00:00:00+00:00"
    rows = [
        message("a"),
        message("never", access_count=None, last_accessed_at=None),
        message("later", last_accessed_at=late),
        message("other"),
    ]
    bench.store.seed(CONVERSATION, rows)
    before = bench.store.stored(CONVERSATION)
    names = [record_id(name) for name in ("a", "never", "later")]
    with bench.open() as provider:
        expect_equal(_touch(provider, names, NOW), ["applied"] * 3, "the outcomes")
        listed = scanned(provider, CONVERSATION, "access_count", "last_accessed_at")
        found = [(listed[name]["access_count"], listed[name]["last_accessed_at"]) for name in names]
        expect_equal(found, [(2, NOW), (1, NOW), (2, parse_time(late))], "counts and times")
        _touch(provider, names[:1], NOW - MICROSECONDS_PER_DAY)
        row = scanned(provider, CONVERSATION, "access_count", "last_accessed_at")[names[0]]
        expect_equal((row["access_count"], row["last_accessed_at"]), (3, NOW), "after a recall of yesterday")
    named = {name: {"access_count", "last_accessed_at"} for name in names}
    expect_unchanged(before, bench.store.stored(CONVERSATION), named)


@check("recalls of what is gone or suppressed are reported and change nothing", needs=["touching"], room=TOUCHING)
def recalls_are_refused(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("s", retention_state="Suppressed", suppressed_by="p")])
    before = bench.store.stored(CONVERSATION)
    with bench.open() as provider:
        names = [record_id(name) for name in ("nobody", "s", "a")]
        outcomes = cast("Touching", provider).touch_many(CONVERSATION, names, NOW)
        expect_equal(statuses(outcomes), ["gone", "changed", "applied"], "the outcomes")
        expect_equal(outcomes[1].detail, "suppressed", "the detail of the refusal")
    expect_unchanged(before, bench.store.stored(CONVERSATION), {record_id("a"): {"access_count", "last_accessed_at"}})


@check("a record named twice in a call is recalled twice", needs=["touching"], room=TOUCHING)
def a_recall_twice_counts_twice(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a")])
    with bench.open() as provider:
        expect_equal(_touch(provider, [record_id("a")] * 2, NOW), ["applied"] * 2, "the outcomes")
        expect_equal(scanned(provider, CONVERSATION, "access_count")[record_id("a")]["access_count"], 3, "the count")


@check("untidy counts and times are recalled by the rules they are read by", needs=["touching"], room=TOUCHING)
def untidy_recalls_count(bench: Bench) -> None:
    rows: dict[str, tuple[dict[str, Any], int]] = {
        "text": ({"access_count": "12"}, 13),
        "whole float": ({"access_count": 3.0}, 4),
        "bad": ({"access_count": -1}, 1),
        "old name": ({"access_count": None, "recall_count": 4}, 5),
    }
    bench.store.seed(CONVERSATION, [message(name, **fields) for name, (fields, _) in rows.items()])
    with bench.open() as provider:
        names = [record_id(name) for name in rows]
        expect_equal(_touch(provider, names, NOW), ["applied"] * len(rows), "the outcomes")
        listed = scanned(provider, CONVERSATION, "access_count", "last_accessed_at")
        for name, (_, right) in rows.items():
            row = listed[record_id(name)]
            expect_equal((row["access_count"], row["last_accessed_at"]), (right, NOW), f"count and time of {name}")


@check("recalls by several at once are all counted", needs=["touching", "atomic_touch"], room=TOUCHING)
def recalls_at_once_are_all_counted(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a", access_count=0), message("b", access_count=0)])
    writers, rounds = 3, 8
    names = [record_id("a"), record_id("b")]
    providers = [bench.open() for _ in range(writers)]
    try:
        with ThreadPoolExecutor(writers) as pool:
            found = list(pool.map(lambda one: [_touch(one, names, NOW + n) for n in range(rounds)], providers))
        applied = sum(statuses_.count("applied") for calls in found for statuses_ in calls)
        expect_equal(applied, 2 * writers * rounds, "how many recalls are applied")
        listed = scanned(providers[0], CONVERSATION, "access_count", "last_accessed_at")
        for name in names:
            row = listed[name]
            expect_equal(
                (row["access_count"], row["last_accessed_at"]), (writers * rounds, NOW + rounds - 1), "count and time"
            )
    finally:
        for provider in providers:
            provider.close()


# The semantic cache


def _entry(name: str, **fields: Any) -> Row:
    return {
        "_id": record_id(name),
        "query_text": f"question {name}",
        "response": "an answer",
        "agent_id": "conformance-agent",
        "created_at": "2026-06-01T08:00:00+00:00",
        "hit_count": 0,
        **fields,
    }


@check(
    "a purge removes the named entries where they are as expected, and nothing else",
    needs=["cache_purging"],
    room=CACHE,
)
def a_purge_removes_what_it_names(bench: Bench) -> None:
    bench.store.seed(CACHED, [_entry(name) for name in "abc"])
    bench.store.seed(CONVERSATION, [message("a")])
    before, records = bench.store.stored(CACHED), bench.store.stored(CONVERSATION)
    with bench.open() as provider:
        rows = {name: fetched(provider, CACHED, record_id(name)) for name in "ab"}
        asked = {
            record_id("a"): {"created_at": rows["a"]["created_at"], "query_text": "question a"},
            record_id("b"): {"query_text": "question of before"},
            record_id("nobody"): {},
        }
        outcomes = cast("CachePurging", provider).purge_cache(asked)
        expect_equal([outcome.key.record_id for outcome in outcomes], list(asked), "the ids in the outcomes")
        expect_equal(statuses(outcomes), ["applied", "changed", "gone"], "the outcomes")
        expect_equal(set(scanned(provider, CACHED)), {record_id("b"), record_id("c")}, "the entries listed")
        again = cast("CachePurging", provider).purge_cache({record_id("a"): {}})
        expect_equal(statuses(again), ["gone"], "the outcome of a second purge")
    after = bench.store.stored(CACHED)
    expect_unchanged({name: row for name, row in before.items() if name != record_id("a")}, after, {})
    expect_unchanged(records, bench.store.stored(CONVERSATION), {})


# Identity


@check("a store's identity is the same after reopening and writing, and names its kind", room=IDENTITY)
def identity_is_stable(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a")])
    with bench.open() as provider:
        first = provider.identity()
        provider.insert(SHARED, [control_row("conformance-a", "fallow_conformance", {}, now=NOW)])
        provider.insert("summaries", [message("s")])
        expect_equal(provider.identity(), first, "the identity after writing")
    with bench.open() as provider:
        expect_equal(provider.identity(), first, "the identity after reopening")
        expect(first.startswith(provider.capabilities.kind), "the identity does not begin with the kind")
    expect(not any(secret in first for secret in bench.backend.secrets), "the identity shows a secret")


@check("another store has another identity", room=IDENTITY)
def identity_tells_stores_apart(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a")])
    with bench.backend.store() as other:
        other.seed(CONVERSATION, [message("a")])
        with bench.open() as left, other.open() as right:
            expect(left.identity() != right.identity(), "two stores have one identity")


@check(
    "a copy of a store has another identity, and no plan of the original is applied to it",
    needs=["copying"],
    room=IDENTITY,
)
def a_copy_is_another_store(bench: Bench) -> None:
    from fallow.model.errors import OtherStoreError

    bench.store.seed(CONVERSATION, [message(number, access_count=0) for number in range(3)])
    with bench.open() as provider:
        planner = RetentionPlanner(provider, "conformance-agent", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        original = provider.identity()
    with bench.store.copy() as copied, copied.open() as provider:  # type: ignore[attr-defined]
        expect(provider.identity() != original, "the copy has the original's identity")
        before = copied.stored(CONVERSATION)
        try:
            RetentionPlanner(provider, "conformance-agent", RetentionConfig()).apply(
                plan, approved_by="ann", reason="old", count=3, now=NOW + MINUTE
            )
        except OtherStoreError:
            pass
        else:
            expect(False, "the original's plan is applied to the copy")
        expect_unchanged(before, copied.stored(CONVERSATION), {})
