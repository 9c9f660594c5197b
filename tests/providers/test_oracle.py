"""The Oracle store on its stand-in: what is Oracle's own in it (STORES.md, Oracle; TRAPS rows by number)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fallow.providers import oracle_statements as sql
from fallow.providers.conformance.scratch_oracle import OracleBackend, current_schema
from fallow.providers.conformance.writing import SUPPRESSION
from fallow.providers.oracle import OracleProvider

from fallow.model.arguments import instant
from fallow.model.errors import (
    FallowError,
    SettingError,
    StoreBusyError,
    StoreNotFoundError,
    StoreUnwritableError,
    UsageError,
)
from fallow.model.keys import MISSING, RecordKey
from fallow.model.record import requirements
from fallow.model.settings import RetentionConfig
from fallow.port.protocol import Capabilities, Patch, Provider, Unreadable
from fallow.port.registry import open_provider
from fallow.usecases.planner import RetentionPlanner
from fallow.usecases.suppressed import suppressed_records
from tests.fallow.small_stores import CONVERSATION, NOW, ids, planned, protected, record
from tests.providers.backends import StandinBackend, StandinStore

MINUTE = 60_000_000


def named(name: object) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(name)))


def row(name: object, **fields: Any) -> dict[str, Any]:
    return record(named(name), **fields)


@pytest.fixture
def store(oracle: Any) -> Iterator[StandinStore]:
    with StandinBackend(oracle).store() as made:
        oracle.statements.clear()
        yield made
        oracle.before = oracle.loses = None


@pytest.fixture
def provider(store: StandinStore) -> Iterator[OracleProvider]:
    with store.open() as opened:
        yield opened


def statement(store: StandinStore, text: str) -> Any:
    return store._run(text)


# Reading


def test_a_timestamp_without_a_zone_is_the_instant_that_was_written_trap_14_15(store: StandinStore) -> None:
    with store.open({"summaries": "America/New_York"}) as provider:
        for kind in (CONVERSATION, "summaries"):
            field = "timestamp" if kind == CONVERSATION else "created_at"
            new = {**row(kind), "timestamp": None, field: "2026-11-30T23:30:00-05:00"}
            new["last_accessed_at"] = "2026-10-01T02:00:00+02:00"
            assert provider.insert(kind, [new])[0].status == "applied"
            [batch] = provider.scan(kind, ("created_at", "last_accessed_at"))
            assert batch.frame.row(0) == (instant("2026-12-01T04:30:00Z"), instant("2026-10-01T00:00:00Z"))
    [(text,)] = statement(store, f"SELECT timestamp FROM {store._table(CONVERSATION)}")
    assert text.isoformat() == "2026-12-01T04:30:00"


def test_every_page_is_read_trap_26(store: StandinStore, provider: Provider) -> None:
    statement(
        store,
        f"INSERT INTO {store._table(CONVERSATION)} (id, agent_id, content, timestamp, importance) "
        "SELECT decode(md5(n::text), 'hex'), 'gardener', 'x', TIMESTAMP '2026-01-01 00:00:00', 0.1 "
        "FROM generate_series(1, 20137) n",
    )
    plan = planned(provider)
    assert (plan.counts["scanned"], plan.counts["planned"], plan.counts["deferred"]) == (20137, 500, 19637)


def test_flags_stand_where_the_layout_has_a_place_for_them_trap_29(store: StandinStore, provider: Provider) -> None:
    for place, value in enumerate([True, 1, "yes", "ON"]):
        store.seed("knowledge_base", [{**row(place), "timestamp": None, "created_at": "2026-01-01", "pinned": value}])
    store.seed(
        "knowledge_base", [{**row("tagged"), "timestamp": None, "created_at": "2026-01-01", "tags": ["verified"]}]
    )
    pins = [{"name": "status", "value": "x", "pinned": 1}]
    entity = {"_id": named("e"), "name": "ramp", "attributes": pins, "created_at": "2026-01-01", "importance": 0.1}
    store.seed("entity_memory", [entity])
    assert protected(planned(provider)) == {"pinned": 5, "verified": 1}


def test_raw_ids_and_citations_are_one_form_trap_30(store: StandinStore, provider: Provider) -> None:
    store.seed(CONVERSATION, [row("c1"), row("c2"), row("c3")])
    summaries = [
        {"_id": named("s1"), "source_message_ids": [named("c1")]},
        {"_id": "a summary's own id", "source_message_ids": [named("c3")], "retention_state": "suppressed"},
    ]
    store.seed("summaries", [{**one, "content": "x", "created_at": "2026-11-30"} for one in summaries])
    plan = planned(provider)
    assert sorted(ids(plan)) == sorted([named("c2"), named("c3")])
    assert protected(plan)["cited"] == 1
    assert set(provider.fetch("summaries", ["a summary's own id"])) == {"a summary's own id"}


def test_a_logical_id_that_is_null_is_the_raw_key_and_one_that_is_doubled_is_no_record(
    store: StandinStore, provider: Provider
) -> None:
    store.seed("summaries", [{"_id": name, "content": name, "created_at": "2026-01-01"} for name in ("a", "a", "b")])
    store.seed("summaries", [{"_id": "gone", "content": "c"}])
    table = store._table("summaries")
    statement(store, f"UPDATE {table} SET summary_id = NULL WHERE summary_id = 'gone'")
    [(key,)] = statement(store, f"SELECT id FROM {table} WHERE summary_id IS NULL")
    nameless = str(uuid.UUID(bytes=key))
    batches = list(provider.scan("summaries", ("record_id",)))
    assert {name for batch in batches for name in batch.frame["record_id"]} == {"b", nameless}
    assert [(one.key.record_id, one.reason) for batch in batches for one in batch.unreadable] == [("a", "duplicate id")]
    found = provider.fetch("summaries", ["a", "b", nameless])
    assert isinstance(found["a"], Unreadable)
    assert found[nameless]["content"] == "c"  # type: ignore[index]
    keys = [RecordKey("summaries", name) for name in ("a", "b", nameless)]
    outcomes = provider.patch([Patch(key, {}, {"importance": 0.5}) for key in keys])
    assert [outcome.status for outcome in outcomes] == ["failed", "applied", "applied"]
    assert [str(one["_id"]) for one in provider.find("summaries")] == ["b", nameless]


# Writing


def meta(store: StandinStore, name: object) -> dict[str, bytes]:
    return store.stored(CONVERSATION)[named(name)]


def test_what_others_put_into_the_merged_json_survives_also_between_read_and_write_trap_23(
    store: StandinStore, provider: OracleProvider, oracle: Any
) -> None:
    store.seed(CONVERSATION, [row("a", suppression_note="of an earlier time"), row("b"), row("c")])
    rows = provider.fetch(CONVERSATION, [named(name) for name in "abc"])

    def meanwhile(connection: Any, text: str) -> None:
        if text.startswith("UPDATE"):
            oracle.before = None
            store.change(CONVERSATION, named("a"), {"unsuppression_note": "written meanwhile", "role": "system"})
            store.change(CONVERSATION, named("b"), {"access_count": 9})
            store.remove(CONVERSATION, named("c"))

    oracle.before = meanwhile
    changes = {"suppressed_by": "p", "retention_state": "suppressed"}
    patches = [Patch(RecordKey(CONVERSATION, name), requirements(found), changes) for name, found in rows.items()]  # type: ignore[arg-type]
    found = {outcome.key.record_id: outcome.status for outcome in provider.patch(patches)}
    assert found == {named("a"): "applied", named("b"): "changed", named("c"): "gone"}
    left = meta(store, "a")
    assert (left["suppressed_by"], left["role"]) == (b'"p"', b"'system'")
    assert left["unsuppression_note"] == b'"written meanwhile"'
    assert left["suppression_note"] == b'"of an earlier time"'
    assert meta(store, "b")["retention_state"] == b"'active'"
    assert named("c") not in store.stored(CONVERSATION)


def test_a_null_and_an_object_in_the_merged_json_are_what_was_asked_for(
    provider: Provider, store: StandinStore
) -> None:
    store.seed(CONVERSATION, [row("a", suppression_note="x", suppressed_by="p")])
    key = RecordKey(CONVERSATION, named("a"))
    for changes in ({"x_deep": {"a": 1, "b": 2}}, {"x_deep": {"c": 3}}, {"suppression_note": None}):
        assert provider.patch([Patch(key, {}, changes)])[0].status == "applied"
    found = provider.fetch(CONVERSATION, [key.record_id])[key.record_id]
    assert isinstance(found, dict)
    assert (found["x_deep"], found["suppressed_by"]) == ({"c": 3}, "p")
    assert "suppression_note" not in found
    patch = Patch(key, {"x_deep": {"c": 3}, "suppression_note": None, "x_other": MISSING}, {"x_deep": "y"})
    assert [provider.patch([patch])[0].status for _ in range(2)] == ["applied", "changed"]


def test_an_empty_clob_is_absent_as_null_is(store: StandinStore, provider: Provider) -> None:
    store.seed(CONVERSATION, [row("empty"), row("null", content=None)])
    statement(store, f"UPDATE {store._table(CONVERSATION)} SET content = '' WHERE content IS NOT NULL")
    rows = provider.fetch(CONVERSATION, [named("empty"), named("null")])
    assert [found for found in rows.values() if "content" in found] == []  # type: ignore[operator]
    patches = [Patch(RecordKey(CONVERSATION, name), requirements(found), SUPPRESSION) for name, found in rows.items()]  # type: ignore[arg-type]
    assert {outcome.status for outcome in provider.patch(patches)} == {"applied"}


def test_a_record_that_the_store_refuses_stops_no_other_trap_34(store: StandinStore) -> None:
    store.seed(CONVERSATION, [row(n, content="refuse me" if n == 4 else "x") for n in range(10)])
    table = store._table(CONVERSATION)
    statement(
        store,
        f"ALTER TABLE {table} ADD CONSTRAINT {table.split('.')[1]}R "
        "CHECK (content <> 'refuse me' OR retention_state = 'active')",
    )
    with store.open() as provider:
        planner = RetentionPlanner(provider, "", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        report = planner.apply(plan, approved_by="ann", reason="old", count=10, now=NOW + MINUTE).to_json()
        assert report["applied"] == 9
        [(reason, [failed])] = report["failed"].items()
        assert failed == named(4)
        assert "check" in reason
        assert len(suppressed_records(provider)) == 9


def test_texts_longer_than_a_varchar_are_stored_whole_trap_45(store: StandinStore, provider: Provider) -> None:
    store.seed(CONVERSATION, [row("a")])
    note = "ü“'" * 20_000
    key = RecordKey(CONVERSATION, named("a"))
    assert provider.patch([Patch(key, {}, {**SUPPRESSION, "suppression_note": note})])[0].status == "applied"
    assert (
        provider.patch([Patch(key, {"suppression_note": note}, {"retention_state": "active"})])[0].status == "applied"
    )
    new = {"_id": "big", "memory_id": "big", "content": '{"text": "' + note * 5 + '"}', "record_type": "fallow_plan"}
    assert provider.insert("shared_memory", [new])[0].status == "applied"
    found = provider.fetch("shared_memory", ["big"])["big"]
    assert isinstance(found, dict)
    assert note * 5 in found["content"]
    assert found["record_type"] == "fallow_plan"


class SmallRows(OracleProvider):
    """A schema whose rows hold little, so that plans and decisions are stored in parts (SPEC §10)."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(kind="oracle", batch_size=7, max_row_bytes=8_000)


