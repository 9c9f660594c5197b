"""Making a plan: read a store once, score, protect, seal (SPEC §6). Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from fallow.judgement.citations import superseded_ids
from fallow.judgement.nearest import names_without_records
from fallow.judgement.policy import AgentPolicies, Policy, policy_of
from fallow.judgement.score import in_scope
from fallow.judgement.verdicts import eligible_number, scales_of
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
from fallow.port.gate import ContractResult, check_store
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import StoreView, read_store
from fallow.usecases.judging import Judgement, judge_scope
from fallow.usecases.risk import thresholds_of

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
        policies: the agents to leave out of a whole-store plan, and to name.
        view: a store already read, when several scopes are planned in one night.
        contracts: what data contracts found in ``view``; None: the installed ones are asked.

    Raises:
        StoreUnreadableError: there is no plan over part of a scope (SPEC §1.4).
        ContractBreachError: the store as a whole breaks its contract (SPEC §13).
    """
    policies, view = policies or AgentPolicies(), view or read_store(provider)
    whole_store = not scope.agent_id and not scope.unowned
    excluded = policies.off if whole_store else ()
    contracts = check_store(provider, view, as_of) if contracts is None else contracts
    if contracts is not None:
        contracts.refuse(settings.retention.memory_types)
    found = judge_scope(
        provider, settings, view=view, scope=scope, as_of=as_of, contracts=contracts, excluded_agents=excluded
    )
    judged, policy, limit = found.records, found.policy, found.limit
    chosen = judged.filter(pl.col("verdict") == "planned").sort("rank")
    entries, changed = _entries(provider, chosen, policy)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "as_of": iso(as_of),
        "store": {"kind": provider.capabilities.kind, "identity": provider.identity()},
        "scope": scope.to_json(),
        "policy": policy_of(settings),
        **_numbers(found, view, as_of, len(entries), changed),
        "usage_scales": scales_of(judged, view.frames, policy, found.evidence, scope=scope, as_of=as_of),
        "blast_radius": _blast_radius(judged, view, policy.retention, in_scope(scope, excluded), entries),
        **({} if limit is None else {"risk": limit.document(len(chosen), thresholds_of(found.ordered))}),
        "agents": {
            "left_out": list(excluded),
            "differing": list(policies.differing) if whole_store else [],
            "switched_off": [scope.agent_id] if scope.agent_id in policies.off else [],
        },
        "names_without_records": names_without_records(view.frames, scope),
        "settings_problems": list(settings.problems),
        "contracts": None if contracts is None else dict(contracts.summary),
        "requested_by": requested_by,
        "planned_at": iso(now),
        "expires_at": iso(now + round(policy.retention.expiry_hours * MICROSECONDS_PER_HOUR)),
    }
    return RetentionPlan.seal(document, entries)


def _numbers(found: Judgement, view: StoreView, as_of: int, planned: int, changed: int) -> dict[str, Any]:
    """The plan's numbers, which are always exact (SPEC §6.5)."""
    judged, policy = found.records, found.policy
    unreadable = [item for item in view.unreadable if item.key.memory_type in policy.retention.memory_types]
    breaches = _breaches(judged, policy, as_of)
    for item in unreadable:
        breaches.add(item.reason.partition(":")[0].replace(" ", "_"), item.key.record_id)
    held = judged.filter(pl.col("low"), pl.col("verdict") == "protected").group_by("reason").len()
    verdicts = dict(judged.group_by("verdict").len().iter_rows())
    seen = judged.filter(pl.col("retention_state") != "suppressed")
    visible = seen.get_column("retention").to_numpy()
    superseded = int(seen.get_column("record_id").is_in(list(superseded_ids(view.frames))).sum())
    bins = np.minimum((visible * DISTRIBUTION_BINS).astype(np.int64), DISTRIBUTION_BINS - 1)
    return {
        "counts": {
            "scanned": len(judged),
            "eligible": eligible_number(judged),
            "planned": planned,
            "deferred": verdicts.get("deferred", 0),
            **({} if found.limit is None else {"over_risk": verdicts.get("over_risk", 0)}),
            "changed_while_planning": changed,
            "superseded": superseded,
            "protected": {**dict(sorted(held.iter_rows())), "unreadable": len(unreadable)},
            "breaches": dict(sorted(breaches.counts.items())),
        },
        "breach_ids": dict(sorted(breaches.first_ids.items())),
        "coverage": _coverage(judged, policy.retention),
        "distribution": np.bincount(bins, minlength=DISTRIBUTION_BINS).tolist(),
    }


