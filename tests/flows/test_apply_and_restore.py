"""apply-retention and restore-memories on a real server, and the command line beside a waiting run (SPEC §8, §9)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fallow.acting.deciding import decide
from fallow.cli.app import run
from fallow.model.settings import ApprovalConfig
from fallow.model.times import iso, wall_clock
from fallow.plans.storage import conclude, load_plan, stored_plan
from fallow.port.registry import open_provider
from fallow.usecases.suppressed import suppressed_records
from tests.flows.driving import (
    APPLY,
    ASK,
    PLAN,
    RESTORE,
    answer,
    artifact,
    drive,
    hidden,
    plans_of,
    resume,
    settings,
    start,
    state_of,
)
from tests.prefect_server import free_port

pytestmark = pytest.mark.server


@pytest.fixture
def store(make_sample_store) -> Path:
    return make_sample_store(now=iso(wall_clock()))


@pytest.fixture
def waiting(prefect_api, store):
    run_id, _ = start(prefect_api, PLAN, store=str(store), **ASK)
    return run_id, plans_of(store)[0]


def approve(store, plan):
    with open_provider(str(store)) as provider:
        decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="Ada",
            count=plan.planned,
            approval=ApprovalConfig(),
            now=wall_clock(),
        )


def test_apply_needs_a_recorded_approval_8(prefect_api, store, waiting):
    run_id, plan = waiting
    _, state = start(prefect_api, APPLY, store=str(store), plan_id=plan.plan_id)
    assert state.type.value == "FAILED"
    assert "waits for its approval" in state.message
    assert hidden(store) == set()
    approve(store, plan)
    _, state = start(prefect_api, APPLY, store=str(store), plan_id=f" {plan.plan_id} ")
    assert state.name == "Applied"
    assert len(hidden(store)) == plan.planned
    assert state_of(prefect_api, run_id) == "Applied"


@pytest.mark.parametrize(
    ("verdict", "end"), [("rejected", "Rejected"), ("expired", "Expired"), ("superseded", "Superseded")]
)
def test_apply_ends_by_the_name_of_what_was_decided(prefect_api, store, waiting, verdict, end):
    _, plan = waiting
    with open_provider(str(store)) as provider:
        now = wall_clock()
        conclude(provider, stored_plan(provider, plan.plan_id, now), verdict, by="Ada", reason="no", now=now)
    _, state = start(prefect_api, APPLY, store=str(store), plan_id=plan.plan_id)
    assert (state.name, state.type.value) == (end, "COMPLETED")
    assert hidden(store) == set()


def test_apply_of_an_altered_plan_is_planchanged(prefect_api, store, waiting):
    _, plan = waiting
    approve(store, plan)
    part = store / "shared_memory" / f"{plan.parts[0]}.json"
    part.write_text(part.read_text().replace("never recalled", "never  recalled"))
    _, state = start(prefect_api, APPLY, store=str(store), plan_id=plan.plan_id)
    assert (state.name, state.type.value) == ("PlanChanged", "FAILED")
    assert hidden(store) == set()


def test_restore_a_plan_and_named_records_9(prefect_api, store, waiting):
    run_id, plan = waiting
    resume(prefect_api, run_id, answer(plan))
    drive(prefect_api, run_id)
    with open_provider(str(store)) as provider:
        first, second = load_plan(provider, plan.plan_id).entries[:2]
    names = [f"{entry.memory_type}:{entry.record_id}" for entry in (first, second)]
    _, state = start(prefect_api, RESTORE, store=str(store), records=names, approved_by="Ada", reason="wanted")
    assert (state.name, state.message) == ("Applied", "2 restored, 0 before")
    assert len(hidden(store)) == plan.planned - 2
    _, state = start(prefect_api, RESTORE, store=str(store), plan_id=plan.plan_id, approved_by="Ada")
    assert (state.name, state.message) == ("Applied", f"{plan.planned - 2} restored, 2 before")
    assert hidden(store) == set()
    _, state = start(prefect_api, RESTORE, store=str(store), plan_id=plan.plan_id, approved_by="Ada")
    assert state.name == "NothingToDo"
    assert f"| done before | {plan.planned} |" in artifact(prefect_api, "restore-report")
    with open_provider(str(store)) as provider:
        left = {item.record_id for item in suppressed_records(provider)}
    rows = json.loads(artifact(prefect_api, "suppressed-memories"))
    assert {row["records"].partition(":")[2] for row in rows} == left


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"approved_by": "Mallory", "records": ["knowledge_base:x"]}, "is not an approver here"),
        ({"approved_by": "Ada"}, "name either a plan or records"),
        ({"approved_by": "Ada", "records": ["x"]}, "must be TYPE:ID"),
        ({"approved_by": "Ada", "records": ["agents:x"]}, "must be a memory type that can be suppressed"),
        ({"approved_by": "Ada", "plan_id": "forget-plan-" + "0" * 28}, "no plan"),
    ],
)
def test_restore_says_what_was_wrong(prefect_api, store, parameters, why):
    with settings(prefect_api, {"approval": {"approvers": ["Ada"]}}):
        _, state = start(prefect_api, RESTORE, store=str(store), **parameters)
    assert state.type.value == "FAILED"
    assert why in state.message


@pytest.mark.parametrize(("command", "end"), [("approve", "Applied"), ("reject", "Rejected")])
def test_the_command_line_decides_and_resumes_the_run_that_waits_7(
    prefect_api, prefect_server, store, waiting, monkeypatch, capsys, command, end
):
    run_id, plan = waiting
    monkeypatch.setenv("PREFECT_API_URL", prefect_server.api)
    arguments = [command, plan.plan_id, "--store", str(store), "--approved-by", "Ada"]
    arguments += ["--count", str(plan.planned)] if command == "approve" else []
    assert run(arguments) == 0
    assert "the run that asked goes on" in capsys.readouterr().err
    assert state_of(prefect_api, run_id) == "Resuming"
    assert resume(prefect_api, run_id, answer(plan)) == "ABORT"
    assert run(arguments) == 0
    assert "the run that asked is Resuming" in capsys.readouterr().err
    assert drive(prefect_api, run_id).name == end
    assert len(hidden(store)) == (plan.planned if command == "approve" else 0)


def test_a_server_that_is_away_loses_no_decision(prefect_api, store, waiting, monkeypatch, capsys):
    run_id, plan = waiting
    with monkeypatch.context() as away:
        away.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
        away.setattr("fallow.cli.waiting._TRIES", 2)
        assert run(["reject", plan.plan_id, "--store", str(store), "--approved-by", "Ada"]) == 0
    assert "could not be reached" in capsys.readouterr().err
    assert plans_of(store)[0].state == "rejected"
    resume(prefect_api, run_id, answer(plan))
    assert drive(prefect_api, run_id).name == "Rejected"


def test_several_configured_stores_are_each_asked_about_6_1(prefect_api, make_sample_store, monkeypatch):
    one, two = (make_sample_store(name, now=iso(wall_clock())) for name in ("one", "two"))
    monkeypatch.setenv("FALLOW_STORES", f"{one} {two}")
    run_id, state = start(prefect_api, PLAN, **ASK)
    assert state.name == "Suspended"
    other = next(item for item in prefect_api.read_flow_runs(limit=200) if item.parameters.get("store") == str(two))
    assert drive(prefect_api, other.id).name == "Suspended"
    for found, store in ((run_id, one), (other.id, two)):
        plan = plans_of(store)[0]
        resume(prefect_api, found, answer(plan))
        assert drive(prefect_api, found).name == "Applied"
        assert len(hidden(store)) == plan.planned
