"""How many records would be eligible when, at which threshold, if nobody recalled anything (SPEC §16, forecast).

The same scoring and protection as a plan's, at later instants and other thresholds. Reads only. What will be
created, recalled or rated meanwhile is not known, so it is not counted; a hold that ends meanwhile still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from fallow.acting.holds import active_holds
from fallow.judgement.citations import cited_ids
from fallow.judgement.holds import held_ids
from fallow.judgement.protection import protection
from fallow.judgement.score import CONVERSATION, THRESHOLDS, in_scope, keep_some, score
from fallow.model.scope import Scope
from fallow.model.settings import Settings
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.plans.storage import recently_left_out
from fallow.port.gate import ContractResult
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, read_store
from fallow.usecases.risk import in_order, within_shares

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
    excluded_agents: Sequence[str] = (),
    contracts: ContractResult | None = None,
) -> Forecast:
    """How many records of a scope would be eligible in so many days, at each threshold and the one in force.

    Args:
        view: a store already read, when several policies are compared.
        excluded_agents: agents that switched retention off, for a whole-store scope.
        contracts: what data contracts found in the store: what they quarantine is not counted.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    config = settings.retention
    view = view or read_store(provider)
    cited = cited_ids(provider, view, config)
    held = held_ids(view.frames, active_holds(provider, as_of))
    left_out = [recently_left_out(provider, as_of + day * MICROSECONDS_PER_DAY, config.left_out_days) for day in days]
    wanted = sorted({*thresholds, config.min_retention})
    counts = {threshold: [0] * len(days) for threshold in wanted}
    scanned = 0
    listed: list[list[pl.DataFrame]] = [[] for _ in days]
    grace = round(config.grace_days * MICROSECONDS_PER_DAY)
    for memory_type in config.memory_types:
        frame = view.frames[memory_type].filter(in_scope(scope, excluded_agents))
        scanned += frame.height
        for place, day in enumerate(days):
            at = as_of + day * MICROSECONDS_PER_DAY
            scored = score(
                frame,
                at,
                settings.get("scoring.recency_decay_per_hour"),
                settings.get("scoring.default_importance"),
                config.effective_weights,
            ).with_columns(
                protection(
                    config,
                    at,
                    cited=cited,
                    held=held.get(memory_type, ()),
                    left_out=left_out[place].get(memory_type, ()),
                    quarantined=() if contracts is None else contracts.quarantined.get(memory_type, ()),
                )
            )
            for threshold in wanted:
                kept = scored
                if memory_type == CONVERSATION:
                    kept = keep_some(scored, replace(config, min_retention=threshold))
                free = kept.filter(
                    pl.col("protection").is_null(), pl.col("age") >= grace, pl.col("retention") < threshold
                )
                counts[threshold][place] += free.height
                if threshold == config.min_retention:
                    listed[place].append(free.with_columns(pl.lit(memory_type).alias("memory_type")))
    return Forecast(
        as_of=as_of,
        scanned=scanned,
        current=config.min_retention,
        days=tuple(days),
        eligible={threshold: tuple(numbers) for threshold, numbers in counts.items()},
        risk=within_shares(
            provider, settings.risk, scope, [in_order(pl.concat(frames)) for frames in listed], as_of=as_of, view=view
        ),
    )
