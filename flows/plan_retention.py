"""plan-retention: plan, put the plan before a human, apply what was approved (SPEC §6-8, §15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fallow.flows.fanning_out import load_shards
from fallow.flows.outcomes import announce, announce_breach, applied_state, decided_state
from fallow.flows.this_run import ThisRun, this_run
from fallow.tasks.applying import apply_stored
from fallow.tasks.asking import ask_about, give_up, look, record_answer, write_form
from fallow.tasks.form import KEY, MAX_ANSWERS, answer_to
from fallow.tasks.inbox import show_open_plans
from fallow.tasks.planning import ScopePlan, find_question, make_plans
from fallow.tasks.runs import ask_in_own_runs, forms_shown, name_run, settle_waiting_runs
from fallow.tasks.showing import show_plan
from fallow.tasks.steps import stores_named
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from fallow.model.errors import (
    ApprovalRefusedError,
    ContractBreachError,
    OtherStoreError,
    PlanAlteredError,
    PlanNotFoundError,
)
from fallow.model.scope import Scope
from fallow.model.times import MICROSECONDS_PER_HOUR, wall_clock

#: A run's form outlives its plan by this much, so that expire-plans ends it before Prefect gives it up.
AFTER_EXPIRY_HOURS: Final = 24

MemoryType = Literal["conversation_memory", "knowledge_base", "entity_memory", "summaries", "workflow_memory"]


@flow(name="plan-retention", flow_run_name=lambda: this_run().title("plan"), persist_result=False)
def plan_retention(
    store: str = "",
    agent_id: str = "",
    memory_ids: Sequence[str] = (),
    user_id: str = "",
    thread_id: str = "",
    unowned: bool = False,
    whole_store: bool = False,
    plan_id: str = "",
    force: bool = False,
    min_retention: Annotated[float | None, Field(ge=0, le=1)] = None,
    grace_days: Annotated[float | None, Field(ge=0, le=36500)] = None,
    max_candidates: Annotated[int | None, Field(ge=1, le=10000)] = None,
    memory_types: Sequence[MemoryType] = (),
    requested_by: str = "",
) -> State[Any]:
    """Plans which records to suppress, waits for a named human's answer, and applies exactly what was approved.

    Without a scope it plans each agent with its own policy, and the records that nobody owns. A run waits for
    one answer: it asks about the first plan, and starts a run of its own for every other.

    Args:
        store: Address of the store; empty means every store that the worker is configured with.
        agent_id: Only this agent's records.
        memory_ids: Only records of these memories.
        user_id: Only this user's records.
        thread_id: Only this thread's records.
        unowned: The records without an owner; with an agent, those too.
        whole_store: One plan over all agents with the global policy, instead of one per agent.
        plan_id: Ask about this stored plan instead of planning.
        force: Plan although retention is switched off.
        min_retention: Records below this retention are eligible; empty means as set.
        grace_days: Younger records are left alone; empty means as set.
        max_candidates: At most so many records in a plan; empty means as set.
        memory_types: Only these memory types; empty means as set.
        requested_by: Who asks for this plan, where a second person must approve.
    """
    run = this_run()
    stores = stores_named(store)
    found = [(name, question) for name in stores if (question := find_question(name, run.id)) is not None]
    if found:
        return _carry_on(*found[0], run)
    if plan_id.strip():
        return _ask(stores[0], plan_id.strip(), run, requested_by)
    named = agent_id or memory_ids or user_id or thread_id or unowned or whole_store
    scope = Scope(
        agent_id=agent_id or None,
        memory_ids=tuple(memory_ids) if memory_ids else None,
        user_id=user_id or None,
        thread_id=thread_id or None,
        unowned=unowned,
    )
    options = {
        "retention.min_retention": min_retention,
        "retention.grace_days": grace_days,
        "retention.max_candidates": max_candidates,
        "retention.memory_types": list(memory_types) if memory_types else None,
    }
    planned: list[tuple[str, ScopePlan]] = []
    for name in stores:
        plans = make_plans(
            name,
            scope if named else None,
            as_of=run.as_of,
            options=options,
            force=force,
            requested_by=requested_by or None,
            shards=load_shards(name),
        )
        planned += [(name, plan) for plan in plans]
    for name, plan in planned:
        run.logger.info("%s, %s: %s", name, plan.scope, plan.note or f"{plan.planned} records in {plan.plan_id}")
    breaches = [(name, plan) for name, plan in planned if plan.breach]
    for name in dict.fromkeys(name for name, _ in breaches):
        announce_breach(name, [plan.breach for where, plan in breaches if where == name])
    asked = [(name, plan.plan_id) for name, plan in planned if plan.plan_id is not None]
    if not asked and breaches:
        return Failed(name="ContractBreach", message="; ".join(dict.fromkeys(plan.breach for _, plan in breaches)))
    if not asked:
        notes = "; ".join(dict.fromkeys(f"{plan.scope}: {plan.note}" for _, plan in planned)) or "the store is empty"
        return Completed(name="NothingToDo", message=notes)
    if len(asked) > 1:
        ask_in_own_runs(run.deployment_id, run.id, asked[1:], requested_by)
    return _ask(*asked[0], run, requested_by)


def _ask(store: str, plan_id: str, run: ThisRun, requested_by: str) -> State[Any]:
    run.must_be_deployed()
    question = ask_about(store, plan_id, run.id, requested_by or None)
    if question.asked_elsewhere:
        return Completed(name="NothingToDo", message=f"{question.plan_id} waits for its answer already")
    if question.superseded:
        settle_waiting_runs(store)
    return _carry_on(store, question.plan_id, run)


def _carry_on(store: str, plan_id: str, run: ThisRun) -> State[Any]:
    """From the question on: whatever Prefect kept or lost, the store says where the plan stands."""
    try:
        return _answered(store, plan_id, run)
    except (PlanAlteredError, PlanNotFoundError, OtherStoreError) as error:
        return Failed(name="PlanChanged", message=f"{error}; nothing was applied")


def _answered(store: str, plan_id: str, run: ThisRun) -> State[Any]:
    standing = look(store, plan_id)
    if standing.flow_run_id != run.id and standing.state in {"open", "planned"}:
        return Completed(name="Superseded", message=f"{plan_id} is asked about elsewhere")
    shown = forms_shown(run.id, KEY)
    if standing.state == "open" and not shown:
        announce("awaiting-approval", plan_id, store, show_plan(store, plan_id))
        show_open_plans(store)
    attempt, refusal = max(1, shown), ""
    while standing.state == "open":
        if attempt > MAX_ANSWERS:
            give_up(store, plan_id, refusal)
        else:
            text = write_form(store, plan_id, refusal)
            name_run(run.id, text.name)
            hours = (standing.expires_at - wall_clock()) / MICROSECONDS_PER_HOUR + AFTER_EXPIRY_HOURS
            try:
                answer = answer_to(text, attempt, timeout=round(hours * 3600))
            except ApprovalRefusedError as error:
                refusal = error.message
            else:
                if answer["plan_id"] != plan_id:
                    return Failed(
                        name="PlanChanged",
                        message=f"the answer is about another plan than {plan_id}; nothing was applied",
                    )
                refusal = record_answer(store, plan_id, answer)
            attempt += 1
        standing = look(store, plan_id)
    show_open_plans(store)
    if standing.state in {"approved", "applied", "stale", "closed"}:
        if standing.state == "approved":
            announce("approved", plan_id, store, {"approved_by": standing.by})
        try:
            return applied_state(store, apply_stored(store, plan_id))
        except ContractBreachError as error:
            announce_breach(store, [str(error)])
            return Failed(name="ContractBreach", message=f"{error}; {plan_id} stays approved and was not applied")
    announce(standing.state, plan_id, store, {"by": standing.by})
    return decided_state(plan_id, standing)
