"""What retrieval loses by a plan, and what of it would come back (SPEC §7.1, TRAPS row 32).

:func:`preview` asks the store its own questions: recent turns of users, cached queries and summaries, by the
embeddings stored with them. Each is answered twice, with all that is visible and without the plan's records.
It reads, writes nothing and is no part of the plan's id. Absent embeddings are counted, never made up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fallow.judgement.risk import DROP, near_enough
from fallow.model.keys import RecordKey
from fallow.plans.plan import RetentionPlan
from fallow.port.protocol import Provider
from fallow.usecases.probing import (
    CACHE,
    Memories,
    Probe,
    cached_queries,
    pools,
    probe_of,
    read_memories,
    users_turns,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


SUMMARIES: Final = "summaries"
#: A copy of a planned record is at least this near to it by cosine (SPEC §2.2's near duplicates).
ALIKE: Final = 0.95
#: A planned text shorter than this is in many summaries by accident, and quotes nothing.
_QUOTED_FROM: Final = 20
#: Probes answered at once.
_AT_ONCE: Final = 32
#: Cached queries that are looked through for probes.
_CACHED: Final = 2000
_COLUMNS: Final = ("record_id", "agent_id", "memory_id", "created_at", "retention_state", "role", "citations", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A planned record, and the probes that would be answered differently without it.

    ``only_answer_of`` names the probes that lose their answer when it is hidden with the others of the plan.
    """

    key: RecordKey
    probes: int
    only_answer_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A planned record whose content stays: live copies of it, and summaries that cite or quote it."""

    key: RecordKey
    copies: tuple[str, ...]
    summaries: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Effect:
    """What hiding a plan's records changes.

    Attributes:
        planned: records that the plan would hide.
        planned_without_embedding: of these, how many could not be judged.
        visible: visible records, and ``visible_without_embedding`` those that no probe can find.
        unread: visible records past the bound, which were not looked at.
        probes: by what they are made from.
        k: answers looked at for each probe.
        places_changed: share of the probes' first k places that another record takes, 0..1.
        probes_changed: probes with at least one such place.
        losses: planned records that answer a probe now, those that change most first.
        nothing_left: probes that lose their answer (SPEC §6.11).
        comes_back: planned records whose content stays.
        notes: why something could not be said.
    """

    planned: int
    planned_without_embedding: int = 0
    visible: int = 0
    visible_without_embedding: int = 0
    unread: int = 0
    probes: dict[str, int] = field(default_factory=dict)
    k: int = 10
    places_changed: float = 0.0
    probes_changed: int = 0
    losses: list[Loss] = field(default_factory=list)
    nothing_left: list[str] = field(default_factory=list)
    comes_back: list[Return] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts: ids and counts, no text."""
        return {
            "schema_version": 1,
            "planned": self.planned,
            "planned_without_embedding": self.planned_without_embedding,
            "visible": self.visible,
            "visible_without_embedding": self.visible_without_embedding,
            "unread": self.unread,
            "probes": dict(sorted(self.probes.items())),
            "k": self.k,
            "places_changed": round(self.places_changed, 9),
            "probes_changed": self.probes_changed,
            "nothing_left": list(self.nothing_left),
            "losses": [
                {
                    "record_id": item.key.record_id,
                    "memory_type": item.key.memory_type,
                    "probes": item.probes,
                    "only_answer_of": list(item.only_answer_of),
                }
                for item in self.losses
            ],
            "comes_back": [
                {
                    "record_id": item.key.record_id,
                    "memory_type": item.key.memory_type,
                    "live_copies": list(item.copies),
                    "summaries": list(item.summaries),
                }
                for item in self.comes_back
            ],
            "notes": list(self.notes),
        }


