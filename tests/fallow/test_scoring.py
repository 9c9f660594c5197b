"""The ranking score by hand and by property (SPEC §2.1, §2.4; Park et al. 2023, section 4.1)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fallow.model.arguments import instant
from fallow.model.errors import SettingError
from fallow.model.scoring import RetrievalScoring, scoring_for
from fallow.model.settings import resolve
from fallow.model.times import MICROSECONDS_PER_HOUR, iso
from fallow.ranking.scoring import score_candidates

NOW = instant("2026-12-01T00:00:00Z")


def row(record_id: str, *, hours: float = 0.0, importance: float | None = None, embedding=None, **more) -> dict:
    fields = {"_id": record_id, "content": record_id, "timestamp": iso(NOW - round(hours * MICROSECONDS_PER_HOUR))}
    fields |= {"importance": importance} if importance is not None else {}
    return {**fields, **({"embedding": embedding} if embedding is not None else {}), **more}


def by_id(rows: list[dict]) -> dict[str, dict]:
    return {item["_id"]: item["scoring"] for item in rows}


def test_the_papers_formula_computed_by_hand_2_1() -> None:
    """Three memories, raw terms:

    a: 0 h old,   importance 0.2, cosine with (1, 0) of (0, 1) = 0
    b: 100 h old, importance 0.8, cosine of (1, 0) = 1
    c: 200 h old, importance 0.5, cosine of (3, 4) = 3/5 = 0.6

    recency 0.995^0 = 1; 0.995^100 = 0.605770; 0.995^200 = 0.366958. Min-max: a 1, c 0,
    b (0.605770 - 0.366958) / (1 - 0.366958) = 0.377245.
    importance min-max: a 0, b 1, c (0.5 - 0.2) / 0.6 = 0.5. relevance min-max: a 0, b 1, c 0.6.
    score: a (1 + 0 + 0) / 3 = 0.333333; b (0.377245 + 1 + 1) / 3 = 0.792415; c (0 + 0.5 + 0.6) / 3 = 0.366667.
    """
    rows = [
        row("a", hours=0, importance=0.2, embedding=[0.0, 1.0]),
        row("b", hours=100, importance=0.8, embedding=[1.0, 0.0]),
        row("c", hours=200, importance=0.5, embedding=[3.0, 4.0]),
    ]
    ranked = score_candidates(rows, query_embedding=[1.0, 0.0], now=NOW)
    assert [item["_id"] for item in ranked] == ["b", "c", "a"]
    scores = by_id(ranked)
    assert scores["a"]["score"] == pytest.approx(1 / 3, abs=1e-9)
    assert scores["b"]["recency_raw"] == pytest.approx(0.605770, abs=1e-6)
    assert scores["b"]["recency"] == pytest.approx(0.377245, abs=1e-6)
    assert scores["b"]["score"] == pytest.approx(0.792415, abs=1e-6)
    assert scores["c"]["relevance_raw"] == pytest.approx(0.6)
    assert scores["c"]["score"] == pytest.approx(1.1 / 3)


def test_without_normalisation_the_raw_values_stand_2_1() -> None:
    """b: (0.5 * 0.605770 + 1 * 0.8 + 2 * 1) / 3.5 = 0.886539."""
    scoring = RetrievalScoring(alpha_recency=0.5, alpha_importance=1, alpha_relevance=2, normalize=False)
    rows = [
        row("a", importance=0.2, embedding=[0.0, 1.0]),
        row("b", hours=100, importance=0.8, embedding=[1.0, 0.0]),
    ]
    scores = by_id(score_candidates(rows, query_embedding=[1.0, 0.0], scoring=scoring, now=NOW))
    assert scores["b"]["score"] == pytest.approx((0.5 * 0.995**100 + 0.8 + 2.0) / 3.5)
    assert scores["b"]["score"] == pytest.approx(0.886539, abs=1e-6)
    assert scores["a"]["importance"] == scores["a"]["importance_raw"] == 0.2


def test_one_candidate_is_not_normalised_and_equal_terms_are_one_2_1() -> None:
    (only,) = score_candidates([row("a", hours=50, importance=0.3)], now=NOW)
    assert only["scoring"]["recency"] == pytest.approx(0.995**50)
    assert only["scoring"]["importance"] == 0.3
    equal = score_candidates([row("b", importance=0.3), row("a", importance=0.3)], now=NOW)
    assert [item["_id"] for item in equal] == ["a", "b"]
    assert {item["scoring"]["score"] for item in equal} == {1.0}
    zero = RetrievalScoring(alpha_recency=0, alpha_importance=0, alpha_relevance=0)
    rows = [row("b", importance=0.9), row("a")]
    assert [item["scoring"]["score"] for item in score_candidates(rows, scoring=zero, now=NOW)] == [0.0, 0.0]
    assert score_candidates([], now=NOW) == []


def test_the_anchor_decides_what_recency_counts_from_2_1() -> None:
    touched = row("a", hours=1000, last_accessed_at=iso(NOW))
    created = RetrievalScoring(recency_anchor="created")
    assert score_candidates([touched], now=NOW)[0]["scoring"]["recency_raw"] == 1.0
    (other,) = score_candidates([touched], scoring=created, now=NOW)
    assert other["scoring"]["recency_raw"] == pytest.approx(0.995**1000)
    assert other["scoring"]["anchor"] == "created"
    (timeless,) = score_candidates([{"_id": "a", "content": "x"}], now=NOW)
    assert timeless["scoring"]["recency_raw"] == 1.0


@pytest.mark.parametrize(
    ("embedding", "reason"),
    [
        ([0.0, 0.0], "embedding is zero"),
        ([math.nan, 1.0], "embedding is not finite"),
        ([math.inf, 1.0], "embedding is not finite"),
        ([1.0] * 768, "embedding has 768 numbers, not 2"),
        (None, "no embedding"),
        ([], "no embedding"),
        ("[1, 2]", "embedding is no list of numbers"),
        ([[1.0], [2.0]], "embedding is no list of numbers"),
        (["a", "b"], "embedding is no list of numbers"),
    ],
)
def test_a_vector_without_a_cosine_gives_its_reason_and_never_nan_trap_43(embedding, reason) -> None:
    rows = [row("bad", embedding=embedding), row("good", embedding=[1.0, 0.0])]
    scores = by_id(score_candidates(rows, query_embedding=[1.0, 0.0], now=NOW))
    assert scores["bad"]["relevance_raw"] == 0.0
    assert scores["bad"]["relevance_reason"] == reason
    assert "relevance_reason" not in scores["good"]
    with_score = [row("bad", embedding=embedding, score=0.7), row("good", embedding=[1.0, 0.0])]
    assert by_id(score_candidates(with_score, query_embedding=[1.0, 0.0], now=NOW))["bad"]["relevance_raw"] == 0.7


@pytest.mark.parametrize("query", [[0.0, 0.0], [math.nan, 1.0], []])
def test_a_query_without_a_direction_leaves_the_providers_score_trap_43(query) -> None:
    rows = [row("a", embedding=[1.0, 0.0], score=0.4), row("b", embedding=[0.0, 1.0])]
    scores = by_id(score_candidates(rows, query_embedding=query, now=NOW))
    assert [scores[name]["relevance_raw"] for name in "ab"] == [0.4, 0.0]
    assert all(scores[name]["relevance_reason"] for name in "ab")


def test_extreme_vectors_keep_their_direction() -> None:
    rows = [row("huge", embedding=[1e300, 1e300]), row("tiny", embedding=[1e-300, 0.0])]
    scores = by_id(score_candidates(rows, query_embedding=[1e200, 0.0], now=NOW))
    assert scores["huge"]["relevance_raw"] == pytest.approx(math.sqrt(0.5))
    assert scores["tiny"]["relevance_raw"] == pytest.approx(1.0)


number = (
    st.floats(allow_nan=True, allow_infinity=True)
    | st.integers(-(10**400), 10**400)
    | st.none()
    | st.text("0.9-e", max_size=5)
)
floats = st.floats(allow_nan=True, allow_infinity=True)
TERMS = ["recency", "importance", "relevance"]
anything = st.fixed_dictionaries(
    {},
    optional={
        "importance": number,
        "score": number,
        "embedding": st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=3)
        | st.none()
        | st.text(max_size=3),
        "timestamp": number,
        "last_accessed_at": number,
        "metadata": st.dictionaries(st.sampled_from(["importance", "x"]), number, max_size=2),
        "_id": st.text("abc", max_size=2),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.lists(anything, max_size=6), st.randoms(), st.booleans())
def test_whatever_the_rows_hold_no_result_is_nan_and_order_of_input_is_nothing_2_1(rows, chance, normalize) -> None:
    rows = [{**item, "content": f"text {at}", "n": at} for at, item in enumerate(rows)]
    scoring = RetrievalScoring(normalize=normalize)
    first = score_candidates(rows, query_embedding=[1.0, 2.0], scoring=scoring, now=NOW)
    for item in first:
        assert all(math.isfinite(value) for value in item["scoring"].values() if isinstance(value, float))
    chance.shuffle(rows)
    again = score_candidates(rows, query_embedding=[1.0, 2.0], scoring=scoring, now=NOW)
    assert [(item["n"], item["scoring"]) for item in again] == [(item["n"], item["scoring"]) for item in first]


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0, 5000),
    st.floats(0, 1),
    st.floats(0, math.pi / 2),
    st.sampled_from(["recency", "importance", "relevance"]),
    st.floats(0.05, 0.9),
)
def test_the_score_rises_with_each_term_alone_2_1(hours, importance, angle, term, step) -> None:
    scoring = RetrievalScoring(normalize=False)

    def made(name: str, hours: float, importance: float, angle: float) -> dict:
        return row(name, hours=hours, importance=importance, embedding=[math.cos(angle), math.sin(angle)])

    better = {"hours": hours, "importance": importance, "angle": angle}
    if term == "recency":
        better["hours"] = hours * (1 - step)
    elif term == "importance":
        better["importance"] = importance + (1 - importance) * step
    else:
        better["angle"] = angle * (1 - step)
    rows = [made("a", hours, importance, angle), made("b", **better)]
    scores = by_id(score_candidates(rows, query_embedding=[1.0, 0.0], scoring=scoring, now=NOW))
    low, high = scores["a"][f"{term}_raw"], scores["b"][f"{term}_raw"]
    assert high >= low
    if high - low > 1e-9:
        assert scores["b"]["score"] > scores["a"]["score"]


@pytest.mark.parametrize(
    "bad",
    [
        {"recency_decay_per_hour": 0},
        {"recency_decay_per_hour": 1.1},
        {"alpha_recency": -1},
        {"alpha_relevance": math.nan},
        {"alpha_importance": math.inf},
        {"recency_anchor": "updated"},
        {"default_importance": 2},
        {"normalize": "yes"},
        {"alpha_recency": True},
    ],
)
def test_a_bad_value_is_an_error_in_code_and_a_note_from_the_environment_2_1(bad) -> None:
    with pytest.raises(SettingError):
        RetrievalScoring(**bad)
    ((name, value),) = bad.items()
    if name != "normalize" and value is not True:
        from fallow.model.scoring import SCORING_ENVIRONMENT

        resolved = resolve(environ={SCORING_ENVIRONMENT[name]: str(value)})
        assert resolved.scoring == RetrievalScoring()
        assert any(SCORING_ENVIRONMENT[name] in problem for problem in resolved.problems)


def test_an_agents_overrides_inherit_where_blank_2_4() -> None:
    record = {"retrieval_policy": {"scoring": {"alpha_relevance": "2", "alpha_recency": "", "normalize": "no", "x": 1}}}
    scoring, problems = scoring_for(record)
    assert (scoring.alpha_relevance, scoring.alpha_recency, scoring.normalize, problems) == (2.0, 1.0, False, ())
    scoring, problems = scoring_for({"retrieval_policy": '{"scoring": {"recency_decay_per_hour": 7}}'})
    assert scoring == RetrievalScoring()
    assert len(problems) == 1