def test_a_plan_too_large_for_a_row_is_stored_in_parts_and_applied_10(store: StandinStore, oracle: Any) -> None:
    store.seed(CONVERSATION, [row(n) for n in range(40)])
    with SmallRows(oracle.pool(), "MEMORIZZ", prefix=store._prefix) as provider:
        planner = RetentionPlanner(provider, "", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        report = planner.apply(plan.plan_id, approved_by="ann", reason="x" * 5_000, count=40, now=NOW + MINUTE)
        assert report.to_json()["applied"] == 40
        longest = max(len(str(one["content"])) for one in provider.find("shared_memory") if "plan" in str(one["_id"]))
        assert longest < 8_500
        back = planner.restore_plan(plan.plan_id, approved_by="bea", reason="back", now=NOW + 2 * MINUTE)
        assert back.to_json()["applied"] == 40


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_write_whose_answer_was_lost_is_unknown_never_guessed(kind: str, store: StandinStore, oracle: Any) -> None:
    store.seed(CONVERSATION, [row("a")])
    with store.open() as provider:
        oracle.loses = (kind, 0)
        [patched] = provider.patch([Patch(RecordKey(CONVERSATION, named("a")), {}, SUPPRESSION)])
        oracle.loses = (kind, 0)
        [inserted] = provider.insert(CONVERSATION, [row("b")])
        assert (patched.status, inserted.status) == ("unknown", "unknown")
        written = meta(store, "a")["retention_state"] == b"'suppressed'"
        assert written == (named("b") in store.stored(CONVERSATION)) == (kind == "after")


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_connection_lost_at_any_commit_of_an_apply_leaves_the_right_end_trap_25(
    kind: str, oracle: Any, store: StandinStore
) -> None:
    """Twelve records; the connection ends at one commit after the other; running it again completes it."""
    lost = 0
    for commit in range(6):
        with StandinBackend(oracle).store() as made:
            made.seed(CONVERSATION, [row(n) for n in range(12)])
            with made.open() as provider:
                planner = RetentionPlanner(provider, "", RetentionConfig())
                plan = planner.plan(as_of=NOW, now=NOW)
                oracle.loses = (kind, commit)
                with contextlib.suppress(FallowError):
                    planner.apply(plan, approved_by="ann", reason="old", count=12, now=NOW + MINUTE)
                lost += oracle.loses is None
                oracle.loses = None
                end = planner.apply(plan, approved_by="ann", reason="old", count=12, now=NOW + 2 * MINUTE).to_json()
                assert end["applied"] + end["already"] == 12, (commit, end)
                assert {item.record_id for item in suppressed_records(provider)} == {named(n) for n in range(12)}
                rows = list(provider.find("shared_memory"))
                changes = [one for one in rows if one.get("record_type") == "memory_history_change"]
                assert len(changes) == 12
                assert sum("memory_forgotten" in str(one["content"]) for one in rows) == 1
    assert lost >= 4


# Schemas, addresses, diagnosis


def test_an_old_schema_is_read_and_doctor_prints_the_ddl_it_needs(store: StandinStore) -> None:
    store.seed(CONVERSATION, [row("a")])
    table = store._table(CONVERSATION)
    for column in ("importance", "last_accessed_at", "retention_state", "retention_meta"):
        statement(store, f"ALTER TABLE {table} DROP COLUMN {column}")
    key = RecordKey(CONVERSATION, named("a"))
    with store.open() as provider:
        assert isinstance(provider, OracleProvider)
        assert planned(provider).counts["scanned"] == 1
        [outcome] = provider.patch([Patch(key, {}, SUPPRESSION)])
        assert outcome.status == "failed"
        assert "doctor" in outcome.detail
        needed = [detail.partition(": ")[2] for name, _, detail in provider.diagnose() if name == "column"]
        assert len(needed) == 4
    for ddl in needed:
        statement(store, ddl)
    with store.open() as provider:
        assert provider.patch([Patch(key, {}, SUPPRESSION)])[0].status == "applied"
        assert [name for name, _, _ in provider.diagnose() if name == "column"] == []  # type: ignore[attr-defined]


def test_doctor_names_tables_that_are_not_there_or_not_to_be_seen(provider: OracleProvider) -> None:
    told = [
        detail.partition(":")[0] for name, state, detail in provider.diagnose() if (name, state) == ("table", "warning")
    ]
    assert told == ["workflow_memory", "agents"]


def test_a_schema_without_a_store_is_none(oracle: Any) -> None:
    pool = oracle.pool()
    with pytest.raises(StoreNotFoundError):
        OracleProvider(pool, "NOTHING_HERE")
    pool.close(force=True)


SECRET = "hunter2-secret"


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        (f"oracle://user:{SECRET}@127.0.0.1:1/service?schema=S", StoreBusyError),
        (f"oracle://user:{SECRET}@[::1/service", UsageError),
        (f"oracle://user:{SECRET}@host:99999999/service", UsageError),
        (f"oracle://user:{SECRET}@host", UsageError),
        (f"oracle://:{SECRET}@host/service", UsageError),
        (f"oracle://user:{SECRET}@host/service?schema=a b", UsageError),
        (f"oracle://user:{SECRET}@host/service?colour={SECRET}", UsageError),
        ("oracle://user@host/service", SettingError),
    ],
)
def test_an_address_that_leads_nowhere_is_one_clear_line_without_its_password(
    uri: str, error: type[FallowError]
) -> None:
    """The driver itself answers here: no Oracle client, no server."""
    with pytest.raises(error) as caught:
        open_provider(uri)
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert caught.value.hint


