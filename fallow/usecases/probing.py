"""What a store can be asked and what can answer: past questions and memories by their embeddings (SPEC §6.11, §7.1).

A question is a user's turn or a cached query with an embedding, or a line of a file. Everything here reads only.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fallow.model.errors import UsageError
from fallow.model.keys import RecordKey, canonical_id
from fallow.model.record import PRIMARY_TYPES, read_ranking_signals, schema
from fallow.port.protocol import Provider
from fallow.ranking.vectors import read_vector

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

CONVERSATION: Final = "conversation_memory"
CACHE: Final = "semantic_cache"


@dataclass(slots=True)
class Memories:
    """Records in one order, with the rows of the matrix that hold their vectors as stored (-1: none that is usable)."""

    keys: list[RecordKey]
    frame: pl.DataFrame
    matrix: Vectors
    row: NDArray[np.intp]
    unread: int

    def index_of_rows(self) -> NDArray[np.intp]:
        """For each row of the matrix, whose it is."""
        import numpy as np

        found = np.flatnonzero(self.row >= 0)
        return found[np.argsort(self.row[found], kind="stable")]


@dataclass(frozen=True, slots=True)
class Probe:
    """A past question: ``own`` is the row of the matrix that it was made from and that may not answer it, or -1."""

    name: str
    agent_id: str | None
    own: int
    vector: Vectors


def read_memories(
    provider: Provider,
    columns: Sequence[str],
    *,
    planned: Collection[RecordKey] = (),
    max_records: int | None = None,
    suppressed: bool = False,
) -> Memories:
    """Every primary record that is visible, or all, with the embeddings of the most frequent length.

    Args:
        columns: what the frame has of each.
        planned: read whatever ``max_records`` says.
        max_records: others that are read at most; what is past it is counted as unread.
        suppressed: hidden ones, too.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    import polars as pl

    keys: list[RecordKey] = []
    frames = [pl.DataFrame(schema={name: schema()[name] for name in columns})]
    blocks: list[tuple[int, Vectors, NDArray[np.intp]]] = []
    unread = room = 0
    for memory_type in PRIMARY_TYPES:
        wanted = [key.record_id for key in planned if key.memory_type == memory_type]
        for batch in provider.scan(memory_type, tuple(dict.fromkeys((*columns, "retention_state", "embedding")))):
            frame = batch.frame if suppressed else batch.frame.filter(pl.col("retention_state") != "suppressed")
            if max_records is not None:
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
            blocks += [(size, vectors, rows + start) for size, vectors, rows in _blocks(frame)]
            frames.append(frame.select(columns))
    matrix, row = _matrix(blocks, len(keys))
    return Memories(keys, pl.concat(frames), matrix, row, unread)


def _blocks(frame: pl.DataFrame) -> Iterator[tuple[int, Vectors, NDArray[np.intp]]]:
    import numpy as np

    sizes = frame.get_column("embedding").list.len().fill_null(0)
    for size in sizes.unique().to_list():
        if size:
            rows = np.flatnonzero((sizes == size).to_numpy())
            flat = frame.get_column("embedding").gather(rows).explode().to_numpy()
            yield size, np.asarray(flat, dtype=np.float32).reshape(len(rows), size), rows


def _matrix(blocks: Sequence[tuple[int, Vectors, NDArray[np.intp]]], number: int) -> tuple[Vectors, NDArray[np.intp]]:
    import numpy as np

    row = np.full(number, -1, dtype=np.intp)
    lengths = Counter[int]()
    for size, vectors, _ in blocks:
        lengths[size] += len(vectors)
    length = min(lengths, key=lambda size: (-lengths[size], size), default=0)
    kept: list[Vectors] = []
    filled = 0
    for size, vectors, where in blocks:
        if size != length:
            continue
        tallest = np.abs(vectors).max(axis=1)
        usable = np.isfinite(tallest) & (tallest > 0)
        kept.append(vectors[usable])
        row[where[usable]] = np.arange(filled, filled + int(usable.sum()))
        filled += int(usable.sum())
    return (np.concatenate(kept) if kept else np.zeros((0, length), dtype=np.float32)), row


