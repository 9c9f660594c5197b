"""From a model's ratings of a sample to ratings of the rest: a ridge in closed form (SPEC §3.6).

A rating is taken as ``a + b * heuristic + f``, where ``f`` is linear in a record's features and its embedding and
is held small: how small is chosen on the sample itself, by leaving one out, and ``f`` is given more room only where
that lowers the error by more than its own noise. So a sample that is too small for more ends at the heuristic with a
scale of its own, and never below it for want of data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from fallow.importance.quality import spearman

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

#: How strongly ``f`` is held down, strongest first; the first is: not at all in use.
_PENALTIES: Final = (1e9, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
#: What the features weigh beside the embedding: there are few of them, and each is coarse.
_FEATURES: Final = 0.5
_FOLDS: Final = 5


@dataclass(frozen=True, slots=True)
class Rows:
    """Records as the regression sees them: the heuristic's rating, features, and an embedding (zeros: none)."""

    heuristic: Numbers
    features: Numbers
    embeddings: Numbers

    def __len__(self) -> int:
        return len(self.heuristic)

    def take(self, where: NDArray[np.bool_]) -> Rows:
        """Some of the rows."""
        return Rows(self.heuristic[where], self.features[where], self.embeddings[where])


@dataclass(frozen=True, slots=True)
class Regression:
    """A fitted regression: what it rates a record, not yet cut to 0..1."""

    base: Numbers
    weights: Numbers
    centre: Numbers
    spread: Numbers
    middle: Numbers
    scale: float

    def predict(self, rows: Rows) -> Numbers:
        """The expected rating of each row."""
        inputs = _inputs(rows, self.centre, self.spread, self.middle, self.scale)
        found: Numbers = _line(rows) @ self.base + inputs @ self.weights
        return found


def fit(rows: Rows, ratings: Numbers) -> Regression:
    """The regression of a model's ratings on rows.

    Args:
        rows: the sample.
        ratings: the model's rating of each.
    """
    centre, spread = rows.features.mean(axis=0), rows.features.std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    has = np.any(rows.embeddings != 0, axis=1)
    middle = rows.embeddings[has].mean(axis=0) if has.any() else np.zeros(rows.embeddings.shape[1])
    scale = float(np.sqrt(np.square(rows.embeddings[has] - middle).sum(axis=1).mean())) if has.any() else 1.0
    scale = scale or 1.0
    inputs = _inputs(rows, centre, spread, middle, scale)
    base, alpha = _choose(inputs @ inputs.T, _line(rows), ratings)
    return Regression(base, inputs.T @ alpha, centre, spread, middle, scale)


def cross_validated(rows: Rows, ratings: Numbers) -> float | None:
    """Spearman's correlation of the model's ratings with those predicted for rows left out, in five parts.

    The parts are every fifth row; rows are to come in an order that says nothing. None where nothing varies.
    """
    parts = np.arange(len(rows)) % _FOLDS
    predicted = np.zeros(len(rows))
    for part in range(_FOLDS):
        out = parts == part
        predicted[out] = fit(rows.take(~out), ratings[~out]).predict(rows.take(out))
    return spearman(list(zip(predicted.round(6).tolist(), ratings.tolist(), strict=True)))


def _line(rows: Rows) -> Numbers:
    return np.column_stack([np.ones(len(rows)), rows.heuristic])


def _inputs(rows: Rows, centre: Numbers, spread: Numbers, middle: Numbers, scale: float) -> Numbers:
    features = (rows.features - centre) / spread * (_FEATURES / np.sqrt(max(1, len(centre))))
    has = np.any(rows.embeddings != 0, axis=1)[:, None]
    return np.hstack([features, np.where(has, (rows.embeddings - middle) / scale, 0.0)])


def _choose(kernel: Numbers, line: Numbers, ratings: Numbers) -> tuple[Numbers, Numbers]:
    """The line's coefficients and the dual weights of the rest, at the penalty that leaving one out chooses."""
    count = len(ratings)
    least = np.full(count, np.inf)
    coefficients, weights = np.zeros(line.shape[1]), np.zeros(count)
    for penalty in _PENALTIES:
        inverse = np.linalg.inv(kernel / penalty + np.eye(count))
        base = np.linalg.lstsq(line.T @ inverse @ line, line.T @ inverse, rcond=None)[0]
        rest = inverse - inverse @ line @ base
        residuals = rest @ ratings
        errors = np.square(residuals / np.maximum(np.diag(rest), 1e-9))
        gain = least - errors
        if np.isinf(least).all() or gain.mean() > gain.std() / np.sqrt(count):
            least, coefficients, weights = errors, base @ ratings, residuals / penalty
    return coefficients, weights
