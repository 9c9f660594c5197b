"""Embeddings of stored rows as numbers, their cosines, and near duplicates among many (SPEC §2.1, §2.2).

Everything is float64. A zero, NaN, infinite or wrong-length vector gives no cosine and a reason; nothing
here ever returns NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float64]


#: Products up to this many multiplications stay on one thread: small sets are not slowed by waking others.
_UNTHREADED: Final = 262_000
#: What rounding may take from the cosine of equal directions.
_ROUNDING: Final = 1e-12
#: From this many vectors on, pairs are ruled out by a part of their dimensions first.
_PRUNED_FROM: Final = 256


def read_vector(value: Any) -> tuple[Vectors | None, str]:
    """A stored embedding as a unit vector, or None with the reason: ``no embedding``, ``zero``, ``not finite``…"""
    import numpy as np

    if value is None:
        return None, "no embedding"
    try:
        vector = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None, "embedding is no list of numbers"
    except OverflowError:
        return None, "embedding is not finite"
    if vector.ndim != 1 or not vector.size:
        return None, "no embedding" if vector.size == 0 else "embedding is no list of numbers"
    return _unit(vector)


def _unit(vector: Vectors) -> tuple[Vectors | None, str]:
    import numpy as np

    top = float(np.abs(vector).max())
    if not math.isfinite(top):
        return None, "embedding is not finite"
    if top == 0.0:
        return None, "embedding is zero"
    # Scaled first, so that no square overflows or vanishes.
    scaled = vector / top
    return scaled / math.sqrt(float(np.dot(scaled, scaled))), ""


def length_of(value: Any) -> int:
    """How many numbers a stored embedding or a query has; 0 where it is no list of them."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return 0
    return len(value)


def read_vectors(values: Sequence[Any], length: int | None = None) -> tuple[Vectors, list[int], list[str]]:
    """Stored embeddings as unit rows of one matrix.

    Args:
        values: lists, arrays or None.
        length: the only usable length; None means the most frequent one (of two, the shorter).

    Returns:
        The matrix of those that can be used, their positions in ``values``, and for every position the
        reason why it has no row (empty where it has).
    """
    import numpy as np

    if length is None:
        sizes = Counter(size for value in values if (size := length_of(value)))
        length = min(sizes, key=lambda size: (-sizes[size], size), default=0)
    reasons = [""] * len(values)
    where: list[int] = []
    for position, value in enumerate(values):
        if type(value) is list and len(value) == length and length:
            where.append(position)
        elif value is None:
            reasons[position] = "no embedding"
        elif (size := length_of(value)) == length and length:
            where.append(position)
        elif size:
            reasons[position] = f"embedding has {size} numbers, not {length}"
        else:
            empty = hasattr(value, "__len__") and getattr(value, "ndim", 1) != 0 and len(value) == 0
            reasons[position] = "no embedding" if empty else "embedding is no list of numbers"
    if not where:
        return np.zeros((0, length), dtype=np.float64), [], reasons
    try:
        matrix = np.array([values[position] for position in where], dtype=np.float64)
        plain = matrix.ndim == 2
    except (TypeError, ValueError, OverflowError):
        plain = False
    if not plain:
        rows = []
        for position in where:
            vector, reasons[position] = read_vector(values[position])
            rows.append(np.full(length, np.nan) if vector is None else vector)
        matrix = np.array(rows)
    top = np.abs(matrix).max(axis=1)
    usable = np.isfinite(top) & (top > 0)
    for position, fine, highest in zip(where, usable.tolist(), top.tolist(), strict=True):
        if not fine and not reasons[position]:
            reasons[position] = "embedding is zero" if highest == 0 else "embedding is not finite"
    matrix = matrix[usable] / top[usable, None]
    matrix /= np.sqrt(np.einsum("ij,ij->i", matrix, matrix))[:, None]
    return matrix, [position for position, fine in zip(where, usable.tolist(), strict=True) if fine], reasons


def cosines(matrix: Vectors, vector: Vectors) -> Vectors:
    """The cosine of each unit row with a unit vector, within -1..1."""
    import numpy as np

    found: Vectors = np.clip(np.einsum("ij,j->i", matrix, vector), -1.0, 1.0)
    return found


