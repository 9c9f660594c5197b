"""How ranking weighs recency, importance and relevance: the settings alone (SPEC §2.1, §2.4)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Final, Literal

from fallow.model.arguments import refused
from fallow.model.errors import SettingError
from fallow.model.record import read_number

Anchor = Literal["last_accessed", "created"]
Superseded = Literal["as_scored", "behind"]


#: The environment variable of each field of :class:`RetrievalScoring` (SPEC §2.4).
SCORING_ENVIRONMENT: Final[Mapping[str, str]] = {
    "recency_decay_per_hour": "MEMORIZZ_RECENCY_DECAY_PER_HOUR",
    "recency_anchor": "MEMORIZZ_RECENCY_ANCHOR",
    "alpha_recency": "MEMORIZZ_ALPHA_RECENCY",
    "alpha_importance": "MEMORIZZ_ALPHA_IMPORTANCE",
    "alpha_relevance": "MEMORIZZ_ALPHA_RELEVANCE",
    "normalize": "MEMORIZZ_SCORE_NORMALIZE",
    "default_importance": "MEMORIZZ_DEFAULT_IMPORTANCE",
    "superseded": "FALLOW_SCORE_SUPERSEDED",
}

_ANCHORS: Final = ("last_accessed", "created")
_SUPERSEDED: Final = ("as_scored", "behind")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


def _fault(name: str, value: Any) -> str | None:
    """What is wrong with a field's value, as the end of a sentence; None where it can be used."""
    if name == "recency_anchor":
        return None if value in _ANCHORS else "must be last_accessed or created"
    if name == "superseded":
        return None if value in _SUPERSEDED else "must be as_scored or behind"
    if name == "normalize":
        return None if isinstance(value, bool) else "must be true or false"
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return "must be a finite number"
    value = float(value)
    if name == "recency_decay_per_hour":
        return None if 0.0 < value <= 1.0 else "must be greater than 0 and at most 1"
    if name == "default_importance":
        return None if 0.0 <= value <= 1.0 else "must be from 0 to 1"
    return None if value >= 0.0 else "must be 0 or more"


@dataclass(frozen=True, slots=True)
class RetrievalScoring:
    """Weights and anchors of the ranking; immutable and checked when built.

    Attributes:
        recency_decay_per_hour: in (0, 1]; 0.995 halves recency every 138 hours, 1 switches decay off.
        recency_anchor: ``last_accessed`` (a recall makes a memory fresh again) or ``created``.
        alpha_recency: weight, finite and not negative; likewise the other two. All zero scores 0 for all.
        alpha_importance: weight of the stored rating.
        alpha_relevance: weight of the likeness to the query.
        normalize: min-max each term over the candidates before weighing.
        default_importance: what an unrated memory counts as, in 0..1; never stored.
        superseded: ``behind``: a row never stands before one that supersedes it, and has no higher score; of a
            candidate's successors only those among the candidates count. ``as_scored``: fields do not matter.

    Raises:
        SettingError: a value is outside its range or not of its kind.
    """

    recency_decay_per_hour: float = 0.995
    recency_anchor: Anchor = "last_accessed"
    alpha_recency: float = 1.0
    alpha_importance: float = 1.0
    alpha_relevance: float = 1.0
    normalize: bool = True
    default_importance: float = 0.5
    superseded: Superseded = "as_scored"

    def __post_init__(self) -> None:
        for name in SCORING_ENVIRONMENT:
            value = getattr(self, name)
            fault = _fault(name, value)
            if fault is not None:
                raise SettingError(
                    f"{name} {fault}, not {str(value)[:40]!r}",
                    hint=f"the default is {_DEFAULTS[name]!r}",
                )
            if name not in {"recency_anchor", "superseded", "normalize"}:
                object.__setattr__(self, name, float(value))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> tuple[RetrievalScoring, tuple[str, ...]]:
        """Scoring from the MEMORIZZ_* variables of ``environ``, and what was wrong with them (SPEC §2.4).

        A blank variable is as good as none. One that cannot be used leaves its default in place and is
        named in the problems; nothing is raised.
        """
        values = {name: environ.get(variable) for name, variable in SCORING_ENVIRONMENT.items()}
        return _overridden(cls(), values, SCORING_ENVIRONMENT)


def scoring_or_default(given: Any, argument: str = "scoring") -> RetrievalScoring:
    """The scoring that was given; None is the paper's.

    Raises:
        UsageError: no RetrievalScoring.
    """
    if given is not None and not isinstance(given, RetrievalScoring):
        raise refused(argument, given, "a RetrievalScoring", hint="RetrievalScoring(**values) makes one of a mapping")
    return RetrievalScoring() if given is None else given


_DEFAULTS: Final[Mapping[str, Any]] = {field.name: field.default for field in fields(RetrievalScoring)}


def _coerced(name: str, value: Any) -> Any:
    """A setting as text or JSON gives it, in the type that the field wants; unusable values come back unchanged."""
    if name in {"recency_anchor", "superseded"}:
        return value.strip().lower() if isinstance(value, str) else value
    if name == "normalize":
        word = str(value).strip().lower() if isinstance(value, str | int) else ""
        return True if word in _TRUE else False if word in _FALSE else value
    number = read_number(value)
    return value if number is None else number


def _overridden(
    base: RetrievalScoring, values: Mapping[str, Any], labels: Mapping[str, str]
) -> tuple[RetrievalScoring, tuple[str, ...]]:
    usable: dict[str, Any] = {}
    problems: list[str] = []
    for name, label in labels.items():
        value = values.get(name)
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        coerced = _coerced(name, value)
        fault = _fault(name, coerced)
        if fault is None:
            usable[name] = coerced
        else:
            problems.append(f"{label} {fault}, not {str(value)[:40]!r}; {getattr(base, name)!r} is used")
    return replace(base, **usable), tuple(problems)


def agent_scoring_overrides(agent_record: Mapping[str, Any]) -> Any:
    """``retrieval_policy.scoring`` of an agent record, whose levels a store may keep as JSON text; None if absent."""
    holder: Any = agent_record
    for name in ("retrieval_policy", "scoring"):
        holder = holder.get(name)
        if isinstance(holder, str):
            if not holder.strip():
                return None
            try:
                holder = json.loads(holder)
            except (ValueError, RecursionError):
                return holder
        if not isinstance(holder, Mapping):
            return holder
    return holder


def scoring_for(
    agent_record: Mapping[str, Any] | None, base: RetrievalScoring | None = None
) -> tuple[RetrievalScoring, tuple[str, ...]]:
    """An agent's own scoring over ``base`` (SPEC §2.4), and what was wrong with its overrides.

    Absent and blank fields inherit, numbers may be text, bad values are reported and inherit; never raises.
    """
    scoring = base if base is not None else RetrievalScoring()
    overrides = agent_scoring_overrides(agent_record) if agent_record is not None else None
    if overrides is None:
        return scoring, ()
    if not isinstance(overrides, Mapping):
        return scoring, ("retrieval_policy.scoring is no object; it is ignored",)
    labels = {name: f"retrieval_policy.scoring.{name}" for name in SCORING_ENVIRONMENT}
    return _overridden(scoring, overrides, labels)
