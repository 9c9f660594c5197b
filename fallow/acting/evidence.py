"""Reads what a judgement rests on beside the records: citations, holds, leave-outs, contracts (SPEC §6.3, §6.10)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fallow.acting.holds import active_holds
from fallow.judgement.citations import cited_ids, superseded_ids
from fallow.judgement.holds import held_ids
from fallow.judgement.policy import Policy
from fallow.judgement.verdicts import Evidence
from fallow.plans.storage import recently_left_out
from fallow.port.gate import ContractResult
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView


def gather_evidence(
    provider: Provider,
    view: StoreView,
    policy: Policy,
    *,
    as_of: int,
    contracts: ContractResult | None,
    left_out: Mapping[str, Collection[str]] | None = None,
    excluded_agents: tuple[str, ...] = (),
) -> Evidence:
    """What holds of a store at an instant. Reads only.

    Args:
        view: the store, already read.
        contracts: what data contracts found in it (:func:`fallow.port.gate.check_store`).
        left_out: by memory type, ids that approvers left out; None: as the store's decisions say.
        excluded_agents: agents that a whole-store judgement leaves out.

    Raises:
        StoreUnreadableError: a hold cannot be read, or a listing failed.
    """
    if left_out is None:
        left_out = recently_left_out(provider, as_of, policy.retention.left_out_days)
    return Evidence(
        cited=cited_ids(provider, view, policy.retention),
        held=held_ids(view.frames, active_holds(provider, as_of)),
        quarantined={} if contracts is None else contracts.quarantined,
        left_out=left_out,
        superseded=superseded_ids(view.frames) if policy.retention.superseded == "first" else frozenset(),
        excluded_agents=excluded_agents,
    )
