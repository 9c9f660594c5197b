"""What becomes of every record: the one place that decides (SPEC §6.10).

:func:`judge` takes records as a store holds them, a policy and what is known beside the records, and gives each
record of the scope one verdict and its reason. Plans, applying, explain, forecast, reports and pages read that
and decide nothing again; what each reason is called stands in :mod:`fallow.judgement.words`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl

from fallow.judgement.policy import Policy
from fallow.judgement.protection import COLUMNS, protection
from fallow.judgement.score import CONVERSATION, below_cut, in_scope, keep_some, score
from fallow.model.record import Record, frame_of
from fallow.model.scope import Scope
from fallow.model.times import MICROSECONDS_PER_DAY

#: protected  ``reason`` is one of :data:`fallow.judgement.protection.REASONS`
#: too_young  younger than the grace period
#: above_cut  worth more than the cut
#: planned    eligible, and one of the lowest ``max_candidates``: ``rank`` says which
#: deferred   eligible, and left to a later plan by the cap
#: over_risk  eligible, and past the point where the risk budget ends
VERDICTS: Final = ("protected", "too_young", "above_cut", "planned", "deferred", "over_risk")
#: The verdicts of eligible records.
ELIGIBLE: Final = ("planned", "deferred", "over_risk")
#: The order of a plan (SPEC §6.5).
ORDER: Final = ("current", "retention", "created_at", "record_id", "memory_type")

_MICROSECONDS_PER_SECOND: Final = 1_000_000


def _nobody() -> pl.Series:
    return pl.Series("citations", [], dtype=pl.String)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a judgement rests on beside the records themselves.

    Attributes:
        cited: ids that a readable, unsuppressed record cites.
        held, quarantined, left_out: by memory type, ids under a hold, ids that break a contract's must, ids that an
            approver left out a short while ago.
        superseded: ids that visible records supersede, where the policy puts those first.
        excluded_agents: agents whose records a whole-store plan leaves out.
    """

    cited: pl.Series = field(default_factory=_nobody)
    held: Mapping[str, Collection[str]] = field(default_factory=dict)
    quarantined: Mapping[str, Collection[str]] = field(default_factory=dict)
    left_out: Mapping[str, Collection[str]] = field(default_factory=dict)
    superseded: Collection[str] = frozenset()
    excluded_agents: tuple[str, ...] = ()

    def protecting(self, policy: Policy, memory_type: str, as_of: int) -> pl.Expr:
        """The first reason that protects a record of a type, or null."""
        return protection(
            policy.retention,
            as_of,
            cited=self.cited,
            left_out=self.left_out.get(memory_type, ()),
            held=self.held.get(memory_type, ()),
            quarantined=self.quarantined.get(memory_type, ()),
        )


def plausible(frame: pl.DataFrame, policy: Policy, as_of: int) -> pl.DataFrame:
    """Takes values that cannot be true for absent, and names them among the breaches (SPEC §1.1, §1.2).

    A time before the policy's earliest is what somebody wrote as a default, and more than one recall for each second
    of a record's life is no count. What is stored stays in ``stored_access_count`` and ``stored_last_accessed_at``.
    """
    created = pl.when(pl.col("created_at") >= policy.earliest_time).then(pl.col("created_at"))
    accessed = pl.when(pl.col("last_accessed_at") >= policy.earliest_time).then(pl.col("last_accessed_at"))
    since = pl.coalesce(created, pl.lit(policy.earliest_time, dtype=pl.Int64))
    seconds = (as_of - since).clip(lower_bound=0) / _MICROSECONDS_PER_SECOND
    too_many = (pl.col("access_count") > seconds).fill_null(False)
    wrong = {
        "created_at_implausible": (pl.col("created_at") < policy.earliest_time).fill_null(False),
        "last_accessed_at_implausible": (pl.col("last_accessed_at") < policy.earliest_time).fill_null(False),
        "access_count_implausible": too_many,
    }
    if not frame.select(pl.any_horizontal(*wrong.values()).any()).item():
        return frame.with_columns(
            pl.col("access_count").alias("stored_access_count"),
            pl.col("last_accessed_at").alias("stored_last_accessed_at"),
        )
    named = [pl.when(rule).then(pl.lit(name)) for name, rule in wrong.items()]
    return frame.with_columns(
        created.alias("created_at"),
        accessed.alias("last_accessed_at"),
        pl.when(too_many).then(0).otherwise(pl.col("access_count")).alias("access_count"),
        pl.col("breaches").fill_null([]).list.concat(pl.concat_list(named).list.drop_nulls()).alias("breaches"),
        pl.col("access_count").alias("stored_access_count"),
        pl.col("last_accessed_at").alias("stored_last_accessed_at"),
    )


def protections(records: Iterable[Record], policy: Policy, evidence: Evidence, *, as_of: int) -> list[str | None]:
    """What protects each of these records, read afresh, at an instant: the same rules as in :func:`judge`."""
    rows = list(records)
    found: list[str | None] = [None] * len(rows)
    for memory_type in {row.memory_type for row in rows}:
        where = [place for place, row in enumerate(rows) if row.memory_type == memory_type]
        frame = plausible(frame_of([rows[place] for place in where], COLUMNS), policy, as_of)
        reasons = frame.select(evidence.protecting(policy, memory_type, as_of)).to_series().to_list()
        for place, reason in zip(where, reasons, strict=True):
            found[place] = reason
    return found


