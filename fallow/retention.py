"""The nightly decision: which records have fallen so low that they should be hidden (SPEC §6).

:func:`make_plan` reads a whole store once, scores every record, asks :mod:`fallow.protection`, and returns
a sealed :class:`~fallow.plan.RetentionPlan`. It writes nothing. :class:`RetentionPlanner` is the door for
people who hold a provider and want plan, apply, suppressed and restore in one place (SPEC §17).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from fallow.holds import active_holds, held_ids
from fallow.plan import DECIMALS, SCHEMA_VERSION, PlanEntry, RetentionPlan, Scope
from fallow.protection import ContractResult, protection
from fallow.provider import Provider, RecordKey, Unreadable
from fallow.record import (
    PLANNING_COLUMNS,
    PRIMARY_TYPES,
    BreachCounts,
    Record,
    basis,
    fingerprint,
    read_record,
    schema,
)
from fallow.settings import RetentionConfig, Settings, agent_policy, parse_flag
from fallow.stored_reflections import SUMMARIES, read_reflections
from fallow.times import FUTURE_TOLERANCE, MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR, iso, zone

#: A plan shows how the retention of its scope's visible records spreads over this many equal parts of 0..1.
DISTRIBUTION_BINS: Final = 20

CONVERSATION: Final = "conversation_memory"
#: What makes a conversation (SPEC §5.1).
_CONVERSATION_KEY: Final = ("agent_id", "memory_id", "user_id", "thread_id")
#: A share of fewer records than this says nothing.
_EACH_FROM: Final = 10

#: Settings that enter a plan's policy, and so its id.
_POLICY: Final = (
    "retention.min_retention",
    "retention.grace_days",
    "retention.protect_verified",
    "retention.protect_pinned",
    "retention.protect_sealed",
    "retention.max_candidates",
    "retention.memory_types",
    "retention.left_out_days",
    "retention.blast_radius",
    "retention.stale_share",
    "retention.covered_rows",
    "retention.weights",
    "retention.formula",
    "retention.keep_per_conversation",
    "retention.blast_radius_each",
    "scoring.recency_decay_per_hour",
    "scoring.default_importance",
    "store.naive_timezone",
)


@dataclass(slots=True)
class StoreView:
    """All primary records of a store as planning sees them: one frame a type, owners derived, doubles set apart.

    ``cited`` holds every id that a readable, unsuppressed record cites.
    """

    frames: dict[str, pl.DataFrame]
    cited: pl.Series
    unreadable: list[Unreadable]
    breaches: BreachCounts = field(default_factory=BreachCounts)


def read_store(provider: Provider) -> StoreView:
    """Reads every primary type of a store, once (SPEC §1.4: completely, or not at all).

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    types = {name: read_type(provider, name) for name in PRIMARY_TYPES}
    return view_of(types, drops_owners=provider.capabilities.drops_owners)


def read_type(provider: Provider, memory_type: str) -> tuple[pl.DataFrame, list[Unreadable]]:
    """A type's records with the columns that planning reads, and what was unreadable. Raises as :func:`read_store`."""
    pieces = [pl.DataFrame(schema={name: schema()[name] for name in PLANNING_COLUMNS})]
    unreadable: list[Unreadable] = []
    for batch in provider.scan(memory_type, PLANNING_COLUMNS):
        pieces.append(batch.frame)
        unreadable.extend(batch.unreadable)
    return pl.concat(pieces, how="vertical"), unreadable


def view_of(types: Mapping[str, tuple[pl.DataFrame, Sequence[Unreadable]]], *, drops_owners: bool) -> StoreView:
    """What :func:`read_type` gave for every primary type, wherever it was read, as one view.

    Args:
        types: by memory type, in any order.
        drops_owners: as the store's :class:`~fallow.provider.Capabilities` say.
    """
    frames: dict[str, pl.DataFrame] = {}
    unreadable: list[Unreadable] = []
    for memory_type in PRIMARY_TYPES:
        frame, torn = types[memory_type]
        unreadable.extend(torn)
        doubled = frame.filter(pl.col("record_id").is_duplicated()).get_column("record_id").unique(maintain_order=True)
        if len(doubled):
            frame = frame.filter(~pl.col("record_id").is_duplicated())
            unreadable.extend(Unreadable(RecordKey(memory_type, name), "duplicate id") for name in doubled.to_list())
        frames[memory_type] = frame
    if drops_owners:
        frames = _derive_owners(frames)
    return StoreView(frames, _cited(frames), unreadable)


