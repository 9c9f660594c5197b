"""What the records of a scope say about each other: the surroundings that the free rating reads (SPEC §3.1).

A memory is worth less where it has been told before and where it is about what everything is about; more where
it answers a question or is asked about. None of it needs a model: questions are seen by their marks, repeated
words by comparing neighbours in a thread, nearness by the embeddings that the store holds anyway. Where there are
none, nothing is said about nearness, and the rating does without.

:class:`Company` is fed a scope piece by piece, in any order, and keeps no text: word counts, hashes of words, and
embeddings in half precision (two bytes a number).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

import polars as pl

from fallow.importance.heuristic import Rarity, Surroundings, asks, content_words, words_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Halves = NDArray[np.float16]

#: What a scope's records are read with to be fed to a company.
COMPANY_COLUMNS: Final = ("record_id", "agent_id", "memory_id", "thread_id", "created_at", "text", "embedding")
#: Fewer records with embeddings than this have no usual topic, and no rank says anything.
ENOUGH_FOR_RANKS: Final = 20
#: "Told before" is the mean nearness to so many of the nearest, among so many records told last before it.
_NEAREST: Final = 5
_LOOK_BACK: Final = 4_096
_BLOCK: Final = 512
#: So many words of a turn are compared with the turn before it; three in common are a full repetition.
_COMPARED_WORDS: Final = 64
_REPETITION: Final = 3


class Company:
    """Gathers what is known of a scope's records, and says it of each (:meth:`around`).

    Feed every record, rated or not and hidden or not, so that a later run agrees.
    """

    def __init__(self) -> None:
        self._documents = 0
        self._counts: Counter[str] = Counter()
        self._told: list[pl.DataFrame] = []
        self._keys: list[pl.DataFrame] = []
        self._vectors: dict[int, list[Halves]] = {}

    def add(self, memory_type: str, frame: pl.DataFrame) -> None:
        """Feeds a piece of a scope, with :data:`COMPANY_COLUMNS`; ``embedding`` may be left out."""
        texts = frame.get_column("text").to_list()
        conversation = memory_type == "conversation_memory"
        asking, words = list[bool](), list[list[int]]()
        for text in texts:
            if text is None:
                asking.append(False)
                words.append([])
                continue
            self._documents += 1
            self._counts.update({word.lower() for word in words_of(text)})
            asking.append(conversation and asks(text))
            words.append(_hashes(text) if conversation else [])
        if conversation:
            told = frame.select("record_id", "thread_id", "created_at").with_columns(
                pl.Series("asks", asking, dtype=pl.Boolean), pl.Series("words", words, dtype=pl.List(pl.UInt32))
            )
            self._told.append(told.drop_nulls("thread_id"))
        if "embedding" in frame.columns:
            self._add_vectors(memory_type, frame)

    def _add_vectors(self, memory_type: str, frame: pl.DataFrame) -> None:
        import numpy as np

        sizes = frame.get_column("embedding").list.len().fill_null(0)
        for size in sizes.unique().sort().to_list():
            rows = np.flatnonzero((sizes == size).to_numpy())
            if not size or not len(rows):
                continue
            piece = frame.select("record_id", "agent_id", "memory_id", "created_at")[rows]
            flat = frame.get_column("embedding").gather(rows).explode().to_numpy()
            vectors = np.asarray(flat, dtype=np.float32).reshape(len(rows), size)
            norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
            usable = np.isfinite(norms) & (norms > 0)
            halves = (vectors[usable] / norms[usable, None]).astype(np.float16)
            start = sum(len(block) for block in self._vectors.get(size, []))
            self._vectors.setdefault(size, []).append(halves)
            self._keys.append(
                piece.filter(pl.Series(usable)).select(
                    pl.lit(memory_type).alias("memory_type"),
                    pl.all(),
                    pl.lit(size, dtype=pl.Int64).alias("size"),
                    pl.int_range(start, start + len(halves), dtype=pl.Int64).alias("at"),
                )
            )

    def settled(self) -> Settled:
        """What all that was fed says; to be asked for once."""
        rarity = Rarity(self._documents, {word: number for word, number in self._counts.items() if number > 1})
        return Settled(rarity, _threads(self._told), _nearness(self._keys, self._vectors))


@dataclass(frozen=True, slots=True)
class Settled:
    """A scope's company as found: how rare words are, and each record's surroundings."""

    rarity: Rarity
    threads: pl.DataFrame
    nearness: pl.DataFrame

    def around(self, memory_type: str, ids: Sequence[str]) -> list[Surroundings]:
        """The surroundings of these records, in order."""
        frame = pl.DataFrame({"record_id": list(ids)}, schema={"record_id": pl.String})
        ranks = self.nearness.filter(pl.col("memory_type") == memory_type).drop("memory_type")
        if memory_type == "conversation_memory":
            frame = frame.join(self.threads, on="record_id", how="left", maintain_order="left")
        else:
            frame = frame.with_columns(answers=False, asked_about=False, repeats=0.0)
        frame = frame.join(ranks, on="record_id", how="left", maintain_order="left")
        columns = ("answers", "asked_about", "repeats", "told_before", "usual_topic")
        return [
            Surroundings(bool(answers), bool(asked), repeats or 0.0, before, topic)
            for answers, asked, repeats, before, topic in frame.select(columns).iter_rows()
        ]


def _hashes(text: str) -> list[int]:
    return [crc32(word.encode("utf-8", "replace")) for word in content_words(text)[:_COMPARED_WORDS]]


_THREADS: Final = {"record_id": pl.String, "answers": pl.Boolean, "asked_about": pl.Boolean, "repeats": pl.Float64}


def _threads(told: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Of each message: whether the one before it asks, the one after it, and what it repeats of the one before."""
    if not told:
        return pl.DataFrame(schema=_THREADS)
    frame = pl.concat(told).drop_nulls("created_at").sort("thread_id", "created_at", "record_id")
    frame = frame.unique("record_id", keep="first", maintain_order=True)
    shared = pl.col("words").list.set_intersection(pl.col("words").shift(1).over("thread_id")).list.len()
    return frame.select(
        "record_id",
        pl.col("asks").shift(1).over("thread_id").fill_null(False).alias("answers"),
        pl.col("asks").shift(-1).over("thread_id").fill_null(False).alias("asked_about"),
        (shared.fill_null(0) / _REPETITION).clip(0.0, 1.0).alias("repeats"),
    )


