"""The distilled benchmark's own test: a simulated model that knows is learned from, one of chance is refused."""

from __future__ import annotations

import numpy as np
import polars as pl

from benchmarks.quality_distilled import distil, opinions


def turns(count: int) -> tuple[pl.DataFrame, np.ndarray]:
    dice = np.random.default_rng(2)
    gold = dice.random(count) < 0.3
    vectors = dice.normal(size=(count, 8)) + 3.0 * gold[:, None] * np.eye(8)[0]
    frame = pl.DataFrame(
        {
            "id": [f"t:{at}" for at in range(count)],
            "memory_id": ["m"] * count,
            "thread_id": ["t"] * count,
            "role": ["user"] * count,
            "content": [f"turn number {at}" for at in range(count)],
            "timestamp": [f"2026-01-01T{at // 60:02d}:{at % 60:02d}:00Z" for at in range(count)],
            "embedding": vectors.tolist(),
        }
    )
    return frame, gold


def test_a_model_that_knows_teaches_and_one_of_chance_is_refused() -> None:
    frame, gold = turns(240)
    report, stored = distil(frame, opinions(gold, 0.0, 1), 80)
    assert report.problem == ""
    rated = np.array(stored)
    assert rated[gold].mean() > rated[~gold].mean() + 0.2
    report, stored = distil(frame, opinions(gold, 1.0, 1), 80)
    assert "nothing was written" in report.problem
    assert set(stored) == {0.5}
