"""The quality benchmark tests itself: an oracle loses nothing, chance loses what chance loses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.quality import means, measure


def conversations(folder: Path, name: str = "locomo") -> Path:
    """Two conversations of 120 turns; every question has one turn as its evidence, near to it."""
    rng = np.random.default_rng(7)
    turns, questions = [], []
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for memory in ("m1", "m2"):
        vectors = rng.standard_normal((120, 16)).astype(np.float32)
        for place in range(120):
            turns.append(
                {
                    "id": f"{memory}-{place:03}",
                    "memory_id": memory,
                    "thread_id": f"{memory}-{place // 20}",
                    "role": "user",
                    "content": f"turn number {place} about thing {rng.integers(1000)}",
                    "timestamp": (start + timedelta(hours=7 * place)).isoformat(),
                    "embedding": vectors[place].tolist(),
                }
            )
        for at in rng.permutation(120)[:40].tolist():
            near = (vectors[at] + 0.1 * rng.standard_normal(16)).tolist()
            questions.append(
                {"memory_id": memory, "answerable": True, "evidence_ids": [f"{memory}-{at:03}"], "embedding": near}
            )
    vector = pl.Array(pl.Float32, 16)
    pl.DataFrame(turns, schema_overrides={"embedding": vector}).write_parquet(folder / f"{name}_records.parquet")
    pl.DataFrame(questions, schema_overrides={"embedding": vector}).write_parquet(folder / f"{name}_questions.parquet")
    return folder


def by_policy(folder: Path, name: str, *, shuffle: bool = False, seeds: int = 10) -> dict[str, dict[str, float]]:
    rows = means(measure(folder, name, seeds, shuffle=shuffle)).to_dicts()
    return {row["policy"]: row for row in rows}


def check_oracle_and_chance(found: dict[str, dict[str, float]]) -> None:
    for percent in (10, 25, 50):
        assert found["oracle"][f"survival_{percent}"] == 1.0
        assert found["oracle"][f"whole_{percent}"] == 1.0
        assert found["random"][f"survival_{percent}"] == pytest.approx(1 - percent / 100, abs=0.06)


def test_an_oracle_keeps_all_evidence_and_random_keeps_one_minus_x(tmp_path: Path) -> None:
    found = by_policy(conversations(tmp_path), "locomo")
    check_oracle_and_chance(found)
    assert found["nothing hidden"]["recall@5"] > 0.9, "the evidence lies near its question"
    assert found["random"]["recall@10_50"] < found["oracle"]["recall@10_50"]


def test_with_shuffled_gold_no_policy_beats_chance(tmp_path: Path) -> None:
    found = by_policy(conversations(tmp_path), "locomo", shuffle=True)
    for policy, row in found.items():
        if policy.startswith("nothing") or policy == "oracle":
            continue
        for percent in (10, 25, 50):
            assert row[f"survival_{percent}"] == pytest.approx(1 - percent / 100, abs=0.08), policy


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    folder = conversations(tmp_path)
    assert measure(folder, "locomo", 1) == measure(folder, "locomo", 1)


def test_on_six_real_conversations_importance_first_beats_a_constant_rating(shared: Path) -> None:
    found = by_policy(shared / "data", "locomo", seeds=1)
    check_oracle_and_chance(found)
    best, constant = found["importance first (recommended)"], found["retention, constant importance"]
    for percent in (10, 25, 50):
        assert best[f"survival_{percent}"] > constant[f"survival_{percent}"]
    assert best["survival_10"] >= 0.985
    assert best["survival_25"] >= 0.955
    assert best["recall@10_25"] >= found["nothing hidden"]["recall@10"]
