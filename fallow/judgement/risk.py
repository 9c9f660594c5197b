"""How far down a plan's own order one may go before the store's own questions miss something (SPEC §6.11).

A probe is a past question. Hiding a set of memories costs it 1 when the nearest memory left is farther than the
nearest now by more than ``drop`` of the way from the nearest to the median memory, else 0. Losses only grow along an
order: :func:`answers` says which memories keep a probe from losing, :func:`first_losses` after how many hidden
candidates it loses, and :func:`promise` takes the longest prefix for which a test with exact binomial p-values
rejects "new questions like these cost more than ``share``". Every length is tested, shortest first, and the first
that is not rejected ends it: which lengths are tested never depends on the probes, so one level is enough for all of
them (fixed-sequence testing).

Pure: arrays in, numbers out. Cosines are products of whole numbers, exact in any order of addition: the same records
and probes give the same prefix on every processor and from every store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

#: How far the nearest memory may fall, of the way from the nearest to the median, before a probe loses.
DROP: Final = 0.1
#: The prefix length of a probe that no prefix costs anything.
NEVER: Final = int(np.iinfo(np.int64).max)
#: Bits of a unit vector's numbers on the whole-number grid: a product of two stays below 2^53.
_BITS: Final = 25
#: Memories put on the grid at once, and products (probes x memories) held at once.
_ROWS: Final = 8192
_PRODUCTS: Final = 1 << 25
#: Questions compared with each other at once.
_AT_ONCE: Final = 256
#: Two questions at least this alike by cosine are one, asked again.
REPEATED: Final = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a set of probes lets one promise about an order of candidates.

    Attributes:
        share: new questions cost at most this on average, 0..1...
        confidence: ...with this probability over the probes drawn.
        probes: how many there were.
        missing: how many more would be needed before anything at all can be promised; 0 where there are enough.
        allowed: how many probes may lose; -1 where ``missing``.
        length: candidates that may be hidden, from the front of the order; 0 where ``missing``.
        lost: probes that lose at ``length``.
    """

    share: float
    confidence: float
    probes: int
    missing: int
    allowed: int
    length: int
    lost: int


