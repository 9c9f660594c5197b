"""How many records would be eligible when, at which threshold, if nobody recalled anything (SPEC §16, forecast).

The same scoring and protection as a plan's, at later instants and other thresholds. Reads only. What will be
created, recalled or rated meanwhile is not known, so it is not counted; a hold that ends meanwhile still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from fallow.acting.evidence import gather_evidence
from fallow.judgement.policy import Policy
from fallow.judgement.score import THRESHOLDS
from fallow.judgement.verdicts import ELIGIBLE, ORDER, eligible_number, scored, verdicts
from fallow.model.scope import Scope
from fallow.model.settings import Settings
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.plans.storage import recently_left_out
from fallow.port.gate import ContractResult, check_store
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, read_store
from fallow.usecases.planner import opted_out
from fallow.usecases.risk import within_shares

#: Days ahead that are looked at.
DAYS: Final = (0, 7, 30, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Eligible records by threshold and day.

    Attributes:
        as_of: day 0, microseconds.
        scanned: records in scope, of the types that the policy plans.
        current: the threshold in force.
        days: days ahead.
        eligible: by threshold, one count a day; no cap on candidates is applied.
        risk: by share of a risk budget, one count a day of what it would take at the threshold in force; empty
            where no budget is set.
    """

    as_of: int
    scanned: int
    current: float
    days: tuple[int, ...]
    eligible: dict[float, tuple[int, ...]]
    risk: dict[float, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "as_of": iso(self.as_of),
            "scanned": self.scanned,
            "min_retention": self.current,
            "days": list(self.days),
            "eligible": [
                {"min_retention": threshold, "records": list(counts)} for threshold, counts in self.eligible.items()
            ],
            **(
                {"risk": [{"share": share, "records": list(counts)} for share, counts in self.risk.items()]}
                if self.risk
                else {}
            ),
        }


def forecast(
    provider: Provider,
    settings: Settings,
    *,
    scope: Scope,
    as_of: int,
    view: StoreView | None = None,
    days: Sequence[int] = DAYS,
    thresholds: Sequence[float] = THRESHOLDS,
    contracts: ContractResult | None = None,
) -> Forecast:
    """How many records of a scope would be eligible in so many days, at each threshold and the one in force.

    Args:
        view: a store already read, when several policies are compared.
        contracts: what data contracts found in the store; None: the installed ones are asked.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    policy, view = Policy.of(settings), view or read_store(provider)
    config = policy.retention
    evidence = gather_evidence(
        provider,
        view,
        policy,
        as_of=as_of,
        contracts=check_store(provider, view, as_of) if contracts is None else contracts,
        excluded_agents=opted_out(provider, scope),
    )
    wanted = sorted({*thresholds, config.min_retention})
    counts: dict[float, list[int]] = {threshold: [] for threshold in wanted}
    scanned, listed = 0, []
    for day in days:
        at = as_of + day * MICROSECONDS_PER_DAY
        then = replace(evidence, left_out=recently_left_out(provider, at, config.left_out_days))
        records = scored(view.frames, policy, then, scope=scope, as_of=at)
        scanned = len(records)
        for threshold in wanted:
            changed = replace(policy, retention=replace(config, min_retention=threshold))
            counts[threshold].append(eligible_number(verdicts(records, changed)))
        listed.append(verdicts(records, policy).filter(pl.col("verdict").is_in(ELIGIBLE)).sort(ORDER))
    return Forecast(
        as_of=as_of,
        scanned=scanned,
        current=config.min_retention,
        days=tuple(days),
        eligible={threshold: tuple(numbers) for threshold, numbers in counts.items()},
        risk=within_shares(provider, settings.risk, scope, listed, as_of=as_of, view=view),
    )