def _blast_radius(
    judged: pl.DataFrame, view: StoreView, config: RetentionConfig, within: pl.Expr, entries: Collection[PlanEntry]
) -> dict[str, Any]:
    """How much of its scope, and of each owner's in it, the plan would hide (SPEC §6.8)."""
    visible = int((judged["retention_state"] != "suppressed").sum())
    share = round(len(entries) / visible, DECIMALS) if visible else 0.0
    each = _widest(view, config, within, entries)
    return {
        "share": share,
        "limit": config.blast_radius,
        "each": each,
        "limit_each": config.blast_radius_each,
        "exceeded": share > config.blast_radius
        or any(item["share"] > config.blast_radius_each for item in each.values()),
    }


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


def _entries(provider: Provider, chosen: pl.DataFrame, policy: Policy) -> tuple[tuple[PlanEntry, ...], int]:
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
                reason=retention_reason(entry, policy.retention.min_retention, superseded=not item["current"]),
                fingerprint=fingerprint(parts),
                basis=parts,
            )
        )
    return tuple(entries), changed


def _same(scanned: Mapping[str, Any], record: Record) -> bool:
    return (
        scanned["created_at"] == record.created_at
        and scanned["stored_last_accessed_at"] == record.last_accessed_at
        and scanned["stored_access_count"] == record.access_count
        and scanned["importance"] == record.importance
        and scanned["retention_state"] == record.retention_state
        and (scanned["pinned"], scanned["verified"]) == (record.pinned, record.verified)
    )


def _breaches(judged: pl.DataFrame, policy: Policy, as_of: int) -> BreachCounts:
    """The fields that counted as absent, and the times that lie ahead, with the first records of each."""
    latest, found = as_of + FUTURE_TOLERANCE, BreachCounts()
    future = [
        pl.when(pl.col(name) > latest).then(pl.lit(f"{name}_in_future")) for name in ("created_at", "last_accessed_at")
    ]
    late = pl.any_horizontal(pl.col("created_at", "last_accessed_at") > latest).fill_null(False)
    for memory_type in policy.retention.memory_types:
        broken = (
            judged.filter(pl.col("memory_type") == memory_type, (pl.col("breaches").list.len() > 0) | late)
            .select("record_id", pl.concat_list(pl.col("breaches"), *future).list.drop_nulls().alias("name"))
            .explode("name")
            .drop_nulls("name")
            .sort("record_id")
        )
        for record_id, name in broken.iter_rows():
            found.add(name, record_id)
    return found


def _coverage(judged: pl.DataFrame, config: RetentionConfig) -> dict[str, float]:
    by_importance, *others = config.effective_weights
    room = (by_importance + sum(others)) * config.min_retention
    cut = min(1.0, room / by_importance) if by_importance else float(room > 0)
    recalled = judged.select(((pl.col("access_count") > 0) | pl.col("last_accessed_at").is_not_null()).sum()).item()

    def share(number: int) -> float:
        return round(number / len(judged), DECIMALS) if len(judged) else 0.0

    return {
        "rated": share(len(judged) - judged["importance"].null_count()),
        "accessed": share(recalled),
        "recency_below_0.01": share(int((judged["recency"] < 0.01).sum())),
        "effective_importance_cut": round(cut, DECIMALS),
    }