def answers(
    probes: NDArray[Any], memories: NDArray[Any], *, drop: float, own: Places | None = None
) -> list[NDArray[np.intp]]:
    """For each probe the memories any one of which, left visible, keeps it from losing.

    Args:
        probes: a vector each (n x d), of any length but 0.
        memories: what can answer them now (m x d), of any length but 0.
        drop: of the way from the nearest to the median memory, 0..1.
        own: of each probe the memory that it was made from and that may not answer it; -1 for none.

    Returns:
        Indices of memories; none where nothing answers a probe even now.
    """
    found: list[NDArray[np.intp]] = []
    if not len(memories):
        return [np.zeros(0, dtype=np.intp) for _ in probes]
    asked = on_grid(probes)
    at_once = max(1, _PRODUCTS // len(memories))
    for start in range(0, len(asked), at_once):
        part = asked[start : start + at_once]
        alike = np.empty((len(part), len(memories)))
        for row in range(0, len(memories), _ROWS):
            alike[:, row : row + _ROWS] = part @ on_grid(memories[row : row + _ROWS]).T
        for place, products in enumerate(alike, start):
            found.append(near_enough(products, drop, -1 if own is None else int(own[place])))
    return found


def distinct(vectors: NDArray[Any], whose: NDArray[Any], limit: int | None = None) -> list[int]:
    """Indices of the questions, in their order, that repeat none of the same asker kept before; at most ``limit``.

    Args:
        vectors: n x d, of any length but 0.
        whose: n labels; only questions with one label can repeat each other.
        limit: stop there; None means all.
    """
    kept: list[int] = []
    whole = np.zeros((0, vectors.shape[1]))
    least = REPEATED * float(1 << _BITS) ** 2
    for start in range(0, len(vectors), _AT_ONCE):
        labels = whose[start : start + _AT_ONCE]
        part = on_grid(vectors[start : start + _AT_ONCE])
        before = (part @ whole.T >= least) & (labels[:, None] == whose[kept][None, :])
        among = (part @ part.T >= least) & (labels[:, None] == labels[None, :])
        new = ~np.logical_or.reduce(before, axis=1)
        for index in range(len(part)):
            if new[index]:
                kept.append(start + index)
                new[index + 1 :] &= ~among[index, index + 1 :]
            if limit is not None and len(kept) >= limit:
                return kept
        whole = np.concatenate([whole, part[new]])
    return kept


def near_enough(alike: NDArray[Any], drop: float, itself: int = -1) -> NDArray[np.intp]:
    """The memories that a probe may be left with at no loss (SPEC §6.11), from its likeness to each of them.

    Args:
        alike: products with all memories, all at one scale.
        drop: of the way from the nearest to the median, 0..1.
        itself: the memory that the probe was made from; -1 for none.
    """
    others = alike if itself < 0 else np.delete(alike, itself)
    if not len(others):
        return np.zeros(0, dtype=np.intp)
    nearest = others.max()
    enough = nearest - alike <= drop * (nearest - np.median(others))
    if itself >= 0:
        enough[itself] = False
    return np.flatnonzero(enough)


def first_losses(answered: Sequence[NDArray[np.intp]], places: Places) -> Places:
    """For each probe the number of hidden candidates, counted along the order, at which it first loses.

    Args:
        answered: what :func:`answers` found.
        places: of each memory its place in the order, from 0; -1 where it is no candidate and so always stays.

    Returns:
        Lengths of at least 1, or :data:`NEVER` where the probe loses at no length; a probe without an answer has
        nothing to lose.
    """
    lengths = np.where(places < 0, NEVER, places + 1)
    found = [int(lengths[part].max()) if len(part) else NEVER for part in answered]
    return np.array(found, dtype=np.int64)


def on_grid(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """The directions of vectors as whole numbers, 2^25 long: sums of their products are exact in any order.

    Every step is one correctly rounded operation, or a sum of whole numbers that float64 holds exactly.
    """
    values = np.asarray(vectors, dtype=np.float64)
    top = np.abs(values).max(axis=1, keepdims=True)
    bits = (53 - math.ceil(math.log2(max(2, values.shape[1])))) // 2
    whole = np.rint(values / top * float(1 << bits))
    norms = np.sqrt(np.einsum("ij,ij->i", whole, whole))
    result: NDArray[np.float64] = np.rint(whole * (float(1 << _BITS) / norms)[:, None])
    return result


def promise(first: Places, candidates: int, *, share: float, confidence: float) -> Promise:
    """The longest prefix of an order that probes allow.

    Args:
        first: what :func:`first_losses` found.
        candidates: how long the order is.
        share: greatest expected cost, above 0 and at most 1.
        confidence: of the promise, above 0 and below 1.
    """
    number = len(first)
    allowed = losses_allowed(number, share, confidence)
    if allowed < 0:
        missing = probes_needed(share, confidence) - number
        return Promise(share=share, confidence=confidence, probes=number, missing=missing, allowed=-1, length=0, lost=0)
    length = candidates
    if allowed < number:
        length = min(candidates, int(np.partition(first, allowed)[allowed]) - 1)
    return Promise(
        share=share,
        confidence=confidence,
        probes=number,
        missing=0,
        allowed=allowed,
        length=length,
        lost=int((first <= length).sum()),
    )


def losses_allowed(probes: int, share: float, confidence: float) -> int:
    """The most losses among ``probes`` at which "costs more than ``share``" is rejected; -1: not even at none."""
    if share >= 1.0:
        return probes
    allowed, tail = -1, 0.0
    for lost in range(probes + 1):
        tail += _binomial(lost, probes, share)
        if tail > 1.0 - confidence:
            break
        allowed = lost
    return allowed


def p_value(lost: int, probes: int, share: float) -> float:
    """The chance of at most ``lost`` losses among ``probes`` if each cost ``share``."""
    if share >= 1.0:
        return float(lost >= probes)
    return min(1.0, math.fsum(_binomial(number, probes, share) for number in range(lost + 1)))


def probes_needed(share: float, confidence: float) -> int:
    """The fewest probes from which, if none loses, anything can be promised (45 for 0.05 at 0.9)."""
    if share >= 1.0:
        return 0
    needed = max(0, math.floor(math.log1p(-confidence) / math.log1p(-share)) - 1)
    while losses_allowed(needed, share, confidence) < 0:
        needed += 1
    return needed


def _binomial(lost: int, number: int, share: float) -> float:
    ways = math.lgamma(number + 1) - math.lgamma(lost + 1) - math.lgamma(number - lost + 1)
    return math.exp(ways + lost * math.log(share) + (number - lost) * math.log1p(-share))