def cited_ids(provider: Provider, view: StoreView, config: RetentionConfig) -> pl.Series:
    """Every id whose record a citation protects, by the policy for rows that reflections cover (SPEC §6.3, §5).

    With ``covered_rows`` = ``release`` what only live reflections cite is not protected by that.
    """
    if config.covered_rows == "protect":
        return view.cited
    return _cited(view.frames, list(read_reflections(provider)))


def _cited(frames: Mapping[str, pl.DataFrame], without: Collection[str] = ()) -> pl.Series:
    silent = pl.col("record_id").is_in(list(without)) if without else pl.lit(False)
    cited = pl.concat(
        (frame.lazy().filter(~silent) if name == SUMMARIES else frame.lazy())
        .filter(pl.col("retention_state") != "suppressed", pl.col("citations").list.len() > 0)
        .select(pl.col("citations").explode())
        for name, frame in frames.items()
    )
    return cited.unique().drop_nulls().collect().get_column("citations")


def _derive_owners(frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Owners by lineage where the store drops them (SPEC §6.4).

    A summary belongs to the owner of its source messages; an unowned record to the one agent whose other
    records have its memory_id. Where two agents answer, nobody owns it.
    """
    messages = pl.concat(
        frame.lazy().filter(pl.col("agent_id").is_not_null()).select("record_id", pl.col("agent_id").alias("owner"))
        for name, frame in frames.items()
        if name != "summaries"
    )
    by_source = (
        frames["summaries"]
        .lazy()
        .filter(pl.col("agent_id").is_null())
        .select("record_id", pl.col("citations").alias("source"))
        .explode("source")
        .join(messages, left_on="source", right_on="record_id", how="inner")
        .group_by("record_id")
        .agg(pl.col("owner").unique())
        .filter(pl.col("owner").list.len() == 1)
        .select("record_id", pl.col("owner").list.first())
        .collect()
    )
    frames = {**frames, "summaries": _fill_owner(frames["summaries"], by_source, "record_id")}
    by_memory = (
        pl.concat(frame.lazy().select("memory_id", "agent_id") for frame in frames.values())
        .filter(pl.col("memory_id").is_not_null(), pl.col("agent_id").is_not_null())
        .group_by("memory_id")
        .agg(pl.col("agent_id").unique().alias("owner"))
        .filter(pl.col("owner").list.len() == 1)
        .select("memory_id", pl.col("owner").list.first())
        .collect()
    )
    return {name: _fill_owner(frame, by_memory, "memory_id") for name, frame in frames.items()}


def _fill_owner(frame: pl.DataFrame, owners: pl.DataFrame, on: str) -> pl.DataFrame:
    return (
        frame.join(owners, on=on, how="left", maintain_order="left")
        .with_columns(pl.coalesce("agent_id", "owner").alias("agent_id"))
        .drop("owner")
    )


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
) -> pl.DataFrame:
    """Adds retention and its parts to the records of one set (SPEC §6.2).

    ``weights`` are of importance, usage and recency; retention is their weighted mean.

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


def retention_reason(entry: Mapping[str, Any], min_retention: float) -> str:
    """Why a record is proposed, in words (SPEC §6.6)."""
    recalled = entry["access_count"]
    times = "never recalled" if recalled == 0 else ("recalled once" if recalled == 1 else f"recalled {recalled} times")
    return (
        f"retention {entry['retention']:.3f} is below {min_retention:g}: importance {entry['importance']:.2f}, "
        f"{times}, recency {entry['recency']:.3f}, {entry['age_days']:.0f} days old"
    )


def policy_of(settings: Settings) -> dict[str, dict[str, Any]]:
    """The policy that a plan carries: value and origin of everything the decision rests on."""
    policy: dict[str, dict[str, Any]] = {}
    for name in _POLICY:
        item = settings.values[name]
        value = list(item.value) if isinstance(item.value, tuple) else item.value
        policy[name.partition(".")[2]] = {"value": value, "origin": item.origin}
    return policy


#: From this share of rated records on, importance is the better measure.
MOSTLY_RATED: Final = 0.8


def policy_advice(rated: float, formula: str, weights: Sequence[float]) -> str:
    """What plan and doctor recommend about the policy, with the measured reason; empty where there is nothing to say.

    Args:
        rated: share of the records with a rating, 0..1.
        formula, weights: the policy as it is.
    """
    if rated < MOSTLY_RATED or formula != "mean" or len(set(weights)) != 1:
        return ""
    return (
        f"{rated:.0%} of the records are rated: retention.formula = importance_first would choose better. On long "
        "conversations with gold evidence .977 of it survived hiding a quarter, .965 with the mean of three, and "
        ".89 against .77 when half was hidden (docs/quality.md). It is your choice: nothing changes by itself"
    )


@dataclass(frozen=True, slots=True)
class AgentPolicies:
    """What agents' own records say about planning over a whole store (SPEC §6.4)."""

    off: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()


def agent_policies(agents: Mapping[str, Mapping[str, Any]]) -> AgentPolicies:
    """Agents that switched retention off, and agents whose overrides differ from the global policy."""
    off, differing = [], []
    for agent_id, record in agents.items():
        policy = agent_policy(record)
        retention = policy.get("retention")
        own = retention if isinstance(retention, Mapping) else {}
        try:
            if own.get("enabled") not in (None, "") and not parse_flag(own["enabled"]):
                off.append(agent_id)
                continue
        except ValueError:
            pass
        scoring = policy.get("scoring")
        tuned = {k: v for k, v in own.items() if k != "enabled" and v not in (None, "")}
        if isinstance(scoring, Mapping):
            tuned |= {
                k: scoring[k]
                for k in ("recency_decay_per_hour", "default_importance")
                if scoring.get(k) not in (None, "")
            }
        if tuned:
            differing.append(agent_id)
    return AgentPolicies(tuple(sorted(off)), tuple(sorted(differing)))


def read_agents(provider: Provider) -> dict[str, dict[str, Any]]:
    """The agents' records of a store by agent id."""
    agents: dict[str, dict[str, Any]] = {}
    for row in provider.find("agents"):
        name = row.get("agent_id") or row.get("_id") or row.get("id")
        if isinstance(name, str) and name:
            agents[name] = row
    return agents


def make_plan(
    provider: Provider,
    settings: Settings,
    *,
    scope: Scope,
    as_of: int,
    now: int,
    requested_by: str | None = None,
    left_out: Mapping[str, Collection[str]] | None = None,
    policies: AgentPolicies | None = None,
    view: StoreView | None = None,
    contracts: ContractResult | None = None,
) -> RetentionPlan:
    """Plans which records of a scope to suppress (SPEC §6). Reads only.

    Args:
        provider: the open store.
        settings: resolved settings; their values and origins enter the plan.
        scope: which records.
        as_of: the instant of the decision, microseconds; a part of the id.
        now: the wall clock, for planned_at and expires_at; no part of the id.
        requested_by: who asked, for four eyes.
        left_out: by memory type, ids that an approver left out recently.
        policies: for a whole-store plan, the agents to leave out and to name.
        view: a store already read, when several scopes are planned in one night.
        contracts: what data contracts found in ``view``; None where the caller holds it against none.

    Raises:
        StoreUnreadableError: there is no plan over part of a scope (SPEC §1.4).
        ContractBreachError: the store as a whole breaks its contract (SPEC §13).
    """
    config, policies, left_out = settings.retention, policies or AgentPolicies(), left_out or {}
    whole_store = not scope.agent_id and not scope.unowned
    excluded = policies.off if whole_store else ()
    view = view or read_store(provider)
    if contracts is not None:
        contracts.refuse(config.memory_types)
    cited = cited_ids(provider, view, config)
    held = held_ids(view.frames, active_holds(provider, as_of))
    counts = _Counts()
    eligible: list[pl.DataFrame] = []
    for memory_type in config.memory_types:
        frame = view.frames[memory_type].filter(in_scope(scope, excluded))
        counts.add_breaches(frame, as_of)
        scored = score(
            frame,
            as_of,
            settings.get("scoring.recency_decay_per_hour"),
            settings.get("scoring.default_importance"),
            config.effective_weights,
        )
        scored = scored.with_columns(
            protection(
                config,
                as_of,
                cited=cited,
                left_out=left_out.get(memory_type, ()),
                held=held.get(memory_type, ()),
                quarantined=() if contracts is None else contracts.quarantined.get(memory_type, ()),
            ),
            pl.lit(memory_type).alias("memory_type"),
        )
        if memory_type == CONVERSATION:
            scored = keep_some(scored, config)
        counts.add(scored, config)
        eligible.append(
            scored.filter(
                pl.col("protection").is_null(),
                pl.col("age") >= round(config.grace_days * MICROSECONDS_PER_DAY),
                pl.col("retention") < config.min_retention,
            )
        )
    found = [item for item in view.unreadable if item.key.memory_type in config.memory_types]
    for item in found:
        counts.breaches.add(item.reason.partition(":")[0].replace(" ", "_"), item.key.record_id)
    ranked = pl.concat(eligible).sort("retention", "created_at", "record_id", "memory_type")
    chosen = ranked.head(config.max_candidates)
    entries, changed = _entries(provider, chosen, settings)
    visible = counts.scanned - counts.already_suppressed
    share = round(len(entries) / visible, DECIMALS) if visible else 0.0
    each = _widest(view, config, in_scope(scope, excluded), entries)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "as_of": iso(as_of),
        "store": {"kind": provider.capabilities.kind, "identity": provider.identity()},
        "scope": scope.to_json(),
        "policy": policy_of(settings),
        "counts": {
            "scanned": counts.scanned,
            "eligible": len(ranked),
            "planned": len(entries),
            "deferred": len(ranked) - len(chosen),
            "changed_while_planning": changed,
            "protected": {**counts.protected, "unreadable": len(found)},
            "breaches": dict(sorted(counts.breaches.counts.items())),
        },
        "breach_ids": dict(sorted(counts.breaches.first_ids.items())),
        "coverage": counts.coverage(config),
        "distribution": counts.distribution,
        "blast_radius": {
            "share": share,
            "limit": config.blast_radius,
            "each": each,
            "limit_each": config.blast_radius_each,
            "exceeded": share > config.blast_radius
            or any(item["share"] > config.blast_radius_each for item in each.values()),
        },
        "agents": {"left_out": list(excluded), "differing": list(policies.differing) if whole_store else []},
        "settings_problems": list(settings.problems),
        "contracts": None if contracts is None else dict(contracts.summary),
        "requested_by": requested_by,
        "planned_at": iso(now),
        "expires_at": iso(now + round(config.expiry_hours * MICROSECONDS_PER_HOUR)),
    }
    return RetentionPlan.seal(document, entries)


