"""Every setting, where its value came from, and who wins (SPEC §2.4, §6.1).

One table names all settings. :func:`resolve` walks it once: option, agent's override, Prefect variable,
environment, default; the first that holds a usable value wins and its origin is kept. A bad option
raises; a bad value anywhere else is reported in ``problems`` and the next origin is asked.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from fallow.model.errors import SettingError
from fallow.model.record import PRIMARY_TYPES, TYPE_ALIASES
from fallow.model.scoring import RetrievalScoring
from fallow.model.times import iso, parse_time, zone

Origin = Literal["option", "agent", "variable", "environment", "default", "code"]

MAX_CANDIDATES_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """What a retention plan is made by (SPEC §6.1).

    Attributes:
        enabled: scheduled planning acts at all.
        min_retention: records whose retention is below this are eligible, 0..1.
        grace_days: younger records, and records restored less than this ago, are left alone.
        max_candidates: entries in one plan, 1..10000; what is eligible beyond is deferred, never silently.
        memory_types: primary types to plan over.
        left_out_days: a record an approver left out is not proposed again for this long.
        blast_radius: a plan that would hide more than this share of its scope is marked (SPEC §6.8).
        expiry_hours: how long a plan waits for its approval (SPEC §7.2).
        stale_share: when more than this share of the approved records has changed, nothing is applied.
        covered_rows: ``protect`` (a reflection's citation protects its rows, as any citation does) or
            ``release`` (what only live reflections cite may be suppressed).
        superseded: ``protect`` (a successor's citation protects what it supersedes), ``allow`` (it protects nothing),
            or ``first`` (what a visible record supersedes is eligible after grace_days, and stands first).
        keep_per_conversation: at least this many records of every conversation stay visible.
        weights: what importance, usage and recency weigh in the mean, in this order; at least 0, not all 0.
        formula: ``mean`` (SPEC §6.2), or ``importance_first``: retention is the importance alone, and a record
            recalled within the last week is protected.
        blast_radius_each: a plan that would hide more than this share of one agent's, one memory's or one
            user's records (of those with at least 10) is marked as well.

    Raises:
        SettingError: a value is out of its range.
    """

    enabled: bool = False
    min_retention: float = 0.15
    grace_days: float = 30.0
    protect_verified: bool = True
    protect_pinned: bool = True
    protect_sealed: bool = False
    max_candidates: int = 500
    memory_types: tuple[str, ...] = PRIMARY_TYPES
    left_out_days: float = 30.0
    blast_radius: float = 0.2
    expiry_hours: float = 72.0
    stale_share: float = 0.9
    covered_rows: str = "protect"
    superseded: str = "protect"
    keep_per_conversation: int = 0
    blast_radius_each: float = 1.0
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    formula: str = "mean"

    @property
    def effective_weights(self) -> tuple[float, float, float]:
        """What importance, usage and recency weigh in retention."""
        return (1.0, 0.0, 0.0) if self.formula == "importance_first" else self.weights

    def __post_init__(self) -> None:
        for item in fields(self):
            check = SETTINGS[f"retention.{item.name}"].parse
            try:
                object.__setattr__(self, item.name, check(getattr(self, item.name)))
            except ValueError as error:
                raise SettingError(f"RetentionConfig.{item.name}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskConfig:
    """How likely a plan may cost the questions that people ask (SPEC §6.11).

    Attributes:
        share: new questions lose their nearest memory at most this often on average; None: no budget.
        confidence: ...with this probability over the past questions drawn.
        drop: a question loses when its nearest memory falls by more than this of the way to the median.
        questions: past questions asked at most, old and new ones alike.
        questions_file: a file of questions to ask instead of the store's own; empty: none.
        window_days: only questions of the last so many days; 0: all.

    Raises:
        SettingError: a value is out of its range.
    """

    share: float | None = None
    confidence: float = 0.9
    drop: float = 0.1
    questions: int = 200
    questions_file: str = ""
    window_days: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            try:
                if value is not None or item.name != "share":
                    object.__setattr__(self, item.name, SETTINGS[f"risk.{item.name}"].parse(value))
            except ValueError as error:
                raise SettingError(f"RiskConfig.{item.name}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalConfig:
    """Who may approve, and what the approver is shown (SPEC §7.4, §14).

    Attributes:
        approvers: names that may approve; empty: any non-blank name, recorded as claimed.
        four_eyes: the requester of a plan may not approve it.
        show_text: an escaped excerpt of at most 120 characters stands beside each planned record.
        require_signed: nothing is applied on a name alone: the approval is signed by a registered operator.
        operators_file: the file of registered operators (:mod:`fallow.acting.signatures`); empty: none.
        operators: registered operators as JSON text, beside the file's.
    """

    approvers: tuple[str, ...] = ()
    four_eyes: bool = False
    show_text: bool = False
    require_signed: bool = False
    operators_file: str = ""
    operators: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: where it may be set and how a value is read (``parse`` raises ValueError with the reason).

    ``local``: only the environment of whoever applies sets it. The Prefect variable does not: who can answer
    an approval's form can often write variables too.
    """

    parse: Callable[[Any], Any]
    default: Any
    env: str
    agent: tuple[str, ...] = ()
    meaning: str = ""
    local: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value and where it came from."""

    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings resolved for one run or one agent.

    ``values`` maps names such as ``retention.min_retention`` to their value and origin; ``problems`` says
    which values were found but not used, by name and origin, never with a secret.
    """

    values: Mapping[str, Resolved]
    problems: tuple[str, ...] = ()

    def get(self, name: str) -> Any:
        """The value of one setting."""
        return self.values[name].value

    def replacing(self, name: str, value: Any, origin: Origin = "code") -> Settings:
        """The same settings with one value given in code; unchanged where the value is the same."""
        if self.values[name].value == value:
            return self
        return Settings({**self.values, name: Resolved(value, origin)}, self.problems)

    def _section(self, section: str) -> dict[str, Any]:
        prefix = section + "."
        return {name.removeprefix(prefix): item.value for name, item in self.values.items() if name.startswith(prefix)}

    @property
    def retention(self) -> RetentionConfig:
        """The retention section."""
        return RetentionConfig(**self._section("retention"))

    @property
    def risk(self) -> RiskConfig:
        """The risk section."""
        return RiskConfig(**self._section("risk"))

    @property
    def scoring(self) -> RetrievalScoring:
        """The scoring section."""
        return RetrievalScoring(**self._section("scoring"))

    @property
    def approval(self) -> ApprovalConfig:
        """The approval section."""
        return ApprovalConfig(**self._section("approval"))

    @property
    def naive_timezone(self) -> dict[str, str]:
        """Zone by memory type for naive creation times."""
        value: dict[str, str] = self.get("store.naive_timezone")
        return value


def parse_flag(value: Any) -> bool:
    """A yes or no as people and environments spell it."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"true", "1", "yes", "on"}:
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise ValueError("is neither yes nor no")


def _number(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[Any], float]:
    bound = f"{'above' if above else 'at least'} {low:g}" + (f" and at most {high:g}" if math.isfinite(high) else "")

    def parse(value: Any) -> float:
        if isinstance(value, bool):
            raise ValueError("is not a number")
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("is not a number") from None
        if not math.isfinite(number) or number > high or number < low or (above and number == low):
            raise ValueError(f"must be {bound}")
        return number

    return parse


def _whole(low: int, high: int) -> Callable[[Any], int]:
    number = _number(low, high)

    def parse(value: Any) -> int:
        result = number(value)
        if result != int(result):
            raise ValueError("must be a whole number")
        return int(result)

    return parse


def _choice(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = str(value).strip().lower()
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _names(value: Any) -> tuple[str, ...]:
    parts = value.replace("\n", ",").split(",") if isinstance(value, str) else list(value)
    return tuple(dict.fromkeys(part.strip() for part in parts if isinstance(part, str) and part.strip()))


def _memory_types(value: Any) -> tuple[str, ...]:
    named = [TYPE_ALIASES.get(name, name) for name in _names(value)]
    unknown = [name for name in named if name not in PRIMARY_TYPES]
    if unknown:
        raise ValueError(f"'{unknown[0][:40]}' is not a primary memory type ({', '.join(PRIMARY_TYPES)})")
    if not named:
        raise ValueError("names no memory type")
    return tuple(name for name in PRIMARY_TYPES if name in named)


def _weights(value: Any) -> tuple[float, float, float]:
    parts = [part for part in re.split(r"[,;\s]+", value.strip()) if part] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) != 3:
        raise ValueError("is not three numbers: importance, usage, recency")
    one, two, three = (_number(0, 1000)(part) for part in parts)
    if one + two + three <= 0:
        raise ValueError("weighs nothing")
    return (one, two, three)


def parse_naive_timezone(value: Any) -> dict[str, str]:
    """``FALLOW_NAIVE_TIMEZONE``: one zone for all types, or a JSON object of zone by memory type."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except ValueError:
                raise ValueError("is not valid JSON") from None
        else:
            value = dict.fromkeys(PRIMARY_TYPES, text)
    if not isinstance(value, Mapping):
        raise ValueError("must be a zone name or an object of zone by memory type")
    zones: dict[str, str] = {}
    for name, zone_name in value.items():
        memory_type = TYPE_ALIASES.get(str(name), str(name))
        if memory_type not in PRIMARY_TYPES or not isinstance(zone_name, str):
            raise ValueError(f"'{str(name)[:40]}' is not a primary memory type with a zone name")
        try:
            zone(zone_name)
        except SettingError as error:
            raise ValueError(error.message) from None
        if zone_name.upper() != "UTC":
            zones[memory_type] = zone_name
    return zones


def _time(value: Any) -> str:
    instant = parse_time(value)
    if instant is None:
        raise ValueError("is no time, such as 2000-01-01")
    return iso(instant)


def _hours_by_name(value: Any) -> dict[str, float]:
    """A JSON object of hours by domain."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("is not valid JSON") from None
    if not isinstance(value, Mapping):
        raise ValueError("must be an object of hours by domain")
    hours = _number(0, above=True)
    return {str(name): hours(number) for name, number in value.items()}


def _prices(value: Any) -> dict[str, tuple[float, float]]:
    """A JSON object of [in, out] by model: money for a million tokens."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("is not valid JSON") from None
    if not isinstance(value, Mapping):
        raise ValueError('must be an object such as {"the-model": [0.15, 0.60]}')
    number, prices = _number(0), {}
    for name, pair in value.items():
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError(f"'{str(name)[:40]}' must have two prices: for a million tokens in, and out")
        prices[str(name)] = (number(pair[0]), number(pair[1]))
    return prices


SETTINGS: Final[Mapping[str, Setting]] = {
    "retention.enabled": Setting(
        parse_flag, False, "MEMORIZZ_RETENTION_ENABLED", ("retention", "enabled"), "scheduled planning acts"
    ),
    "retention.min_retention": Setting(
        _number(0, 1), 0.15, "MEMORIZZ_RETENTION_MIN_SCORE", ("retention", "min_retention"), "eligible below this"
    ),
    "retention.grace_days": Setting(
        _number(0, 36500), 30.0, "MEMORIZZ_RETENTION_GRACE_DAYS", ("retention", "grace_days"), "eligible from this age"
    ),
    "retention.protect_verified": Setting(
        parse_flag, True, "MEMORIZZ_RETENTION_PROTECT_VERIFIED", ("retention", "protect_verified"), "keep verified"
    ),
    "retention.protect_pinned": Setting(
        parse_flag, True, "MEMORIZZ_RETENTION_PROTECT_PINNED", ("retention", "protect_pinned"), "keep pinned"
    ),
    "retention.protect_sealed": Setting(
        parse_flag, False, "FALLOW_RETENTION_PROTECT_SEALED", ("retention", "protect_sealed"), "keep sealed"
    ),
    "retention.max_candidates": Setting(
        _whole(1, MAX_CANDIDATES_LIMIT),
        500,
        "MEMORIZZ_RETENTION_MAX_CANDIDATES",
        ("retention", "max_candidates"),
        "entries in one plan",
    ),
    "retention.memory_types": Setting(
        _memory_types, PRIMARY_TYPES, "MEMORIZZ_RETENTION_MEMORY_TYPES", ("retention", "memory_types"), "planned types"
    ),
    "retention.left_out_days": Setting(
        _number(0, 36500), 30.0, "FALLOW_RETENTION_LEFT_OUT_DAYS", (), "a left-out record rests this long"
    ),
    "retention.blast_radius": Setting(
        _number(0, 1), 0.2, "FALLOW_RETENTION_BLAST_RADIUS", (), "above this share the approver repeats the count"
    ),
    "retention.expiry_hours": Setting(
        _number(0, 8760, above=True), 72.0, "FALLOW_RETENTION_EXPIRY_HOURS", (), "a plan waits this long"
    ),
    "retention.stale_share": Setting(
        _number(0, 1), 0.9, "FALLOW_RETENTION_STALE_SHARE", (), "above this share of changed records nothing is applied"
    ),
    "retention.covered_rows": Setting(
        _choice("protect", "release"),
        "protect",
        "FALLOW_RETENTION_COVERED_ROWS",
        ("retention", "covered_rows"),
        "release: rows that only a live reflection cites may be suppressed",
    ),
    "retention.superseded": Setting(
        _choice("protect", "allow", "first"),
        "protect",
        "FALLOW_RETENTION_SUPERSEDED",
        ("retention", "superseded"),
        "allow: a supersedes field protects nothing; first: what is superseded stands first in a plan",
    ),
    "retention.weights": Setting(
        _weights,
        (1.0, 1.0, 1.0),
        "FALLOW_RETENTION_WEIGHTS",
        ("retention", "weights"),
        "what importance, usage and recency weigh in the mean",
    ),
    "retention.formula": Setting(
        _choice("mean", "importance_first"),
        "mean",
        "FALLOW_RETENTION_FORMULA",
        ("retention", "formula"),
        "importance_first: retention is the importance, a recent recall protects",
    ),
    "retention.keep_per_conversation": Setting(
        _whole(0, 10**6),
        0,
        "FALLOW_RETENTION_KEEP_PER_CONVERSATION",
        ("retention", "keep_per_conversation"),
        "records of each conversation that stay visible",
    ),
    "retention.blast_radius_each": Setting(
        _number(0, 1),
        1.0,
        "FALLOW_RETENTION_BLAST_RADIUS_EACH",
        (),
        "above this share of one agent, memory or user the approver repeats the count",
    ),
    "risk.share": Setting(
        _number(0, 1, above=True),
        None,
        "FALLOW_RISK_SHARE",
        ("risk", "share"),
        "new questions may lose their nearest memory this often; blank: no budget",
    ),
    "risk.confidence": Setting(
        _number(0.5, 0.9999),
        0.9,
        "FALLOW_RISK_CONFIDENCE",
        ("risk", "confidence"),
        "how sure the promise of risk.share is",
    ),
    "risk.drop": Setting(
        _number(0, 1),
        0.1,
        "FALLOW_RISK_DROP",
        ("risk", "drop"),
        "a question loses when its nearest falls by more than this of the way to the median",
    ),
    "risk.questions": Setting(
        _whole(1, 100_000), 200, "FALLOW_RISK_QUESTIONS", (), "past questions asked at most, old and new alike"
    ),
    "risk.questions_file": Setting(
        str, "", "FALLOW_RISK_QUESTIONS_FILE", (), "a file of questions with embeddings, instead of the store's own"
    ),
    "risk.window_days": Setting(
        _number(0, 36500), 0.0, "FALLOW_RISK_WINDOW_DAYS", (), "only questions of the last so many days; 0: all"
    ),
    "apply.stop_file": Setting(
        str, "", "FALLOW_STOP_FILE", (), "while this file is there, nothing more is applied", local=True
    ),
    "reflection.enabled": Setting(parse_flag, False, "MEMORIZZ_REFLECTION_ENABLED", (), "scheduled reflection acts"),
    "reflection.threshold": Setting(
        _number(0, above=True), 15.0, "MEMORIZZ_REFLECTION_THRESHOLD", (), "accumulated importance that starts a pass"
    ),
    "reflection.window": Setting(_whole(2, 50), 50, "FALLOW_REFLECTION_WINDOW", (), "rows one summary covers at most"),
    "reflection.count_unrated": Setting(
        parse_flag, False, "FALLOW_REFLECTION_COUNT_UNRATED", (), "unrated rows add the default importance"
    ),
    "reflection.extractive": Setting(
        parse_flag, False, "FALLOW_REFLECTION_EXTRACTIVE", (), "without a model, extracts stand for a summary"
    ),
    "reflection.model": Setting(
        str, "", "MEMORIZZ_REFLECTION_MODEL", (), "the model that reflects; blank: the importance model"
    ),
    "importance.mode": Setting(
        _choice("off", "heuristic", "llm"),
        "off",
        "MEMORIZZ_IMPORTANCE_RATER",
        ("scoring", "importance", "mode"),
        "off, heuristic (free) or llm",
    ),
    "importance.model": Setting(
        str, "", "MEMORIZZ_IMPORTANCE_MODEL", ("scoring", "importance", "model"), "the model that rates"
    ),
    "importance.purpose": Setting(
        str,
        "",
        "MEMORIZZ_IMPORTANCE_PURPOSE",
        ("scoring", "importance", "purpose"),
        "what the agent is for; a model rates relative to it",
    ),
    "importance.batch_size": Setting(
        _whole(1, 100), 8, "MEMORIZZ_IMPORTANCE_BATCH_SIZE", ("scoring", "importance", "batch_size"), "rows in one call"
    ),
    "importance.fallback_share": Setting(
        _number(0, 1), 0.2, "FALLOW_IMPORTANCE_FALLBACK_SHARE", (), "more rows without a model's rating need attention"
    ),
    "importance.max_calls": Setting(
        _whole(0, 10**9), None, "FALLOW_IMPORTANCE_MAX_CALLS", (), "calls that one backfill may make"
    ),
    "importance.max_tokens": Setting(
        _whole(0, 10**12), None, "FALLOW_IMPORTANCE_MAX_TOKENS", (), "tokens that one backfill may use"
    ),
    "importance.max_cost": Setting(
        _number(0), None, "FALLOW_IMPORTANCE_MAX_COST", (), "money that one backfill may cost; needs model.prices"
    ),
    "model.base_url": Setting(
        str, "https://api.openai.com/v1", "FALLOW_MODEL_BASE_URL", (), "any OpenAI-compatible endpoint"
    ),
    "model.in_flight": Setting(_whole(1, 256), 8, "FALLOW_MODEL_IN_FLIGHT", (), "calls to a model out at once"),
    "model.requests_per_minute": Setting(
        _whole(1, 10**9), None, "FALLOW_MODEL_REQUESTS_PER_MINUTE", (), "calls started in any minute"
    ),
    "model.tokens_per_minute": Setting(
        _whole(1, 10**12), None, "FALLOW_MODEL_TOKENS_PER_MINUTE", (), "tokens in any minute"
    ),
    "model.timeout_seconds": Setting(
        _number(0, 3600, above=True), 60.0, "FALLOW_MODEL_TIMEOUT_SECONDS", (), "a call without an answer ends"
    ),
    "model.prices": Setting(_prices, {}, "FALLOW_MODEL_PRICES", (), "[in, out] by model, money for a million tokens"),
    "scoring.recency_decay_per_hour": Setting(
        _number(0, 1, above=True),
        0.995,
        "MEMORIZZ_RECENCY_DECAY_PER_HOUR",
        ("scoring", "recency_decay_per_hour"),
        "recency = this to the power of hours",
    ),
    "scoring.recency_anchor": Setting(
        _choice("last_accessed", "created"),
        "last_accessed",
        "MEMORIZZ_RECENCY_ANCHOR",
        ("scoring", "recency_anchor"),
        "ranking's recency counts from here",
    ),
    "scoring.alpha_recency": Setting(
        _number(0), 1.0, "MEMORIZZ_ALPHA_RECENCY", ("scoring", "alpha_recency"), "ranking weight"
    ),
    "scoring.alpha_importance": Setting(
        _number(0), 1.0, "MEMORIZZ_ALPHA_IMPORTANCE", ("scoring", "alpha_importance"), "ranking weight"
    ),
    "scoring.alpha_relevance": Setting(
        _number(0), 1.0, "MEMORIZZ_ALPHA_RELEVANCE", ("scoring", "alpha_relevance"), "ranking weight"
    ),
    "scoring.normalize": Setting(
        parse_flag, True, "MEMORIZZ_SCORE_NORMALIZE", ("scoring", "normalize"), "min-max over the candidates"
    ),
    "scoring.superseded": Setting(
        _choice("as_scored", "behind"),
        "as_scored",
        "FALLOW_SCORE_SUPERSEDED",
        ("scoring", "superseded"),
        "behind: a row never stands before one that supersedes it",
    ),
    "scoring.default_importance": Setting(
        _number(0, 1), 0.5, "MEMORIZZ_DEFAULT_IMPORTANCE", ("scoring", "default_importance"), "where none is stored"
    ),
    "approval.approvers": Setting(_names, (), "FALLOW_APPROVERS", (), "names that may approve"),
    "approval.four_eyes": Setting(
        parse_flag, False, "FALLOW_FOUR_EYES", (), "the requester may not approve", local=True
    ),
    "approval.require_signed": Setting(
        parse_flag, False, "FALLOW_REQUIRE_SIGNED_APPROVALS", (), "only signed approvals are applied", local=True
    ),
    "approval.operators_file": Setting(str, "", "FALLOW_OPERATORS_FILE", (), "the registered operators", local=True),
    "approval.operators": Setting(str, "", "FALLOW_OPERATORS", (), "registered operators, as JSON text", local=True),
    "approval.show_text": Setting(
        parse_flag, False, "FALLOW_APPROVAL_SHOW_TEXT", (), "excerpts beside planned records"
    ),
    "cache.ttl_hours": Setting(
        _number(0, above=True), 24.0, "FALLOW_CACHE_TTL_HOURS", (), "a cache entry without its own expiry is fresh"
    ),
    "cache.domain_windows": Setting(
        _hours_by_name, {}, "FALLOW_CACHE_DOMAIN_WINDOWS", (), "hours by domain, before cache.ttl_hours"
    ),
    "store.naive_timezone": Setting(
        parse_naive_timezone, {}, "FALLOW_NAIVE_TIMEZONE", (), "zone of naive creation times"
    ),
    "store.earliest_time": Setting(
        _time, "2000-01-01T00:00:00Z", "FALLOW_EARLIEST_TIME", (), "an earlier time of a record is not known"
    ),
}

#: The environment's own names of settings that are read where they are used, for ``doctor`` and ``settings``.
STORE_ENV: Final = "FALLOW_STORE"
STORES_ENV: Final = "FALLOW_STORES"
DASK_ENV: Final = "FALLOW_DASK_ADDRESS"
#: The Prefect variable that stops every apply between two chunks.
STOP_VARIABLE: Final = "fallow_stop"
#: Where a model's key may stand; never shown, never stored.
MODEL_KEY_ENVS: Final = ("FALLOW_MODEL_API_KEY", "OPENAI_API_KEY")


def model_key(environ: Mapping[str, str] | None = None) -> str:
    """The key for the model's endpoint; empty where there is none (local endpoints need none)."""
    environ = os.environ if environ is None else environ
    return next((environ[name].strip() for name in MODEL_KEY_ENVS if environ.get(name, "").strip()), "")


def dask_address(environ: Mapping[str, str] | None = None) -> str:
    """The Dask scheduler that loading and rating spread over; empty where they stay in the run's own process."""
    environ = os.environ if environ is None else environ
    return environ.get(DASK_ENV, "").strip()


def configured_stores(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The stores that scheduled flows work on: FALLOW_STORES, else FALLOW_STORE (SPEC §6.1).

    FALLOW_STORES is a JSON list of addresses, or addresses separated by white space. Doubles count once.

    Raises:
        SettingError: neither names a store, or the list is not one.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(STORES_ENV, "").strip()
    named: list[str] = text.split()
    if text.startswith("["):
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if not isinstance(parsed, list) or not all(isinstance(item, str) and item.strip() for item in parsed):
            raise SettingError(f"{STORES_ENV} is not a JSON list of addresses", hint='such as ["/srv/a", "/srv/b"]')
        named = [item.strip() for item in parsed]
    if not named and environ.get(STORE_ENV, "").strip():
        named = [environ[STORE_ENV].strip()]
    if not named:
        raise SettingError("no store is configured", hint=f"set {STORE_ENV}, or {STORES_ENV} for several")
    return tuple(dict.fromkeys(named))


def without_secrets(address: str) -> str:
    """A store's address as it may be shown and passed around: a password in it becomes ``***``."""
    return re.sub(r"(?<=://)([^/@\s:]*):[^/\s]*@", r"\1:***@", address)


def stop_value_says(value: Any) -> str | None:
    """Why everything is to stop, from the value of the Prefect variable ``fallow_stop``; None: go on.

    Anything but nothing, blank and no stops: a switch that is misspelt is still on.
    """
    if _blank(value):
        return None
    try:
        stopped = parse_flag(value)
    except ValueError:
        return " ".join(str(value).split())[:200]
    return "the variable fallow_stop is set" if stopped else None


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def agent_policy(agent: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The ``retrieval_policy`` of an agent's record, also where it is JSON text; empty where there is none."""
    policy = (agent or {}).get("retrieval_policy")
    if isinstance(policy, str):
        try:
            policy = json.loads(policy)
        except ValueError:
            return {}
    return policy if isinstance(policy, Mapping) else {}


def _nested(source: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = source
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def resolve(
    options: Mapping[str, Any] | None = None,
    *,
    agent: Mapping[str, Any] | None = None,
    variable: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Resolves every setting with its origin (SPEC §6.1).

    Args:
        options: flow parameters or command options by setting name; None means not given.
        agent: the agent's own record, for its overrides.
        variable: the Prefect variable ``fallow_settings``: nested by section, or by dotted name.
        environ: the environment; None reads the process's own.

    Raises:
        SettingError: an option is not usable, or is not a setting.
    """
    environ = os.environ if environ is None else environ
    policy = agent_policy(agent)
    variable = variable or {}
    problems = _unknown_in_variable(variable)
    for name in options or {}:
        if name not in SETTINGS:
            raise SettingError(f"'{name[:60]}' is not a setting", hint="fallow settings lists them")
    values: dict[str, Resolved] = {}
    for name, setting in SETTINGS.items():
        section, _, key = name.partition(".")
        sources: tuple[tuple[Origin, Any, str], ...] = (
            ("option", (options or {}).get(name), name),
            ("agent", _nested(policy, setting.agent) if setting.agent else None, f"retrieval_policy.{name}"),
            ("variable", variable.get(name, _nested(variable, (section, key))), f"fallow_settings {name}"),
            ("environment", environ.get(setting.env), setting.env),
        )
        for origin, value, where in sources:
            if _blank(value):
                continue
            if setting.local and origin == "variable":
                problems.append(f"{where}: only {setting.env} in the environment sets this; not used")
                continue
            try:
                values[name] = Resolved(setting.parse(value), origin)
                break
            except ValueError as error:
                if origin == "option":
                    raise SettingError(f"{where} {error}") from None
                problems.append(f"{where} ({origin}) {error}; not used")
        else:
            values[name] = Resolved(setting.default, "default")
    return Settings(values, tuple(problems))


def _unknown_in_variable(variable: Mapping[str, Any]) -> list[str]:
    named: list[str] = []
    for key, value in variable.items():
        if isinstance(value, Mapping) and key not in SETTINGS:
            named += [f"{key}.{inner}" for inner in value]
        else:
            named.append(str(key))
    return [f"fallow_settings: '{name[:60]}' is not a setting; not used" for name in named if name not in SETTINGS]


def explicit(
    config: RetentionConfig, scoring: RetrievalScoring, base: Settings, risk: RiskConfig | None = None
) -> Settings:
    """Settings whose retention and scoring were given in code and replace every other source (SPEC §17).

    Without ``risk`` there is no budget then, wherever one was set.
    """
    values = dict(base.values)
    given = risk or RiskConfig()
    for item in fields(given):
        values[f"risk.{item.name}"] = Resolved(getattr(given, item.name), "code")
    for section, source in (("retention", config), ("scoring", scoring)):
        for item in fields(source):
            name = f"{section}.{item.name}"
            if name in SETTINGS:
                values[name] = Resolved(getattr(source, item.name), "code")
    return Settings(values)
