"""The door (SPEC §1.5; TRAPS 56, 57): every public function and option takes what is documented or says why not."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fallow
from fallow import ImportanceConfig, ImportanceRater, RecordKey, RetentionConfig, RetentionPlanner, Scope
from fallow.acting.deciding import decide
from fallow.acting.purge import purge_semantic_cache
from fallow.acting.restore import restore_records
from fallow.cli.app import run
from fallow.importance.backfill import backfill_importance
from fallow.model import arguments
from fallow.model.arguments import instant
from fallow.model.errors import UsageError
from fallow.model.settings import ApprovalConfig
from fallow.model.times import iso, wall_clock
from fallow.reflection.reflecting import ReflectionConfig, reflect
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, record, tree

DAY = "2025-12-01T00:00:00Z"
#: TRAPS 56: what is a time, with the instant that it is.
TIMES: list[tuple[Any, str]] = [
    (1764547200, DAY),
    (1764547200000, DAY),
    (1764547200000000, DAY),
    (1764547200.5, "2025-12-01T00:00:00.500000Z"),
    ("1764547200", DAY),
    (np.int64(1764547200), DAY),
    (np.float64(1764547200), DAY),
    (datetime(2026, 12, 1), "2026-12-01T00:00:00Z"),  # noqa: DTZ001
    (datetime(2026, 12, 1, 2, tzinfo=timezone(timedelta(hours=2))), "2026-12-01T00:00:00Z"),
    (date(2026, 12, 1), "2026-12-01T00:00:00Z"),
    ("2026-12-01", "2026-12-01T00:00:00Z"),
    ("20261201", "2026-12-01T00:00:00Z"),
    ("2026-12-01t02:00:00z", "2026-12-01T02:00:00Z"),
]
#: What is none.
NO_TIMES: list[Any] = [
    True, False, np.True_, "tomorrow", "", " ", 5, 20261201, -1, 0, float("nan"), float("inf"), "nan", "1e9", b"2026",
    [], {}, object(), "1989-12-31", "2200-01-01", datetime(9999, 1, 1, tzinfo=UTC), 10**400, "9" * 400,
    date(1, 1, 1), timedelta(1),
]  # fmt: skip
NO_IDS: list[Any] = ["", " ", "\t\n", 1, 1.5, True, b"r1", [], {}, object(), "\ud800", "a\0b"]
NO_LISTS: list[Any] = [
    "r1",
    b"r1",
    1,
    True,
    {"r1": 1},
    pl.DataFrame({"a": ["r1"]}),
    object(),
    [1],
    [None],
    [" "],
    [b"x"],
]
NO_SWITCHES: list[Any] = ["no", "yes", "true", 0, 1, None, [], object()]
NO_TEXTS: list[Any] = [1, True, b"x", [], {}, object()]
NO_TYPES: list[Any] = ["shared_memory", "tool_log", "semantic_cache", "", " ", "conversation", 1, None, True, b"x", []]
NO_COUNTS: list[Any] = [-1, 1.5, "5", True, float("nan"), [], object()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rows = [record(f"r{n}", days=200 + n, content=f"turn {n}", memory_id="m1") for n in range(6)]
    write_as_agent(tmp_path / "store", {CONVERSATION: rows, "shared_memory": [], "semantic_cache": []})
    return tmp_path / "store"


@pytest.mark.parametrize(("given", "wanted"), TIMES, ids=[repr(item[0]) for item in TIMES])
def test_a_time_is_read_in_one_way_trap_56(given: Any, wanted: str) -> None:
    assert iso(instant(given)) == wanted
    assert instant(instant(given)) == instant(given)


def test_left_out_is_now_trap_56() -> None:
    before = wall_clock()
    assert before <= instant(None) <= wall_clock()


@pytest.mark.parametrize("given", NO_TIMES, ids=lambda item: repr(item)[:30])
def test_what_is_no_time_is_refused_by_name_trap_56(given: Any) -> None:
    with pytest.raises(UsageError, match=r"^as_of must be .+, not "):
        instant(given, "as_of")


def test_ids_are_rendered_by_the_rule_of_records() -> None:
    class ObjectId:
        def __str__(self) -> str:
            return "65A000000000000000000001"

    name = uuid.uuid4()
    assert arguments.record_ids([name, ObjectId(), " a ", np.str_("b"), "b"]) == (
        str(name),
        "65a000000000000000000001",
        " a ",
        "b",
    )
    assert type(arguments.record_id(np.str_("b"))) is str
    assert arguments.record_ids(f"r{n}" for n in range(2)) == ("r0", "r1")


def test_no_ids_is_none_and_not_all_trap_57(store: Path) -> None:
    with fallow.open_provider(store) as provider:
        planner = RetentionPlanner(provider, config=RetentionConfig(min_retention=0.9))
        assert len(planner.plan(memory_ids=["m1"]).entries) == 6
        nothing = planner.plan(memory_ids=[])
        assert not nothing.entries
        assert "no memory" in nothing.scope.label
        assert planner.suppressed(memory_ids=[]) == []
        assert fallow.touch_many(provider, CONVERSATION, []).touched == []


def test_a_path_is_an_address_and_a_generator_is_read_once_trap_57(store: Path) -> None:
    with fallow.open_provider(Path(store)) as provider:
        assert fallow.touch_many(provider, CONVERSATION, (f"r{n}" for n in range(2))).touched == ["r0", "r1"]
    rater = ImportanceRater(ImportanceConfig(mode="heuristic"))
    assert len(rater.rate_many({"text": f"turn {n}"} for n in range(30))) == 30
    rows = [{"_id": f"r{n}", "content": f"text {n}"} for n in range(3)]
    assert len(fallow.dedupe_and_select(row for row in rows)) == 3
    assert len(fallow.score_candidates(row for row in rows)) == 3


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pl.DataFrame({"_id": ["a"]}), "frame.to_dicts()"),
        (pl.LazyFrame({"_id": ["a"]}), "frame.to_dicts()"),
        ({"_id": "a", "content": "x"}, "[row]"),
        ("rows", "an iterable of rows"),
        (5, "an iterable of rows"),
    ],
    ids=["frame", "lazy frame", "one row", "text", "number"],
)
def test_what_are_no_rows_is_refused_with_what_to_write_trap_57(given: Any, wanted: str) -> None:
    rater = ImportanceRater(ImportanceConfig(mode="heuristic"))
    for call in (fallow.dedupe_and_select, fallow.score_candidates, rater.rate_many):
        with pytest.raises(UsageError, match=r"^(candidates|turns) must be") as caught:
            call(given)
        assert wanted in str(caught.value)


def test_a_pandas_frame_is_refused_with_what_to_write_trap_57() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match="to_dict"):
        fallow.score_candidates(pandas.DataFrame({"_id": ["a"]}))


def _calls(provider: Any) -> dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, list[Any]]]]:
    """Every public function that takes arguments: itself, good arguments, and what each argument refuses.

    Good arguments alone are never called here; each call has one that must be refused.
    """
    planner = RetentionPlanner(provider, config=RetentionConfig(min_retention=0.9))
    plan_id = "forget-plan-" + "0" * 28
    who = {"approved_by": "Ada", "reason": "because"}
    hold = {"scope": Scope(agent_id="a"), "owner": "Ada", "reason": "because"}
    scope = {"memory_ids": NO_LISTS, "user_id": NO_IDS, "thread_id": NO_IDS}
    rater = ImportanceRater(ImportanceConfig(mode="heuristic"))
    decided = {"approved_by": NO_TEXTS, "reason": NO_TEXTS, "leave_out": NO_LISTS, "count": NO_COUNTS}
    return {
        "touch_many": (
            fallow.touch_many,
            {"provider": provider, "memory_type": CONVERSATION, "record_ids": ["r0"]},
            {"memory_type": NO_TYPES, "record_ids": NO_LISTS, "now": NO_TIMES, "event": NO_SWITCHES},
        ),
        "apply_plan": (
            fallow.apply_plan,
            {"provider": provider, "plan_id": plan_id},
            {"plan_id": NO_TEXTS, "now": NO_TIMES},
        ),
        "certify": (
            fallow.certify,
            {"provider": provider, "plan_id": plan_id},
            {"plan_id": NO_TEXTS, "now": NO_TIMES},
        ),
        "find_drift": (fallow.find_drift, {"provider": provider}, {"now": NO_TIMES}),
        "place_hold": (
            fallow.place_hold,
            {"provider": provider, **hold},
            {
                "scope": ["a", {"agent_id": "a"}, 1, True],
                "memory_types": [*NO_LISTS, "conversation_memory", ["shared_memory"]],
                "records": [*NO_LISTS, RecordKey(CONVERSATION, "r0"), [RecordKey(CONVERSATION, 1)], ["r0"]],  # type: ignore[arg-type]
                "owner": NO_TEXTS,
                "reason": NO_TEXTS,
                "now": NO_TIMES,
                "expires_at": NO_TIMES,
            },
        ),
        "release_hold": (
            fallow.release_hold,
            {"provider": provider, "hold_id": "0" * 16, "released_by": "Ada", "reason": "because"},
            {"hold_id": NO_TEXTS, "released_by": NO_TEXTS, "reason": NO_TEXTS, "now": NO_TIMES},
        ),
        "cache_answer": (
            fallow.cache_answer,
            {"provider": provider, "query": "who is Ada?", "response": "a name"},
            {
                "query": NO_TEXTS,
                "response": NO_TEXTS,
                "now": NO_TIMES,
                "agent_id": NO_IDS,
                "memory_id": NO_IDS,
                "user_id": NO_IDS,
                "expires_at": NO_TIMES,
                "embedding": ["1.0", 1.0, ["x"], [True], [float("nan")]],
                "domain": NO_TEXTS,
            },
        ),
        "sign_decision": (
            fallow.sign_decision,
            {"provider": provider, "plan_id": plan_id, "verdict": "approved", "key": None, "approved_by": "Ada"},
            {"plan_id": NO_TEXTS, "reason": NO_TEXTS, "leave_out": NO_LISTS, "now": NO_TIMES},
        ),
        "open_provider": (
            fallow.open_provider,
            {"uri": "x"},
            {"uri": [*NO_TEXTS, "", " "], "naive_timezone": ["UTC", 1]},
        ),
        "Scope": (
            Scope,
            {},
            {"agent_id": NO_IDS, **scope, "unowned": NO_SWITCHES},
        ),
        "RetentionPlanner": (
            RetentionPlanner,
            {"provider": provider},
            {"agent_id": NO_IDS[1:], "config": ["x", {}, 1], "scoring": ["x", {}, 1]},
        ),
        "RetentionPlanner.plan": (
            planner.plan,
            {},
            {**scope, "as_of": NO_TIMES, "now": NO_TIMES, "unowned": NO_SWITCHES, "requested_by": NO_TEXTS},
        ),
        "RetentionPlanner.suppressed": (planner.suppressed, {}, scope),
        "RetentionPlanner.approve": (planner.approve, {"plan": plan_id, **who}, {**decided, "now": NO_TIMES}),
        "RetentionPlanner.apply": (planner.apply, {"plan": plan_id, **who}, {**decided, "now": NO_TIMES}),
        "RetentionPlanner.unsuppress": (
            planner.unsuppress,
            {"record_id": "r0", "memory_type": CONVERSATION, **who},
            {
                "record_id": NO_IDS,
                "memory_type": NO_TYPES,
                "approved_by": NO_TEXTS,
                "reason": NO_TEXTS,
                "now": NO_TIMES,
            },
        ),
        "RetentionPlanner.restore_plan": (
            planner.restore_plan,
            {"plan_id": plan_id, **who},
            {"plan_id": NO_TEXTS, "approved_by": NO_TEXTS},
        ),
        "ImportanceRater": (ImportanceRater, {}, {"config": ["heuristic", {}, 1], "generate": ["model", 1]}),
        "ImportanceRater.rate": (
            rater.rate,
            {"text": "hello"},
            {
                "text": NO_TEXTS,
                "role": NO_TEXTS,
                "kind": NO_TEXTS,
                "host_asserted": NO_SWITCHES,
                "verified": NO_SWITCHES,
            },
        ),
        "ImportanceRater.rate_many": (rater.rate_many, {}, {"turns": ["x", {"text": "x"}, 5, [5], ["x"], None]}),
        "score_candidates": (
            fallow.score_candidates,
            {"candidates": []},
            {"candidates": ["x", {}, 5, None], "scoring": ["x", {}, 1], "now": NO_TIMES},
        ),
        "dedupe_and_select": (
            fallow.dedupe_and_select,
            {"candidates": []},
            {
                "candidates": ["x", {}, 5, None],
                "history_texts": ["said", 5, {}],
                "similarity_threshold": ["0.9", True, None, float("nan")],
                "mmr_lambda": ["0.9", True, None, float("nan"), -0.1, 1.1],
                "scoring": ["x", {}, 1],
                "max_items": [*NO_COUNTS, None],
                "max_chars_per_item": [*NO_COUNTS, None],
                "max_total_chars": NO_COUNTS,
                "dedupe_parent_sources": NO_SWITCHES,
                "thread_id": NO_IDS,
                "now": NO_TIMES,
                "ledger": ["x", {}, 5],
            },
        ),
        "restore_records": (
            restore_records,
            {"provider": provider, "keys": [RecordKey(CONVERSATION, "r0")], **who},
            {"keys": [*NO_LISTS, [RecordKey("shared_memory", "x")]], "approved_by": NO_TEXTS, "now": NO_TIMES},
        ),
        "decide": (
            decide,
            {"provider": provider, "plan_id": plan_id, "verdict": "approved", "approval": ApprovalConfig(), **who},
            {"plan_id": NO_TEXTS, "reason": NO_TEXTS, "leave_out": NO_LISTS, "count": NO_COUNTS, "now": NO_TIMES},
        ),
        "purge_semantic_cache": (
            purge_semantic_cache,
            {"provider": provider},
            {"now": NO_TIMES, "merge_duplicates": NO_SWITCHES, "dry_run": NO_SWITCHES},
        ),
        "reflect": (
            reflect,
            {"provider": provider, "config": ReflectionConfig(extractive=True)},
            {"now": NO_TIMES, "scope": ["a", {}, 1], "dry_run": NO_SWITCHES, "max_calls": NO_COUNTS},
        ),
        "backfill_importance": (
            backfill_importance,
            {"provider": provider},
            {
                "now": NO_TIMES,
                "scope": ["a", {}, 1],
                "dry_run": NO_SWITCHES,
                "memory_types": [*NO_LISTS, ["shared_memory"]],
            },
        ),
    }


def test_every_public_function_refuses_by_name_and_writes_nothing_traps_56_57(store: Path) -> None:
    before = tree(store)
    number = 0
    with fallow.open_provider(store) as provider:
        for name, (call, good, refused) in _calls(provider).items():
            for argument, values in refused.items():
                for value in values:
                    number += 1
                    with pytest.raises(UsageError) as caught:
                        call(**{**good, argument: value})
                    assert (
                        argument
                        in caught.value.message.replace("the owner", "owner").replace("who releases it", "released_by")
                        or "no store is named" in caught.value.message
                    ), (name, argument, value, caught.value)
    assert number > 800
    assert tree(store) == before


def test_the_matrix_knows_every_public_function(store: Path) -> None:
    """Public names that take an argument of §1.5 stand in the matrix, or here with why they do not."""
    without = {
        "ApplyReport": "a result",
        "Decision": "a result",
        "FallowError": "an error",
        "Hold": "a result",
        "ImportanceConfig": "settings: SettingError, which is a UsageError",
        "PlanEntry": "a result",
        "Record": "a result",
        "RecordKey": "a pair, checked where it is used",
        "RestoreReport": "a result",
        "RetentionConfig": "settings: SettingError, which is a UsageError",
        "RetentionPlan": "a result",
        "RiskConfig": "settings: SettingError, which is a UsageError",
        "RetrievalScoring": "settings: SettingError, which is a UsageError",
        "TouchReport": "a result",
        "list_holds": "takes a provider alone",
        "read_record": "reads stored values, which §1.1 and §1.2 are about",
        "scoring_for": "reads stored values: an agent's record",
    }
    with fallow.open_provider(store) as provider:
        known = _calls(provider)
        for name, (call, good, refused) in known.items():
            missing = set(refused) | set(good)
            unknown = missing - set(inspect.signature(call).parameters)
            assert not unknown, (name, unknown)
    assert set(fallow.__all__) == {name for name in known if name in fallow.__all__} | set(without)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--as-of", ["tomorrow", "", "5", "nan", "True", "1989-01-01", "20261301"]),
        ("--agent-id", ["", " "]),
        ("--memory-id", ["", " "]),
        ("--user-id", ["", " "]),
        ("--thread-id", ["", " "]),
        ("--memory-type", ["shared_memory", "", "tool_log"]),
        ("--min-retention", ["nan", "x", "-1", "2", ""]),
        ("--grace-days", ["nan", "x", "-1", ""]),
        ("--max-candidates", ["0", "1.5", "x", "100001", ""]),
    ],
)
def test_an_option_refuses_by_name_and_writes_nothing_trap_56(
    store: Path, capsys: pytest.CaptureFixture[str], option: str, values: list[str]
) -> None:
    before = tree(store)
    for value in values:
        assert run(["retention-plan", "--store", str(store), option, value]) in {1, 2}, (option, value)
        error = capsys.readouterr().err
        assert option in error or option.removeprefix("--").replace("-", "_") in error, error
        assert "an error in fallow itself" not in error
    assert tree(store) == before


@pytest.mark.parametrize(
    "line",
    [
        ("touch", "r0", "--memory-type", "shared_memory"),
        ("touch", " ", "--memory-type", CONVERSATION),
        ("unsuppress", "r0", "--memory-type", "tool_log", "--approved-by", "Ada"),
        ("unsuppress", "", "--memory-type", CONVERSATION, "--approved-by", "Ada"),
        ("hold", "add", "--record", "r0", "--owner", "Ada", "--reason", "x"),
        ("hold", "add", "--record", f"{CONVERSATION}: ", "--owner", "Ada", "--reason", "x"),
        ("hold", "add", "--memory-type", "shared_memory", "--owner", "Ada", "--reason", "x"),
        ("hold", "add", "--agent-id", "a", "--until", "tomorrow", "--owner", "Ada", "--reason", "x"),
        ("reflect", "--agent-id", " "),
        ("backfill-importance", "--memory-type", "shared_memory"),
    ],
    ids=" ".join,
)
def test_a_command_refuses_and_writes_nothing_trap_57(
    store: Path, capsys: pytest.CaptureFixture[str], line: tuple[str, ...]
) -> None:
    before = tree(store)
    assert run([*line, "--store", str(store)]) == 2
    error = capsys.readouterr().err
    assert "must be" in error
    assert tree(store) == before


def test_every_call_takes_times_of_every_kind_trap_56(store: Path) -> None:
    """In touch, plan, purge, reflect and rank alike; seconds wrote 1970 into stores."""
    for given, wanted in TIMES:
        with fallow.open_provider(store) as provider:
            plan = RetentionPlanner(provider).plan(as_of=given)
            assert plan.document["as_of"] == wanted
            fallow.cache_answer(provider, query=f"who {given}?", response="Ada", now=given)
            assert not purge_semantic_cache(provider, now=given, dry_run=True).removed
            assert reflect(provider, ReflectionConfig(), now=given, dry_run=True).dry_run
            ranked = fallow.score_candidates([{"_id": "a", "created_at": "2025-11-30T00:00:00Z"}], now=given)
            assert ranked[0]["scoring"]["recency_raw"] < 1
            fallow.touch_many(provider, CONVERSATION, ["r0"], now=given)
            row = provider.fetch(CONVERSATION, ["r0"])["r0"]
            assert isinstance(row, dict)
            assert str(row["last_accessed_at"]) >= "2025-12-01"


def test_equal_worth_goes_to_the_better_score_trap_69() -> None:
    rows = [
        {"_id": "a", "content": "one", "embedding": [1.0, 0.0], "score": 0.2},
        {"_id": "b", "content": "two", "embedding": [1.0, 0.0], "score": 0.9},
    ]
    ledger: list[dict[str, Any]] = []
    fallow.dedupe_and_select(rows, mmr_lambda=0, similarity_threshold=2, max_items=1, ledger=ledger)
    assert [entry["record_id"] for entry in ledger if entry["kept"]] == ["b"]


def test_utc_is_the_zone_of_naive_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    assert instant(datetime(2026, 12, 1)) == instant(datetime(2026, 12, 1, tzinfo=UTC))  # noqa: DTZ001