_NEARNESS: Final[Mapping[str, pl.DataType]] = {
    "memory_type": pl.String(),
    "record_id": pl.String(),
    "told_before": pl.Float64(),
    "usual_topic": pl.Float64(),
}


def _nearness(keys: list[pl.DataFrame], blocks: Mapping[int, list[Halves]]) -> pl.DataFrame:
    """The two ranks of every record with an embedding, memory by memory."""
    import numpy as np

    found = [pl.DataFrame(schema=_NEARNESS)]
    if not keys:
        return found[0]
    vectors = {size: np.concatenate(parts) for size, parts in blocks.items()}
    frame = pl.concat(keys).sort("created_at", "record_id", nulls_last=True)
    frame = frame.unique(["memory_type", "record_id"], keep="first", maintain_order=True)
    for _, memory in frame.group_by(["memory_type", "agent_id", "memory_id"], maintain_order=True):
        # Embeddings of two models have nothing to say to each other: the more frequent size counts.
        lengths = Counter(memory.get_column("size").to_list())
        size = min(lengths, key=lambda size: (-lengths[size], size))
        memory = memory.filter(pl.col("size") == size)
        if len(memory) < ENOUGH_FOR_RANKS:
            continue
        told = vectors[size][memory.get_column("at").to_numpy()]
        centre = told.sum(axis=0, dtype=np.float64).astype(np.float32)
        topic = np.concatenate(
            [told[at : at + _BLOCK].astype(np.float32) @ centre for at in range(0, len(told), _BLOCK)]
        )
        ranked = memory.select(
            "memory_type",
            "record_id",
            pl.Series("told_before", _ranks(_told_before(told))),
            pl.Series("usual_topic", _ranks(topic)),
        )
        found.append(ranked)
    return pl.concat(found)


def _told_before(told: Halves) -> Vectors:
    """The mean cosine of each row with the nearest of the rows before it; -1 for the first."""
    import numpy as np

    means = np.full(len(told), -1.0, dtype=np.float32)
    for start in range(0, len(told), _BLOCK):
        stop, first = min(len(told), start + _BLOCK), max(0, start - _LOOK_BACK)
        near = told[start:stop].astype(np.float32) @ told[first:stop].astype(np.float32).T
        later = np.arange(first, stop)[None, :] >= np.arange(start, stop)[:, None]
        near[later] = -2.0
        width = min(_NEAREST, near.shape[1])
        nearest = np.partition(near, near.shape[1] - width, axis=1)[:, -width:]
        there = nearest > -2.0
        count = there.sum(axis=1)
        sums = np.where(there, nearest, 0.0).sum(axis=1)
        means[start:stop][count > 0] = sums[count > 0] / count[count > 0]
    return means


def _ranks(values: Vectors) -> list[float]:
    """Ranks in 0..1, ties by their mean; what rounding may differ in is no difference."""
    ranks = pl.Series(values.astype("float64").round(4)).rank("average")
    return ((ranks - 1.0) / max(1, len(values) - 1)).to_list()
