"""The step that reads a store once and plans its scopes (SPEC §6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fallow.tasks.shards import Shard, view_of_shards
from fallow.tasks.steps import open_store, settings_variable, step

from fallow.judgement.policy import agent_policies
from fallow.judgement.score import scopes_of
from fallow.model.errors import ContractBreachError
from fallow.model.scope import Scope
from fallow.model.times import wall_clock
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import StoredPlan, list_plans, plan_of_run
from fallow.port.gate import check_store
from fallow.port.reading import read_agents, read_store
from fallow.usecases.planner import plan_scope, settings_for


@dataclass(frozen=True, kw_only=True)
class ScopePlan:
    """What planning one scope came to.

    Attributes:
        scope: the scope in words.
        plan_id: the stored plan; None where there is nothing to ask about.
        planned: records that it would suppress.
        note: why there is no plan, else empty.
        waits_in: the run in which the same question already waits for its answer.
        breach: what of the store as a whole breaks its contract, else empty; nothing was planned.
    """

    scope: str
    plan_id: str | None = None
    planned: int = 0
    note: str = ""
    waits_in: str | None = None
    breach: str = ""


@step("find the run's plan")
def find_question(store: str | None, flow_run_id: str) -> str | None:
    """The plan that this run put before its approver before it was suspended; None at its first start.

    The store answers, not the run: whatever Prefect kept or lost, a resumed run goes on with the plan that
    was shown (SPEC §15).
    """
    with open_store(store) as provider:
        found = plan_of_run(provider, flow_run_id, wall_clock())
    return None if found is None else found.plan_id


@step("plan")
def make_plans(
    store: str | None,
    scope: Scope | None,
    *,
    as_of: int,
    options: Mapping[str, Any],
    force: bool,
    requested_by: str | None,
    shards: Sequence[Shard] = (),
) -> list[ScopePlan]:
    """Plans one scope, or (None) each agent's and the unowned records', over one reading of the store.

    Every scope has its own policy. Where retention is off nothing is planned, unless ``force`` asks; an agent
    that switched retention off itself is planned only where the run names it (SPEC §6.4). ``shards`` is the store
    as others have read it for this run; without it the step reads it itself.
    """
    variable, now = settings_variable(), wall_clock()
    plans: list[ScopePlan] = []
    with open_store(store, options) as provider:
        agents = read_agents(provider)
        opted_out = agent_policies(agents).off if scope is None else ()
        view = view_of_shards(shards, provider) if shards else read_store(provider)
        contracts = check_store(provider, view, as_of)
        open_now = [plan for plan in list_plans(provider, now) if plan.state == "open"]
        for one in scopes_of(view) if scope is None else (scope,):
            settings = settings_for(provider, one.agent_id, options, variable=variable, agents=agents)
            if one.agent_id in opted_out:
                plans.append(ScopePlan(scope=one.label, note="switched retention off"))
            elif not settings.retention.enabled and not force:
                plans.append(ScopePlan(scope=one.label, note="retention is off"))
            else:
                try:
                    if contracts is not None:
                        contracts.refuse(settings.retention.memory_types)
                except ContractBreachError as error:
                    plans.append(ScopePlan(scope=one.label, note="the store breaks its contract", breach=str(error)))
                    continue
                plan = plan_scope(
                    provider,
                    settings,
                    one,
                    as_of=as_of,
                    now=now,
                    requested_by=requested_by,
                    agents=agents,
                    view=view,
                    contracts=contracts,
                    keep_empty=False,
                )
                plans.append(_scope_plan(plan, open_now))
    return plans


def _scope_plan(plan: RetentionPlan, open_now: list[StoredPlan]) -> ScopePlan:
    if not plan.entries:
        return ScopePlan(scope=plan.scope.label, note="nothing is eligible")
    same = (other for other in open_now if other.scope == plan.scope and other.item_set == plan.item_set)
    waiting = next(same, None)
    return ScopePlan(
        scope=plan.scope.label,
        plan_id=plan.plan_id,
        planned=len(plan.entries),
        waits_in=None if waiting is None else waiting.flow_run_id,
    )
