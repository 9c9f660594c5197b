"""plan-retention on a real server: asked, answered, applied; end states read back from the API (SPEC §7, §15)."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fallow.acting.deciding import decide
from fallow.model.settings import ApprovalConfig
from fallow.model.times import iso, wall_clock
from fallow.plans.storage import conclude, load_plan, stored_plan
from fallow.port.journal import SHARED
from fallow.port.registry import open_provider
from tests.flows.driving import (
    APPLY,
    ASK,
    EXPIRE,
    PLAN,
    answer,
    artifact,
    create,
    drive,
    hidden,
    page_of,
    plans_of,
    records,
    resume,
    settings,
    shown,
    start,
    state_of,
)

pytestmark = pytest.mark.server


@pytest.fixture
def store(make_sample_store) -> Path:
    return make_sample_store(now=iso(wall_clock()))


@pytest.fixture
def waiting(prefect_api, store):
    """A run that waits for its form, and its plan."""
    run_id, state = start(prefect_api, PLAN, store=str(store), **ASK)
    assert (state.name, state.type.value) == ("Suspended", "PAUSED")
    return run_id, plans_of(store)[0]


def test_approved_is_what_was_shown_but_the_record_left_out_7_3(prefect_api, prefect_server, store, waiting):
    run_id, plan = waiting
    before = records(store)
    with open_provider(str(store)) as provider:
        entries = load_plan(provider, plan.plan_id).entries
    spared = entries[0]
    schema, text = shown(prefect_api, run_id)
    assert set(schema["required"]) == {"decision", "approved_by", "count", "plan_id"}
    assert "default" not in schema["properties"]["decision"]
    assert plan.plan_id in text
    assert str(plan.planned) in schema["properties"]["count"]["description"]
    assert f"hide {plan.planned} of " in schema["properties"]["decision"]["description"]
    assert "Could be lost: " in schema["properties"]["approved_by"]["description"]
    assert hidden(store) == set()
    assert records(store) == before
    form = answer(plan, leave_out=[f"{spared.memory_type}:{spared.record_id}"], reason="the year is over")
    assert resume(prefect_api, run_id, form) == "ACCEPT"
    state = drive(prefect_api, run_id)
    assert (state.name, state.type.value) == ("Applied", "COMPLETED")
    assert hidden(store) == {entry.record_id for entry in entries} - {spared.record_id}
    key = f"{spared.memory_type}/{spared.record_id}.json"
    assert records(store)[key] == before[key]
    decision = plans_of(store)[0].decision
    assert (decision.by, decision.reason, decision.verdict) == ("Ada", "the year is over", "approved")
    assert plan.plan_id in page_of(prefect_api, plan)
    rows = json.loads(page_of(prefect_api, plan, "rows"))
    assert [row["record_id"] for row in rows] == [entry.record_id for entry in entries]
    assert page_of(prefect_api, plan, "picture").startswith("data:image/png;base64,")
    assert f"| done now | {len(entries) - 1} |" in artifact(prefect_api, "retention-report")
    ours = [row for row in json.loads(artifact(prefect_api, "suppressed-memories")) if row["approver"] == "Ada"]
    assert {row["records"].partition(":")[2] for row in ours} == hidden(store)
    assert all("claimed" in row["standing"] for row in ours)
    complete = prefect_server.home / "storage" / f"{plan.plan_id}.json"
    assert json.loads(complete.read_text())["document_sha256"] == plan.document_sha256


def test_a_second_resume_and_a_second_run_of_the_body_change_nothing_trap_37(prefect_api, store, waiting):
    run_id, plan = waiting
    form = answer(plan)
    assert resume(prefect_api, run_id, form) == "ACCEPT"
    assert resume(prefect_api, run_id, form) == "ABORT"
    assert drive(prefect_api, run_id).name == "Applied"
    after = records(store)
    rows = len(list((store / SHARED).iterdir()))
    assert resume(prefect_api, run_id, form) == "ABORT"
    assert state_of(prefect_api, run_id) == "Applied"
    _again, state = start(prefect_api, APPLY, store=str(store), plan_id=plan.plan_id)
    assert state.name == "Applied"
    assert "0 suppressed now" in state.message
    assert records(store) == after
    assert len(list((store / SHARED).iterdir())) == rows


def test_two_resumes_at_once_one_decision(prefect_api, prefect_server, store, waiting):
    from tests.prefect_server import client_of

    run_id, plan = waiting
    results: list[str] = []

    def press(name: str) -> None:
        with client_of(prefect_server) as client:
            results.append(resume(client, run_id, answer(plan, approved_by=name)))

    people = [threading.Thread(target=press, args=(name,)) for name in ("Ada", "Bob", "Cai")]
    for person in people:
        person.start()
    for person in people:
        person.join(120)
    assert results.count("ACCEPT") >= 1
    assert drive(prefect_api, run_id).name == "Applied"
    assert len(hidden(store)) == plan.planned
    assert plans_of(store)[0].decision.by in {"Ada", "Bob", "Cai"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"approved_by": "  "},
        {"approved_by": ""},
        {"plan_id": "forget-plan-" + "0" * 28},
        {"count": -1},
        {"count": "many"},
        {"decision": "perhaps"},
        {"leave_out": "r1"},
        {"surprise": 1},
        None,
    ],
    ids=lambda wrong: "empty form" if wrong is None else next(iter(wrong)) + " " + str(next(iter(wrong.values())))[:8],
)
def test_the_server_refuses_bad_values_and_the_run_goes_on_waiting_trap_36(prefect_api, waiting, wrong):
    run_id, plan = waiting
    form = {} if wrong is None else {**answer(plan), **wrong}
    assert resume(prefect_api, run_id, form) == "REJECT"
    assert state_of(prefect_api, run_id) == "Suspended"


def test_asked_again_with_the_reason_and_rejected_after_three_answers_trap_36(prefect_api, store, waiting):
    run_id, plan = waiting
    before = records(store)
    with settings(prefect_api, {"approval": {"approvers": ["Ada"]}}):
        for attempt, (wrong, why) in enumerate(
            [
                ({"approved_by": "Mallory"}, "is not an approver"),
                ({"count": plan.planned + 1}, "is not the number of records planned"),
                ({"leave_out": ["no-such-record"]}, "is not in the plan"),
            ],
            start=1,
        ):
            assert resume(prefect_api, run_id, answer(plan, **wrong)) == "ACCEPT"
            state = drive(prefect_api, run_id)
            if attempt < 3:
                assert state.name == "Suspended"
                assert why in shown(prefect_api, run_id, attempt + 1)[0]["properties"]["decision"]["description"]
    assert (state.name, state.type.value) == ("Rejected", "COMPLETED")
    decision = plans_of(store)[0].decision
    assert (decision.verdict, decision.by) == ("rejected", "fallow")
    assert "is not in the plan" in decision.reason
    assert records(store) == before


def test_a_refused_answer_is_not_taken_later_when_the_name_becomes_known(prefect_api, store, waiting):
    run_id, plan = waiting
    with settings(prefect_api, {"approval": {"approvers": ["Ada"]}}):
        resume(prefect_api, run_id, answer(plan, approved_by="Bob"))
        assert drive(prefect_api, run_id).name == "Suspended"
    with settings(prefect_api, {"approval": {"approvers": ["Ada", "Bob"]}}):
        resume(prefect_api, run_id, answer(plan, decision="reject"))
        assert drive(prefect_api, run_id).name == "Rejected"
    assert plans_of(store)[0].decision.by == "Ada"
    assert hidden(store) == set()


def test_a_run_forced_on_without_an_answer_asks_again(prefect_api, store, waiting):
    run_id, plan = waiting
    assert drive_forced(prefect_api, run_id).name == "Suspended"
    assert "without a complete answer" in shown(prefect_api, run_id, 2)[0]["properties"]["decision"]["description"]
    assert hidden(store) == set()
    resume(prefect_api, run_id, answer(plan))
    assert drive(prefect_api, run_id).name == "Applied"


def drive_forced(client, run_id):
    from prefect.states import Scheduled

    client.set_flow_run_state(run_id, Scheduled(), force=True)
    return drive(client, run_id)


def test_the_same_question_twice_in_a_night_is_asked_once_trap_21(prefect_api, store, waiting):
    run_id, _ = waiting
    _, state = start(prefect_api, PLAN, store=str(store), **ASK)
    assert (state.name, "waits for its answer already" in state.message) == ("NothingToDo", True)
    assert state_of(prefect_api, run_id) == "Suspended"
    assert [plan.state for plan in plans_of(store)].count("open") == 1


def test_five_missed_nights_end_in_one_open_plan(prefect_api, store):
    tonight = datetime.now(UTC)
    nights = [create(prefect_api, PLAN, at=tonight - timedelta(days=n), store=str(store), **ASK) for n in range(5)]
    for run_id in reversed(nights):
        drive(prefect_api, run_id)
    assert [plan.state for plan in plans_of(store)].count("open") == 1
    states = [state_of(prefect_api, run_id) for run_id in nights]
    assert states.count("Suspended") == 1
    assert set(states) <= {"Suspended", "NothingToDo", "Superseded"}
    run = prefect_api.read_flow_run(nights[2])
    assert run.name.endswith(f"{tonight - timedelta(days=2):%Y-%m-%dT%H:%M}")


def test_a_new_question_supersedes_the_old_one_and_ends_its_run(prefect_api, store, waiting):
    run_id, plan = waiting
    _newer, state = start(prefect_api, PLAN, store=str(store), **{**ASK, "max_candidates": 5})
    assert state.name == "Suspended"
    assert state_of(prefect_api, run_id) == "Superseded"
    assert {item.plan_id: item.state for item in plans_of(store)}[plan.plan_id] == "superseded"
    assert resume(prefect_api, run_id, answer(plan)) == "ABORT"
    assert hidden(store) == set()


def test_a_question_whose_run_was_lost_is_taken_over(prefect_api, store, waiting):
    run_id, plan = waiting
    prefect_api.delete_flow_run(run_id)
    again, state = start(prefect_api, PLAN, store=str(store), plan_id=plan.plan_id)
    assert state.name == "Suspended"
    resume(prefect_api, again, answer(plan))
    assert drive(prefect_api, again).name == "Applied"


def test_planning_does_nothing_while_its_setting_is_off_15(prefect_api, store):
    _, state = start(prefect_api, PLAN, store=str(store))
    assert (state.name, state.type.value) == ("NothingToDo", "COMPLETED")
    assert "retention is off" in state.message
    assert plans_of(store) == []
    with settings(prefect_api, {"retention": {"enabled": True, "min_retention": 0.3}}):
        _, state = start(prefect_api, PLAN, store=str(store), whole_store=True)
    assert state.name == "Suspended"


def test_a_settings_variable_that_is_no_object_fails_the_run_and_plans_nothing(prefect_api, store):
    with settings(prefect_api, "a word"):
        _, state = start(prefect_api, PLAN, store=str(store), **ASK)
    assert state.type.value == "FAILED"
    assert "is not a JSON object" in state.message
    assert plans_of(store) == []


def test_a_night_asks_about_every_agent_and_the_unowned_in_runs_of_their_own_6_4(prefect_api, store):
    run_id, state = start(prefect_api, PLAN, store=str(store), min_retention=0.3, force=True)
    assert state.name == "Suspended"
    plans = plans_of(store)
    assert len(plans) > 1
    assert {plan.scope.unowned for plan in plans} == {True, False}
    deployment = prefect_api.read_deployment_by_name(PLAN).id
    others = [
        run
        for run in prefect_api.read_flow_runs(limit=200)
        if run.deployment_id == deployment and run.parameters.get("store") == str(store) and run.id != run_id
    ]
    assert len(others) == len(plans) - 1
    for run in others:
        assert drive(prefect_api, run.id).name == "Suspended"
    assert {plan.state for plan in plans_of(store)} == {"open"}
    assert len({plan.flow_run_id for plan in plans_of(store)}) == len(plans)


def test_most_records_changed_meanwhile_is_stale_and_nothing_applied(prefect_api, store, waiting):
    run_id, plan = waiting
    with open_provider(str(store)) as provider:
        entries = load_plan(provider, plan.plan_id).entries
    for entry in entries:
        path = store / entry.memory_type / f"{entry.record_id}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "access_count": 50}))
    resume(prefect_api, run_id, answer(plan))
    state = drive(prefect_api, run_id)
    assert (state.name, state.type.value) == ("Stale", "COMPLETED")
    assert hidden(store) == set()


def test_records_that_the_store_refuses_end_partially_applied_and_apply_finishes_it(
    prefect_api, store, waiting, monkeypatch
):
    from fallow.providers import filesystem

    run_id, plan = waiting
    kind = next(value for value in vars(filesystem).values() if isinstance(value, type) and hasattr(value, "patch"))
    real, refused = kind.patch, []

    def patch(self, patches):
        from fallow.port.protocol import Outcome

        outcomes = real(self, patches[1:]) if len(patches) > 1 else []
        refused.append(patches[0].key.record_id)
        return [Outcome(patches[0].key, "failed", "the disk says no"), *outcomes]

    monkeypatch.setattr(kind, "patch", patch)
    resume(prefect_api, run_id, answer(plan))
    state = drive(prefect_api, run_id)
    assert (state.name, state.type.value) == ("PartiallyApplied", "FAILED")
    monkeypatch.undo()
    assert len(hidden(store)) == plan.planned - len(refused)
    _, state = start(prefect_api, APPLY, store=str(store), plan_id=plan.plan_id)
    assert state.name == "Applied"
    assert len(hidden(store)) == plan.planned


def test_a_plan_altered_while_it_waited_is_not_applied_planchanged_7_3(prefect_api, store, waiting):
    run_id, plan = waiting
    part = store / SHARED / f"{plan.parts[0]}.json"
    part.write_text(part.read_text().replace("never recalled", "never  recalled"))
    resume(prefect_api, run_id, answer(plan))
    state = drive(prefect_api, run_id)
    assert (state.name, state.type.value) == ("PlanChanged", "FAILED")
    assert hidden(store) == set()


def test_an_answer_about_another_plan_that_got_past_the_server_is_planchanged(prefect_api, store, waiting):
    run_id, plan = waiting
    from prefect.states import Scheduled

    form = {**answer(plan), "plan_id": "forget-plan-" + "1" * 28}
    prefect_api.set_flow_run_state(run_id, Scheduled(), force=True)
    prefect_api.create_flow_run_input(run_id, "suspended-approval-1-response", json.dumps(form))
    state = drive(prefect_api, run_id)
    assert (state.name, state.type.value) == ("PlanChanged", "FAILED")
    assert plans_of(store)[0].decision is None
    assert hidden(store) == set()


def test_code_of_planning_changed_while_it_waited_the_stored_plan_is_applied(prefect_api, store, waiting, monkeypatch):
    """Measured elsewhere: a changed task ran again after the resume, and six were applied where five were shown."""
    import fallow.flows.plan_retention as module

    run_id, plan = waiting
    monkeypatch.setattr(module, "make_plans", lambda *_, **__: pytest.fail("planned again after the resume"))
    with settings(prefect_api, {"retention": {"min_retention": 0.9, "grace_days": 0}}):
        resume(prefect_api, run_id, answer(plan))
        assert drive(prefect_api, run_id).name == "Applied"
    assert len(hidden(store)) == plan.planned
    assert len(plans_of(store)) == 1


def test_a_field_added_to_the_form_while_it_waited_asks_again_and_applies_nothing_unasked(
    prefect_api, store, waiting, monkeypatch
):
    import fallow.tasks.form as form
    from pydantic import create_model

    run_id, plan = waiting
    old = form.form_of

    def longer(text):
        new = create_model("Approval", __base__=old(text), ticket=(str, ...))
        new._description = text.description
        return new

    monkeypatch.setattr(form, "form_of", longer)
    resume(prefect_api, run_id, answer(plan))
    assert drive(prefect_api, run_id).name == "Suspended"
    assert hidden(store) == set()
    assert resume(prefect_api, run_id, answer(plan)) == "REJECT"
    assert resume(prefect_api, run_id, answer(plan, ticket="T-1")) == "ACCEPT"
    assert drive(prefect_api, run_id).name == "Applied"
    assert len(hidden(store)) == plan.planned


@pytest.mark.parametrize(("verdict", "end"), [("approved", "Applied"), ("rejected", "Rejected")])
def test_decided_at_the_command_line_and_by_the_form_at_once_either_is_enough(
    prefect_api, store, waiting, verdict, end
):
    run_id, plan = waiting
    with open_provider(str(store)) as provider:
        decide(
            provider,
            plan.plan_id,
            verdict=verdict,
            approved_by="Bob",
            count=plan.planned,
            approval=ApprovalConfig(),
            now=wall_clock(),
        )
    resume(prefect_api, run_id, answer(plan, decision="reject" if verdict == "approved" else "approve"))
    assert drive(prefect_api, run_id).name == end
    assert len(hidden(store)) == (plan.planned if verdict == "approved" else 0)
    assert plans_of(store)[0].decision.by == "Bob"


def test_a_waiting_plan_expires_though_no_worker_runs_and_its_run_ends_7_2(prefect_api, store):
    with settings(prefect_api, {"retention": {"expiry_hours": 0.0003}}):
        run_id, state = start(prefect_api, PLAN, store=str(store), **ASK)
    assert state.name == "Suspended"
    plan = plans_of(store)[0]
    from tests.prefect_server import wait_until

    wait_until(lambda: plans_of(store)[0].state == "expired", "the plan is past its end")
    _, state = start(prefect_api, EXPIRE, store=str(store))
    assert (state.name, state.type.value) == ("Expired", "COMPLETED")
    assert state_of(prefect_api, run_id) == "Expired"
    assert plans_of(store)[0].decision.verdict == "expired"
    assert resume(prefect_api, run_id, answer(plan)) == "ABORT"
    _, state = start(prefect_api, EXPIRE, store=str(store))
    assert state.name == "NothingToDo"
    assert hidden(store) == set()


def test_an_answer_after_the_end_is_expired_though_expire_plans_never_ran(prefect_api, store):
    with settings(prefect_api, {"retention": {"expiry_hours": 0.0003}}):
        run_id, _ = start(prefect_api, PLAN, store=str(store), **ASK)
    from tests.prefect_server import wait_until

    wait_until(lambda: plans_of(store)[0].state == "expired", "the plan is past its end")
    resume(prefect_api, run_id, answer(plans_of(store)[0]))
    assert drive(prefect_api, run_id).name == "Expired"
    assert hidden(store) == set()


def test_expire_plans_wakes_the_run_of_a_plan_that_was_approved_elsewhere(prefect_api, store, waiting):
    run_id, plan = waiting
    with open_provider(str(store)) as provider:
        decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="Bob",
            count=plan.planned,
            approval=ApprovalConfig(),
            now=wall_clock(),
        )
    start(prefect_api, EXPIRE, store=str(store))
    assert state_of(prefect_api, run_id) == "Resuming"
    assert drive(prefect_api, run_id).name == "Applied"
    assert len(hidden(store)) == plan.planned


def test_a_run_without_a_deployment_says_so(prefect_api, store):
    from fallow.flows.plan_retention import plan_retention

    state = plan_retention(store=str(store), **ASK, return_state=True)
    assert state.type.value == "FAILED"
    assert "belongs to no deployment" in state.message


def test_superseded_by_hand_is_told_by_name(prefect_api, store, waiting):
    run_id, plan = waiting
    with open_provider(str(store)) as provider:
        now = wall_clock()
        conclude(provider, stored_plan(provider, plan.plan_id, now), "superseded", by="fallow", reason="test", now=now)
    resume(prefect_api, run_id, answer(plan))
    assert drive(prefect_api, run_id).name == "Superseded"
