"""Ranking decay: how retrievable a memory is right now (SPEC §2.1, §2.4).

    recency    = decay ** hours_since(anchor)        1.0 where no time is known
    importance = stored rating, else default_importance
    relevance  = cosine(query, embedding), or the provider's score; the greater of the two where both exist
    score      = (a_r*recency + a_i*importance + a_v*relevance) / (a_r + a_i + a_v)

An agent host calls this on every turn, so it needs numpy only, and numpy is loaded by the first call.
:class:`RetrievalScoring` itself needs nothing: settings and planning share it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from fallow.errors import SettingError
from fallow.record import RankingSignals, canonical_id, read_number, read_ranking_signals
from fallow.times import MICROSECONDS_PER_HOUR, wall_clock
from fallow.vectors import cosines, length_of, read_vector, read_vectors

if TYPE_CHECKING:
    from fallow.vectors import Vectors

Anchor = Literal["last_accessed", "created"]

#: The environment variable of each field of :class:`RetrievalScoring` (SPEC §2.4).
SCORING_ENVIRONMENT: Final[Mapping[str, str]] = {
    "recency_decay_per_hour": "MEMORIZZ_RECENCY_DECAY_PER_HOUR",
    "recency_anchor": "MEMORIZZ_RECENCY_ANCHOR",
    "alpha_recency": "MEMORIZZ_ALPHA_RECENCY",
    "alpha_importance": "MEMORIZZ_ALPHA_IMPORTANCE",
    "alpha_relevance": "MEMORIZZ_ALPHA_RELEVANCE",
    "normalize": "MEMORIZZ_SCORE_NORMALIZE",
    "default_importance": "MEMORIZZ_DEFAULT_IMPORTANCE",
}

_ANCHORS: Final = ("last_accessed", "created")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


def _fault(name: str, value: Any) -> str | None:
    """What is wrong with a field's value, as the end of a sentence; None where it can be used."""
    if name == "recency_anchor":
        return None if value in _ANCHORS else "must be last_accessed or created"
    if name == "normalize":
        return None if isinstance(value, bool) else "must be true or false"
    if isinstance(value, bool) or not isinstance(value, int | float) or read_number(value) is None:
        return "must be a finite number"
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

    def __post_init__(self) -> None:
        for name in SCORING_ENVIRONMENT:
            value = getattr(self, name)
            fault = _fault(name, value)
            if fault is not None:
                raise SettingError(
                    f"{name} {fault}, not {str(value)[:40]!r}",
                    hint=f"the default is {_DEFAULTS[name]!r}",
                )
            if isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> tuple[RetrievalScoring, tuple[str, ...]]:
        """Scoring from the MEMORIZZ_* variables of ``environ``, and what was wrong with them (SPEC §2.4).

        A blank variable is as good as none. One that cannot be used leaves its default in place and is
        named in the problems; nothing is raised.
        """
        values = {name: environ.get(variable) for name, variable in SCORING_ENVIRONMENT.items()}
        return _overridden(cls(), values, SCORING_ENVIRONMENT)


_DEFAULTS: Final[Mapping[str, Any]] = {field.name: field.default for field in fields(RetrievalScoring)}


def _coerced(name: str, value: Any) -> Any:
    """A setting as text or JSON gives it, in the type that the field wants; unusable values come back unchanged."""
    if name == "recency_anchor":
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


#: Where stores and search indexes put their own measure of likeness.
_PROVIDER_SCORES: Final = ("score", "similarity", "relevance", "relevance_score")


@dataclass(slots=True)
class Candidate:
    """A row on its way through ranking: what it says, and what ranking read of it.

    ``relevance_reason`` says why a raw relevance is not a cosine; it is empty where it is. ``distinction`` tells
    candidates with one id apart; it is empty where no other has it.
    """

    source: str
    row: Mapping[str, Any]
    record_id: str
    signals: RankingSignals
    provider_score: float | None
    position: int
    relevance: float = 0.0
    relevance_reason: str = ""
    distinction: str = ""
    scoring: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float:
        """The combined score, once :func:`score_in_place` has run."""
        return float(self.scoring["score"])


def record_id_of(row: Mapping[str, Any]) -> str:
    """A row's id in its one text form: ``_id``, ``id`` or ``record_id`` (SPEC §1); empty where there is none."""
    for name in ("_id", "id", "record_id"):
        text = canonical_id(row.get(name))
        if text is not None:
            return text
    return ""


def read_candidates(candidates: Iterable[Any]) -> list[Candidate]:
    """(source, row) pairs, or rows, as candidates in their order; what is no row is left out.

    A row without a source of its own takes its ``memory_type``.
    """
    found: list[Candidate] = []
    for position, item in enumerate(candidates):
        source, row = ("", item)
        if isinstance(item, tuple | list) and len(item) == 2:
            source, row = item
        if not isinstance(row, Mapping):
            continue
        score = None
        for name in _PROVIDER_SCORES:
            if (value := row.get(name)) is not None and (score := read_number(value)) is not None:
                break
        found.append(
            Candidate(
                source=str(source or row.get("memory_type") or ""),
                row=row,
                record_id=record_id_of(row),
                signals=read_ranking_signals(row),
                provider_score=score,
                position=position,
            )
        )
    times = Counter(item.record_id for item in found)
    if len(times) < len(found):
        for item in found:
            if times[item.record_id] > 1:
                item.distinction = str(sorted((str(name), str(value)) for name, value in item.row.items()))
    return found


def embedding_of(row: Mapping[str, Any]) -> Any:
    """A row's stored embedding, a list or an array, or None."""
    value = row.get("embedding")
    return row.get("vector") if value is None else value


