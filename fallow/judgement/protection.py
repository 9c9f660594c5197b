"""What protects a record from being suppressed: the one place that says so (SPEC §6.3).

Planning asks it of a whole store, applying asks it again of a chunk; both get the same first reason.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import polars as pl

from fallow.model.record import QUARANTINING
from fallow.model.settings import RetentionConfig
from fallow.model.times import MICROSECONDS_PER_DAY

#: Reasons in the order in which the first that holds is named.
REASONS: Final = (
    "unreadable",
    "quarantined",
    "unknown_creation_time",
    "suppressed",
    "sealed",
    "held",
    "pinned",
    "verified",
    "restored",
    "recalled",
    "left_out",
    "cited",
    "conversation_minimum",
)

#: With the formula importance_first a record recalled less than this ago is protected.
RECALLED_DAYS: Final = 7

#: The columns that :func:`protection` needs.
COLUMNS: Final = (
    "record_id",
    "created_at",
    "retention_state",
    "pinned",
    "verified",
    "unsuppressed_at",
    "last_accessed_at",
    "access_count",
    "breaches",
)


def protection(
    config: RetentionConfig,
    as_of: int,
    *,
    cited: pl.Series,
    left_out: Collection[str] = (),
    held: Collection[str] = (),
    quarantined: Collection[str] = (),
) -> pl.Expr:
    """The first reason that protects a record, or null, as an expression over :data:`COLUMNS`.

    Args:
        config: which flags protect, and the grace period after a restore.
        as_of: the instant of the decision, microseconds.
        cited: ids cited by a readable, unsuppressed record anywhere in the store, in their one form.
        left_out: ids that an approver left out less than ``left_out_days`` ago.
        held: ids under a hold.
        quarantined: ids of records that break a contract's must (SPEC §13).
    """
    grace = round(config.grace_days * MICROSECONDS_PER_DAY)
    broken = pl.col("breaches").list.set_intersection(sorted(QUARANTINING)).list.len() > 0
    if quarantined:
        broken = broken | pl.col("record_id").is_in(list(quarantined))
    rules: list[tuple[str, pl.Expr]] = [
        ("quarantined", broken),
        ("unknown_creation_time", pl.col("created_at").is_null()),
        ("suppressed", pl.col("retention_state") == "suppressed"),
    ]
    if config.protect_sealed:
        rules.append(("sealed", pl.col("retention_state") == "sealed"))
    if held:
        rules.append(("held", pl.col("record_id").is_in(list(held))))
    if config.protect_pinned:
        rules.append(("pinned", pl.col("pinned")))
    if config.protect_verified:
        rules.append(("verified", pl.col("verified")))
    rules.append(("restored", (as_of - pl.col("unsuppressed_at") < grace).fill_null(False)))
    if config.formula == "importance_first":
        recent = round(RECALLED_DAYS * MICROSECONDS_PER_DAY)
        rules.append(("recalled", (as_of - pl.col("last_accessed_at") < recent).fill_null(False)))
    if left_out:
        rules.append(("left_out", pl.col("record_id").is_in(list(left_out))))
    rules.append(("cited", pl.col("record_id").is_in(cited.implode())))
    reason = pl.lit(None, dtype=pl.String)
    for name, holds in reversed(rules):
        reason = pl.when(holds).then(pl.lit(name)).otherwise(reason)
    return reason.alias("protection")
