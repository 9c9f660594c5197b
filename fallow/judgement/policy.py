"""The policy as it stands in a plan, and which agents have one of their own (SPEC §6.1, §6.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from fallow.model.settings import SETTINGS, RetentionConfig, Settings, agent_policy, parse_flag
from fallow.model.times import parse_time

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
#: Younger settings: they enter only where they differ from their default, so that older policies keep their ids.
_YOUNGER: Final = ("store.earliest_time", "retention.superseded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that a decision rests on beside the records, as one value from planning to the certificate.

    ``earliest_time`` is in microseconds: an earlier time is no memory's (SPEC §1.1).
    """

    retention: RetentionConfig
    recency_decay_per_hour: float
    default_importance: float
    earliest_time: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The policy that settings resolve to."""
        return cls(
            retention=settings.retention,
            recency_decay_per_hour=float(settings.get("scoring.recency_decay_per_hour")),
            default_importance=float(settings.get("scoring.default_importance")),
            earliest_time=_instant(settings.get("store.earliest_time")),
        )

    @classmethod
    def of_document(cls, policy: Mapping[str, Mapping[str, Any]]) -> Self:
        """The policy as a plan's document carries it; what is younger than the plan has its default.

        Raises:
            SettingError: a value is none that the setting could have.
        """

        def value(name: str) -> Any:
            item = policy.get(name.partition(".")[2])
            return SETTINGS[name].default if item is None else item["value"]

        names = [item.name for item in fields(RetentionConfig)]
        return cls(
            retention=RetentionConfig(**{name: value(f"retention.{name}") for name in names}),
            recency_decay_per_hour=float(value("scoring.recency_decay_per_hour")),
            default_importance=float(value("scoring.default_importance")),
            earliest_time=_instant(value("store.earliest_time")),
        )


def _instant(text: str) -> int:
    instant = parse_time(text)
    if instant is None:
        raise ValueError(f"{text!r} is no time")
    return instant


#: Settings that enter it only where a risk budget is set: an unchanged policy keeps its plan ids.
_RISK: Final = ("risk.share", "risk.confidence", "risk.drop", "risk.questions", "risk.window_days")


def policy_of(settings: Settings) -> dict[str, dict[str, Any]]:
    """The policy that a plan carries: value and origin of everything the decision rests on."""
    policy: dict[str, dict[str, Any]] = {}
    differing = tuple(name for name in _YOUNGER if settings.get(name) != SETTINGS[name].default)
    for name in (*_POLICY, *differing):
        item = settings.values[name]
        value = list(item.value) if isinstance(item.value, tuple) else item.value
        policy[name.partition(".")[2]] = {"value": value, "origin": item.origin}
    if settings.risk.share is not None:
        for name in _RISK:
            policy[name] = {"value": settings.values[name].value, "origin": settings.values[name].origin}
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
