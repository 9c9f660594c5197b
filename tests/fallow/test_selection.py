"""What an agent gets to see, and why the rest is dropped (SPEC §2.2, §2.3)."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fallow.model.arguments import instant
from fallow.model.errors import UsageError
from fallow.model.times import MICROSECONDS_PER_HOUR, iso
from fallow.ranking.selection import dedupe_and_select, normalized_text
from fallow.ranking.vectors import near_duplicates, read_vectors

NOW = instant("2026-12-01T00:00:00Z")


def row(record_id: str, text: str | None = None, **more) -> tuple[str, dict]:
    fields = {"_id": record_id, "content": f"text of {record_id}" if text is None else text, "timestamp": iso(NOW)}
    return "conversation_memory", {**fields, **more}


def chosen(candidates, **options) -> list[str]:
    return [item["origin"]["record_id"] for item in dedupe_and_select(candidates, now=NOW, **options)]


def reasons(candidates, **options) -> dict[str, str]:
    ledger: list[dict] = []
    dedupe_and_select(candidates, now=NOW, ledger=ledger, **options)
    return {entry["record_id"]: entry["reason"] for entry in ledger}


def test_every_candidate_is_in_the_ledger_with_its_reason_2_2() -> None:
    candidates = [
        row("hidden", retention_state="suppressed"),
        row("sealed", retention_state="sealed", thread_id="t1"),
        row("empty", "   "),
        row("said", "Already  SAID"),
        row("twin-b", "The same text", embedding=[0.0, 1.0]),
        row("twin-a", "the same   TEXT"),
        row("near", "much alike", embedding=[1.0, 0.05, 0.0][:2]),
        row("best", "the original", embedding=[1.0, 0.0], importance=0.9),
        row("long", "x" * 500, importance=0.8),
        row("last", "not needed", importance=0.0),
    ]
    ledger: list[dict] = []
    result = dedupe_and_select(
        candidates,
        now=NOW,
        history_texts=["already said"],
        query_embedding=[1.0, 0.0],
        max_items=2,
        max_total_chars=200,
        thread_id="t2",
        ledger=ledger,
    )
    assert [entry["record_id"] for entry in ledger] == [item["_id"] for _, item in candidates]
    found = {entry["record_id"]: entry for entry in ledger}
    assert {name: entry["reason"] for name, entry in found.items()} == {
        "hidden": "suppressed",
        "sealed": "sealed elsewhere",
        "empty": "no text",
        "said": "in history",
        "twin-b": "exact duplicate",
        "twin-a": found["twin-a"]["reason"],
        "near": "near duplicate",
        "best": "selected",
        "long": "budget",
        "last": found["last"]["reason"],
    }
    assert found["twin-b"]["of"] == "twin-a"
    assert (found["near"]["of"], found["near"]["cosine"] > 0.95) == ("best", True)
    assert found["near"]["cosine"] == pytest.approx(1 / math.sqrt(1.0025), abs=1e-6)
    assert {found["twin-a"]["reason"], found["last"]["reason"]} == {"selected", "not selected"}
    assert all(entry["kept"] == (entry["reason"] == "selected") for entry in ledger)
    assert {item["scoring"]["anchor"] for item in result} == {"created"}


def test_a_sealed_row_reaches_its_own_thread_only_2_3() -> None:
    candidates = [row("s", retention_state="sealed", thread_id="t1"), row("a")]
    assert chosen(candidates, thread_id="t1") == ["a", "s"]
    for thread in ("t2", None):
        assert chosen(candidates, thread_id=thread) == ["a"]
    nested = [row("s", thread_id="t1", content={"text": "x", "retention_state": "sealed"}), row("a")]
    assert chosen(nested) == ["a"]
    assert chosen([row("s", retention_state="sealed")]) == []


def test_rows_in_every_shape_that_stores_return_2_2() -> None:
    shapes = [
        {"_id": "a", "content": {"content": "nested text", "role": "user"}, "metadata": {"importance": "0.9"}},
        {"id": "b", "content": json.dumps({"text": "text in JSON"}), "embedding": np.array([1.0, 0.0], np.float32)},
        {"record_id": "c", "summary": "a summary", "embedding": None},
        {"_id": 7, "instruction": "do this", "vector": (1.0, 0.0)},
        {"_id": "e", "name": "Ada", "attributes": [{"name": "likes", "value": "plums"}]},
        ("knowledge_base", {"_id": "f", "text": "plain"}),
        "no row",
        None,
        ("source", "no row"),
    ]
    result = dedupe_and_select(shapes, now=NOW, query_embedding=[0.0, 1.0], max_items=10, similarity_threshold=1.1)
    assert {item["origin"]["record_id"]: item["text"] for item in result} == {
        "a": "nested text",
        "b": "text in JSON",
        "c": "a summary",
        "7": "do this",
        "e": "Ada\nlikes: plums",
        "f": "plain",
    }
    assert next(item for item in result if item["_id"] == "a")["scoring"]["importance_raw"] == 0.9


def test_the_better_provider_score_wins_among_repeats_2_2() -> None:
    assert chosen([row("a", "same", score=0.1), row("b", "Same", score=0.9)]) == ["b"]
    vectors = {"embedding": [1.0, 0.0]}
    assert chosen([row("a", score=0.1, **vectors), row("b", score=0.9, **vectors)]) == ["b"]
    assert chosen([row("a", source_id="z", **vectors), row("b", **vectors)]) == ["b"]


def test_variety_against_score_2_2() -> None:
    """lambda 0.5: after a, b (score 0.9, cosine 0.9) is worth 0.45 - 0.45 = 0; c (0.2, 0) is worth 0.1."""
    b = [0.9, math.sqrt(1 - 0.81), 0.0]
    candidates = [
        row("a", embedding=[1.0, 0.0, 0.0]),
        row("b", embedding=b),
        row("c", embedding=[0.0, 0.0, 1.0]),
    ]

    def by_hand(rows):
        scores = {"text of a": 1.0, "text of b": 0.9, "text of c": 0.2}
        return [scores[item["content"]] for item in rows]

    assert chosen(candidates, rerank=by_hand, max_items=2, mmr_lambda=0.5) == ["a", "c"]
    assert chosen(candidates, rerank=by_hand, max_items=2, mmr_lambda=1.0) == ["a", "b"]
    with pytest.raises(UsageError):
        chosen(candidates, rerank=lambda rows: [1.0])


def test_the_budget_is_spent_in_the_order_of_selection_and_the_result_is_oldest_first_2_2() -> None:
    hour = MICROSECONDS_PER_HOUR
    candidates = [
        row("new", "n" * 50, importance=1.0, timestamp=iso(NOW)),
        row("old", "o" * 50, importance=0.9, timestamp=iso(NOW - 9 * hour)),
        row("wide", "w" * 900, importance=0.95, timestamp=iso(NOW - hour)),
    ]
    assert chosen(candidates, max_total_chars=100) == ["old", "new"]
    assert chosen(candidates, max_total_chars=700) == ["old", "wide", "new"]
    assert chosen(candidates, max_total_chars=100, max_chars_per_item=30) == ["old", "wide", "new"]
    assert [len(item["text"]) for item in dedupe_and_select(candidates, now=NOW, max_chars_per_item=30)] == [30] * 3
    assert chosen(candidates, max_items=0) == []
    assert chosen([], max_items=5) == []


def test_one_chunk_of_a_source_2_2() -> None:
    candidates = [
        row("k1", parent_source_id="doc", importance=0.2),
        row("k2", parent_source_id="doc", importance=0.9),
        row("k3"),
    ]
    assert chosen(candidates, dedupe_parent_sources=True) == ["k2", "k3"]
    assert chosen(candidates) == ["k1", "k2", "k3"]
    assert reasons(candidates, dedupe_parent_sources=True)["k1"] == "same source"


vector = st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.96, 0.3, math.nan]), min_size=2, max_size=3)
some_row = st.fixed_dictionaries(
    {"_id": st.text("abcdefgh", min_size=1, max_size=3), "content": st.sampled_from(["a", "B", "b ", "c", "d", " "])},
    optional={
        "embedding": vector,
        "score": st.floats(allow_nan=True),
        "importance": st.floats(0, 1),
        "retention_state": st.sampled_from(["active", "suppressed", "sealed"]),
        "timestamp": st.integers(0, 10**9),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.lists(some_row, max_size=10), st.randoms(), st.integers(0, 4), st.floats(0, 1))
def test_the_order_of_the_candidates_changes_nothing_2_2(rows, chance, items, weight) -> None:
    options = {"query_embedding": [1.0, 0.5], "max_items": items, "mmr_lambda": weight, "now": NOW}
    first = dedupe_and_select(rows, **options)
    chance.shuffle(rows)
    ledger: list[dict] = []
    again = dedupe_and_select(rows, ledger=ledger, **options)
    assert [item["scoring"] for item in again] == [item["scoring"] for item in first]
    assert [(item["origin"], item["content"]) for item in again] == [(x["origin"], x["content"]) for x in first]
    assert len(ledger) == len(rows)
    assert sum(entry["kept"] for entry in ledger) == len(again) <= items


def one_by_one(matrix: np.ndarray, threshold: float) -> list[int | None]:
    """Near duplicates by their definition: each row against every kept earlier one."""
    kept: list[int] = []
    found: list[int | None] = []
    for at, vector in enumerate(matrix):
        match = next((other for other in kept if float(vector @ matrix[other]) >= threshold), None)
        found.append(match)
        if match is None:
            kept.append(at)
    return found


@pytest.mark.parametrize("count", [2, 3, 100, 255, 256, 700])
@pytest.mark.parametrize("kind", ["apart", "clusters", "common part", "first dimensions equal"])
def test_near_duplicates_are_those_of_comparing_one_by_one(count: int, kind: str) -> None:
    chance = np.random.default_rng(count)
    matrix = chance.normal(size=(count, 64))
    if kind == "clusters":
        matrix = chance.normal(size=(24, 64))[np.arange(count) % 24] + 0.23 * matrix
    elif kind == "common part":
        matrix = matrix * 0.4 + 2.0
    elif kind == "first dimensions equal":
        matrix[:, :40] = 1.0
    unit, where, _ = read_vectors(list(matrix))
    assert where == list(range(count))
    found = near_duplicates(unit, 0.95)
    assert [None if item is None else item[0] for item in found] == one_by_one(unit, 0.95)
    assert near_duplicates(unit, 1.5) == [None] * count


def test_many_candidates_fit_in_blocks_of_every_size() -> None:
    chance = random.Random(3)
    rows = [row(f"r{n:05d}", embedding=[chance.gauss(0, 1) for _ in range(8)]) for n in range(1500)]
    assert len(chosen(rows, query_embedding=[1.0] * 8, max_items=50)) == 50


def test_the_text_of_two_rows_is_the_same_up_to_case_and_white_space_2_2() -> None:
    assert normalized_text(" Ein\tText\n") == normalized_text("ein text")
    assert normalized_text("naïve") != normalized_text("naive")


@pytest.mark.parametrize(
    "options",
    [{"mmr_lambda": 2}, {"mmr_lambda": math.nan}, {"max_items": -1}, {"max_total_chars": -5}, {"max_items": True}],
)
def test_an_option_out_of_range_is_named(options) -> None:
    ((name, _),) = options.items()
    with pytest.raises(UsageError, match=name):
        dedupe_and_select([], **options)


def test_whatever_is_no_vector_is_a_reason_and_never_an_error_trap_43() -> None:
    odd = [
        np.array(3.0),
        10**400,
        [10**400, 1],
        [None, 1.0],
        {1.0, 2.0},
        {"a": 1},
        b"ab",
        "[1, 0]",
        [[1.0, 0.0]],
        [1j, 0],
    ]
    candidates = [row(f"odd{n}", embedding=value) for n, value in enumerate(odd)]
    candidates += [row("good", embedding=np.array([1.0, 0.0], np.float32)), None, ("x", 3)]
    for query in ([1.0, 0.0], np.array(1.0), [[1.0, 0.0]], [10**400, 0], "query", [1.0] * 7, [1.0, 1j]):
        ledger: list[dict] = []
        result = dedupe_and_select(candidates, now=NOW, query_embedding=query, max_items=99, ledger=ledger)
        scores = {item["_id"]: item["scoring"] for item in result}
        assert len(scores) == len(odd) + 1
        assert all(math.isfinite(value) for item in scores.values() for value in item.values() if type(value) is float)
        assert all(item["relevance_reason"] for name, item in scores.items() if name != "good")
        assert [entry["reason"] for entry in ledger[-2:]] == ["no row", "no row"]
        assert len(ledger) == len(candidates)
    result = dedupe_and_select(candidates, query_embedding=[1, 0], max_items=99)
    assert [item["_id"] for item in result if "relevance_reason" not in item["scoring"]] == ["good"]


def test_a_query_of_another_length_still_finds_near_duplicates_2_2() -> None:
    """TRAPS 43, 768 against 1536: relevance falls back, with a reason, and repeats are repeats all the same."""
    candidates = [
        row("a", embedding=[1.0] * 4),
        row("b", embedding=[1.0] * 4),
        row("c", embedding=[1.0] * 9, score=0.5),
    ]
    ledger: list[dict] = []
    result = dedupe_and_select(candidates, now=NOW, query_embedding=[1.0] * 8, ledger=ledger)
    assert {entry["record_id"]: entry["reason"] for entry in ledger} == {
        "a": "selected",
        "b": "near duplicate",
        "c": "selected",
    }
    assert all(item["scoring"]["relevance_reason"] for item in result)
    assert [item["scoring"]["relevance_raw"] for item in result] == [0.0, 0.5]


def test_a_threshold_of_one_means_the_same_direction_2_2() -> None:
    candidates = [
        row("a", embedding=[0.1, 0.2, 0.7]),
        row("b", embedding=[0.3, 0.6, 2.1]),
        row("c", embedding=[0.1, 0.2, 0.8]),
    ]
    assert chosen(candidates, similarity_threshold=1.0) == ["a", "c"]


def test_the_history_may_hold_a_text_as_it_was_shown_2_2() -> None:
    candidates = [row("long", "word " * 300), row("other")]
    (shown,) = dedupe_and_select(candidates[:1], now=NOW)
    assert len(shown["text"]) == 600
    assert chosen(candidates, history_texts=[shown["text"], None]) == ["other"]
    assert chosen(candidates, history_texts=["text of OTHER"]) == ["long"]


def test_ids_that_are_there_twice_are_two_candidates_2_2() -> None:
    candidates = [row("a", "one text"), row("a", "another"), ("summaries", row("a", "a third")[1]), row("", "no id")]
    ledger: list[dict] = []
    assert len(dedupe_and_select(candidates, now=NOW, ledger=ledger, max_items=99)) == len(ledger) == 4


def test_numbers_of_numpy_and_decimals_are_numbers() -> None:
    from decimal import Decimal

    candidates = [row("a", score=np.float32(0.5), importance=np.float64(0.25)), row("b", score=Decimal("0.75"))]
    candidates += [row("c", score=np.bool_(True), importance=Decimal("sNaN"))]
    scores = {item["_id"]: item["scoring"] for item in dedupe_and_select(candidates, now=NOW)}
    assert [scores[name]["relevance_raw"] for name in "abc"] == [0.5, 0.75, 0.0]
    assert [scores[name]["importance_raw"] for name in "abc"] == [0.25, 0.5, 0.5]


def test_a_reranker_that_fails_on_a_row_leaves_its_score() -> None:
    candidates = [row("a"), row("b"), row("c")]
    result = dedupe_and_select(candidates, now=NOW, rerank=lambda rows: [np.float32(0.25), None, math.nan])
    reasons_given = [item["scoring"].get("rerank_reason") for item in result]
    assert sorted(reasons_given, key=str) == [None, *["the reranker's score is no finite number"] * 2]
    assert sorted(item["scoring"]["score"] for item in result) == [0.25, 1.0, 1.0]
