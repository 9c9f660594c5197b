"""Holds and limits: what is kept whatever its score, and what stops an apply (SPEC §6.3, §6.8, §8.1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.apply import apply_plan
from fallow.acting.deciding import decide
from fallow.acting.holds import HOLD, active_holds, list_holds, place_hold, release_hold
from fallow.model.errors import HoldError, StoppedError, StoreUnreadableError
from fallow.model.scope import Scope
from fallow.model.settings import ApprovalConfig, resolve, stop_value_says
from fallow.model.times import MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import stored_plan
from fallow.port.protocol import Provider
from fallow.usecases.explain import explain_record
from fallow.usecases.suppressed import suppressed_records
from tests.fallow.small_stores import CONVERSATION, NOW, ids, key, planned, protected, record, store, tree

HOUR, DAY = MICROSECONDS_PER_HOUR, MICROSECONDS_PER_DAY
WHY: dict[str, Any] = {"owner": "Grace", "reason": "case 17", "now": NOW}


def approved(provider: Provider, plan: RetentionPlan) -> str:
    decide(
        provider,
        plan.plan_id,
        verdict="approved",
        approved_by="Ada",
        count=len(plan.entries),
        approval=ApprovalConfig(),
        now=NOW,
    )
    return plan.plan_id


def rows() -> list[dict[str, Any]]:
    return [
        record("a1", agent_id="ant", memory_id="m1", user_id="u1", thread_id="t1"),
        record("a2", agent_id="ant", memory_id="m2", user_id="u2", thread_id="t2"),
        record("b1", agent_id="bee", memory_id="m1", user_id="u1", thread_id="t3"),
        record("n1", agent_id=None, memory_id="m3"),
    ]


SUMMARY = {"_id": "s1", "content": "s", "memory_id": "m1", "agent_id": "ant", "created_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ({"scope": Scope(agent_id="ant")}, {"a1", "a2", "s1"}),
        ({"scope": Scope(memory_ids=("m1",))}, {"a1", "b1", "s1"}),
        ({"scope": Scope(agent_id="ant", memory_ids=("m1",))}, {"a1", "s1"}),
        ({"scope": Scope(user_id="u2")}, {"a2"}),
        ({"scope": Scope(thread_id="t3")}, {"b1"}),
        ({"scope": Scope(unowned=True)}, {"n1"}),
        ({"memory_types": ["summaries"]}, {"s1"}),
        ({"scope": Scope(agent_id="ant"), "memory_types": [CONVERSATION]}, {"a1", "a2"}),
        ({"records": [key("b1"), key("s1", "summaries")]}, {"b1", "s1"}),
        ({"records": [key("s1")]}, set()),  # a conversation row of that id is another record
        ({"everything": True}, {"a1", "a2", "b1", "n1", "s1"}),
    ],
)
def test_a_hold_keeps_what_it_names_and_nothing_else_6_3(tmp_path: Path, named: Any, kept: set[str]) -> None:
    everything = {"a1", "a2", "b1", "n1", "s1"}
    with store(tmp_path / "s", *rows(), summaries=[{**SUMMARY, "importance": 0.1}]) as provider:
        before = planned(provider)
        assert set(ids(before)) == everything
        hold = place_hold(provider, **named, **WHY)
        plan = planned(provider)
        assert set(ids(plan)) == everything - kept
        assert protected(plan).get("held", 0) == len(kept)
        # A plan that was approved before the hold keeps them too, and says why.
        report = apply_plan(provider, approved(provider, before), now=NOW + HOUR)
        assert set(report.skipped.get("held", [])) == kept
        assert {item.record_id for item in suppressed_records(provider)} == everything - kept
        release_hold(provider, hold.hold_id, released_by="Ada", reason="closed", now=NOW + HOUR)
        assert set(ids(planned(provider, as_of=NOW + HOUR))) == kept


def test_a_hold_that_keeps_a_whole_plan_is_no_reason_to_call_it_stale_15(tmp_path: Path) -> None:
    with store(tmp_path / "s", *(record(f"r{n}") for n in range(12))) as provider:
        plan = planned(provider)
        place_hold(provider, everything=True, **WHY)
        report = apply_plan(provider, approved(provider, plan), now=NOW)
        assert (report.state, report.applied, len(report.skipped["held"])) == ("Applied", 0, 12)


def test_a_hold_placed_while_applying_is_seen_by_the_next_chunk_8_1(tmp_path: Path) -> None:
    from tests.crash.child import Points, Watched

    with store(tmp_path / "s", *(record(f"r{n}") for n in range(12))) as provider:
        plan = planned(provider)
        approved(provider, plan)
        watched: Any = Watched(provider, Points(None))  # chunks of four

        def place(done: int, _all: int) -> None:
            if done == 4:
                place_hold(provider, everything=True, **WHY)

        report = apply_plan(watched, plan.plan_id, now=NOW, progress=place)
        assert (report.applied, len(report.skipped["held"])) == (4, 8)


def test_a_hold_ends_when_it_runs_out_or_is_released_and_is_never_changed_6_3(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("r1")) as provider:
        hold = place_hold(provider, scope=Scope(agent_id="gardener"), **WHY, expires_at=NOW + DAY)
        assert place_hold(provider, scope=Scope(agent_id="gardener"), **WHY, expires_at=NOW + DAY) == hold
        assert len(list_holds(provider)) == 1
        assert ids(planned(provider)) == []
        assert active_holds(provider, NOW + DAY) == ()
        assert ids(planned(provider, as_of=NOW + DAY)) == ["r1"]
        # Placed after the instant that a late run decides for, it holds all the same.
        assert ids(planned(provider, as_of=NOW - DAY)) == []
        first = release_hold(provider, hold.hold_id, released_by="Ada", reason="closed", now=NOW + HOUR)
        before = tree(tmp_path / "s")
        again = release_hold(provider, HOLD + hold.hold_id, released_by="Bob", reason="again", now=NOW + 2 * HOUR)
        assert again == first
        assert (again.released_by, again.release_reason) == ("Ada", "closed")
        assert tree(tmp_path / "s") == before


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"everything": True, "owner": "  "},
        {"everything": True, "reason": " "},
        {"everything": True, "expires_at": NOW},
        {"records": [key(f"r{n}") for n in range(1001)]},
    ],
)
def test_a_hold_without_a_target_an_owner_or_a_reason_is_refused_14(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with store(tmp_path / "s", record("r1")) as provider:
        before = tree(tmp_path / "s")
        with pytest.raises(HoldError) as caught:
            place_hold(provider, **{**WHY, **wrong})
        assert caught.value.hint
        with pytest.raises(HoldError):
            release_hold(provider, "0" * 16, released_by="Ada", reason="", now=NOW)
        assert tree(tmp_path / "s") == before


def test_nothing_is_planned_or_applied_past_a_hold_that_cannot_be_understood_1_4(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("r1")) as provider:
        plan = approved(provider, planned(provider))
        hold = place_hold(provider, everything=True, **WHY)
        path = tmp_path / "s" / "shared_memory" / f"{HOLD}{hold.hold_id}.json"
        row = json.loads(path.read_text())
        path.write_text(json.dumps({**row, "content": "{"}))
        before = tree(tmp_path / "s")
        with pytest.raises(StoreUnreadableError):
            planned(provider)
        with pytest.raises(StoreUnreadableError):
            apply_plan(provider, plan, now=NOW)
        assert tree(tmp_path / "s") == before


def test_explain_names_the_hold_16(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("r1"), record("r2")) as provider:
        place_hold(provider, records=[key("r1")], **WHY, expires_at=NOW + DAY)

        def told(name: str) -> dict[str, Any]:
            return explain_record(
                provider, name, memory_type=None, settings_of=lambda _: resolve(environ={}), as_of=NOW
            )

        assert told("r1")["protected_by"] == "held"
        (hold,) = told("r1")["holds"]
        assert (hold["owner"], hold["reason"]) == ("Grace", "case 17")
        assert (told("r2")["protected_by"], told("r2")["holds"]) == (None, [])


# Limits ---------------------------------------------------------------------------------------------------


def thread(name: str, number: int, **fields: Any) -> list[dict[str, Any]]:
    return [record(f"{name}{n}", days=90 + n, thread_id=name, **fields) for n in range(number)]


def test_every_conversation_keeps_its_best_records_6_5(tmp_path: Path) -> None:
    rows = [*thread("t", 6), *thread("u", 2), record("x", thread_id="u", importance=0.9), record("lone")]
    rows[0]["importance"] = 0.11  # the best of its conversation
    with store(tmp_path / "s", *rows) as provider:
        assert len(planned(provider).entries) == 9
        plan = planned(provider, keep_per_conversation=2)
        assert set(ids(plan)) == {"t2", "t3", "t4", "t5", "u1"}
        assert protected(plan) == {"conversation_minimum": 4}
        assert plan.policy("keep_per_conversation") == 2
        report = apply_plan(provider, approved(provider, plan), now=NOW)
        assert report.applied == 5
        assert ids(planned(provider, keep_per_conversation=2, as_of=NOW + 1)) == []


def test_a_conversation_that_shrank_since_planning_keeps_its_number_8_1(tmp_path: Path) -> None:
    with store(tmp_path / "s", *thread("t", 6)) as provider:
        plan = planned(provider, keep_per_conversation=2)
        approved(provider, plan)
        for name in ("t0", "t1"):  # the two that were to stay are deleted by their agent
            (tmp_path / "s" / CONVERSATION / f"{name}.json").unlink()
        report = apply_plan(provider, plan.plan_id, now=NOW)
        assert (report.applied, len(report.skipped["conversation minimum"])) == (2, 2)
        assert len(suppressed_records(provider)) == 2


def test_a_plan_that_empties_one_memory_is_marked_where_that_is_limited_6_8(tmp_path: Path) -> None:
    rows = [record(f"r{n}", memory_id="small", user_id="u") for n in range(10)]
    rows += [record(f"k{n}", memory_id="big", importance=0.9) for n in range(90)]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider)
        assert not plan.wide
        each = plan.document["blast_radius"]["each"]
        assert each["memory_id"] == {"id": "small", "share": 1.0, "planned": 10, "visible": 10}
        assert (each["user_id"]["share"], each["agent_id"]["share"]) == (1.0, 0.1)
        assert planned(provider, blast_radius_each=0.5).wide
        assert not planned(provider, blast_radius_each=0.5, max_candidates=5).wide


def test_the_stop_file_stops_between_chunks_and_applying_again_goes_on_8_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.crash.child import Points, Watched

    switch = tmp_path / "stop"
    monkeypatch.setenv("FALLOW_STOP_FILE", str(switch))
    with store(tmp_path / "s", *(record(f"r{n}") for n in range(12))) as provider:
        plan = planned(provider)
        approved(provider, plan)
        switch.write_text("the lawyers called\n")
        before = tree(tmp_path / "s")
        with pytest.raises(StoppedError, match=r"stopped after 0 of 12.*the lawyers called"):
            apply_plan(provider, plan.plan_id, now=NOW)
        assert tree(tmp_path / "s") == before
        switch.unlink()
        watched: Any = Watched(provider, Points(None))  # chunks of four
        with pytest.raises(StoppedError, match="stopped after 4 of 12"):
            apply_plan(watched, plan.plan_id, now=NOW, progress=lambda *_: switch.touch())
        assert len(suppressed_records(provider)) == 4
        assert stored_plan(provider, plan.plan_id, NOW).state == "approved"
        switch.unlink()
        report = apply_plan(provider, plan.plan_id, now=NOW + HOUR)
        assert (report.applied, report.already, report.state) == (8, 4, "Applied")


OFF: list[Any] = [None, "", " ", False, "off", 0]
ON: list[Any] = [True, "on", "the lawyers called", {"why": 1}, "flase"]


@pytest.mark.parametrize(("value", "stops"), [*((v, False) for v in OFF), *((v, True) for v in ON)])
def test_any_value_of_the_variable_but_no_stops(value: Any, stops: bool) -> None:
    assert (stop_value_says(value) is not None) is stops
