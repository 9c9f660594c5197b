"""The risk budget of a plan: a store's own past questions, and how far down the order they let it go (SPEC §6.11).

The arithmetic is :mod:`fallow.judgement.risk`'s; here are the questions, what can answer them, and what a plan says
about both. It lowers what a plan takes and never raises it, and reads only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from fallow.acting.configured_files import lines_of_questions
from fallow.judgement.risk import Promise, answers, distinct, first_losses, p_value, promise
from fallow.judgement.score import THRESHOLDS, below_cut
from fallow.model.canonical import DECIMALS
from fallow.model.keys import RecordKey
from fallow.model.scope import Scope
from fallow.model.settings import RiskConfig
from fallow.model.times import MICROSECONDS_PER_DAY
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView
from fallow.usecases.probing import (
    CACHE,
    Memories,
    Probe,
    cached_queries,
    file_of_questions,
    pools,
    read_memories,
    shuffled,
    users_turns,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS: Final = ("record_id", "agent_id", "created_at", "retention_state", "role")
#: Under this name a view keeps the embeddings, when several scopes are planned in one night.
_KEPT: Final = "memories with embeddings"
#: Shares that a forecast looks at, beside the one in force.
SHARES: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
#: Questions that a document names at most.
_NAMED: Final = 50


@dataclass(slots=True)
class Asked:
    """Past questions, and for each the memories any one of which keeps it from losing.

    Attributes:
        names: of the questions, ``conversation_memory:<id>``, ``semantic_cache:<id>`` or ``file:<id>``.
        kinds: how many there are of each kind.
        duplicates: questions that repeat another and were left out.
        answered: indices into ``keys``, one array a question.
        keys: every record, in one order.
        silent: records that no question can find: without a usable embedding.
    """

    names: list[str]
    kinds: dict[str, int]
    duplicates: int
    answered: list[NDArray[np.intp]]
    keys: list[RecordKey]
    silent: frozenset[RecordKey]

    def losses(self, order: Sequence[RecordKey]) -> NDArray[np.int64]:
        """For each question the number of records hidden, along an order, at which it first loses."""
        at = {key: place for place, key in enumerate(order)}
        places = np.array([at.get(key, -1) for key in self.keys], dtype=np.int64)
        return first_losses(self.answered, places)


def ask(provider: Provider, risk: RiskConfig, scope: Scope, *, as_of: int, view: StoreView) -> Asked:
    """The past questions to a scope's agent, or to all, and what answers them now.

    Questions are the users' turns and cached queries with embeddings, hidden turns included, or those of
    ``risk.questions_file``; one that repeats another counts once. Of more than ``risk.questions`` so many are taken,
    old and new ones alike, by an order that is the same in every store.

    Args:
        view: the store as planning reads it: whose records are whose.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
        UsageError: the file of questions cannot be used.
    """
    memories = _memories(provider, view)
    length = memories.matrix.shape[1]
    since = as_of - round(risk.window_days * MICROSECONDS_PER_DAY) if risk.window_days else None

    def recent(at: int | None) -> bool:
        return (at is None or at <= as_of) and (since is None or (at is not None and at >= since))

    if risk.questions_file:
        found = file_of_questions(lines_of_questions(risk.questions_file), length)
    else:
        created = memories.frame.get_column("created_at").to_list()
        found = users_turns(memories, lambda index: recent(created[index]))
        found += cached_queries(provider.find(CACHE), length, recent)
    if scope.agent_id:
        found = [probe for probe in found if probe.agent_id in {None, scope.agent_id}]
    taken, duplicates = _distinct(shuffled(found), None if risk.questions_file else risk.questions)
    return _answered(memories, taken, duplicates, risk.drop)


def _memories(provider: Provider, view: StoreView) -> Memories:
    kept = view.kept.get(_KEPT)
    if isinstance(kept, Memories):
        return kept
    memories = read_memories(provider, _COLUMNS, suppressed=True)
    owners = {
        RecordKey(name, record_id): owner
        for name, frame in view.frames.items()
        for record_id, owner in frame.select("record_id", "agent_id").iter_rows()
    }
    stored = memories.frame.get_column("agent_id").to_list()
    agents = [owners.get(key, owner) for key, owner in zip(memories.keys, stored, strict=True)]
    memories.frame = memories.frame.with_columns(pl.Series("agent_id", agents, dtype=pl.String))
    view.kept[_KEPT] = memories
    return memories


def _distinct(probes: Sequence[Probe], limit: int | None) -> tuple[list[Probe], int]:
    """The first questions that repeat no earlier one, and how many were passed over for that."""
    if not probes:
        return [], 0
    whose = np.array([probe.agent_id or "" for probe in probes])
    taken = distinct(np.stack([probe.vector for probe in probes]), whose, limit)
    looked_at = len(probes) if limit is None or len(taken) < limit else taken[-1] + 1
    return [probes[index] for index in taken], looked_at - len(taken)


def _answered(memories: Memories, probes: Sequence[Probe], duplicates: int, drop: float) -> Asked:
    """What answers each question; one that nothing answers, because its agent has no memories, is left out."""
    index_of = memories.index_of_rows()
    visible = (memories.frame.get_column("retention_state") != "suppressed").to_numpy()[index_of]
    owners = memories.frame.get_column("agent_id").gather(index_of).to_list()
    found: dict[int, NDArray[np.intp]] = {}
    for group, pool in pools(owners, probes):
        rows = pool[visible[pool]]
        if not len(rows):
            continue
        place_of = {row: place for place, row in enumerate(rows.tolist())}
        own = np.array([place_of.get(probes[index].own, -1) for index in group], dtype=np.int64)
        vectors = np.stack([probes[index].vector for index in group])
        matrix = memories.matrix if len(rows) == len(memories.matrix) else memories.matrix[rows]
        for index, part in zip(group, answers(vectors, matrix, drop=drop, own=own), strict=True):
            if len(part):
                found[index] = index_of[rows[part]]
    order = sorted(found)
    names = [probes[index].name for index in order]
    words = {"conversation_memory": "user turns", CACHE: "cached queries", "file": "of a file"}
    return Asked(
        names=names,
        kinds=dict(sorted(Counter(words[name.partition(":")[0]] for name in names).items())),
        duplicates=duplicates,
        answered=[found[index] for index in order],
        keys=memories.keys,
        silent=frozenset(key for key, row in zip(memories.keys, memories.row.tolist(), strict=True) if row < 0),
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """What the past questions let a plan take.

    Attributes:
        promise: the promise over the policy's whole order.
        first: of each question, after how many hidden records of that order it loses.
    """

    risk: RiskConfig
    asked: Asked
    order: tuple[RecordKey, ...]
    first: NDArray[np.int64]
    promise: Promise

    def document(self, taken: int, grid: Mapping[float, int]) -> dict[str, Any]:
        """What the plan says of its budget (SPEC §6.11): counts, ids, no text.

        Args:
            taken: records at the plan's own cut, from the front of the order.
            grid: by threshold, the records that it would list.
        """
        made = self.promise
        lost = [name for name, at in zip(self.asked.names, self.first.tolist(), strict=True) if at <= taken]
        return {
            "share": made.share,
            "confidence": made.confidence,
            "drop": self.risk.drop,
            "probes": made.probes,
            "kinds": self.asked.kinds,
            "duplicates": self.asked.duplicates,
            "missing": made.missing,
            "allowed": max(0, made.allowed),
            "within": made.length,
            "cost": self._cost(taken),
            "p_value": round(p_value(len(lost), made.probes, made.share), DECIMALS) if made.probes else 1.0,
            "losing": sorted(lost)[:_NAMED],
            "losing_count": len(lost),
            "grid": [
                {"min_retention": threshold, "records": number, "cost": self._cost(number)}
                for threshold, number in sorted(grid.items())
            ],
            "without_embedding": sum(key in self.asked.silent for key in self.order[:taken]),
        }

    def _cost(self, taken: int) -> float:
        return round(float((self.first <= taken).mean()), DECIMALS) if len(self.first) else 0.0


def order_of(frame: pl.DataFrame) -> list[RecordKey]:
    """The records of a frame in its order."""
    return [RecordKey(*item) for item in frame.select("memory_type", "record_id").iter_rows()]


def thresholds_of(ordered: pl.DataFrame) -> dict[float, int]:
    """By threshold of the forecast's grid, how many of these records are below it."""
    return {threshold: ordered.filter(below_cut(threshold)).height for threshold in THRESHOLDS}


def budget(
    provider: Provider, risk: RiskConfig, scope: Scope, order: Sequence[RecordKey], *, as_of: int, view: StoreView
) -> Budget | None:
    """The budget over an order of candidates; None where none is set. Raises as :func:`ask`."""
    if risk.share is None:
        return None
    asked = ask(provider, risk, scope, as_of=as_of, view=view)
    first = asked.losses(order)
    made = promise(first, len(order), share=risk.share, confidence=risk.confidence)
    return Budget(risk, asked, tuple(order), first, made)


def within_shares(
    provider: Provider,
    risk: RiskConfig,
    scope: Scope,
    orders: Sequence[pl.DataFrame],
    *,
    as_of: int,
    view: StoreView,
) -> dict[float, tuple[int, ...]]:
    """By share, how many records of each order a budget of it would take; nothing where no budget is set."""
    if risk.share is None:
        return {}
    asked = ask(provider, risk, scope, as_of=as_of, view=view)
    losses = [(asked.losses(order_of(frame)), len(frame)) for frame in orders]
    return {
        share: tuple(promise(first, number, share=share, confidence=risk.confidence).length for first, number in losses)
        for share in sorted({*SHARES, risk.share})
    }
