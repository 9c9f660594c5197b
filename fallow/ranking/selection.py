"""Choosing what an agent sees: without repeats, relevant, varied, within a budget (SPEC §2.2, §2.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fallow.model.arguments import (
    Id,
    Time,
    count,
    count_or_none,
    id_or_none,
    instant,
    number,
    refused,
    several,
    switch,
)
from fallow.model.arguments import (
    rows as checked_rows,
)
from fallow.model.errors import UsageError
from fallow.model.keys import canonical_id
from fallow.model.record import display_text, read_mapping, read_number
from fallow.model.scoring import RetrievalScoring, scoring_or_default
from fallow.ranking.scoring import Candidate, attach_relevance, read_candidates, score_in_place, tie_break
from fallow.ranking.superseded import Outdated
from fallow.ranking.vectors import cosines, near_duplicates

if TYPE_CHECKING:
    from fallow.ranking.vectors import Vectors


#: Scores rows anew, one number a row: a cross-encoder's door.
Rerank = Callable[[Sequence[Mapping[str, Any]]], Sequence[float]]

_PARENTS = ("parent_source_id", "parent_source", "source_document_id")


def normalized_text(text: str) -> str:
    """Lower case, white space folded: what makes two texts the same."""
    return " ".join(text.lower().split())


def dedupe_and_select(
    candidates: Iterable[Any],
    *,
    history_texts: Iterable[str] = (),
    query_embedding: Any = None,
    similarity_threshold: float = 0.95,
    mmr_lambda: float = 0.5,
    scoring: RetrievalScoring | None = None,
    max_items: int = 5,
    max_chars_per_item: int = 600,
    max_total_chars: int | None = None,
    dedupe_parent_sources: bool = False,
    rerank: Rerank | None = None,
    thread_id: Id | None = None,
    now: Time | None = None,
    ledger: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The candidates worth an agent's attention, oldest first (SPEC §2.2).

    Suppressed rows, rows sealed in another thread, rows without text, repeats and what the history already
    says are dropped; the rest is scored (SPEC §2.1) and chosen by maximal marginal relevance,
    ``lambda * score - (1 - lambda) * (highest cosine to what is chosen)``.

    Args:
        candidates: (source, row) pairs or rows, in any shape that stores return.
        history_texts: what the agent sees anyway.
        query_embedding: the query's vector.
        similarity_threshold: rows at least this alike (cosine) count as one; above 1 switches it off.
        mmr_lambda: 1 looks at the score only, 0 at variety only.
        scoring: weights and anchor.
        max_items: rows at most.
        max_chars_per_item: longer texts are cut, in ``text``; the row keeps its own.
        max_total_chars: the budget of all cut texts, spent in the order of selection.
        dedupe_parent_sources: of several chunks of one source only the best is kept.
        rerank: scores the remaining rows anew, one finite number a row.
        thread_id: whose thread asks: sealed rows are visible to their own thread only (SPEC §2.3).
        now: a time of SPEC §1.5; None means the system's clock.
        ledger: receives one entry a candidate: record_id, source, kept, reason.

    Returns:
        Copies of the chosen rows with ``text``, ``source``, ``origin`` and ``scoring``. Ties break by score,
        then by id; the order of the candidates changes nothing.

    Raises:
        UsageError: an argument is none of SPEC §1.5, or out of range.
    """
    number(similarity_threshold, "similarity_threshold")
    number(mmr_lambda, "mmr_lambda", 0, 1)
    count(max_items, "max_items")
    count(max_chars_per_item, "max_chars_per_item")
    count_or_none(max_total_chars, "max_total_chars")
    dedupe_parent_sources = switch(dedupe_parent_sources, "dedupe_parent_sources")
    chosen_scoring, at, thread = scoring_or_default(scoring), instant(now), id_or_none(thread_id, "thread_id")
    if ledger is not None and not isinstance(ledger, list):
        raise refused("ledger", ledger, "a list, which receives the entries")
    given, history = checked_rows(candidates), several(history_texts, "history_texts")
    entries: dict[int, dict[str, Any]] = {}

    def drop(item: Candidate, reason: str, **more: Any) -> None:
        entries[item.position] = {} if ledger is None else _entry(item, False, reason, **more)

    items = read_candidates(given)
    texts: dict[int, str] = {}
    visible: list[Candidate] = []
    for item in items:
        signals = item.signals
        if signals.retention_state == "suppressed":
            drop(item, "suppressed")
        elif signals.retention_state == "sealed" and (thread is None or signals.thread_id != thread):
            drop(item, "sealed elsewhere")
        elif not (text := display_text(item.row)).strip():
            drop(item, "no text")
        else:
            texts[item.position] = text
            visible.append(item)
    outdated = Outdated(visible if chosen_scoring.superseded == "behind" else ())
    # The order of preference among repeats: the successor, the better provider score, the source's id, the id.
    visible.sort(key=lambda item: (_source_id(item), *tie_break(item)))
    if any(item.provider_score is not None for item in visible):
        visible.sort(key=lambda item: -(item.provider_score if item.provider_score is not None else float("-inf")))
    visible.sort(key=outdated.generation)
    said = {normalized_text(text) for text in history if isinstance(text, str)}
    first: dict[str, Candidate] = {}
    for item in visible:
        text = normalized_text(texts[item.position])
        if text in first:
            drop(item, "exact duplicate", of=first[text].record_id)
            outdated.dropped_for(item, first[text])
        else:
            first[text] = item
            if text in said or (said and normalized_text(texts[item.position][:max_chars_per_item]) in said):
                drop(item, "in history")
    distinct = [item for item in first.values() if item.position not in entries]
    matrix, where = attach_relevance(distinct, query_embedding)
    rows: dict[int, int] = {}
    repeats = near_duplicates(matrix, similarity_threshold)
    for row, (position, repeat) in enumerate(zip(where, repeats, strict=True)):
        if repeat is None:
            rows[distinct[position].position] = row
        else:
            other, cosine = repeat
            drop(distinct[position], "near duplicate", of=distinct[where[other]].record_id, cosine=round(cosine, 6))
            outdated.dropped_for(distinct[position], distinct[where[other]])
    kept = [item for item in distinct if item.position not in entries]
    score_in_place(kept, chosen_scoring, at)
    outdated.reorder(kept)
    if dedupe_parent_sources:
        kept = _one_a_source(kept, drop)
    if rerank is not None and kept:
        _rerank(kept, rerank)
        outdated.reorder(kept)
    selected = _select(
        kept,
        matrix,
        rows,
        outdated.among(kept),
        mmr_lambda,
        max_items,
        max_total_chars,
        {position: min(len(text), max_chars_per_item) for position, text in texts.items()},
        drop,
    )
    if ledger is not None:
        for rank, item in enumerate(selected, 1):
            entries[item.position] = _entry(item, True, "selected", rank=rank)
        no_row = {"record_id": "", "source": "", "kept": False, "reason": "no row"}
        ledger += [entries.get(position) or dict(no_row) for position in range(len(given))]
    selected.sort(key=tie_break)
    selected.sort(key=lambda item: item.signals.created_at if item.signals.created_at is not None else float("-inf"))
    return [
        {
            **item.row,
            "text": texts[item.position][:max_chars_per_item],
            "source": item.source,
            "origin": {"record_id": item.record_id, "source": item.source},
            "scoring": item.scoring,
        }
        for item in selected
    ]