def test_scratch_tables_are_made_in_the_users_schema_unless_another_is_named(oracle: Any) -> None:
    pool = oracle.pool()
    assert current_schema(pool) == "MEMORIZZ"
    pool.close(force=True)
    assert OracleBackend.at(f"oracle://user:{SECRET}@127.0.0.1:1/service?schema=S").gaps
    with pytest.raises(StoreUnwritableError) as caught:
        OracleBackend.at(f"oracle://user:{SECRET}@127.0.0.1:1/service")
    assert SECRET not in str(caught.value)


def test_scratch_tables_leave_nothing(oracle: Any) -> None:
    def there() -> set[str]:
        connection = oracle.pool().acquire()
        found = {one for (one,) in connection.cursor().execute("SELECT object_name FROM all_objects").fetchall()}
        connection.close()
        return {name for name in found if name.startswith("FC")}

    before = there()
    with StandinBackend(oracle).store() as made:
        made.seed("workflow_memory", [])
        assert len(there() - before) == len(sql.TABLES)
    assert there() == before


def test_the_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALLOW_ORACLE_PASSWORD", SECRET)
    with pytest.raises(StoreBusyError) as caught:
        open_provider("oracle://user@127.0.0.1:1/service")
    assert SECRET not in str(caught.value)


def test_the_pages_statements_are_the_modules() -> None:
    """docs/oracle.md prints the DDL that the code has."""
    page = (Path(__file__).parents[2] / "docs" / "oracle.md").read_text(encoding="utf-8")
    for column, kind in sql.RETENTION_COLUMNS.items():
        assert f"{column} {kind}" in page