def near_duplicates(matrix: Vectors, threshold: float) -> list[tuple[int, float] | None]:
    """For each unit row, the earlier kept row it nearly repeats, with their cosine; None where it is kept.

    Rows come in the order of preference. A row that repeats a kept one is dropped and cannot drop others.
    Block by block each row is compared with the kept ones only; the result is that of comparing one by one.
    """
    import numpy as np

    count = len(matrix)
    found: list[tuple[int, float] | None] = [None] * count
    if count < 2 or threshold > 1.0:
        return found
    search = _Search(matrix, threshold)
    kept = np.zeros(0, dtype=np.intp)
    for start in range(0, count, search.block):
        rows = np.arange(start, min(count, start + search.block), dtype=np.intp)
        for first, second, cosine in search.pairs(kept, rows):
            if found[second] is None:
                found[second] = (first, cosine)
        rest = np.array([row for row in rows.tolist() if found[row] is None], dtype=np.intp)
        for first, second, cosine in search.pairs(rest, rest):
            if first < second and found[first] is None and found[second] is None:
                found[second] = (first, cosine)
        kept = np.concatenate([kept, [row for row in rest.tolist() if found[row] is None]]).astype(np.intp)
    return found


class _Search:
    """Which rows are at least ``threshold`` alike, exactly; a part of the dimensions rules most pairs out first.

    Two unit rows at cosine c are sqrt(2 - 2c) apart, and no further apart in a part of their dimensions: pairs
    that are too far apart already there never see the whole product.
    """

    def __init__(self, matrix: Vectors, threshold: float) -> None:
        import numpy as np

        count, length = matrix.shape
        self.block = 128
        self._matrix, self._threshold = matrix, threshold
        self._lead: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        limit = 2.0 - 2.0 * threshold
        if count < _PRUNED_FROM:
            return
        sample = matrix[np.linspace(0, count - 1, 64).astype(np.intp)]
        gap = 2.0 - 2.0 * np.einsum("ik,jk->ij", sample, sample)
        typical = float(np.median(gap[np.triu_indices(64, 1)]))
        # The smallest part in which a typical pair is too far apart by nearly four standard deviations.
        parts = np.arange(1, length + 1)
        enough = np.flatnonzero(typical * parts / length * (1.0 - 3.7 * np.sqrt(2.0 / parts)) >= limit)
        part = int(parts[enough[0]]) if len(enough) else length
        self.block = min(128, max(32, 2 * math.isqrt(_UNTHREADED // (part + 2))))
        # Which dimensions come first is a fixed shuffle: no order of an embedding's own numbers can defeat it.
        chosen = np.random.default_rng(7).permutation(length)[:part]
        lead = np.ascontiguousarray(matrix[:, chosen], dtype=np.float32)
        half = np.einsum("ij,ij->i", lead, lead) * np.float32(0.5)
        one = np.ones_like(half)
        # (|a-b|^2 <= limit) as one product >= 0; float32 errs by far less than the slack.
        self._lead = (
            np.column_stack([lead, np.float32(limit / 2 + 1e-4) - half, one]),
            np.column_stack([lead, one, -half]),
        )

    def pairs(self, left: NDArray[np.intp], right: NDArray[np.intp]) -> Iterator[tuple[int, int, float]]:
        """Pairs (a row of ``left``, a row of ``right``, their cosine) at or above the threshold, ordered by both."""
        import numpy as np

        if not len(left) or not len(right):
            return
        firsts, seconds = self._possible(left, right)
        cosine = np.empty(len(firsts), dtype=np.float64)
        for start in range(0, len(firsts), 65536):
            piece = slice(start, start + 65536)
            cosine[piece] = np.einsum("ij,ij->i", self._matrix[firsts[piece]], self._matrix[seconds[piece]])
        # The same vector twice has a cosine of 1 but for rounding.
        alike = np.nonzero(cosine >= self._threshold - _ROUNDING)[0]
        alike = alike[np.lexsort((seconds[alike], firsts[alike]))]
        values = np.minimum(cosine[alike], 1.0).tolist()
        yield from zip(firsts[alike].tolist(), seconds[alike].tolist(), values, strict=True)

    def _possible(self, left: NDArray[np.intp], right: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        import numpy as np

        upper: NDArray[Any]
        lower: NDArray[Any]
        if self._lead is None:
            upper, lower, bound = self._matrix[left], self._matrix[right], self._threshold - 1e-9
        else:
            upper, lower, bound = self._lead[0][left], self._lead[1][right], 0.0
        firsts: list[NDArray[np.intp]] = []
        seconds: list[NDArray[np.intp]] = []
        side = max(8, _UNTHREADED // (len(right) * upper.shape[1]))
        for start in range(0, len(left), side):
            near = upper[start : start + side] @ lower.T >= bound
            if near.any():
                first, second = near.nonzero()
                firsts.append(left[first + start])
                seconds.append(right[second])
        if not firsts:
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        return np.concatenate(firsts), np.concatenate(seconds)