def users_turns(memories: Memories, wanted: Callable[[int], bool] = lambda _: True) -> list[Probe]:
    """The users' turns among memories, in their order; ``wanted`` is asked of each one's index."""
    frame = memories.frame
    roles, agents = frame.get_column("role").to_list(), frame.get_column("agent_id").to_list()
    found = []
    for index, (key, row) in enumerate(zip(memories.keys, memories.row.tolist(), strict=True)):
        if row >= 0 and key.memory_type == CONVERSATION and roles[index] == "user" and wanted(index):
            found.append(probe_of(memories, index, agents[index]))
    return found


def probe_of(memories: Memories, index: int, agent_id: str | None) -> Probe:
    """A record as a question to the others."""
    key, row = memories.keys[index], int(memories.row[index])
    return Probe(f"{key.memory_type}:{key.record_id}", agent_id, row, memories.matrix[row])


def cached_queries(
    entries: Iterable[Any], length: int, wanted: Callable[[int | None], bool] = lambda _: True
) -> list[Probe]:
    """The queries of semantic cache entries whose embeddings have the memories' length.

    Args:
        entries: rows of the cache.
        length: numbers in an embedding.
        wanted: asked with when each was stored, microseconds, or None where that is not known.
    """
    import numpy as np

    found: list[Probe] = []
    for entry in entries:
        vector, _ = read_vector(entry.get("embedding") or entry.get("query_embedding"))
        if vector is None or vector.size != length or not wanted(read_ranking_signals(entry).created_at):
            continue
        name = canonical_id(entry.get("_id")) or canonical_id(entry.get("id")) or str(len(found))
        owner = entry.get("agent_id")
        found.append(Probe(f"{CACHE}:{name}", owner if isinstance(owner, str) else None, -1, vector.astype(np.float32)))
    return found


def file_of_questions(lines: Iterable[str], length: int) -> list[Probe]:
    """Questions from a file: a JSON object a line with ``embedding``, and ``id`` and ``agent_id`` if wanted.

    Raises:
        UsageError: a line is none of these, or has another length than the memories' vectors.
    """
    import numpy as np

    hint = 'each line is a JSON object such as {"id": "q1", "embedding": [0.1, …]}'
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError:
            item = None
        vector, reason = read_vector(item.get("embedding")) if isinstance(item, dict) else (None, "no JSON object")
        if vector is None:
            raise UsageError(f"line {number} of the file of questions: {reason}", hint=hint)
        if length and vector.size != length:
            raise UsageError(
                f"line {number} of the file of questions has {vector.size} numbers, the store's memories {length}",
                hint="embed the questions by the model that embedded the memories",
            )
        owner = item.get("agent_id")
        name = canonical_id(item.get("id")) or str(number)
        found.append(Probe(f"file:{name}", owner if isinstance(owner, str) else None, -1, vector.astype(np.float32)))
    return found


def shuffled(probes: Iterable[Probe]) -> list[Probe]:
    """Questions in an order that says nothing about them: old and new ones alike stand first, in every store."""
    return sorted(probes, key=lambda probe: (hashlib.sha256(probe.name.encode()).digest(), probe.name))


def pools(owners: Sequence[str | None], probes: Sequence[Probe]) -> Iterator[tuple[list[int], NDArray[np.intp]]]:
    """Which questions find which rows: an agent's its own and the unowned, one that nobody asked all.

    Args:
        owners: of each row of the matrix.
        probes: the questions.

    Yields:
        Indices of questions, and the rows that they may find.
    """
    import numpy as np

    names = np.array([name or "" for name in owners], dtype=object)
    for agent in sorted({probe.agent_id or "" for probe in probes}):
        group = [index for index, probe in enumerate(probes) if (probe.agent_id or "") == agent]
        pool = np.flatnonzero((names == agent) | (names == "")) if agent else np.arange(len(names))
        yield group, pool
