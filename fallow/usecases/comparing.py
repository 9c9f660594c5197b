"""Which policy a store's own past speaks for: the later half of its questions asked after hiding by each (SPEC §6.1).

At the middle of the questions' times the store is looked at as it was: records of before, and the recalls that the
earlier questions make, replayed (each touches its ten nearest). What is stored of later recalls is not used, for the
later questions made it. Each policy hides the lowest 10, 25 and 50 %; then the later questions are asked. A question
keeps its answer when the record that answers it best stays, and best is the greatest likeness less the record's own
mean likeness to its ten nearest records: the plain nearest is often a phrase that is near to everything, which says
little about what was needed (docs/quality.md has how far each agrees with gold evidence). Reads only; nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from fallow.judgement.protection import RECALLED_DAYS
from fallow.judgement.risk import answers, distinct, first_losses, promise
from fallow.judgement.score import in_scope, score
from fallow.model.errors import UsageError
from fallow.model.keys import RecordKey
from fallow.model.scope import Scope
from fallow.model.settings import Settings
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, read_store
from fallow.usecases.probing import CACHE, Memories, Probe, cached_queries, read_memories, shuffled, users_turns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

#: Shares of the records that each policy hides.
HIDDEN: Final = (0.1, 0.25, 0.5)
#: What a question touches, and what a record's usual likeness is the mean of.
NEAREST: Final = 10
#: Fewer later questions than this say nothing.
LEAST: Final = 20
#: Records that stand for all in the usual likeness.
_SAMPLE: Final = 4000
#: Two policies are told apart when their questions differ by this many standard errors.
_SURE: Final = 1.645
#: Share of a risk budget where none is set.
_SHARE: Final = 0.05
_COLUMNS: Final = ("record_id", "agent_id", "created_at", "retention_state", "role")

#: Policies that are compared beside the one in force, those first that gold evidence speaks for (docs/quality.md):
#: where the store cannot tell two apart, the earlier one is recommended.
POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "importance first": {"retention.formula": "importance_first"},
    "importance alone": {"retention.formula": "mean", "retention.weights": (1.0, 0.0, 0.0)},
    "importance and use": {"retention.formula": "mean", "retention.weights": (1.0, 1.0, 0.0)},
    "mean of three": {"retention.formula": "mean", "retention.weights": (1.0, 1.0, 1.0)},
    "use and recency": {"retention.formula": "mean", "retention.weights": (0.0, 1.0, 1.0)},
    "recency alone": {"retention.formula": "mean", "retention.weights": (0.0, 0.0, 1.0)},
}
CHANCE: Final = "chance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy on the later questions.

    Attributes:
        kept: by share hidden, the share of questions that keep their answer.
        error: standard error of the mean of ``kept``.
        budget: share of the records that a risk budget would let it hide, by the later questions; None: too few.
        settings: what to set for it; empty for the one in force and for chance.
    """

    name: str
    kept: tuple[float, ...]
    error: float
    budget: float | None
    settings: Mapping[str, Any]

    @property
    def mean(self) -> float:
        """Over the shares hidden."""
        return float(np.mean(self.kept))


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Policies side by side, the best first; ``recommended`` is one of their names, or None."""

    cut: int
    records: int
    rated: float
    earlier: int
    later: int
    share: float
    outcomes: list[Outcome]
    recommended: str | None = None
    because: str = ""
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "schema_version": 1,
            "as_of": iso(self.cut),
            "records": self.records,
            "rated": round(self.rated, 9),
            "earlier_questions": self.earlier,
            "later_questions": self.later,
            "hidden": list(HIDDEN),
            "risk_share": self.share,
            "policies": [
                {
                    "policy": item.name,
                    "kept": [round(value, 9) for value in item.kept],
                    "mean": round(item.mean, 9),
                    "standard_error": round(item.error, 9),
                    "hidden_within_budget": None if item.budget is None else round(item.budget, 9),
                    "settings": {name: list(v) if isinstance(v, tuple) else v for name, v in item.settings.items()},
                }
                for item in self.outcomes
            ],
            "recommended": self.recommended,
            "because": self.because,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class _Past:
    """The store at the cut: one row a record that could be hidden, and the later questions' judgement of them."""

    frame: pl.DataFrame
    cut: int
    best: NDArray[np.intp]
    near_enough: list[NDArray[np.intp]]
    earlier: int


