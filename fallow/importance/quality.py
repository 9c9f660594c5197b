"""Whether a model's ratings say anything (SPEC §15, NeedsAttention): judged while a run goes on.

A model too small, misled or misconfigured answers every row alike, or every batch with the same list. Such
ratings cannot be taken back, so a run stops at the first sign that stands on enough answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

#: One value for more than this share of the rows is no judgement.
MAX_SHARE: Final = 0.7
#: Fewer rated rows than this prove nothing about one value.
MIN_ROWS: Final = 24
#: Batches smaller than this may well be answered alike, and fewer batches than this prove nothing.
MIN_BATCH: Final = 4
MIN_BATCHES: Final = 3
#: Different answers that are told apart: one given to most batches is among the first of them.
MAX_ANSWERS: Final = 2_000


@dataclass(slots=True)
class QualityCheck:
    """Counts a run's model ratings: values over all rows, and how often a whole batch was answered alike."""

    values: Counter[float] = field(default_factory=Counter)
    answers: Counter[tuple[float, ...]] = field(default_factory=Counter)
    batches: int = 0

    def add(self, ratings: Sequence[float]) -> None:
        """One batch's ratings in the order of its rows, as the model gave them for texts that all differ."""
        self.values.update(ratings)
        if len(ratings) >= MIN_BATCH:
            self.batches += 1
            answer = tuple(ratings)
            if answer in self.answers or len(self.answers) < MAX_ANSWERS:
                self.answers[answer] += 1

    @property
    def problem(self) -> str:
        """What is wrong with the ratings so far, in words; empty while nothing is."""
        rows = self.values.total()
        if rows >= MIN_ROWS:
            value, count = self.values.most_common(1)[0]
            if count > MAX_SHARE * rows:
                return f"the model rated {count} of {rows} different texts {value:g}"
        if self.batches >= MIN_BATCHES:
            count = max(self.answers.values())
            if count >= MIN_BATCHES and count > self.batches / 2:
                return f"the model gave {count} of {self.batches} batches of different texts the same answers"
        return ""


def fallback_problem(fallbacks: int, asked: int, limit: float) -> str:
    """Whether more than the set share of the rows that were asked about got no rating from the model."""
    if asked and fallbacks > limit * asked:
        return f"{fallbacks} of {asked} rows got no usable rating from the model, more than {limit:.0%}"
    return ""


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The rank correlation of pairs, ties by their mean rank; None where either side does not vary."""
    if len(pairs) < 3:
        return None
    left, right = _ranks([a for a, _ in pairs]), _ranks([b for _, b in pairs])
    mean = (len(pairs) + 1) / 2
    covariance = sum((a - mean) * (b - mean) for a, b in zip(left, right, strict=True))
    spread = (sum((a - mean) ** 2 for a in left) * sum((b - mean) ** 2 for b in right)) ** 0.5
    return None if spread == 0 else round(covariance / spread, 4)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for at in range(start, end + 1):
            ranks[order[at]] = (start + end) / 2 + 1
        start = end + 1
    return ranks
