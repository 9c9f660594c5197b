"""The difference that STORES.md says there is between MemoRizz's own plans and ours, computed from the data.

Everything here is worked out from raw rows, without fallow's own reading: so that a plan of ours and the
answers recorded from MemoRizz can be held against each other, and nothing else may differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from fallow.model.scope import Scope
from fallow.model.scoring import RetrievalScoring
from fallow.model.settings import RetentionConfig
from fallow.plans.plan import RetentionPlan
from fallow.port.protocol import Provider
from fallow.usecases.planner import RetentionPlanner
from fallow.usecases.planning import make_plan

Key = tuple[str, str]
Rows = Mapping[Key, Mapping[str, Any]]

CITING = [
    "source_id",
    "source_ids",
    "source_record_ids",
    "parent_id",
    "parent_source_id",
    "supersedes",
    "supersedes_id",
    "derived_from",
    "source_message_ids",
    "covered_message_ids",
    "message_ids",
    "linked_source_ids",
    "duplicate_of",
]


def state_of(row: Mapping[str, Any]) -> str:
    return str(row.get("retention_state") or "active").lower()


def cited_ids(rows: Rows) -> set[str]:
    """Ids cited by any unsuppressed record of any type, not by itself."""
    cited: set[str] = set()
    for (_, record_id), row in rows.items():
        if state_of(row) == "suppressed":
            continue
        for holder in (row, row.get("metadata") or {}):
            for name in CITING:
                value = holder.get(name)
                for item in value if isinstance(value, list) else [value]:
                    if item is not None and str(item) != record_id:
                        cited.add(str(item))
    return cited


def reasons_to_differ(row: Mapping[str, Any], key: Key, cited: set[str], now: float, grace_days: float) -> set[str]:
    """Which of STORES.md's listed differences apply to this record."""
    reasons: set[str] = set()
    if key[1] in cited:
        reasons.add("cited across types or from outside the scope")
    for item in row.get("attributes") or ():
        if isinstance(item, Mapping) and item.get("pinned") in (True, 1, "true", "yes"):
            reasons.add("a pinned attribute")
    restored = row.get("unsuppressed_at")
    if restored and now - datetime.fromisoformat(str(restored)).timestamp() < grace_days * 86400:
        reasons.add("restored within the grace period")
    value = row.get("importance")
    if value is not None:
        try:
            number = float(value)
            if isinstance(value, bool) or not math.isfinite(number) or not 0 <= number <= 1:
                reasons.add("importance out of range or no number")
        except ValueError:
            reasons.add("importance out of range or no number")
    if sum(row.get(name) is not None for name in ("last_accessed_at", "last_accessed", "last_recalled_at")) > 1:
        reasons.add("several access times")
    if key[1] in cited_by_itself(row, key[1]):
        reasons.add("cites itself")
    stamp = row.get("timestamp")
    if str(stamp).isdigit() and float(str(stamp)) >= 1e11:
        reasons.add("created in milliseconds")
    if {tag.lower() for tag in row.get("tags") or ()} & {"pinned", "verified"} and "pinned" not in row["tags"]:
        reasons.add("a flag among the tags in a spelling of SPEC §1 that is not MemoRizz's")
    return reasons


def cited_by_itself(row: Mapping[str, Any], record_id: str) -> set[str]:
    values = [row.get(name) for name in CITING]
    return {record_id for value in values if record_id in (value if isinstance(value, list) else [value])}


def plan_for(provider: Provider, scenario: Mapping[str, Any], as_of: int, **changes: Any) -> RetentionPlan:
    """Our plan for a recorded scenario, with its resolved configuration given explicitly."""
    recorded = {name: value for name, value in scenario["retention"].items() if value is not None}
    config = RetentionConfig(**{**recorded, **changes})
    planner = RetentionPlanner(provider, scenario["agent_id"], config, RetrievalScoring(**scenario["scoring"]))
    memory_ids = scenario["memory_ids"]
    scope = Scope(agent_id=scenario["agent_id"] or None, memory_ids=None if memory_ids is None else tuple(memory_ids))
    return make_plan(provider, planner.settings, scope=scope, as_of=as_of, now=as_of)