def compare(
    provider: Provider,
    settings: Settings,
    scope: Scope,
    *,
    as_of: int,
    others: Mapping[str, Mapping[str, Any]] | None = None,
    questions: int = 400,
    view: StoreView | None = None,
) -> Comparison:
    """Backtests the policy in force and others on the store's own past questions.

    Args:
        others: policies by name, each a mapping of settings to values; None means :data:`POLICIES`.
        questions: asked at most, old and new ones alike.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
        UsageError: there are too few questions with embeddings to tell anything.
    """
    view = view or read_store(provider)
    past = _past(provider, settings, scope, as_of, questions, view)
    share = settings.risk.share or _SHARE
    named = {"in force": {}, **(POLICIES if others is None else others)}
    kept = {name: _kept(past, _order(past, settings, changes)) for name, changes in named.items()}
    rng = np.random.default_rng(7)
    chance = np.mean([_kept(past, rng.permutation(past.frame.height)) for _ in range(20)], axis=0)
    outcomes = [
        Outcome(
            name=name,
            kept=tuple(answered.mean(axis=1).tolist()),
            error=_error(answered.mean(axis=0)),
            budget=_within(past, _order(past, settings, named[name]), share, settings.risk.confidence),
            settings=named[name],
        )
        for name, answered in kept.items()
    ]
    outcomes.append(
        Outcome(
            name=CHANCE,
            kept=tuple(chance.mean(axis=1).tolist()),
            error=_error(chance.mean(axis=0)),
            budget=None,
            settings={},
        )
    )
    result = Comparison(
        cut=past.cut,
        records=past.frame.height,
        rated=1 - past.frame.get_column("importance").null_count() / past.frame.height,
        earlier=past.earlier,
        later=len(past.best),
        share=share,
        outcomes=sorted(outcomes, key=lambda item: (-item.mean, item.name)),
    )
    _recommend(result, {**kept, CHANCE: chance})
    return result


def _recommend(result: Comparison, kept: Mapping[str, Numbers]) -> None:
    """The best policy; of those that the questions cannot tell from it, the one that gold evidence speaks for."""
    best = next(item for item in result.outcomes if item.name not in {CHANCE, "in force"})

    def behind(name: str, other: str) -> bool:
        difference = (kept[other] - kept[name]).mean(axis=0)
        return bool(difference.mean() > _SURE * _error(difference))

    if not behind(CHANCE, best.name):
        result.because = (
            "no policy is told from chance on these questions: keep plans small, rate the records, and compare again"
        )
        return
    alike = [name for name in kept if name not in {CHANCE, "in force"} and not behind(name, best.name)]
    result.recommended = alike[0]
    others = [name for name in alike if name != alike[0]]
    mean = next(item for item in result.outcomes if item.name == alike[0]).mean
    result.because = f"it keeps the answers of {mean:.1%} of the later questions"
    if others:
        result.because += (
            f"; these questions do not tell it from {', '.join(others)}, and where gold evidence is known it comes "
            "before them (docs/quality.md)"
        )
    if result.rated < 1 and "importance" in alike[0]:
        result.notes.append(f"{result.rated:.0%} of the records are rated: what is not counts as the default")


