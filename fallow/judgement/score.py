"""Retention and its three parts, over a frame (SPEC §6.2)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

import numpy as np
import polars as pl

from fallow.model.canonical import DECIMALS
from fallow.model.scope import Scope
from fallow.model.settings import RetentionConfig
from fallow.model.times import MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR
from fallow.port.reading import StoreView

#: Thresholds that forecasts and plans look at, beside the one in force.
THRESHOLDS: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
CONVERSATION: Final = "conversation_memory"
#: What makes a conversation (SPEC §5.1).
_CONVERSATION_KEY: Final = ("agent_id", "memory_id", "user_id", "thread_id")


def in_scope(scope: Scope, excluded_agents: Collection[str] = ()) -> pl.Expr:
    """Which records a plan over ``scope`` considers, whatever the store's own filter did (SPEC §6.4)."""
    rule = pl.lit(True)
    if scope.agent_id:
        rule = (pl.col("agent_id") == scope.agent_id).fill_null(False)
        if scope.unowned or scope.memory_ids:
            rule = rule | pl.col("agent_id").is_null()
    elif scope.unowned:
        rule = pl.col("agent_id").is_null()
    elif excluded_agents:
        rule = ~pl.col("agent_id").is_in(list(excluded_agents)).fill_null(False)
    if scope.memory_ids is not None:
        rule = rule & pl.col("memory_id").is_in(list(scope.memory_ids)).fill_null(False)
    if scope.user_id is not None:
        rule = rule & (pl.col("user_id") == scope.user_id).fill_null(False)
    if scope.thread_id is not None:
        rule = rule & (pl.col("thread_id") == scope.thread_id).fill_null(False)
    return rule


def scopes_of(view: StoreView) -> tuple[Scope, ...]:
    """The scopes of a night over a whole store: every agent that owns a record, and the records nobody owns."""
    owners = pl.concat(frame.lazy().select("agent_id") for frame in view.frames.values()).unique().collect()
    named = sorted(owners.get_column("agent_id").drop_nulls().to_list())
    unowned = (Scope(unowned=True),) if owners.get_column("agent_id").null_count() else ()
    return (*(Scope(agent_id=name) for name in named), *unowned)


def score(
    frame: pl.DataFrame,
    as_of: int,
    decay: float,
    default_importance: float,
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
    scale: int | None = None,
) -> pl.DataFrame:
    """Adds retention and its parts to the records of one set (SPEC §6.2).

    ``weights`` are of importance, usage and recency; retention is their weighted mean. ``scale`` is the count whose
    usage is 1, where that is not to be the set's highest; higher counts have that usage too.

    New columns: ``effective_importance``, ``usage``, ``recency`` and ``retention`` (0..1, rounded to 9
    decimals), ``age`` (microseconds, null where unknown, never negative).

    Division is numpy's and logarithms are libm's over the distinct counts, so that the bits do not depend
    on the engine (DESIGN §4).
    """
    anchor = frame.select(pl.coalesce("last_accessed_at", "created_at")).to_series()
    elapsed = (as_of - anchor).clip(lower_bound=0).to_numpy().astype(np.float64)
    with np.errstate(invalid="ignore"):
        recency = np.power(np.float64(decay), elapsed / MICROSECONDS_PER_HOUR)
    recency = np.where(np.isnan(elapsed), 1.0, recency)
    counts = frame.get_column("access_count").fill_null(0).to_numpy()
    if scale is not None:
        counts = np.minimum(counts, scale)
    usage = np.zeros(len(counts), dtype=np.float64)
    if len(counts) and counts.max() > 0:
        distinct, where = np.unique(counts, return_inverse=True)
        usage = (np.array([math.log1p(n) for n in distinct.tolist()]) / math.log1p(int(counts.max())))[where]
    importance = frame.get_column("importance").fill_null(default_importance).to_numpy()
    by_importance, by_usage, by_recency = (np.float64(weight) for weight in weights)
    retention = importance * by_importance + usage * by_usage + recency * by_recency
    retention = retention / (by_importance + by_usage + by_recency)
    return frame.with_columns(
        pl.Series("effective_importance", np.round(importance, DECIMALS), dtype=pl.Float64),
        pl.Series("usage", np.round(usage, DECIMALS), dtype=pl.Float64),
        pl.Series("recency", np.round(recency, DECIMALS), dtype=pl.Float64),
        pl.Series("retention", np.round(retention, DECIMALS), dtype=pl.Float64),
        (as_of - pl.col("created_at")).clip(lower_bound=0).alias("age"),
    )


def below_cut(min_retention: float) -> pl.Expr:
    """Whether a record is worth less than the cut, or is outdated where the policy puts such records first."""
    return (pl.col("retention") < min_retention) | ~pl.col("current")


def keep_some(scored: pl.DataFrame, config: RetentionConfig) -> pl.DataFrame:
    """Protects the best of each conversation's eligible rows where too few of it would stay visible otherwise."""
    if not config.keep_per_conversation:
        return scored
    visible = (pl.col("retention_state") != "suppressed").sum().over(_CONVERSATION_KEY).cast(pl.Int64)
    eligible = (
        pl.col("protection").is_null()
        & (pl.col("age") >= round(config.grace_days * MICROSECONDS_PER_DAY))
        & below_cut(config.min_retention)
    )
    going = eligible.cast(pl.Int64).cum_sum().over(_CONVERSATION_KEY)
    kept = eligible & (going > visible - config.keep_per_conversation)
    return scored.sort("current", "retention", "created_at", "record_id").with_columns(
        pl.when(kept).then(pl.lit("conversation_minimum")).otherwise(pl.col("protection")).alias("protection")
    )


def conversation_room(frame: pl.DataFrame, keep: int) -> dict[tuple[str | None, ...], int]:
    """By conversation, how many of its visible rows may still be suppressed."""
    rows = (
        frame.filter(pl.col("retention_state") != "suppressed")
        .group_by(_CONVERSATION_KEY)
        .agg(pl.len().cast(pl.Int64).alias("visible"))
    )
    return {tuple(row[:-1]): max(0, row[-1] - keep) for row in rows.iter_rows()}