def _source_id(item: Candidate) -> str:
    """The id of the source that a row was cut from, so that chunks of one source stay together; else its own."""
    row = item.row
    return str(row.get("parent_source_id") or row.get("source_id") or item.record_id)


def _entry(item: Candidate, kept: bool, reason: str, **more: Any) -> dict[str, Any]:
    entry = {"record_id": item.record_id, "source": item.source, "kept": kept, "reason": reason, **more}
    if item.scoring:
        entry["score"] = item.score
    return entry


def _one_a_source(kept: list[Candidate], drop: Callable[..., None]) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    ordered = sorted(kept, key=tie_break)
    ordered.sort(key=lambda item: -item.score)
    left: list[Candidate] = []
    for item in ordered:
        holders = (item.row, read_mapping(item.row.get("metadata")))
        parent = next((text for h in holders for n in _PARENTS if (text := canonical_id(h.get(n))) is not None), None)
        if parent is not None and parent in best:
            drop(item, "same source", of=best[parent].record_id)
            continue
        if parent is not None:
            best[parent] = item
        left.append(item)
    return left


def _rerank(kept: Sequence[Candidate], rerank: Rerank) -> None:
    scores = list(rerank([item.row for item in kept]))
    if len(scores) != len(kept):
        raise UsageError(f"rerank gave {len(scores)} scores for {len(kept)} rows")
    for item, score in zip(kept, scores, strict=True):
        number = read_number(score)
        if number is None:
            item.scoring["rerank_reason"] = "the reranker's score is no finite number"
        else:
            item.scoring["score"] = number


def _select(
    kept: list[Candidate],
    matrix: Vectors,
    rows: Mapping[int, int],
    waits_for: Mapping[int, set[int]],
    weight: float,
    max_items: int,
    budget: int | None,
    lengths: Mapping[int, int],
    drop: Callable[..., None],
) -> list[Candidate]:
    """Maximal marginal relevance, one at a time; only the newest choice is compared with the rest.

    ``waits_for``: by position, what must have been chosen before.
    """
    import numpy as np

    kept.sort(key=tie_break)
    kept.sort(key=lambda item: -item.score)
    scores = np.array([item.score for item in kept])
    row_of = np.array([rows.get(item.position, -1) for item in kept], dtype=np.intp)
    with_row = row_of >= 0
    vectors = matrix[row_of[with_row]]
    likeness = np.zeros(len(kept))
    waiting = {index: set(waits_for[item.position]) for index, item in enumerate(kept) if item.position in waits_for}
    open_ = np.ones(len(kept), dtype=bool)
    open_[list(waiting)] = False
    selected: list[Candidate] = []
    left = budget
    while len(selected) < max_items and open_.any():
        worth = weight * scores - (1 - weight) * likeness
        best = int(np.argmax(np.where(open_, worth, -np.inf)))
        open_[best] = False
        item = kept[best]
        if left is not None:
            length = lengths[item.position]
            if length > left:
                drop(item, "budget", characters=length, left=left)
                continue
            left -= length
        selected.append(item)
        for index in [index for index, others in waiting.items() if item.position in others]:
            waiting[index].discard(item.position)
            if not waiting[index]:
                open_[index] = True
                del waiting[index]
        if with_row[best] and len(selected) < max_items:
            likeness[with_row] = np.maximum(likeness[with_row], cosines(vectors, matrix[row_of[best]]))
    worth = weight * scores - (1 - weight) * likeness
    rest = np.nonzero(open_)[0]
    for rank, index in enumerate(rest[np.argsort(-worth[rest], kind="stable")].tolist(), len(selected) + 1):
        drop(kept[index], "not selected", rank=rank)
    for index in waiting:
        drop(kept[index], "superseded")
    return selected
