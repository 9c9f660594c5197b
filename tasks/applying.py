"""The steps that write: suppress what was approved, restore, record what nobody decided (SPEC §7-9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fallow.tasks.steps import open_store, settings_variable, step
from prefect.variables import Variable

from fallow.acting.apply import apply_plan, close_plan
from fallow.acting.configured_files import stop_file_says
from fallow.acting.deciding import check_approver
from fallow.acting.holds import release_hold
from fallow.acting.restore import plan_keys, restore_records
from fallow.model.arguments import several, typed_id
from fallow.model.settings import STOP_VARIABLE, stop_value_says
from fallow.model.times import MICROSECONDS_PER_HOUR, wall_clock
from fallow.plans.storage import expire_plans, list_plans
from fallow.usecases.drift import find_drift
from fallow.usecases.planner import settings_for

#: An approved plan that has not reached its end is left to be finished for this long after its own end.
FINISHING_HOURS: Final = 24


@step("apply the plan")
def apply_stored(store: str | None, plan_id: str) -> dict[str, Any]:
    """Suppresses exactly what was approved, from the stored plan; run again it ends where it would have ended."""
    with open_store(store) as provider:
        now = wall_clock()
        settings = settings_for(provider, None, variable=settings_variable())
        stop_file = str(settings.get("apply.stop_file"))
        return apply_plan(
            provider,
            plan_id,
            now=now,
            approval=settings.approval,
            stop=lambda: stop_file_says(stop_file) or stop_value_says(Variable.get(STOP_VARIABLE, default=None)),
        ).to_json()


@step("release the hold")
def release(store: str | None, hold_id: str, released_by: str, reason: str) -> dict[str, Any]:
    """Ends a hold, on the word of somebody who may approve; the records it kept can be planned again.

    Raises:
        HoldError: there is no such hold.
        ApprovalRefusedError: nobody, or nobody known, asks for it.
    """
    now = wall_clock()
    with open_store(store) as provider:
        name, standing = check_approver(
            released_by, settings_for(provider, None, variable=settings_variable()).approval
        )
        hold = release_hold(provider, hold_id, released_by=name, reason=reason, now=now)
    return {**hold.to_json(now), "standing": standing}


@step("restore")
def restore_stored(
    store: str | None, plan_id: str | None, records: Sequence[str], approved_by: str, reason: str
) -> dict[str, Any]:
    """Restores a whole plan's records, or the named ones (``TYPE:ID``).

    Raises:
        UsageError: a name is not of that form.
        ApprovalRefusedError: nobody, or nobody known, asks for it.
    """
    with open_store(store) as provider:
        settings = settings_for(provider, None, variable=settings_variable())
        name, standing = check_approver(approved_by, settings.approval)
        keys = [typed_id(text, "records") for text in several(records, "records")] + (
            plan_keys(provider, plan_id) if plan_id else []
        )
        report = restore_records(
            provider, keys, approved_by=name, reason=reason, now=wall_clock(), plan_id=plan_id or None
        )
    return {**report.to_json(), "approved_by": name, "standing": standing}


@step("look for drift")
def look_for_drift(store: str | None) -> dict[str, Any]:
    """Where records, plans, decisions and journal disagree; reads only."""
    with open_store(store) as provider:
        approval = settings_for(provider, None, variable=settings_variable()).approval
        return find_drift(provider, now=wall_clock(), approval=approval).to_json()


@dataclass(frozen=True, kw_only=True)
class Lapsed:
    """Plans that came to an end by time alone."""

    expired: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()


@step("expire plans")
def record_expiry(store: str | None) -> Lapsed:
    """Records the expiry of plans that nobody decided, and closes approved ones that nobody finished (SPEC §8.2)."""
    now = wall_clock()
    with open_store(store) as provider:
        expired = expire_plans(provider, now)
        late = [
            plan.plan_id
            for plan in list_plans(provider, now)
            if plan.state == "approved" and now >= plan.expires_at + FINISHING_HOURS * MICROSECONDS_PER_HOUR
        ]
        for plan_id in late:
            close_plan(provider, plan_id, closed_by="fallow, by its expiry", now=now)
    return Lapsed(expired=tuple(plan.plan_id for plan in expired), closed=tuple(late))