def tie_break(candidate: Candidate) -> tuple[str, str, str]:
    """What orders candidates that are equal otherwise: their id; the same id twice, by source and whole row."""
    return candidate.record_id, candidate.source, candidate.distinction


def score_in_place(candidates: Sequence[Candidate], scoring: RetrievalScoring, now: int) -> None:
    """Fills in every candidate's ``scoring`` (SPEC §2.1); terms are normalised over exactly these candidates."""
    import numpy as np

    if not candidates:
        return
    anchors = [_anchor(item.signals, scoring.recency_anchor) for item in candidates]
    hours = [None if at is None else max(0, now - at) / MICROSECONDS_PER_HOUR for _, at in anchors]
    raw = {
        "recency": np.array([1.0 if gap is None else scoring.recency_decay_per_hour**gap for gap in hours]),
        "importance": np.array(
            [
                scoring.default_importance if item.signals.importance is None else item.signals.importance
                for item in candidates
            ]
        ),
        "relevance": np.array([item.relevance for item in candidates]),
    }
    terms = {name: _normalized(values) if scoring.normalize else values for name, values in raw.items()}
    weights = {
        "recency": scoring.alpha_recency,
        "importance": scoring.alpha_importance,
        "relevance": scoring.alpha_relevance,
    }
    # Weights are scaled first: finite weights must not overflow to an infinity.
    top = max(weights.values()) or 1.0
    scaled = {name: weight / top for name, weight in weights.items()}
    total = math.fsum(scaled.values()) or 1.0
    score = sum(scaled[name] * terms[name] for name in terms) / total
    columns = [terms[name].tolist() for name in terms] + [raw[name].tolist() for name in raw]
    values = np.asarray(score).tolist()
    for item, (anchor, _), value, a, b, c, d, e, f in zip(candidates, anchors, values, *columns, strict=True):
        item.scoring = {
            "recency": a,
            "importance": b,
            "relevance": c,
            "recency_raw": d,
            "importance_raw": e,
            "relevance_raw": f,
            "score": value,
            "anchor": anchor,
        }
        if item.relevance_reason:
            item.scoring["relevance_reason"] = item.relevance_reason


def _anchor(signals: RankingSignals, wanted: str) -> tuple[str, int | None]:
    """What recency counts from, and when that was: a memory never recalled counts from its creation."""
    if wanted == "last_accessed" and signals.last_accessed_at is not None:
        return "last_accessed", signals.last_accessed_at
    return ("none" if signals.created_at is None else "created"), signals.created_at


def _normalized(values: Vectors) -> Vectors:
    """Min-max over the set; a constant term is 1 for all, one candidate is not normalised (SPEC §2.1)."""
    import numpy as np

    if len(values) < 2:
        return values
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return np.ones_like(values)
    span = high - low
    if math.isfinite(span):
        return (values - low) / span
    # The span of the widest finite values is not; that of their halves is.
    return (values / 2 - low / 2) / (high / 2 - low / 2)


def set_relevance(candidates: Sequence[Candidate], matrix: Vectors, where: Sequence[int], query: Any) -> None:
    """The raw relevance of every candidate: its cosine with the query or the provider's score, whichever is greater."""
    found: dict[int, float] = {}
    reason = ""
    if query is not None:
        vector, reason = read_vector(query)
        if vector is not None and len(where):
            if len(vector) == matrix.shape[1]:
                found = dict(zip(where, cosines(matrix, vector).tolist(), strict=True))
            else:
                reason = f"it has {len(vector)} numbers, the embeddings {matrix.shape[1]}"
        reason = f"the query: {reason}" if reason else ""
    for position, item in enumerate(candidates):
        cosine = found.get(position)
        if cosine is None:
            item.relevance_reason = reason or item.relevance_reason or ("no query embedding" if query is None else "")
            item.relevance = item.provider_score or 0.0
        else:
            # A row that points away from the query is worth no less than one that has no vector at all.
            item.relevance_reason = ""
            item.relevance = max(0.0, cosine, item.provider_score or 0.0)


def score_candidates(
    candidates: Iterable[Any],
    *,
    query_embedding: Any = None,
    scoring: RetrievalScoring | None = None,
    now: int | None = None,
) -> list[dict[str, Any]]:
    """Every candidate with its ``scoring``, the best first (SPEC §2.1); nothing is dropped or merged.

    Args:
        candidates: (source, row) pairs or rows, in any shape that stores return.
        query_embedding: the query's vector; without one relevance is the provider's score.
        scoring: weights and anchor; by default those of the paper.
        now: microseconds since the epoch; None means the system's clock.

    Returns:
        Copies of the rows with ``source`` and ``scoring``; ties are ordered by id.
    """
    chosen = scoring or RetrievalScoring()
    items = read_candidates(candidates)
    attach_relevance(items, query_embedding)
    score_in_place(items, chosen, wall_clock() if now is None else now)
    items.sort(key=tie_break)
    items.sort(key=lambda item: -item.score)
    return [{**item.row, "source": item.source, "scoring": item.scoring} for item in items]


def attach_relevance(items: Sequence[Candidate], query: Any) -> tuple[Vectors, list[int]]:
    """Reads the candidates' embeddings and sets their relevance; the usable unit rows and whose they are.

    Usable are vectors of the query's length; where no candidate has that, of the most frequent one, so that
    near duplicates are still found.
    """
    embeddings = [embedding_of(item.row) for item in items]
    length = length_of(query) or None
    if length is not None and all(length_of(embedding) != length for embedding in embeddings):
        length = None
    matrix, where, reasons = read_vectors(embeddings, length)
    for item, reason in zip(items, reasons, strict=True):
        item.relevance_reason = reason
    set_relevance(items, matrix, where, query)
    return matrix, where