def preview(
    provider: Provider, plan: RetentionPlan, *, probes: int = 200, k: int = 10, max_records: int = 200_000
) -> Effect:
    """Answers the store's own questions with and without a plan's records.

    A probe loses its answer by the rule of the risk budget (SPEC §6.11): when the nearest record left is farther
    than the nearest now by more than a tenth (``risk.drop``) of the way from the nearest to the median. A turn or
    summary does not answer itself, and an agent's probe finds its own and unowned records.

    Args:
        probes: how many questions at most; shared between users' turns, cached queries and summaries.
        k: answers looked at for each.
        max_records: visible records read at most, beside the planned ones; what is past it is counted.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    effect = Effect(planned=len(plan.entries), k=k)
    if not plan.entries:
        return effect
    planned = {entry.key for entry in plan.entries}
    memories = read_memories(provider, _COLUMNS, planned=planned, max_records=max_records)
    memories.matrix = _units(memories.matrix)
    has = memories.row >= 0
    hidden = [key in planned for key in memories.keys]
    effect.visible, effect.unread = len(memories.keys), memories.unread
    effect.visible_without_embedding = int((~has).sum())
    effect.planned_without_embedding = sum(flag and not one for flag, one in zip(hidden, has.tolist(), strict=True))
    if effect.unread:
        effect.notes.append(f"{effect.unread} visible records were not looked at")
    if effect.planned_without_embedding:
        effect.notes.append(f"{effect.planned_without_embedding} planned records have no usable embedding")
    _comes_back(effect, memories, hidden)
    asked = _probes(provider, memories, probes, effect)
    if asked:
        _answer(effect, memories, hidden, asked, float(plan.policy("risk.drop", DROP)))
    else:
        effect.notes.append("no user's turn, cached query or summary has an embedding: nothing could be asked")
    return effect


def _probes(provider: Provider, memories: Memories, number: int, effect: Effect) -> list[Probe]:
    created = memories.frame.get_column("created_at").fill_null(0).to_list()
    agents = memories.frame.get_column("agent_id").to_list()
    index_of = memories.index_of_rows()

    def newest_first(group: list[Probe]) -> list[Probe]:
        at = {probe.name: int(index_of[probe.own]) for probe in group}
        return sorted(group, key=lambda probe: (-created[at[probe.name]], memories.keys[at[probe.name]]))

    turns = newest_first(users_turns(memories))
    summaries = newest_first(
        [
            probe_of(memories, index, agents[index])
            for index, (key, row) in enumerate(zip(memories.keys, memories.row.tolist(), strict=True))
            if row >= 0 and key.memory_type == SUMMARIES
        ]
    )
    cached = cached_queries(islice(provider.find(CACHE), _CACHED), memories.matrix.shape[1])
    share = number // 3
    cached, summaries = cached[:share], summaries[:share]
    turns = turns[: number - len(cached) - len(summaries)]
    effect.probes = {"user turns": len(turns), "cached queries": len(cached), "summaries": len(summaries)}
    return [*cached, *turns, *summaries]


def _answer(effect: Effect, memories: Memories, hidden: Sequence[bool], asked: Sequence[Probe], drop: float) -> None:
    import numpy as np

    index_of = memories.index_of_rows()
    gone = np.array(hidden, dtype=bool)[index_of]
    owners = memories.frame.get_column("agent_id").gather(index_of).to_list()
    changes: Counter[int] = Counter()
    only: dict[int, list[str]] = {}
    places = total = 0
    for group, pool in pools(owners, asked):
        if not len(pool):
            continue
        whole = len(pool) == len(owners)
        matrix, pool_gone = (memories.matrix, gone) if whole else (memories.matrix[pool], gone[pool])
        place_of = {int(row): place for place, row in enumerate(pool.tolist())}
        for start in range(0, len(group), _AT_ONCE):
            part = [asked[index] for index in group[start : start + _AT_ONCE]]
            alike = _units(np.stack([probe.vector for probe in part])) @ matrix.T
            for probe, row in zip(part, alike, strict=True):
                own = place_of.get(probe.own, -1)
                answers = near_enough(row, drop, own)
                if own >= 0:
                    row[own] = -np.inf
                first = _first(row, effect.k)
                lost = first[pool_gone[first]]
                total += len(first)
                if len(answers) and bool(pool_gone[answers].all()):
                    effect.nothing_left.append(probe.name)
                    for place in answers.tolist():
                        only.setdefault(int(pool[place]), []).append(probe.name)
                places += len(lost)
                effect.probes_changed += bool(len(lost))
                changes.update(int(pool[place]) for place in lost.tolist())
    effect.places_changed = places / total if total else 0.0
    losses = [
        Loss(
            key=memories.keys[int(index_of[row])],
            probes=changes[row],
            only_answer_of=tuple(sorted(only.get(row, ()))),
        )
        for row in {*changes, *only}
    ]
    effect.nothing_left.sort()
    effect.losses = sorted(losses, key=lambda item: (-len(item.only_answer_of), -item.probes, item.key))


def _units(vectors: Vectors) -> Vectors:
    import numpy as np

    units: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def _first(row: Vectors, k: int) -> NDArray[np.intp]:
    import numpy as np

    nearest = np.argpartition(-row, k)[:k] if len(row) > k else np.arange(len(row))
    return nearest[np.isfinite(row[nearest])]


def _folded(text: str | None) -> str:
    return " ".join((text or "").lower().split())


def _comes_back(effect: Effect, memories: Memories, hidden: Sequence[bool]) -> None:
    frame = memories.frame
    texts = [_folded(text) for text in frame.get_column("text").to_list()]
    owners = frame.get_column("agent_id").to_list()
    scopes: list[str | None] = frame.get_column("memory_id").to_list()
    live_by_text: dict[str, list[int]] = {}
    summaries: list[int] = []
    citing: dict[str, list[int]] = {}
    citations = frame.get_column("citations").to_list()
    for index, key in enumerate(memories.keys):
        if hidden[index]:
            continue
        if key.memory_type == SUMMARIES:
            summaries.append(index)
            for name in citations[index] or ():
                citing.setdefault(name, []).append(index)
        elif texts[index]:
            live_by_text.setdefault(texts[index], []).append(index)
    near = _near(memories, hidden)
    for index, flag in enumerate(hidden):
        if not flag:
            continue
        text = texts[index]
        copies = set(live_by_text.get(text, ())) | near.get(index, set()) if text else near.get(index, set())
        copies = {other for other in copies if owners[other] is None or owners[other] == owners[index]}
        quoting = set(citing.get(memories.keys[index].record_id, ()))
        if len(text) >= _QUOTED_FROM:
            quoting |= {other for other in summaries if scopes[other] == scopes[index] and text in texts[other]}
        if copies or quoting:
            effect.comes_back.append(
                Return(
                    key=memories.keys[index],
                    copies=_names(memories, copies - quoting),
                    summaries=_names(memories, quoting),
                )
            )
    effect.comes_back.sort(key=lambda item: item.key)


def _near(memories: Memories, hidden: Sequence[bool]) -> dict[int, set[int]]:
    """Visible rows that stay and are nearly a planned one, by the planned one; summaries are looked at apart."""
    import numpy as np

    planned = [index for index, flag in enumerate(hidden) if flag and memories.row[index] >= 0]
    live = np.array(
        [
            index
            for index, (flag, key) in enumerate(zip(hidden, memories.keys, strict=True))
            if not flag and key.memory_type != SUMMARIES and memories.row[index] >= 0
        ],
        dtype=np.intp,
    )
    found: dict[int, set[int]] = {}
    if not planned or not len(live):
        return found
    rows = memories.row[live]
    for start in range(0, len(planned), _AT_ONCE):
        part = planned[start : start + _AT_ONCE]
        alike = memories.matrix[memories.row[part]] @ memories.matrix.T
        for index, row in zip(part, alike, strict=True):
            close = live[row[rows] >= ALIKE - 1e-6]
            if len(close):
                found[index] = set(close.tolist())
    return found


def _names(memories: Memories, indices: set[int]) -> tuple[str, ...]:
    return tuple(sorted(f"{memories.keys[i].memory_type}:{memories.keys[i].record_id}" for i in indices))


def effect_lines(effect: Mapping[str, Any]) -> list[str]:
    """An effect's document as sentences, without any stored text."""
    asked = sum(effect["probes"].values())
    said = []
    if asked:
        said.append(
            f"{asked} questions were asked of the store ("
            + ", ".join(f"{number} {name}" for name, number in effect["probes"].items())
            + f"): {effect['places_changed']:.1%} of their first {effect['k']} places change, "
            f"in {effect['probes_changed']} questions; {len(effect['nothing_left'])} lose their answer."
        )
    copies = sum(len(item["live_copies"]) for item in effect["comes_back"])
    quotes = sum(len(item["summaries"]) for item in effect["comes_back"])
    said.append(
        f"{copies} live {'copy' if copies == 1 else 'copies'}, {quotes} "
        f"{'summary quotes' if quotes == 1 else 'summaries quote'} what is planned."
    )
    return said + [f"{note}." for note in effect["notes"]]
