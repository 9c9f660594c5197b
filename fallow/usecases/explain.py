"""Why a record was, or was not, proposed (SPEC §16, explain): the same functions as planning, on one record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import polars as pl

from fallow.acting.holds import active_holds
from fallow.judgement.citations import cited_ids
from fallow.judgement.holds import held_ids
from fallow.judgement.policy import policy_of
from fallow.judgement.protection import protection
from fallow.judgement.score import CONVERSATION, in_scope, keep_some, score
from fallow.model.errors import FallowError, RecordNotFoundError, UsageError
from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from fallow.model.settings import MAX_CANDIDATES_LIMIT, Settings
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.plans.storage import list_plans, load_plan, recently_left_out, standings_of
from fallow.port.journal import CHANGE_PREFIX, SHARED, content_of
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, read_store
from fallow.usecases.planner import check_memory_type
from fallow.usecases.planning import make_plan


def days_until_eligible(
    *,
    importance: float,
    usage: float,
    idle_hours: float,
    age_days: float,
    minimum: float,
    grace_days: float,
    decay: float,
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> float | None:
    """Days until a record that nobody recalls falls below ``minimum`` and leaves its grace period; None: never."""
    by_importance, by_usage, by_recency = weights
    room = sum(weights) * minimum - by_importance * importance - by_usage * usage
    wait = max(0.0, grace_days - age_days)
    if room > 0 and by_recency == 0:
        return wait
    room = room / by_recency if by_recency else 0.0
    if room <= 0:
        return None
    if room > 1:
        return wait
    if decay >= 1:
        return None
    return max(wait, (math.log(room) / math.log(decay) - idle_hours) / 24)


def explain_record(
    provider: Provider,
    record_id: str,
    *,
    memory_type: str | None,
    settings_of: Callable[[str | None], Settings],
    as_of: int,
) -> dict[str, Any]:
    """Score parts, protection, days until eligible, plans and journal entries of one record.

    Args:
        settings_of: the settings for an owner; asked once, with the record's agent.
        as_of: the instant to judge at, microseconds.

    Raises:
        RecordNotFoundError: no readable record has that id.
        UsageError: records of two types have it.
    """
    view = read_store(provider)
    types = (check_memory_type(memory_type),) if memory_type else PRIMARY_TYPES
    homes = [name for name in types if (view.frames[name]["record_id"] == record_id).any()]
    if not homes:
        reason = next((item.reason for item in view.unreadable if item.key.record_id == record_id), None)
        if reason:
            raise RecordNotFoundError(
                f"'{record_id[:80]}' cannot be read: {reason}", hint="it is never planned as it is"
            )
        raise RecordNotFoundError(
            f"there is no record '{record_id[:80]}' in this store", hint="check the id and the store"
        )
    if len(homes) > 1:
        raise UsageError(f"'{record_id[:80]}' is in {' and '.join(homes)}", hint="add --memory-type")
    kind = homes[0]
    frame = view.frames[kind]
    owner = frame.filter(pl.col("record_id") == record_id).item(0, "agent_id")
    settings = settings_of(owner)
    config = settings.retention
    decay = float(settings.get("scoring.recency_decay_per_hour"))
    scope = Scope(agent_id=owner) if owner else Scope(unowned=True)
    scored = score(
        frame.filter(in_scope(scope)),
        as_of,
        decay,
        settings.get("scoring.default_importance"),
        config.effective_weights,
    )
    left_out = recently_left_out(provider, as_of, config.left_out_days).get(kind, set())
    holds = [hold for hold in active_holds(provider, as_of) if record_id in held_ids(view.frames, [hold]).get(kind, ())]
    scored = scored.with_columns(
        protection(
            config,
            as_of,
            cited=cited_ids(provider, view, config),
            left_out=left_out,
            held=[record_id] if holds else (),
        )
    )
    if kind == CONVERSATION:
        scored = keep_some(scored, config)
    row = scored.filter(pl.col("record_id") == record_id).row(0, named=True)
    idle = row["last_accessed_at"] if row["last_accessed_at"] is not None else row["created_at"]
    age_days = None if row["age"] is None else row["age"] / MICROSECONDS_PER_DAY
    wait = None
    if age_days is not None:
        wait = days_until_eligible(
            importance=row["effective_importance"],
            usage=row["usage"],
            idle_hours=max(0, as_of - idle) / 3.6e9,
            age_days=age_days,
            minimum=config.min_retention,
            grace_days=config.grace_days,
            decay=decay,
            weights=config.effective_weights,
        )
    verdict = _verdict(row["protection"], wait, row["retention"] < config.min_retention)
    if verdict == "eligible":
        verdict = _within_risk(provider, settings, scope, key=RecordKey(kind, record_id), as_of=as_of, view=view)
    return {
        "record_id": record_id,
        "memory_type": kind,
        "agent_id": owner,
        "as_of": iso(as_of),
        "retention_state": row["retention_state"],
        "score": {
            "retention": row["retention"],
            "importance": row["effective_importance"],
            "importance_stored": row["importance"],
            "usage": row["usage"],
            "recency": row["recency"],
            "access_count": row["access_count"],
            "age_days": None if age_days is None else round(age_days, 3),
        },
        "policy": policy_of(settings),
        "protected_by": row["protection"],
        "holds": [hold.to_json(as_of) for hold in holds],
        "cited_by": _citing(view.frames, record_id),
        "days_until_eligible": None if wait is None else round(wait, 3),
        "verdict": verdict,
        "breaches": list(row["breaches"] or ()),
        "plans": _plans(provider, record_id, kind, as_of),
        "journal": _journal(provider, record_id, kind),
    }


def _within_risk(
    provider: Provider, settings: Settings, scope: Scope, *, key: RecordKey, as_of: int, view: StoreView
) -> str:
    """Whether the risk budget of a plan over the owner's records reaches an eligible record."""
    if settings.risk.share is None:
        return "eligible"
    left_out = recently_left_out(provider, as_of, settings.retention.left_out_days)
    whole = settings.replacing("retention.max_candidates", MAX_CANDIDATES_LIMIT)
    plan = make_plan(provider, whole, scope=scope, as_of=as_of, now=as_of, left_out=left_out, view=view)
    within = plan.document["risk"]["within"]
    if any(entry.key == key for entry in plan.entries) or not plan.counts["over_risk"]:
        return f"eligible, within the risk budget of {settings.risk.share:g}"
    return f"eligible, but the risk budget of {settings.risk.share:g} ends after {within} records of its scope"


