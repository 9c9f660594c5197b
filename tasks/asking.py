"""The steps around a question: put a plan before its approver, record the answer, know what stands (SPEC §7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fallow.tasks.addresses import plan_page_address
from fallow.tasks.runs import is_waiting
from fallow.tasks.steps import open_store, settings_variable, step

from fallow.acting.deciding import decide
from fallow.model.errors import ApprovalRefusedError, PlanStateError
from fallow.model.times import wall_clock
from fallow.plans.storage import check_same_store, conclude, load_plan, publish, stored_plan, take_over
from fallow.showing.facts import asked as what_is_asked
from fallow.showing.facts import at_stake, run_name
from fallow.showing.plan_page import form_text
from fallow.usecases.desk import desk
from fallow.usecases.planner import settings_for


@dataclass(frozen=True, kw_only=True)
class Question:
    """A plan that was put before its approver, or found to wait already.

    Attributes:
        plan_id: the plan that waits.
        asked_elsewhere: it waits in another run, or for the command line; nobody is asked again.
        superseded: older plans that it took over from.
    """

    plan_id: str
    asked_elsewhere: bool = False
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a plan stands in the store, and who put it there."""

    state: str
    by: str
    reason: str
    flow_run_id: str | None
    expires_at: int


@dataclass(frozen=True, kw_only=True)
class FormText:
    """What the approval form says about its plan.

    Attributes:
        asked: what is asked, and ``at_stake`` what could be lost, in plain sentences.
        page: the address of the plan's page, or "".
        refusal: why the last answer was not taken, or "".
        name: how the waiting run is called.
        description: Markdown above the fields; nothing stands there alone.
    """

    plan_id: str
    planned: int
    wide: bool
    asked: str
    at_stake: str
    page: str
    refusal: str
    name: str
    description: str


@step("put the plan before its approver")
def ask_about(store: str | None, plan_id: str, flow_run_id: str | None, requested_by: str | None) -> Question:
    """Publishes a plan for this run. One open plan a scope: the same question is asked in one place (SPEC §7.1).

    Where the run that asked has ended without an answer (cancelled, crashed, lost with Prefect's database),
    this run takes its question over.
    """
    now = wall_clock()
    with open_store(store) as provider:
        plan = load_plan(provider, plan_id)
        check_same_store(provider, plan)
        settings = settings_for(provider, plan.scope.agent_id, variable=settings_variable())
        asked = publish(
            provider,
            plan,
            now=now,
            expiry_hours=settings.retention.expiry_hours,
            requested_by=requested_by,
            flow_run_id=flow_run_id,
        )
        if not asked.already_open:
            return Question(plan_id=asked.waiting, superseded=asked.superseded)
        waiting = stored_plan(provider, asked.waiting, now)
        if flow_run_id and waiting.flow_run_id and not is_waiting(waiting.flow_run_id):
            take_over(provider, waiting.plan_id, flow_run_id=flow_run_id, now=now)
            return Question(plan_id=waiting.plan_id)
    return Question(plan_id=asked.waiting, asked_elsewhere=True)


@step("look where the plan stands")
def look(store: str | None, plan_id: str) -> Standing:
    """The plan's state as the store has it."""
    with open_store(store) as provider:
        stored = stored_plan(provider, plan_id, wall_clock())
    decision = stored.decision
    return Standing(
        state=stored.state,
        by="" if decision is None else decision.by,
        reason="" if decision is None else decision.reason,
        flow_run_id=stored.flow_run_id,
        expires_at=stored.expires_at,
    )


@step("write the form")
def write_form(store: str | None, plan_id: str, refusal: str) -> FormText:
    """The form's text, from the stored plan; ``refusal`` says why the last answer was not taken."""
    variable, now = settings_variable(), wall_clock()
    with open_store(store) as provider:
        scope = stored_plan(provider, plan_id, now).scope
        shown = settings_for(provider, scope.agent_id, variable=variable).approval.show_text
        lying = desk(provider, plan_id, now=now, show_text=shown)
    plan, page = lying.plan, plan_page_address(lying.plan)
    return FormText(
        plan_id=plan.plan_id,
        planned=len(plan.entries),
        wide=plan.wide,
        asked=what_is_asked(plan),
        at_stake=" ".join(at_stake(plan, lying.effect)),
        page=page,
        refusal=refusal,
        name=run_name(plan),
        description=form_text(lying, page),
    )


@step("record the answer")
def record_answer(store: str | None, plan_id: str, answer: Mapping[str, Any]) -> str:
    """Records a decision in the store and returns "", or why it is refused; nothing else is written (SPEC §7.2).

    A plan that was decided otherwise meanwhile, or has expired, is no refusal: its state says what stands.
    """
    leave_out: Sequence[str] = [item for item in answer.get("leave_out") or () if item.strip()]
    with open_store(store) as provider:
        settings = settings_for(provider, None, variable=settings_variable())
        try:
            decide(
                provider,
                plan_id,
                verdict="approved" if answer["decision"] == "approve" else "rejected",
                approved_by=str(answer["approved_by"]),
                reason=str(answer.get("reason") or ""),
                leave_out=leave_out,
                count=answer.get("count"),
                approval=settings.approval,
                now=wall_clock(),
                signature=str(answer.get("signature") or "") or None,
            )
        except ApprovalRefusedError as error:
            return str(error)
        except PlanStateError:
            return ""
    return ""


@step("record the refusals")
def give_up(store: str | None, plan_id: str, refusal: str) -> None:
    """Records a plan as rejected whose answers were refused three times (SPEC §7.2)."""
    now = wall_clock()
    with open_store(store) as provider:
        stored = stored_plan(provider, plan_id, now)
        if stored.state == "open":
            reason = f"three answers were refused, the last because {refusal}"
            conclude(provider, stored, "rejected", by="fallow", reason=reason, now=now)
