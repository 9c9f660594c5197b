"""Plan, apply, suppressed, restore in one place, for people who hold a provider (SPEC §17).

:func:`plan_scope` is what the command line and the flows call; :class:`RetentionPlanner` is the same for a
program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fallow.acting.apply import ApplyReport, Progress, apply_plan
from fallow.acting.deciding import check_approver, decide
from fallow.acting.restore import RestoreReport, plan_keys, restore_records
from fallow.judgement.policy import AgentPolicies, agent_policies
from fallow.model.arguments import (
    Id,
    Time,
    id_or_none,
    ids_or_none,
    instant,
    refused,
    text,
    text_or_none,
)
from fallow.model.arguments import (
    memory_type as checked_type,
)
from fallow.model.arguments import (
    record_id as checked_id,
)
from fallow.model.keys import RecordKey
from fallow.model.scope import Scope
from fallow.model.scoring import RetrievalScoring
from fallow.model.settings import RetentionConfig, RiskConfig, Settings, explicit, resolve
from fallow.plans.decision import Decision
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import reopen, store_plan
from fallow.port.gate import ContractResult
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, read_agents
from fallow.usecases.planning import make_plan
from fallow.usecases.suppressed import Suppressed, suppressed_records


def settings_for(
    provider: Provider,
    agent_id: str | None,
    options: Mapping[str, Any] | None = None,
    *,
    variable: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """The settings that hold for an agent of this store, or globally where none is named (SPEC §6.1)."""
    record = None
    if agent_id:
        record = (read_agents(provider) if agents is None else agents).get(agent_id)
    return resolve(options, agent=record, variable=variable, environ=environ)


def plan_scope(
    provider: Provider,
    settings: Settings,
    scope: Scope,
    *,
    as_of: int,
    now: int,
    requested_by: str | None = None,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
    view: StoreView | None = None,
    contracts: ContractResult | None = None,
    opt_outs: bool = True,
    keep_empty: bool = True,
) -> RetentionPlan:
    """Plans a scope and stores the plan (SPEC §6): the one way for library, command line and flows.

    A plan id that is stored already keeps its first document; what comes back shows the numbers of now.

    Args:
        opt_outs: a whole-store plan leaves out agents that switched retention off.
        view: a store already read, when several scopes are planned in one night.
        contracts: what data contracts found in ``view``; None: the installed ones are asked.
        keep_empty: also store a plan without a record; a schedule over many scopes does not.

    Raises:
        StoreUnreadableError: there is no plan over part of a scope.
        ContractBreachError: the store as a whole breaks its contract.
    """
    policies = AgentPolicies()
    if opt_outs and not (scope.unowned and not scope.agent_id):
        policies = agent_policies(read_agents(provider) if agents is None else agents)
    plan = make_plan(
        provider,
        settings,
        scope=scope,
        as_of=as_of,
        now=now,
        requested_by=requested_by,
        policies=policies,
        view=view,
        contracts=contracts,
    )
    if not plan.entries and not keep_empty:
        return plan
    stored = store_plan(provider, plan)
    reopen(provider, stored.plan_id, now=now, expiry_hours=settings.retention.expiry_hours, requested_by=requested_by)
    return plan.seen_again(stored)


def opted_out(provider: Provider, scope: Scope) -> tuple[str, ...]:
    """The agents whose records a judgement over a scope leaves out: those that switched retention off (SPEC §6.4)."""
    whole_store = not scope.agent_id and not scope.unowned
    return agent_policies(read_agents(provider)).off if whole_store else ()


class RetentionPlanner:
    """Plans, applies and restores on one store (SPEC §17).

    Args:
        provider: the open store.
        agent_id: whose records; left out means the whole store.
        config: retention settings that replace every other source, agents' overrides and opt-outs included.
        scoring: ranking settings that do the same; decay and default importance enter the plan.
        risk: a risk budget that does the same; with a config or scoring and no risk there is none.
        environ: the environment to resolve settings from; None reads the process's own.

    Raises:
        UsageError: an argument is none of SPEC §1.5; every method alike.
    """

    def __init__(
        self,
        provider: Provider,
        agent_id: Id | None = None,
        config: RetentionConfig | None = None,
        scoring: RetrievalScoring | None = None,
        *,
        risk: RiskConfig | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._provider = provider
        # The empty text is the old way to leave it out.
        self._agent_id = None if agent_id == "" else id_or_none(agent_id, "agent_id")
        for name, value, kind in (
            ("config", config, RetentionConfig),
            ("scoring", scoring, RetrievalScoring),
            ("risk", risk, RiskConfig),
        ):
            if value is not None and not isinstance(value, kind):
                raise refused(name, value, f"a {kind.__name__}")
        self._explicit = config is not None or scoring is not None or risk is not None
        settings = settings_for(provider, self._agent_id if not self._explicit else None, environ=environ)
        if self._explicit:
            settings = explicit(config or settings.retention, scoring or settings.scoring, settings, risk)
        zones = dict(provider.naive_timezone)
        self.settings = settings.replacing("store.naive_timezone", zones)

    def plan(
        self,
        memory_ids: Iterable[Id] | None = None,
        user_id: Id | None = None,
        thread_id: Id | None = None,
        as_of: Time | None = None,
        *,
        unowned: bool = False,
        requested_by: str | None = None,
        now: Time | None = None,
    ) -> RetentionPlan:
        """A stored plan over this planner's scope; reads records, writes only the plan (SPEC §6.7).

        Args:
            memory_ids: only records of these memories; none of them, none.
            as_of: the instant of the decision, a time of SPEC §1.5; None means now.
            now: the wall clock, for planned_at and expires_at; None means the system's.

        Raises:
            StoreUnreadableError: a listing failed; there is no plan over part of a scope.
        """
        now = instant(now)
        scope = self._scope(memory_ids, user_id, thread_id, unowned)
        return plan_scope(
            self._provider,
            self.settings,
            scope,
            as_of=now if as_of is None else instant(as_of, "as_of"),
            now=now,
            requested_by=text_or_none(requested_by, "requested_by"),
            opt_outs=not self._explicit,
        )

    def _scope(
        self, memory_ids: Iterable[Id] | None, user_id: Id | None, thread_id: Id | None, unowned: bool = False
    ) -> Scope:
        return Scope(
            agent_id=self._agent_id,
            memory_ids=ids_or_none(memory_ids, "memory_ids"),
            user_id=id_or_none(user_id, "user_id"),
            thread_id=id_or_none(thread_id, "thread_id"),
            unowned=unowned,
        )

    def approve(
        self,
        plan: RetentionPlan | str,
        *,
        approved_by: str,
        reason: str = "",
        leave_out: Iterable[str | RecordKey] = (),
        count: int | None = None,
        now: Time | None = None,
        signature: str | None = None,
    ) -> Decision:
        """Records an approval without acting on it; ``signature`` is one that the approver made elsewhere.

        Raises as :func:`fallow.acting.deciding.decide`.
        """
        return decide(
            self._provider,
            _plan_id(plan),
            verdict="approved",
            approved_by=approved_by,
            reason=reason,
            leave_out=leave_out,
            count=count,
            approval=self.settings.approval,
            now=now,
            signature=signature,
        )

    def apply(
        self,
        plan: RetentionPlan | str,
        *,
        approved_by: str,
        reason: str = "",
        leave_out: Iterable[str | RecordKey] = (),
        count: int | None = None,
        now: Time | None = None,
        progress: Progress | None = None,
        signature: str | None = None,
    ) -> ApplyReport:
        """Records the approval and suppresses exactly what the stored plan names (SPEC §8).

        Raises:
            ApprovalRefusedError: approver, count or leave-outs do not fit; nothing was written.
            PlanStateError, PlanAlteredError, OtherStoreError, PlanNotFoundError: nothing was written.
        """
        now = instant(now)
        decision = self.approve(
            plan,
            approved_by=approved_by,
            reason=reason,
            leave_out=leave_out,
            count=count,
            now=now,
            signature=signature,
        )
        return apply_plan(self._provider, decision.plan_id, now=now, progress=progress, approval=self.settings.approval)

    def suppressed(
        self,
        memory_ids: Iterable[Id] | None = None,
        user_id: Id | None = None,
        thread_id: Id | None = None,
    ) -> list[Suppressed]:
        """What is hidden in this planner's scope."""
        return suppressed_records(self._provider, self._scope(memory_ids, user_id, thread_id))

    def unsuppress(
        self, record_id: Id, memory_type: str, *, approved_by: str, reason: str, now: Time | None = None
    ) -> RestoreReport:
        """Restores one record (SPEC §9).

        Raises:
            ApprovalRefusedError: the approver is blank or unknown.
        """
        key = RecordKey(checked_type(memory_type), checked_id(record_id))
        name, _ = check_approver(approved_by, self.settings.approval)
        return restore_records(self._provider, [key], approved_by=name, reason=reason, now=now)

    def restore_plan(
        self, plan_id: str, *, approved_by: str, reason: str, now: Time | None = None, progress: Progress | None = None
    ) -> RestoreReport:
        """Restores everything that a plan suppressed and no other plan has suppressed since (SPEC §9)."""
        name, _ = check_approver(approved_by, self.settings.approval)
        return restore_records(
            self._provider,
            plan_keys(self._provider, plan_id),
            approved_by=name,
            reason=reason,
            now=now,
            plan_id=text(plan_id, "plan_id").strip(),
            progress=progress,
        )


def _plan_id(plan: RetentionPlan | str) -> str:
    return plan.plan_id if isinstance(plan, RetentionPlan) else text(plan, "plan")
