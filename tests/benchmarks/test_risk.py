"""The risk benchmark: the promise holds on conversations made here, and on the six real ones where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.risk import SHARES, conversations, measure, random_splits
from tests.benchmarks.test_quality import conversations as made


def check_promise(folder: Path, splits: int) -> None:
    found = measure(folder, "locomo", splits)
    for share in SHARES:
        rows = [row for row in found["random splits"] if row["share"] == share]
        assert np.mean([row["above"] for row in rows]) <= 0.1
        assert all(row["above_all"] <= 0.1 for row in rows)
    assert all(row["hidden"] == 0 for row in found["ten probes"])
    assert {row["missing"] for row in found["ten probes"] if row["share"] == 0.05} == {35}


def test_the_promise_holds_where_probes_and_later_questions_are_alike(tmp_path: Path) -> None:
    check_promise(made(tmp_path), 50)


def test_a_budget_of_all_loses_what_was_needed(tmp_path: Path) -> None:
    """The benchmark can fail: a promise of nothing hides everything, and the gold with it."""
    asked = conversations(made(tmp_path), "locomo")[0]
    row = random_splits(asked, 1.0, 5)
    assert row["hidden"] == pytest.approx(1.0)
    assert row["gold_lost"] == pytest.approx(1.0)


def test_the_promise_holds_on_six_real_conversations(shared: Path) -> None:
    check_promise(shared / "data", 50)
