"""One judgement over a scope, as plans, explain and reports read it (SPEC §6.10): evidence, verdicts, risk budget."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from fallow.acting.evidence import gather_evidence
from fallow.judgement.policy import Policy
from fallow.judgement.verdicts import Evidence, in_order, judge, verdicts
from fallow.model.scope import Scope
from fallow.model.settings import Settings
from fallow.port.gate import ContractResult
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView
from fallow.usecases.risk import Budget, budget, order_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What becomes of a scope's records, and what that rests on.

    Attributes:
        records: as :func:`fallow.judgement.verdicts.judge` has them.
        ordered: those that nothing protects and that are old enough, in a plan's order: what a cut is laid through.
        limit: the risk budget over that order; None where none is set.
    """

    policy: Policy
    evidence: Evidence
    records: pl.DataFrame
    ordered: pl.DataFrame
    limit: Budget | None


def judge_scope(
    provider: Provider,
    settings: Settings,
    *,
    view: StoreView,
    scope: Scope,
    as_of: int,
    contracts: ContractResult | None,
    excluded_agents: tuple[str, ...] = (),
) -> Judgement:
    """Judges every record of a scope, with all that a plan takes into account. Reads only.

    Args:
        view: the store, already read.
        contracts: what data contracts found in it (:func:`fallow.port.gate.check_store`).
        excluded_agents: agents that a whole-store scope leaves out.

    Raises:
        StoreUnreadableError: a hold cannot be read, or a listing failed.
    """
    policy = Policy.of(settings)
    evidence = gather_evidence(
        provider, view, policy, as_of=as_of, contracts=contracts, excluded_agents=excluded_agents
    )
    records = judge(view.frames, policy, evidence, scope=scope, as_of=as_of)
    ordered = in_order(records)
    limit = budget(provider, settings.risk, scope, order_of(ordered), as_of=as_of, view=view)
    if limit is not None:
        records = verdicts(records, policy, limit.promise.length)
    return Judgement(policy=policy, evidence=evidence, records=records, ordered=ordered, limit=limit)
