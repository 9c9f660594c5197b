"""Signed answers to the form, the stop switch, holds and drift, on a real server (SPEC §7, §8.2, §15)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fallow.acting.deciding import sign_decision
from fallow.acting.holds import list_holds, place_hold
from fallow.acting.signatures import add_operator, make_key, operators_text, public_text
from fallow.model.times import iso, wall_clock
from fallow.port.registry import open_provider
from tests.flows.driving import (
    APPLY,
    ASK,
    PLAN,
    answer,
    artifact,
    drive,
    hidden,
    plans_of,
    records,
    resume,
    shown,
    start,
    state_of,
)

pytestmark = pytest.mark.server

DRIFT = "check-drift/nightly-drift"
RELEASE = "release-hold/release"
ADA, EVE = make_key(), make_key()


@pytest.fixture
def store(make_sample_store) -> Path:
    return make_sample_store(now=iso(wall_clock()))


def signed(store: Path, plan_id: str, key=ADA, **more: object) -> str:
    with open_provider(str(store)) as provider:
        asked = {"verdict": "approved", "approved_by": "Ada", **more}
        return sign_decision(provider, plan_id, **asked, key=key, now=wall_clock())


def test_a_signed_answer_is_applied_and_an_unsigned_or_forged_one_asked_again_7(
    prefect_api, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("FALLOW_REQUIRE_SIGNED_APPROVALS", "1")
    monkeypatch.setenv("FALLOW_OPERATORS_FILE", str(tmp_path / "operators.json"))
    (tmp_path / "operators.json").write_text(operators_text(add_operator((), "Ada", public_text(ADA), now=0)))
    run_id, _ = start(prefect_api, PLAN, store=str(store), **ASK)
    (plan,) = plans_of(store)
    before = records(store)
    # Whoever holds the server's variables cannot switch it off.
    prefect_api.request(
        "POST", "/variables/", json={"name": "fallow_settings", "value": {"approval": {"require_signed": False}}}
    )
    try:
        for attempt, token in enumerate(["", signed(store, plan.plan_id, key=EVE)], start=2):
            resume(prefect_api, run_id, answer(plan, signature=token))
            drive(prefect_api, run_id)
            assert state_of(prefect_api, run_id) == "Suspended"
            assert "NOT TAKEN" in shown(prefect_api, run_id, attempt)[0]["properties"]["decision"]["description"]
            assert records(store) == before
        resume(prefect_api, run_id, answer(plan, signature=signed(store, plan.plan_id)))
        assert drive(prefect_api, run_id).name == "Applied"
    finally:
        prefect_api.delete_variable_by_name("fallow_settings")
    assert len(hidden(store)) == plan.planned
    assert plans_of(store)[0].decision.standing == "signed"
    assert "signed" in prefect_api.read_flow_run(run_id).state.message


def test_the_variable_fallow_stop_stops_an_apply_and_nothing_is_written_8_2(prefect_api, store):
    run_id, _ = start(prefect_api, PLAN, store=str(store), **ASK)
    (plan,) = plans_of(store)
    before = records(store)
    prefect_api.request("POST", "/variables/", json={"name": "fallow_stop", "value": "the lawyers called"})
    try:
        resume(prefect_api, run_id, answer(plan))
        state = drive(prefect_api, run_id)
        assert state.is_failed()
        assert "the lawyers called" in state.message
        assert records(store) == before
    finally:
        prefect_api.delete_variable_by_name("fallow_stop")
    assert plans_of(store)[0].state == "approved"
    assert start(prefect_api, APPLY, store=str(store), plan_id=plan.plan_id)[1].name == "Applied"


def test_a_hold_is_released_by_a_flow_and_drift_is_found_by_one_6_3(prefect_api, store):
    with open_provider(str(store)) as provider:
        hold = place_hold(provider, everything=True, owner="Grace", reason="case 17", now=wall_clock())
    _, state = start(
        prefect_api, RELEASE, store=str(store), hold_id=hold.hold_id, released_by="Ada", reason="case closed"
    )
    assert state.name == "Applied"
    assert "claimed" in state.message
    with open_provider(str(store)) as provider:
        assert [item.released_by for item in list_holds(provider)] == ["Ada"]
    path = next((store / "conversation_memory").glob("*[0-9a-f].json"))
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "retention_state": "suppressed", "suppressed_by": "<b>nobody</b>"}))
    _, state = start(prefect_api, DRIFT, store=str(store))
    assert (state.name, state.is_failed()) == ("NeedsAttention", True)
    page = artifact(prefect_api, "drift")
    assert "not stored here" in page
    assert "<b>" not in page
