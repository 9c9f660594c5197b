"""What verdicts and reasons are called, for people: said here once (SPEC §6.6, §6.10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fallow.judgement.policy import Policy
from fallow.model.times import FUTURE_TOLERANCE, MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR, iso, parse_time

#: Why a record stays all the same, for people who have never read a specification (SPEC §6.3).
MEANINGS: Final[Mapping[str, str]] = {
    "unreadable": "cannot be read, so it is not judged",
    "quarantined": "it breaks its data contract",
    "unknown_creation_time": "nobody knows how old it is",
    "suppressed": "hidden already",
    "sealed": "sealed into its own thread",
    "held": "somebody put a hold on it",
    "pinned": "pinned by its agent or user",
    "verified": "verified to be right",
    "restored": "a person took it back a short while ago",
    "recalled": "recalled within the last week",
    "left_out": "an approver left it out a short while ago",
    "cited": "something visible is built on it",
    "conversation_minimum": "its conversation would show too few records without it",
    "too_young": "younger than the grace period",
    "above_cut": "worth more than the cut",
    "planned": "old enough, worth less than the cut, and nothing protects it",
    "deferred": "eligible, but the plan is full: a later one takes it",
    "over_risk": "eligible, but past questions would lose more answers than the risk budget allows",
    "opted_out": "its agent switched retention off",
    "type_not_planned": "the policy does not plan this memory type",
    "other_scope": "it is in another scope",
}

#: What apply calls a protection that was not there when the record was planned, where that is another word.
_SINCE: Final[Mapping[str, str]] = {"cited": "newly cited"}


def called(reason: str) -> str:
    """A reason as people read it: ``left_out`` is "left out"."""
    return reason.replace("_", " ")


def skipped_for(reason: str) -> str:
    """What apply calls the reason for which it leaves a planned record alone (SPEC §8.1)."""
    return _SINCE.get(reason, called(reason))


def verdict_words(
    verdict: str, reason: str, rank: int | None, wait: float | None, limit: tuple[float, int] | None = None
) -> str:
    """A record's verdict in one sentence.

    Args:
        wait: days until an unprotected record that nobody recalls is eligible; None: never.
        limit: the share of a risk budget and the number of records that it takes; None: no budget is set.
    """
    if verdict == "protected":
        return f"not eligible: {called(reason)}"
    if verdict == "outside":
        return f"not planned: {MEANINGS[reason]}"
    if verdict == "over_risk" and limit is not None:
        return f"eligible, but the risk budget of {limit[0]:g} ends after {limit[1]} records of its scope"
    if verdict == "deferred":
        return f"eligible: number {rank}, deferred by the cap"
    if verdict == "planned":
        return f"eligible: number {rank} of the plan" if limit is None else _within(limit[0])
    if wait is None:
        return "not eligible: its importance and use alone keep it above the cut"
    return f"not eligible yet: in {wait:.1f} days if nobody recalls it"


def _within(share: float) -> str:
    return f"eligible, within the risk budget of {share:g}"


#: What the parts of a scope are called.
_PARTS: Final[Mapping[str, str]] = {
    "agent_id": "agent",
    "memory_id": "memory",
    "user_id": "user",
    "thread_id": "thread",
}


def _far(microseconds: int) -> str:
    days = microseconds / MICROSECONDS_PER_DAY
    if days >= 730:
        return f"{days / 365.25:.0f} years"
    return f"{days:.0f} days" if days >= 2 else f"{microseconds / MICROSECONDS_PER_HOUR:.1f} hours"


def notices(document: Mapping[str, Any]) -> list[str]:
    """What stands before everything else wherever a plan is shown (SPEC §6.7, §6.10): mostly nothing.

    Args:
        document: the plan's; a plan from before such a notice has none.
    """
    said: list[str] = []
    as_of, planned_at = parse_time(document["as_of"]) or 0, parse_time(document["planned_at"]) or 0
    if as_of > planned_at + FUTURE_TOLERANCE:
        said.append(
            f"What if: this plan lies {_far(as_of - planned_at)} ahead. It is not published, approved or applied "
            f"before {iso(as_of)}."
        )
    for name in document["agents"].get("switched_off", ()):
        said.append(f"Retention is switched off for agent {name}: this plan was made by its name.")
    for item in document.get("names_without_records", ()):
        nearest = f"; the nearest: {', '.join(item['nearest'])}" if item["nearest"] else ""
        said.append(f"No record of the store has {_PARTS[item['field']]} {item['value']}{nearest}.")
    return said


def scale_words(document: Mapping[str, Any]) -> list[str]:
    """For each set, whose count gives the scale of usage, and how many records are eligible through it (SPEC §1.2)."""
    return [
        f"usage in {name} is measured by {item['record_id']}, recalled {item['access_count']} times "
        f"(the next {item['second']}): {item['eligible_through_it']} more eligible through it"
        for name, item in document.get("usage_scales", {}).items()
    ]


def formula_words(parts: Mapping[str, float], policy: Policy) -> str:
    """How a retention came about, by the formula that is in force (SPEC §6.2).

    Args:
        parts: ``retention``, ``importance``, ``usage``, ``recency``.
    """
    config = policy.retention
    if config.formula == "importance_first":
        return (
            f"retention {parts['retention']:.3f} = importance {parts['importance']:.3f} "
            f"(importance first), cut {config.min_retention:g}"
        )
    weights = dict(zip(("importance", "usage", "recency"), config.effective_weights, strict=True))
    total = sum(weights.values())
    terms = " + ".join(
        (f"{weight:g} × " if weight != 1 else "") + f"{name} {parts[name]:.3f}" for name, weight in weights.items()
    )
    return f"retention {parts['retention']:.3f} = ({terms}) / {total:g}, cut {config.min_retention:g}"


def retention_reason(entry: Mapping[str, Any], min_retention: float, *, superseded: bool = False) -> str:
    """Why a record is proposed, in words (SPEC §6.6); ``superseded``: a newer one takes its place (SPEC §6.3)."""
    recalled = entry["access_count"]
    times = "never recalled" if recalled == 0 else ("recalled once" if recalled == 1 else f"recalled {recalled} times")
    why = f"is below {min_retention:g}"
    if superseded:
        why = (
            f"{why}, and a newer record supersedes it"
            if entry["retention"] < min_retention
            else "does not matter, a newer record supersedes it"
        )
    return (
        f"retention {entry['retention']:.3f} {why}: importance {entry['importance']:.2f}, "
        f"{times}, recency {entry['recency']:.3f}, {entry['age_days']:.0f} days old"
    )