def keep_some(scored: pl.DataFrame, config: RetentionConfig) -> pl.DataFrame:
    """Protects the best of each conversation's eligible rows where too few of it would stay visible otherwise."""
    if not config.keep_per_conversation:
        return scored
    visible = (pl.col("retention_state") != "suppressed").sum().over(_CONVERSATION_KEY).cast(pl.Int64)
    eligible = (
        pl.col("protection").is_null()
        & (pl.col("age") >= round(config.grace_days * MICROSECONDS_PER_DAY))
        & (pl.col("retention") < config.min_retention)
    )
    going = eligible.cast(pl.Int64).cum_sum().over(_CONVERSATION_KEY)
    kept = eligible & (going > visible - config.keep_per_conversation)
    return scored.sort("retention", "created_at", "record_id").with_columns(
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


def _widest(
    view: StoreView, config: RetentionConfig, within: pl.Expr, entries: Collection[PlanEntry]
) -> dict[str, dict[str, Any]]:
    """Of one agent, one memory and one user each, the one that would lose the greatest share of its records."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("agent_id", "memory_id", "user_id"):
        going = Counter(value for entry in entries if (value := getattr(entry, name)) is not None)
        if not going:
            continue
        visible = pl.concat(
            view.frames[kind].lazy().filter(within, pl.col("retention_state") != "suppressed").select(name)
            for kind in config.memory_types
        )
        sizes = dict(visible.drop_nulls().group_by(name).len().collect().iter_rows())
        shares = [
            (round(number / sizes[value], DECIMALS), value)
            for value, number in going.items()
            if sizes.get(value, 0) >= _EACH_FROM
        ]
        if shares:
            share, value = min(shares, key=lambda item: (-item[0], item[1]))
            found[name] = {"id": value, "share": share, "planned": going[value], "visible": sizes[value]}
    return found


def _entries(provider: Provider, chosen: pl.DataFrame, settings: Settings) -> tuple[tuple[PlanEntry, ...], int]:
    """Plan entries with fingerprints, from the whole rows; a row that moved since the scan is left for tomorrow."""
    rows: dict[RecordKey, tuple[dict[str, Any], Record]] = {}
    zones = {name: zone(value) for name, value in provider.naive_timezone.items()}
    for (memory_type,), group in chosen.group_by(["memory_type"], maintain_order=True):
        kind = str(memory_type)
        for record_id, row in provider.fetch(kind, group.get_column("record_id").to_list()).items():
            if not isinstance(row, Unreadable):
                read = (
                    read_record(row, kind, record_id, zones[kind])
                    if kind in zones
                    else read_record(row, kind, record_id)
                )
                rows[RecordKey(kind, record_id)] = (row, read)
    entries: list[PlanEntry] = []
    changed = 0
    for item in chosen.iter_rows(named=True):
        found = rows.get(RecordKey(item["memory_type"], item["record_id"]))
        if found is None or not _same(item, found[1]):
            changed += 1
            continue
        entry = {
            "record_id": item["record_id"],
            "memory_type": item["memory_type"],
            "agent_id": item["agent_id"],
            "memory_id": item["memory_id"],
            "user_id": item["user_id"],
            "thread_id": item["thread_id"],
            "retention": item["retention"],
            "importance": item["effective_importance"],
            "usage": item["usage"],
            "recency": item["recency"],
            "age_days": round(item["age"] / MICROSECONDS_PER_DAY, 3),
            "access_count": item["access_count"],
        }
        parts = basis(*found)
        entries.append(
            PlanEntry(
                **entry,
                reason=retention_reason(entry, settings.retention.min_retention),
                fingerprint=fingerprint(parts),
                basis=parts,
            )
        )
    return tuple(entries), changed


def _same(scanned: Mapping[str, Any], record: Record) -> bool:
    return (
        scanned["created_at"] == record.created_at
        and scanned["last_accessed_at"] == record.last_accessed_at
        and scanned["access_count"] == record.access_count
        and scanned["importance"] == record.importance
        and scanned["retention_state"] == record.retention_state
        and (scanned["pinned"], scanned["verified"]) == (record.pinned, record.verified)
    )


@dataclass(slots=True)
class _Counts:
    """The plan's numbers, added up type by type; always exact (SPEC §6.5)."""

    scanned: int = 0
    already_suppressed: int = 0
    rated: int = 0
    accessed: int = 0
    faded: int = 0
    protected: dict[str, int] = field(default_factory=dict)
    breaches: BreachCounts = field(default_factory=BreachCounts)
    distribution: list[int] = field(default_factory=lambda: [0] * DISTRIBUTION_BINS)

    def add(self, scored: pl.DataFrame, config: RetentionConfig) -> None:
        visible = scored.filter(pl.col("retention_state") != "suppressed").get_column("retention").to_numpy()
        bins = np.minimum((visible * DISTRIBUTION_BINS).astype(np.int64), DISTRIBUTION_BINS - 1)
        for number, found in enumerate(np.bincount(bins, minlength=DISTRIBUTION_BINS).tolist()):
            self.distribution[number] += found
        grace = round(config.grace_days * MICROSECONDS_PER_DAY)
        self.scanned += len(scored)
        self.already_suppressed += int((scored["retention_state"] == "suppressed").sum())
        self.rated += len(scored) - scored["importance"].null_count()
        self.accessed += scored.filter((pl.col("access_count") > 0) | pl.col("last_accessed_at").is_not_null()).height
        self.faded += int((scored["recency"] < 0.01).sum())
        low = scored.filter(
            pl.col("protection").is_not_null(),
            pl.col("age").is_null() | (pl.col("age") >= grace),
            pl.col("retention") < config.min_retention,
        )
        for reason, number in low.group_by("protection").len().iter_rows():
            self.protected[reason] = self.protected.get(reason, 0) + number
        self.protected = dict(sorted(self.protected.items()))

    def add_breaches(self, frame: pl.DataFrame, as_of: int) -> None:
        latest = as_of + FUTURE_TOLERANCE
        future = [
            pl.when(pl.col(name) > latest).then(pl.lit(f"{name}_in_future"))
            for name in ("created_at", "last_accessed_at")
        ]
        late = pl.any_horizontal(pl.col("created_at", "last_accessed_at") > latest).fill_null(False)
        broken = (
            frame.filter((pl.col("breaches").list.len() > 0) | late)
            .select("record_id", pl.concat_list(pl.col("breaches"), *future).list.drop_nulls().alias("name"))
            .explode("name")
            .drop_nulls("name")
            .sort("record_id")
        )
        for record_id, name in broken.iter_rows():
            self.breaches.add(name, record_id)

    def coverage(self, config: RetentionConfig) -> dict[str, float]:
        by_importance, *others = config.effective_weights
        room = (by_importance + sum(others)) * config.min_retention
        cut = min(1.0, room / by_importance) if by_importance else float(room > 0)

        def share(number: int) -> float:
            return round(number / self.scanned, DECIMALS) if self.scanned else 0.0

        return {
            "rated": share(self.rated),
            "accessed": share(self.accessed),
            "recency_below_0.01": share(self.faded),
            "effective_importance_cut": round(cut, DECIMALS),
        }