def scored(
    frames: Mapping[str, pl.DataFrame],
    policy: Policy,
    evidence: Evidence,
    *,
    scope: Scope,
    as_of: int,
    scales: Mapping[str, int] | None = None,
) -> pl.DataFrame:
    """Every record of a scope with its score and what protects it, before any cut (SPEC §6.2, §6.3).

    Args:
        frames: by memory type, records as :class:`fallow.port.reading.StoreView` has them.
        scales: by memory type, another count than the set's highest to measure usage by.
    """
    current = (~pl.col("record_id").is_in(list(evidence.superseded))).alias("current")
    pieces = [
        score(
            plausible(frames[name].filter(in_scope(scope, evidence.excluded_agents)), policy, as_of),
            as_of,
            policy.recency_decay_per_hour,
            policy.default_importance,
            policy.retention.effective_weights,
            (scales or {}).get(name),
        ).with_columns(evidence.protecting(policy, name, as_of), pl.lit(name).alias("memory_type"), current)
        for name in policy.retention.memory_types
    ]
    return pl.concat(pieces)


def verdicts(records: pl.DataFrame, policy: Policy, within: int | None = None) -> pl.DataFrame:
    """The verdict of every scored record under a policy; of records that have one already, a new one.

    New columns: ``verdict`` (:data:`VERDICTS`), ``reason`` (what protects a protected record, else the verdict
    itself), ``low`` (old enough, or of unknown age, and below the cut: what its protection keeps it from), ``rank``
    (from 1 in a plan's order; null where not eligible).

    Args:
        within: how many of the eligible a risk budget allows; None: there is none.
    """
    config = policy.retention
    grace = round(config.grace_days * MICROSECONDS_PER_DAY)
    if config.keep_per_conversation:
        turns = pl.col("memory_type") == CONVERSATION
        records = pl.concat([keep_some(records.filter(turns), config), records.filter(~turns)])
    free = (
        pl.when(pl.col("protection").is_not_null())
        .then(pl.lit("protected"))
        .when(pl.col("age") < grace)
        .then(pl.lit("too_young"))
        .when(~below_cut(config.min_retention))
        .then(pl.lit("above_cut"))
        .otherwise(pl.lit("planned"))
    )
    low = (pl.col("age").is_null() | (pl.col("age") >= grace)) & below_cut(config.min_retention)
    found = records.with_columns(free.alias("verdict"), low.alias("low")).with_row_index("_row")
    order = found.filter(pl.col("verdict") == "planned").sort(ORDER).get_column("_row").to_numpy()
    rank = np.zeros(len(found), dtype=np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    place, last = pl.col("rank"), len(order) if within is None else within
    return (
        found.with_columns(pl.Series("rank", rank))
        .with_columns(
            pl.when(place > last)
            .then(pl.lit("over_risk"))
            .when(place > config.max_candidates)
            .then(pl.lit("deferred"))
            .otherwise(pl.col("verdict"))
            .alias("verdict"),
            pl.when(place > 0).then(place).alias("rank"),
        )
        .with_columns(pl.coalesce("protection", "verdict").alias("reason"))
        .drop("_row")
    )


def in_order(judged: pl.DataFrame) -> pl.DataFrame:
    """The records that nothing protects and that are old enough, in a plan's order, wherever the cut lies."""
    return judged.filter(pl.col("verdict").is_in((*ELIGIBLE, "above_cut"))).sort(ORDER)


def judge(
    frames: Mapping[str, pl.DataFrame], policy: Policy, evidence: Evidence, *, scope: Scope, as_of: int
) -> pl.DataFrame:
    """What becomes of every record of a scope at an instant: one verdict and reason each (SPEC §6.10).

    Args:
        frames: by memory type, records as :class:`fallow.port.reading.StoreView` has them.
        as_of: microseconds since the epoch.
    """
    return verdicts(scored(frames, policy, evidence, scope=scope, as_of=as_of), policy)


def scales_of(
    judged: pl.DataFrame,
    frames: Mapping[str, pl.DataFrame],
    policy: Policy,
    evidence: Evidence,
    *,
    scope: Scope,
    as_of: int,
) -> dict[str, dict[str, Any]]:
    """By set, the record whose count gives the scale of usage, and what hangs on that one count (SPEC §1.2).

    ``eligible_through_it`` is how many more records are eligible than if the second highest count gave the scale.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in policy.retention.memory_types:
        own = judged.filter(pl.col("memory_type") == name, pl.col("access_count") > 0)
        if own.is_empty():
            continue
        first = own.sort(["access_count", "record_id"], descending=[True, False]).head(2)
        top, second = first.row(0, named=True), int(first["access_count"][1]) if len(first) > 1 else 0
        item = {"record_id": top["record_id"], "access_count": int(top["access_count"]), "second": second}
        through = 0
        if 0 < second < item["access_count"] and policy.retention.effective_weights[1]:
            only = replace(policy, retention=replace(policy.retention, memory_types=(name,)))
            scores = scored(frames, only, evidence, scope=scope, as_of=as_of, scales={name: second})
            was = judged.filter(pl.col("memory_type") == name)
            through = eligible_number(was) - eligible_number(verdicts(scores, only))
        found[name] = {**item, "eligible_through_it": through}
    return found


def eligible_number(judged: pl.DataFrame) -> int:
    """How many of these records are eligible, planned or deferred."""
    return int(judged.get_column("verdict").is_in(ELIGIBLE).sum())