def _past(provider: Provider, settings: Settings, scope: Scope, as_of: int, questions: int, view: StoreView) -> _Past:
    memories = read_memories(provider, _COLUMNS, suppressed=True)
    asked, times = _questions(provider, memories, scope, as_of, questions)
    if len(asked) < 2 * LEAST:
        raise UsageError(
            f"{len(asked)} past questions with embeddings and times are too few: {2 * LEAST} are needed",
            hint="the users' turns and cached queries of the store, each with its embedding, are the questions",
        )
    order = np.argsort(times, kind="stable")
    earlier, later = order[: len(order) // 2], order[len(order) // 2 :]
    cut = int(times[later[0]])
    frame, rows = _records(view, memories, settings, scope, cut)
    if frame.height < 2 * NEAREST:
        raise UsageError(
            f"only {frame.height} records with embeddings are older than half of the questions: nothing can be told",
            hint="compare on a store with a longer past",
        )
    vectors = _units(memories.matrix[rows])
    place_of = {int(row): place for place, row in enumerate(rows.tolist())}
    created = frame.get_column("created_at").to_numpy()
    counts = np.zeros(frame.height, dtype=np.int64)
    accessed = np.full(frame.height, -1, dtype=np.int64)
    for index in earlier.tolist():
        there = np.flatnonzero(created < times[index])
        own = place_of.get(asked[index].own, -1)
        there = there[there != own]
        alike = vectors[there] @ _units(asked[index].vector[None, :])[0]
        nearest = there[np.argsort(-alike, kind="stable")[:NEAREST]]
        counts[nearest] += 1
        accessed[nearest] = np.maximum(accessed[nearest], times[index])
    stored = frame.get_column("last_accessed_at").fill_null(-1).to_numpy()
    accessed = np.maximum(accessed, np.where(stored <= cut, stored, -1))
    frame = frame.with_columns(
        pl.Series("access_count", counts),
        pl.Series("last_accessed_at", [None if at < 0 else at for at in accessed.tolist()], dtype=pl.Int64),
    )
    usual = _usual(vectors)
    owns = np.array([place_of.get(asked[index].own, -1) for index in later.tolist()], dtype=np.int64)
    best = []
    for index, itself in zip(later.tolist(), owns.tolist(), strict=True):
        alike = vectors @ _units(asked[index].vector[None, :])[0] - usual
        if itself >= 0:
            alike[itself] = -np.inf
        best.append(int(np.argmax(alike)))
    near = answers(
        np.stack([asked[index].vector for index in later.tolist()]), vectors, drop=settings.risk.drop, own=owns
    )
    return _Past(frame, cut, np.array(best, dtype=np.intp), near, len(earlier))


def _questions(
    provider: Provider, memories: Memories, scope: Scope, as_of: int, number: int
) -> tuple[list[Probe], NDArray[np.int64]]:
    created = memories.frame.get_column("created_at").to_list()
    index_of = memories.index_of_rows()
    at: dict[str, int] = {}

    def stored(index: int) -> bool:
        return created[index] is not None and created[index] <= as_of

    found = users_turns(memories, stored)
    at = {probe.name: int(created[int(index_of[probe.own])]) for probe in found}
    for entry in provider.find(CACHE):
        when: list[int] = []

        def noted(moment: int | None, when: list[int] = when) -> bool:
            when.append(-1 if moment is None else moment)
            return moment is not None and moment <= as_of

        for probe in cached_queries([entry], memories.matrix.shape[1], noted):
            found.append(probe)
            at[probe.name] = when[0]
    if scope.agent_id:
        found = [probe for probe in found if probe.agent_id in {None, scope.agent_id}]
    mixed = shuffled(found)
    if mixed:
        whose = np.array([probe.agent_id or "" for probe in mixed])
        mixed = [mixed[index] for index in distinct(np.stack([probe.vector for probe in mixed]), whose, number)]
    return mixed, np.array([at[probe.name] for probe in mixed], dtype=np.int64)


def _records(
    view: StoreView, memories: Memories, settings: Settings, scope: Scope, cut: int
) -> tuple[pl.DataFrame, NDArray[np.intp]]:
    """What a plan at the cut could have hidden and a question could have found, with its rows of the matrix."""
    config = settings.retention
    row_of = {key: row for key, row in zip(memories.keys, memories.row.tolist(), strict=True) if row >= 0}
    pieces, rows = [], []
    for name in config.memory_types:
        frame = view.frames[name].filter(
            in_scope(scope),
            pl.col("created_at") < cut,
            pl.col("retention_state") != "suppressed",
            ~(pl.col("pinned") & config.protect_pinned),
            ~(pl.col("verified") & config.protect_verified),
        )
        where = [row_of.get(RecordKey(name, record_id), -1) for record_id in frame.get_column("record_id")]
        frame = frame.with_columns(pl.Series("_row", where, dtype=pl.Int64), pl.lit(name).alias("memory_type"))
        frame = frame.filter(pl.col("_row") >= 0)
        pieces.append(frame.drop("_row"))
        rows += frame.get_column("_row").to_list()
    return pl.concat(pieces), np.array(rows, dtype=np.intp)


def _order(past: _Past, settings: Settings, changes: Mapping[str, Any]) -> NDArray[np.intp]:
    """The records in the order in which a policy would hide them at the cut."""
    for name, value in changes.items():
        settings = settings.replacing(name, value)
    config = settings.retention
    frame = past.frame.with_row_index("_place")
    pieces = [
        score(
            part,
            past.cut,
            settings.get("scoring.recency_decay_per_hour"),
            settings.get("scoring.default_importance"),
            config.effective_weights,
        )
        for part in frame.partition_by("memory_type", maintain_order=True)
    ]
    scored = pl.concat(pieces)
    if config.formula == "importance_first":
        recent = past.cut - pl.col("last_accessed_at") < round(RECALLED_DAYS * MICROSECONDS_PER_DAY)
        scored = scored.with_columns(recent.fill_null(False).alias("_late"))
    else:
        scored = scored.with_columns(pl.lit(False).alias("_late"))
    ordered = scored.sort("_late", "retention", "created_at", "record_id", "memory_type")
    return ordered.get_column("_place").to_numpy().astype(np.intp)


def _kept(past: _Past, order: NDArray[np.intp]) -> Numbers:
    """By share hidden (a row) and later question (a column), 1 where the question keeps its answer."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return np.array([place[past.best] >= round(share * len(order)) for share in HIDDEN], dtype=np.float64)


def _within(past: _Past, order: NDArray[np.intp], share: float, confidence: float) -> float | None:
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    made = promise(first_losses(past.near_enough, place), len(order), share=share, confidence=confidence)
    return None if made.missing else made.length / len(order)


def _error(values: Numbers) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _usual(vectors: Numbers) -> Numbers:
    """Of each record the mean likeness to its ten nearest others; of many records, among a part of them."""
    step = max(1, len(vectors) // _SAMPLE)
    sample = np.arange(0, len(vectors), step)
    found = np.empty(len(vectors))
    for start in range(0, len(vectors), 1024):
        alike = vectors[start : start + 1024] @ vectors[sample].T
        own = np.arange(start, start + len(alike))
        inside = np.flatnonzero(own % step == 0)
        alike[inside, own[inside] // step] = -np.inf
        number = min(NEAREST, alike.shape[1] - 1)
        found[start : start + 1024] = np.partition(alike, -number, axis=1)[:, -number:].mean(axis=1)
    return found


def _units(vectors: NDArray[np.float32]) -> Numbers:
    values = vectors.astype(np.float64)
    found: Numbers = values / np.linalg.norm(values, axis=1, keepdims=True)
    return found
