"""The risk budget's arithmetic (SPEC §6.11), held against its definition written out and against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from fallow.judgement.risk import (
    NEVER,
    answers,
    distinct,
    losses_allowed,
    on_grid,
    p_value,
    probes_needed,
    promise,
)
from fallow.judgement.risk import first_losses as losses_of


def first_losses(
    probes: np.ndarray, memories: np.ndarray, places: np.ndarray, *, drop: float, own: np.ndarray | None = None
) -> np.ndarray:
    return losses_of(answers(probes, memories, drop=drop, own=own), places)


def loses(probe: np.ndarray, memories: np.ndarray, hidden: np.ndarray, drop: float) -> bool:
    """SPEC §6.11's loss of one probe, as it reads."""
    distance = 1 - (memories @ probe) / (np.linalg.norm(memories, axis=1) * np.linalg.norm(probe))
    if hidden.all():
        return True
    near, middle = distance.min(), np.median(distance)
    return bool(distance[~hidden].min() - near > drop * (middle - near))


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.5])
def test_every_prefix_costs_what_the_definition_says(drop: float) -> None:
    rng = np.random.default_rng(3)
    memories, probes = rng.standard_normal((41, 12)), rng.standard_normal((17, 12))
    places = np.full(41, -1, dtype=np.int64)
    candidates = rng.permutation(41)[:30]
    places[candidates] = np.arange(30)
    first = first_losses(probes, memories, places, drop=drop)
    assert (first == NEVER).any()
    assert (first < NEVER).any()
    for length in range(31):
        hidden = (places >= 0) & (places < length)
        assert [loses(probe, memories, hidden, drop) for probe in probes] == (first <= length).tolist(), length


def test_hiding_everything_costs_every_probe_even_where_all_memories_are_alike() -> None:
    memories = np.ones((5, 3))
    first = first_losses(np.array([[1.0, 0, 0]]), memories, np.arange(5, dtype=np.int64), drop=0.1)
    assert first.tolist() == [5]


def test_a_probe_that_nothing_answers_loses_nothing() -> None:
    probe, nothing = np.array([[1.0, 0.0]]), np.zeros((0, 2))
    assert first_losses(probe, nothing, np.zeros(0, dtype=np.int64), drop=0.1).tolist() == [NEVER]
    itself = np.array([0], dtype=np.int64)
    assert first_losses(probe, probe, itself, drop=0.1, own=itself).tolist() == [NEVER]


def test_the_turn_that_a_probe_was_made_from_does_not_answer_it() -> None:
    memories = np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0, 1, 0], [0, 0, 1]])
    places = np.array([-1, 0, 1, 2], dtype=np.int64)
    probe = memories[:1]
    assert first_losses(probe, memories, places, drop=0.1).tolist() == [NEVER]
    assert first_losses(probe, memories, places, drop=0.1, own=np.array([0], dtype=np.int64)).tolist() == [1]


@pytest.mark.parametrize("numbers", [3, 384, 3072])
def test_the_order_in_which_a_store_lists_its_records_changes_no_bit(numbers: int) -> None:
    rng = np.random.default_rng(5)
    memories = rng.standard_normal((300, numbers)).astype(np.float32)
    memories[150:] = memories[:150]
    probes = rng.standard_normal((20, numbers)).astype(np.float32)
    places = rng.permutation(300).astype(np.int64)
    mixed = rng.permutation(300)
    there, back = (
        first_losses(probes, rows, at, drop=0.0) for rows, at in ((memories, places), (memories[mixed], places[mixed]))
    )
    assert there.tolist() == back.tolist()
    whole = on_grid(memories)
    assert (whole == np.rint(whole)).all()
    assert float((whole**2).sum(axis=1).max()) < 2**53
    backwards = on_grid(memories[:, ::-1])
    assert ((whole @ on_grid(probes).T) == (backwards @ on_grid(probes[:, ::-1]).T)).all()