def _verdict(protected: str | None, wait: float | None, low: bool) -> str:
    if protected is not None:
        return f"not eligible: {protected.replace('_', ' ')}"
    if wait is None:
        return "not eligible: its importance and use alone keep it above the cut"
    if wait <= 0 and low:
        return "eligible"
    return f"not eligible yet: in {wait:.1f} days if nobody recalls it"


def _citing(frames: dict[str, pl.DataFrame], record_id: str) -> list[str]:
    citing: list[str] = []
    for name, frame in frames.items():
        found = frame.filter(
            pl.col("citations").list.contains(record_id),
            pl.col("retention_state") != "suppressed",
            pl.col("record_id") != record_id,
        )
        citing += [f"{name}:{item}" for item in found["record_id"].to_list()]
    return sorted(citing)


def _plans(provider: Provider, record_id: str, kind: str, now: int) -> list[dict[str, Any]]:
    touching: list[dict[str, Any]] = []
    for stored in list_plans(provider, now):
        try:
            plan = load_plan(provider, stored.plan_id)
        except FallowError as error:
            touching.append({"plan_id": stored.plan_id, "state": f"not usable: {error.code}"})
            continue
        entry = next((item for item in plan.entries if item.record_id == record_id and item.memory_type == kind), None)
        if entry is not None:
            decision = stored.decision
            touching.append(
                {
                    "plan_id": stored.plan_id,
                    "state": stored.state,
                    "reason": entry.reason,
                    "by": None if decision is None else decision.by,
                    "standing": None if decision is None else decision.standing,
                }
            )
    return touching


def _journal(provider: Provider, record_id: str, kind: str) -> list[dict[str, Any]]:
    standings = standings_of(provider)
    entries = [
        {
            "at": str(content.get("created_at")),
            "action": str(content.get("action")),
            "actor": str(content.get("actor")),
            "source": (source := str(content.get("source"))),
            "standing": "claimed"
            if source == "forgetting:unsuppress"
            else standings.get(source.removeprefix("forgetting:")),
            "changed_fields": content.get("changed_fields") or [],
        }
        for row in provider.find(SHARED, CHANGE_PREFIX)
        if (content := content_of(row)).get("target_record_id") == record_id and content.get("memory_type") == kind
    ]
    return sorted(entries, key=lambda item: item["at"])
