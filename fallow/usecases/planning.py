"""Making a plan: read a store once, score, protect, seal (SPEC §6). Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from fallow.acting.holds import active_holds
from fallow.judgement.citations import cited_ids
from fallow.judgement.holds import held_ids
from fallow.judgement.policy import AgentPolicies, policy_of
from fallow.judgement.protection import protection
from fallow.judgement.score import CONVERSATION, in_scope, keep_some, score
from fallow.judgement.words import retention_reason
from fallow.model.canonical import DECIMALS
from fallow.model.keys import RecordKey
from fallow.model.record import (
    BreachCounts,
    Record,
    basis,
    fingerprint,
    read_record,
)
from fallow.model.scope import Scope
from fallow.model.settings import RetentionConfig, Settings
from fallow.model.times import FUTURE_TOLERANCE, MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR, iso, zone
from fallow.plans.plan import SCHEMA_VERSION, PlanEntry, RetentionPlan
from fallow.port.gate import ContractResult
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import StoreView, read_store
from fallow.usecases.risk import budget, in_order, order_of, thresholds_of

#: A plan shows how the retention of its scope's visible records spreads over this many equal parts of 0..1.
DISTRIBUTION_BINS: Final = 20
#: A share of fewer records than this says nothing.
_EACH_FROM: Final = 10


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
    free: list[pl.DataFrame] = []
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
        free.append(
            scored.filter(
                pl.col("protection").is_null(), pl.col("age") >= round(config.grace_days * MICROSECONDS_PER_DAY)
            )
        )
    found = [item for item in view.unreadable if item.key.memory_type in config.memory_types]
    for item in found:
        counts.breaches.add(item.reason.partition(":")[0].replace(" ", "_"), item.key.record_id)
    ordered = in_order(pl.concat(free))
    ranked = ordered.filter(pl.col("retention") < config.min_retention)
    limit = budget(provider, settings.risk, scope, order_of(ordered), as_of=as_of, view=view)
    within = ranked if limit is None else ranked.head(limit.promise.length)
    chosen = within.head(config.max_candidates)
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
            "deferred": len(within) - len(chosen),
            **({} if limit is None else {"over_risk": len(ranked) - len(within)}),
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
        **({} if limit is None else {"risk": limit.document(len(chosen), thresholds_of(ordered))}),
        "agents": {"left_out": list(excluded), "differing": list(policies.differing) if whole_store else []},
        "settings_problems": list(settings.problems),
        "contracts": None if contracts is None else dict(contracts.summary),
        "requested_by": requested_by,
        "planned_at": iso(now),
        "expires_at": iso(now + round(config.expiry_hours * MICROSECONDS_PER_HOUR)),
    }
    return RetentionPlan.seal(document, entries)


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
