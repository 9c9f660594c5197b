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

from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES
from fallow.plans.plan import RetentionPlan
from fallow.port.protocol import Provider
from fallow.ranking.vectors import read_vector

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


CONVERSATION: Final = "conversation_memory"
SUMMARIES: Final = "summaries"
CACHE: Final = "semantic_cache"
#: A copy of a planned record is at least this near to it by cosine (SPEC §2.2's near duplicates).
ALIKE: Final = 0.95
#: A planned text shorter than this is in many summaries by accident, and quotes nothing.
_QUOTED_FROM: Final = 20
#: Probes answered at once, and rows that stand for all in a probe's median.
_AT_ONCE: Final = 32
_SAMPLE: Final = 2048
#: Cached queries that are looked through for probes.
_CACHED: Final = 2000
_COLUMNS: Final = ("record_id", "agent_id", "memory_id", "created_at", "retention_state", "role", "citations", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A planned record, and the probes that would be answered differently without it.

    ``only_answer_of`` names the probes that are left with nothing when it is hidden.
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
        nothing_left: probes with an answer now and none afterwards.
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


@dataclass(slots=True)
class _Memories:
    """Visible records in one order, with the rows of the matrix that hold their unit vectors (-1: none)."""

    keys: list[RecordKey]
    frame: pl.DataFrame
    matrix: Vectors
    row: NDArray[np.intp]
    unread: int


def preview(
    provider: Provider, plan: RetentionPlan, *, probes: int = 200, k: int = 10, max_records: int = 200_000
) -> Effect:
    """Answers the store's own questions with and without a plan's records.

    A record answers a probe when its cosine is at least half way from the probe's median cosine to 1: what counts
    as near differs between embedding models. A turn or summary does not answer itself, and an agent's probe finds
    its own and unowned records.

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
    memories = _read(provider, planned, max_records)
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
        _answer(effect, memories, hidden, asked)
    else:
        effect.notes.append("no user's turn, cached query or summary has an embedding: nothing could be asked")
    return effect


def _read(provider: Provider, planned: set[RecordKey], max_records: int) -> _Memories:
    import numpy as np
    import polars as pl

    keys: list[RecordKey] = []
    frames: list[pl.DataFrame] = []
    blocks: list[tuple[int, Vectors, list[int]]] = []
    unread = room = 0
    for memory_type in PRIMARY_TYPES:
        wanted = [key.record_id for key in planned if key.memory_type == memory_type]
        for batch in provider.scan(memory_type, (*_COLUMNS, "embedding")):
            frame = batch.frame.filter(pl.col("retention_state") != "suppressed")
            is_planned = pl.col("record_id").is_in(wanted)
            others = frame.filter(~is_planned).height
            if room + others > max_records:
                keep = max(0, max_records - room)
                unread += others - keep
                frame = pl.concat([frame.filter(is_planned), frame.filter(~is_planned).head(keep)])
                others = keep
            room += others
            start = len(keys)
            keys.extend(RecordKey(memory_type, name) for name in frame.get_column("record_id").to_list())
            sizes = frame.get_column("embedding").list.len().fill_null(0)
            for size in sizes.unique().to_list():
                if size:
                    rows = np.flatnonzero((sizes == size).to_numpy())
                    flat = frame.get_column("embedding").gather(rows).explode().to_numpy()
                    vectors = np.asarray(flat, dtype=np.float32).reshape(len(rows), size)
                    blocks.append((size, vectors, (rows + start).tolist()))
            frames.append(frame.select(_COLUMNS))
    row = np.full(len(keys), -1, dtype=np.intp)
    lengths = Counter[int]()
    for size, vectors, _ in blocks:
        lengths[size] += len(vectors)
    length = min(lengths, key=lambda size: (-lengths[size], size), default=0)
    kept: list[Vectors] = []
    filled = 0
    for size, vectors, where in blocks:
        if size != length:
            continue
        norms = np.linalg.norm(vectors, axis=1)
        usable = np.isfinite(norms) & (norms > 0)
        kept.append(vectors[usable] / norms[usable, None])
        row[np.array(where)[usable]] = np.arange(filled, filled + int(usable.sum()))
        filled += int(usable.sum())
    matrix = np.concatenate(kept) if kept else np.zeros((0, length), dtype=np.float32)
    frame = pl.concat(frames) if frames else _no_records()
    return _Memories(keys, frame, matrix, row, unread)


def _no_records() -> pl.DataFrame:
    """A frame of no records, with the columns that a preview reads."""
    import polars as pl

    from fallow.model.record import schema

    return pl.DataFrame(schema={name: schema()[name] for name in _COLUMNS})


@dataclass(frozen=True, slots=True)
class _Probe:
    name: str
    agent_id: str | None
    own: int
    vector: Vectors


def _probes(provider: Provider, memories: _Memories, number: int, effect: Effect) -> list[_Probe]:
    import numpy as np

    frame = memories.frame
    created = frame.get_column("created_at").fill_null(0).to_list()
    roles, agents = frame.get_column("role").to_list(), frame.get_column("agent_id").to_list()
    turns: list[int] = []
    summaries: list[int] = []
    for index, (key, row) in enumerate(zip(memories.keys, memories.row.tolist(), strict=True)):
        if row < 0:
            continue
        if key.memory_type == CONVERSATION and roles[index] == "user":
            turns.append(index)
        elif key.memory_type == SUMMARIES:
            summaries.append(index)
    for group in (turns, summaries):
        group.sort(key=lambda index: (-created[index], memories.keys[index]))
    cached: list[_Probe] = []
    for entry in islice(provider.find(CACHE), _CACHED):
        vector, _ = read_vector(entry.get("embedding") or entry.get("query_embedding"))
        if vector is not None and vector.size == memories.matrix.shape[1]:
            name = str(entry.get("_id") or entry.get("id") or len(cached))
            owner = entry.get("agent_id")
            cached.append(
                _Probe(f"{CACHE}:{name}", owner if isinstance(owner, str) else None, -1, vector.astype(np.float32))
            )
    share = number // 3
    cached, summaries = cached[:share], summaries[:share]
    turns = turns[: number - len(cached) - len(summaries)]
    found = list(cached)
    for index in (*turns, *summaries):
        key, row = memories.keys[index], int(memories.row[index])
        found.append(_Probe(f"{key.memory_type}:{key.record_id}", agents[index], row, memories.matrix[row]))
    effect.probes = {"user turns": len(turns), "cached queries": len(cached), "summaries": len(summaries)}
    return found


def _answer(effect: Effect, memories: _Memories, hidden: Sequence[bool], asked: Sequence[_Probe]) -> None:
    import numpy as np

    index_of = np.flatnonzero(memories.row >= 0)
    index_of = index_of[np.argsort(memories.row[index_of], kind="stable")]
    gone = np.array(hidden, dtype=bool)[index_of]
    owners = np.array([name or "" for name in memories.frame.get_column("agent_id").to_list()], dtype=object)[index_of]
    changes: Counter[int] = Counter()
    only: dict[int, list[str]] = {}
    places = total = 0
    for agent in sorted({probe.agent_id or "" for probe in asked}):
        group = [probe for probe in asked if (probe.agent_id or "") == agent]
        pool = np.flatnonzero((owners == agent) | (owners == "")) if agent else np.arange(len(owners))
        if not len(pool):
            continue
        whole = len(pool) == len(owners)
        matrix, pool_gone = (memories.matrix, gone) if whole else (memories.matrix[pool], gone[pool])
        place_of = {int(row): place for place, row in enumerate(pool.tolist())}
        for start in range(0, len(group), _AT_ONCE):
            part = group[start : start + _AT_ONCE]
            alike = np.stack([probe.vector for probe in part]) @ matrix.T
            for probe, row in zip(part, alike, strict=True):
                middle = float(np.median(row[:: max(1, len(row) // _SAMPLE)]))
                if probe.own in place_of:
                    row[place_of[probe.own]] = -np.inf
                first = _first(row, effect.k)
                lost = first[pool_gone[first]]
                total += len(first)
                answers = np.flatnonzero(row >= (middle + 1.0) / 2.0)
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


def _first(row: Vectors, k: int) -> NDArray[np.intp]:
    import numpy as np

    nearest = np.argpartition(-row, k)[:k] if len(row) > k else np.arange(len(row))
    return nearest[np.isfinite(row[nearest])]


def _folded(text: str | None) -> str:
    return " ".join((text or "").lower().split())


def _comes_back(effect: Effect, memories: _Memories, hidden: Sequence[bool]) -> None:
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


def _near(memories: _Memories, hidden: Sequence[bool]) -> dict[int, set[int]]:
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


def _names(memories: _Memories, indices: set[int]) -> tuple[str, ...]:
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
            f"in {effect['probes_changed']} questions; {len(effect['nothing_left'])} are left with nothing."
        )
    copies = sum(len(item["live_copies"]) for item in effect["comes_back"])
    quotes = sum(len(item["summaries"]) for item in effect["comes_back"])
    said.append(
        f"{copies} live {'copy' if copies == 1 else 'copies'}, {quotes} "
        f"{'summary quotes' if quotes == 1 else 'summaries quote'} what is planned."
    )
    return said + [f"{note}." for note in effect["notes"]]