def test_of_questions_that_repeat_each_other_the_first_counts_and_only_among_one_askers() -> None:
    rng = np.random.default_rng(11)
    topics = rng.standard_normal((40, 24))
    vectors = np.concatenate([topics + 0.005 * rng.standard_normal((40, 24)) for _ in range(30)])
    one = distinct(vectors, np.zeros(len(vectors)))
    assert one == list(range(40))
    assert distinct(vectors, np.zeros(len(vectors)), 7) == list(range(7))
    two = distinct(vectors, np.arange(len(vectors)) // 40 % 2)
    assert two == list(range(80))


def test_length_of_a_vector_does_not_matter() -> None:
    rng = np.random.default_rng(6)
    memories, probes = rng.standard_normal((50, 8)), rng.standard_normal((9, 8))
    places = np.arange(50, dtype=np.int64)
    tall = memories * np.exp2(rng.integers(-300, 300, 50))[:, None]
    once = first_losses(probes, memories, places, drop=0.1)
    assert first_losses(probes, tall, places, drop=0.1).tolist() == once.tolist()


def exact_tail(lost: int, probes: int, share: Fraction) -> Fraction:
    terms = (math.comb(probes, n) * share**n * (1 - share) ** (probes - n) for n in range(lost + 1))
    return sum(terms, Fraction(0))


@pytest.mark.parametrize("probes", [0, 1, 10, 44, 45, 46, 200, 1000])
@pytest.mark.parametrize("share", [Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1, 2)])
def test_the_losses_allowed_are_those_of_exact_fractions(probes: int, share: Fraction) -> None:
    allowed = losses_allowed(probes, float(share), 0.9)
    level = Fraction(1, 10)
    assert allowed == -1 or exact_tail(allowed, probes, share) <= level
    assert exact_tail(allowed + 1, probes, share) > level
    if allowed >= 0:
        assert p_value(allowed, probes, float(share)) == pytest.approx(float(exact_tail(allowed, probes, share)))


def test_too_few_probes_promise_nothing_and_say_how_many_are_missing() -> None:
    assert probes_needed(0.05, 0.9) == 45
    assert probes_needed(0.1, 0.9) == 22
    calm = np.full(10, NEVER, dtype=np.int64)
    made = promise(calm, 1000, share=0.05, confidence=0.9)
    assert (made.missing, made.length, made.allowed) == (35, 0, -1)
    enough = promise(np.full(45, NEVER, dtype=np.int64), 1000, share=0.05, confidence=0.9)
    assert (enough.missing, enough.length, enough.allowed) == (0, 1000, 0)


def test_the_prefix_ends_just_before_one_loss_too_many() -> None:
    first = np.full(100, NEVER, dtype=np.int64)
    first[:4] = [40, 7, 40, 90]
    allowed = losses_allowed(100, 0.05, 0.9)
    assert allowed == 1
    made = promise(first, 500, share=0.05, confidence=0.9)
    assert (made.length, made.lost) == (39, 1)
    assert promise(first, 20, share=0.05, confidence=0.9).length == 20
    assert promise(first, 500, share=1.0, confidence=0.9).length == 500


def test_of_many_draws_no_more_than_one_in_ten_exceeds_the_share() -> None:
    """The promise itself: probes drawn from a known population, its true cost at the length that they allow."""
    rng = np.random.default_rng(8)
    population = np.minimum(rng.geometric(0.002, 20_000), 5000).astype(np.int64)
    ordered = np.sort(population)
    above = careless = 0
    for _ in range(2000):
        drawn = rng.choice(population, 80)
        length = promise(drawn, 5000, share=0.1, confidence=0.9).length
        above += np.searchsorted(ordered, length, side="right") / len(ordered) > 0.1
        plain = int(np.sort(drawn)[8]) - 1
        careless += np.searchsorted(ordered, plain, side="right") / len(ordered) > 0.1
    assert above / 2000 <= 0.1
    assert careless / 2000 > 0.3, "without the test's margin the promise would not hold"