# A plan's whole life


def fact(name: object, **fields: Any) -> dict[str, Any]:
    """A knowledge base row, whose metadata has a place for a pin."""
    return {**row(name, **fields), "timestamp": None, "role": None, "created_at": "2026-01-01"}


def test_what_changed_since_planning_is_skipped_each_with_its_reason_trap_22(
    store: StandinStore, provider: OracleProvider
) -> None:
    store.seed(CONVERSATION, [row(name) for name in ("recalled", "edited", "cited", "gone", "hidden", "plain")])
    store.seed("knowledge_base", [fact("pinned")])
    planner = RetentionPlanner(provider, "", RetentionConfig())
    plan = planner.plan(as_of=NOW, now=NOW)
    assert len(plan.entries) == 7
    for _ in range(50):
        assert provider.touch_many(CONVERSATION, [named("recalled")], NOW)[0].status == "applied"
    store.change(CONVERSATION, named("edited"), {"content": "another text"})
    new = {"_id": "s", "content": "x", "created_at": "2026-11-30", "source_message_ids": [named("cited")]}
    store.seed("summaries", [new])
    store.change("knowledge_base", named("pinned"), {"metadata": {"pinned": "yes"}})
    store.remove(CONVERSATION, named("gone"))
    store.change(CONVERSATION, named("hidden"), {"retention_state": "suppressed", "suppressed_by": "another-plan"})
    report = planner.apply(plan, approved_by="ann", reason="old", count=7, now=NOW + MINUTE).to_json()
    assert report["applied"] == 1
    skipped = {reason: found for reason, found in report["skipped"].items() if found}
    assert len(skipped) == 6
    assert sorted(one for found in skipped.values() for one in found) == sorted(
        named(name) for name in ("recalled", "edited", "cited", "pinned", "gone", "hidden")
    )
    assert named("gone") not in store.stored(CONVERSATION)


