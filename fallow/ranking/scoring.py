"""Ranking decay: how retrievable a memory is right now (SPEC §2.1, §2.4).

    recency    = decay ** hours_since(anchor)        1.0 where no time is known
    importance = stored rating, else default_importance
    relevance  = cosine(query, embedding), or the provider's score; the greater of the two where both exist
    score      = (a_r*recency + a_i*importance + a_v*relevance) / (a_r + a_i + a_v)

An agent host calls this on every turn, so it needs numpy only, and numpy is loaded by the first call.
:class:`RetrievalScoring` itself needs nothing: settings and planning share it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fallow.model.arguments import Time, instant, rows
from fallow.model.keys import canonical_id
from fallow.model.record import RankingSignals, read_number, read_ranking_signals
from fallow.model.times import MICROSECONDS_PER_HOUR
from fallow.ranking.superseded import Outdated
from fallow.ranking.vectors import cosines, length_of, read_vector, read_vectors

if TYPE_CHECKING:
    from fallow.ranking.vectors import Vectors
from fallow.model.scoring import RetrievalScoring, scoring_or_default

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
    now: Time | None = None,
) -> list[dict[str, Any]]:
    """Every candidate with its ``scoring``, the best first (SPEC §2.1); nothing is dropped or merged.

    Args:
        candidates: (source, row) pairs or rows, in any shape that stores return.
        query_embedding: the query's vector; without one relevance is the provider's score.
        scoring: weights and anchor; by default those of the paper.
        now: a time of SPEC §1.5; None means the system's clock.

    Returns:
        Copies of the rows with ``source`` and ``scoring``; ties are ordered by id.

    Raises:
        UsageError: an argument is none of SPEC §1.5.
    """
    chosen, at = scoring_or_default(scoring), instant(now)
    items = read_candidates(rows(candidates))
    attach_relevance(items, query_embedding)
    score_in_place(items, chosen, at)
    if chosen.superseded == "behind":
        Outdated(items).reorder(items)
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