def differences(provider: Provider, scenario: Mapping[str, Any], rows: Rows, as_of: int) -> list[str]:
    """Every difference from the recorded plan that STORES.md's list does not explain; empty is right."""
    now = as_of / 1e6
    assert datetime.fromtimestamp(now, UTC)
    cited = cited_ids(rows)
    grace = float(scenario["retention"]["grace_days"])

    def explained(key: Key) -> set[str]:
        return reasons_to_differ(rows[key], key, cited, now, grace)

    theirs: dict[Key, Mapping[str, Any]] = {(c["target_type"], c["target_id"]): c for c in scenario["candidates"]}
    everything = plan_for(provider, scenario, as_of, max_candidates=10_000)
    ours = {(entry.memory_type, entry.record_id): entry for entry in everything.entries}
    capped = len(theirs) == scenario["retention"]["max_candidates"]
    highest = max((c["utility"] for c in theirs.values()), default=0.0)
    problems: list[str] = []
    for key in theirs.keys() - ours.keys():
        if not explained(key):
            problems.append(f"only theirs: {key}")
    for key in ours.keys() - theirs.keys():
        beyond_the_cap = capped and ours[key].retention >= highest - 1e-6
        if not beyond_the_cap and not explained(key):
            problems.append(f"only ours: {key}")
    both = theirs.keys() & ours.keys()
    for key in both:
        if abs(theirs[key]["utility"] - ours[key].retention) > 1e-6 and not explained(key):
            problems.append(f"retention of {key}: {theirs[key]['utility']} and {ours[key].retention}")
        if abs(theirs[key]["age_days"] - ours[key].age_days) > 1e-3 and not explained(key):
            problems.append(f"age of {key}: {theirs[key]['age_days']} and {ours[key].age_days}")
    plain = {key for key in both if not explained(key)}
    if [key for key in theirs if key in plain] != [key for key in ours if key in plain]:
        problems.append("the order differs")
    for key in plain:
        if theirs[key]["verified"] != bool(ours[key].basis["verified"]):
            problems.append(f"verified of {key}")
    plan = plan_for(provider, scenario, as_of)
    if len(plan.entries) != min(len(ours), scenario["retention"]["max_candidates"]):
        problems.append("the cap")
    return problems


def score_differences(provider: Provider, scenario: Mapping[str, Any], rows: Rows, as_of: int) -> list[str]:
    """Parts of the recorded scores of every record in scope that differ from ours, beyond STORES.md's list."""
    everyone = plan_for(
        provider,
        scenario,
        as_of,
        min_retention=1.0,
        grace_days=0.0,
        protect_pinned=False,
        protect_verified=False,
        max_candidates=10_000,
    )
    ours = {(entry.memory_type, entry.record_id): entry for entry in everyone.entries}
    cited = cited_ids(rows)
    problems: list[str] = []
    compared = 0
    for item in scenario["scores"] or ():
        key = (item["target_type"], item["target_id"])
        entry = ours.get(key)
        if entry is None or reasons_to_differ(rows[key], key, cited, as_of / 1e6, 0.0):
            continue
        compared += 1
        for name in ("retention", "importance", "usage", "recency"):
            if abs(getattr(entry, name) - item[name]) > 1e-6:
                problems.append(f"{name} of {key}: {item[name]} and {getattr(entry, name)}")
    if scenario["scores"] and compared < len(scenario["scores"]) // 4:
        problems.append(f"only {compared} of {len(scenario['scores'])} scores could be compared")
    return problems


def raw_rows(pairs: Iterable[tuple[str, str, Mapping[str, Any]]]) -> dict[Key, Mapping[str, Any]]:
    """Rows by (type, id) for the functions above."""
    return {(memory_type, record_id): row for memory_type, record_id, row in pairs}
