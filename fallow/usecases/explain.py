"""Why a record was, or was not, proposed (SPEC §16, explain): the same functions as planning, on one record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import polars as pl

from fallow.acting.holds import active_holds
from fallow.judgement.holds import held_ids
from fallow.judgement.policy import Policy, agent_policies, policy_of
from fallow.judgement.score import in_scope
from fallow.judgement.words import formula_words, verdict_words
from fallow.model.arguments import memory_type as checked_type
from fallow.model.errors import FallowError, RecordNotFoundError, UsageError
from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from fallow.model.settings import Settings
from fallow.model.times import MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR, iso
from fallow.plans.storage import list_plans, load_plan, standings_of
from fallow.port.gate import check_store
from fallow.port.journal import CHANGE_PREFIX, SHARED, content_of
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, read_agents, read_store
from fallow.usecases.judging import judge_scope

#: Fewer characters are no beginning of an id.
_SHORTEST: Final = 4


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
    scope: Scope | None = None,
) -> dict[str, Any]:
    """Score parts, protection, verdict, days until eligible, plans and journal entries of one record.

    Args:
        settings_of: the settings for an owner; asked once, with the record's agent (None for a scope without one).
        as_of: the instant to judge at, microseconds.
        scope: of which plan the record is explained; None: its owner's, as the nightly plans are made.

    Raises:
        RecordNotFoundError: no readable record has that id.
        UsageError: records of two types have it.
    """
    view = read_store(provider)
    record_id = _whole_id(view, record_id)
    kind, owner = _home(view, record_id, memory_type)
    if scope is None:
        scope = Scope(agent_id=owner) if owner else Scope(unowned=True)
    settings = settings_of(scope.agent_id)
    policy = Policy.of(settings)
    off = agent_policies(read_agents(provider)).off
    excluded = () if scope.agent_id or scope.unowned else off
    outside, row, limit = _judged(provider, settings, view, RecordKey(kind, record_id), scope, excluded, as_of)
    wait = _wait(row, policy, as_of)
    verdict, reason = ("outside", outside) if outside else (row["verdict"], row["reason"])
    parts = {"retention": row["retention"], "importance": row["effective_importance"]}
    parts |= {name: row[name] for name in ("usage", "recency")}
    holds = [hold for hold in active_holds(provider, as_of) if record_id in held_ids(view.frames, [hold]).get(kind, ())]
    return {
        "record_id": record_id,
        "memory_type": kind,
        "agent_id": owner,
        "as_of": iso(as_of),
        "scope": scope.label,
        "agent_switched_off": owner in off,
        "retention_state": row["retention_state"],
        "score": {
            **parts,
            "importance_stored": row["importance"],
            "access_count": row["access_count"],
            "age_days": None if row["age"] is None else round(row["age"] / MICROSECONDS_PER_DAY, 3),
        },
        "formula": formula_words(parts, policy),
        "policy": policy_of(settings),
        "protected_by": row["protection"],
        "holds": [hold.to_json(as_of) for hold in holds],
        "cited_by": _citing(view.frames, record_id),
        "days_until_eligible": None if wait is None else round(wait, 3),
        "verdict": verdict_words(verdict, reason, row["rank"], wait, limit),
        "reason": reason,
        "rank": row["rank"],
        "breaches": list(row["breaches"] or ()),
        "plans": _plans(provider, record_id, kind, as_of),
        "journal": _journal(provider, record_id, kind),
    }


def _whole_id(view: StoreView, shortened: str) -> str:
    """A record's whole id, of which a person may have typed the beginning: four characters or more (SPEC §16).

    Raises:
        UsageError: several records begin so.
    """
    names = [frame["record_id"] for frame in view.frames.values()]
    if len(shortened) < _SHORTEST or any((column == shortened).any() for column in names):
        return shortened
    found = sorted({name for column in names for name in column.filter(column.str.starts_with(shortened)).head(4)})
    if len(found) > 1:
        several = ", ".join(found[:3])
        raise UsageError(f"several records begin with '{shortened[:80]}'", hint=f"write more of it: {several}")
    return found[0] if found else shortened


def _home(view: StoreView, record_id: str, memory_type: str | None) -> tuple[str, str | None]:
    """The type that a record is in, and its owner."""
    types = (checked_type(memory_type),) if memory_type else PRIMARY_TYPES
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
    owner: str | None = view.frames[homes[0]].filter(pl.col("record_id") == record_id).item(0, "agent_id")
    return homes[0], owner


def _judged(
    provider: Provider,
    settings: Settings,
    view: StoreView,
    key: RecordKey,
    scope: Scope,
    excluded: tuple[str, ...],
    as_of: int,
) -> tuple[str | None, dict[str, Any], tuple[float, int] | None]:
    """A record as a plan of the scope judges it.

    Before it, why such a plan does not look at it (None: it does); after it, the share of the scope's risk budget and
    how many records that takes (None: no budget is set).
    """
    one = view.frames[key.memory_type].filter(pl.col("record_id") == key.record_id)
    outside: str | None = None
    if not len(one.filter(in_scope(scope))):
        outside = "other_scope"
    elif not len(one.filter(in_scope(scope, excluded))):
        outside = "opted_out"
    elif key.memory_type not in settings.retention.memory_types:
        outside = "type_not_planned"
    if outside is not None:
        # Judged as if it were looked at, so that its numbers can be shown.
        settings = settings.replacing("retention.memory_types", (key.memory_type,))
        owner = one.item(0, "agent_id")
        scope, excluded = Scope(agent_id=owner) if owner else Scope(unowned=True), ()
    judged = judge_scope(
        provider,
        settings,
        view=view,
        scope=scope,
        as_of=as_of,
        contracts=check_store(provider, view, as_of),
        excluded_agents=excluded,
    )
    budget = judged.limit
    limit = None if budget is None else (budget.promise.share, budget.promise.length)
    row = judged.records.filter(pl.col("memory_type") == key.memory_type, pl.col("record_id") == key.record_id)
    return outside, {**row.row(0, named=True), **({} if outside is None else {"rank": None})}, limit


def _wait(row: Mapping[str, Any], policy: Policy, as_of: int) -> float | None:
    """Days until a record that nobody recalls is eligible; None: never, or its age is not known."""
    if row["age"] is None:
        return None
    idle = row["last_accessed_at"] if row["last_accessed_at"] is not None else row["created_at"]
    return days_until_eligible(
        importance=row["effective_importance"],
        usage=row["usage"],
        idle_hours=max(0, as_of - idle) / MICROSECONDS_PER_HOUR,
        age_days=row["age"] / MICROSECONDS_PER_DAY,
        minimum=policy.retention.min_retention,
        grace_days=policy.retention.grace_days,
        decay=policy.recency_decay_per_hour,
        weights=policy.retention.effective_weights,
    )


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
