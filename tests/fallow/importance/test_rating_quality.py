"""A model whose ratings say nothing is caught (SPEC §15), and one that judges is not."""

from __future__ import annotations

import random

import pytest

from fallow.importance.quality import MIN_ROWS, QualityCheck, fallback_problem, spearman


def fed(batches: list[list[float]]) -> QualityCheck:
    check = QualityCheck()
    for batch in batches:
        check.add(batch)
    return check


def test_one_value_for_more_than_seventy_per_cent() -> None:
    assert "rated 24 of 24" in fed([[0.5]] * MIN_ROWS).problem
    assert fed([[0.5]] * (MIN_ROWS - 1)).problem == ""
    exactly = [[0.5]] * 70 + [[0.1]] * 15 + [[0.9]] * 15
    assert fed(exactly).problem == ""
    assert "71 of 101" in fed([[0.5], *exactly]).problem


def test_the_same_answers_for_different_batches() -> None:
    steps = [round(at / 10, 1) for at in range(1, 9)]
    assert fed([steps] * 2).problem == ""
    assert "3 of 3 batches" in fed([steps] * 3).problem
    assert "3 of 5" in fed([steps, steps[::-1], steps, steps[1:], steps]).problem


@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_judges_passes(seed: int) -> None:
    draw = random.Random(seed)
    weights = [6, 5, 4, 2, 2, 2, 3, 2, 1, 1]
    batches = [[value / 10 for value in draw.choices(range(1, 11), weights, k=8)] for _ in range(500)]
    check = QualityCheck()
    for batch in batches:
        check.add(batch)
        assert check.problem == ""


def test_more_fallbacks_than_the_set_share() -> None:
    assert fallback_problem(20, 100, 0.2) == ""
    assert "21 of 100" in fallback_problem(21, 100, 0.2)
    assert fallback_problem(0, 0, 0.2) == ""


def test_rank_correlation_with_ties() -> None:
    assert spearman([(1, 10), (2, 20), (3, 30), (4, 40)]) == 1.0
    assert spearman([(1, 4), (2, 3), (3, 2), (4, 1)]) == -1.0
    # By hand: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert spearman([(1, 1), (2, 2), (2, 3), (3, 4)]) == pytest.approx(0.9487, abs=1e-4)
    assert spearman([(1, 1), (1, 2), (1, 3)]) is None
    assert spearman([]) is None