def test_a_record_that_a_human_took_back_stays_back_trap_49(store: StandinStore, provider: OracleProvider) -> None:
    store.seed(CONVERSATION, [row(n) for n in range(3)])
    planner = RetentionPlanner(provider, "", RetentionConfig())
    plan = planner.plan(as_of=NOW, now=NOW)
    planner.apply(plan, approved_by="ann", reason="old", count=3, now=NOW + MINUTE)
    planner.unsuppress(named(1), CONVERSATION, approved_by="bea", reason="needed", now=NOW + 2 * MINUTE)
    again = planner.apply(plan, approved_by="ann", reason="old", count=3, now=NOW + 3 * MINUTE).to_json()
    assert again["applied"] == 0
    assert {item.record_id for item in suppressed_records(provider)} == {named(0), named(2)}
    later = planner.plan(as_of=NOW + 4 * MINUTE, now=NOW + 4 * MINUTE)
    assert later.entries == () or list(later.entries) == []


def test_a_rating_and_a_reflection_have_their_place_3_5_5_2(store: StandinStore, provider: OracleProvider) -> None:
    store.seed(CONVERSATION, [row("a", importance=None)])
    before = store.stored(CONVERSATION)[named("a")]
    key = RecordKey(CONVERSATION, named("a"))
    rating = {
        "importance": 0.7,
        "importance_source": "llm",
        "importance_model": "m",
        "importance_rated_at": "2026-12-01",
    }
    patch = Patch(key, {"importance": MISSING, "importance_source": MISSING}, rating)
    assert [provider.patch([patch])[0].status for _ in range(2)] == ["applied", "changed"]
    [batch] = provider.scan(CONVERSATION, ("importance", "importance_source"))
    assert batch.frame.row(0) == (0.7, "llm")
    after = store.stored(CONVERSATION)[named("a")]
    assert {name for name in after if after[name] != before.get(name)} == set(rating)
    summary = {
        "_id": "fallow-reflection-1",
        "content": "in short",
        "summary_type": "reflection",
        "period_start": 1774509333.5,
        "period_end": "2026-03-26T07:15:34Z",
        "source_message_ids": [named("a")],
        "created_at": "2026-11-30T00:00:00+00:00",
        "reflection_mode": "extractive",
        "importance": 0.5,
    }
    assert [provider.insert("summaries", [summary])[0].status for _ in range(2)] == ["applied", "already"]
    found = provider.fetch("summaries", [summary["_id"]])[summary["_id"]]
    assert isinstance(found, dict)
    assert (found["period_start"], found["period_end"]) == (1774509333.5, 1774509334)
    assert (found["source_message_ids"], found["reflection_mode"]) == ([named("a")], "extractive")
