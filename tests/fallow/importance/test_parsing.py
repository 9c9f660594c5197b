"""Reading a model's ratings out of its answers: SPEC §3.3, TRAPS 1-4, and anything else a model may say."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fallow.importance.parsing import (
    DOUBLED,
    MISSING,
    NOT_A_NUMBER,
    OUT_OF_RANGE,
    UNREADABLE,
    on_scale,
    parse_rating,
    parse_ratings,
)


@pytest.mark.parametrize(
    ("answer", "rating"),
    [
        ("On a scale of 1 to 10 I would rate this 8", 0.8),
        ("<think>maybe 3</think>7", 0.7),
        ("Rating - 7/10.", 0.7),
        ("85%", None),
        ("-3", None),
        ("8", 0.8),
        ("1", 0.1),
        ("10", 1.0),
        ("1/10", 0.1),
        ("10 out of 10", 1.0),
        ("**8**", 0.8),
        ("`8`", 0.8),
        ("8.", 0.8),
        ("7.5", 0.75),
        ("Rating: 8", 0.8),
        ("Rating (1-10): 8", 0.8),
        ("Score=9", 0.9),
        ("the rating is 8 (out of 10)", 0.8),
        ("I would rate this memory a 6 on a scale from 1 to 10.", 0.6),
        ("I'd say so, since 3 names occur: rating 8", 0.8),
        ('```json\n{"rating": 7}\n```', 0.7),
        ('Sure! {"importance": "4"}', 0.4),
        ("reasoning, no opening tag, 3</think>\n\n5", 0.5),
        ("<thinking>3 <think>4</think> 5</thinking>6", 0.6),
        ("0", None),
        ("11", None),
        ("0.7", None),
        ("-3/10", None),
        ("Rating: -3", None),
        ("Rating: 85%", None),
        ("85/100", None),
        ("5/5", None),
        ("3-7", None),
        ("8/10 or 9/10", None),
        ("1-10", None),
        ("<think>7", None),
        ("high", None),
        ("8th", None),
        ("version 1.2.3", None),
        ("true", None),
        ("null", None),
        ("", None),
        ("   ", None),
    ],
)
def test_one_answer_about_one_memory_traps_1(answer: str, rating: float | None) -> None:
    found = parse_rating(answer)
    assert found == rating if rating is not None else found in {NOT_A_NUMBER, OUT_OF_RANGE}


def test_a_one_is_a_tenth_never_the_best_traps_2() -> None:
    assert parse_ratings('{"1": 1, "2": 1, "3": 10}', ["1", "2", "3"]).ratings == {"1": 0.1, "2": 0.1, "3": 1.0}


@pytest.mark.parametrize(
    ("answer", "ratings", "unrated"),
    [
        ("1. 3\n2. 7\n3. 9", {}, {"a": UNREADABLE, "b": UNREADABLE, "c": UNREADABLE}),
        ('{"c":9,"a":3}', {"c": 0.9, "a": 0.3}, {"b": MISSING}),
        ('{"0":3,"1":7,"2":9}', {}, {"a": MISSING, "b": MISSING, "c": MISSING}),
        ("[3, 7, 9]", {}, {"a": UNREADABLE, "b": UNREADABLE, "c": UNREADABLE}),
        ('{"a":3,"b":7}', {"a": 0.3, "b": 0.7}, {"c": MISSING}),
        ('{"A":3,"b ":7,"c":1}', {"c": 0.1}, {"a": MISSING, "b": MISSING}),
    ],
)
def test_answers_bind_by_id_alone_traps_3(answer, ratings, unrated) -> None:
    parsed = parse_ratings(answer, ["a", "b", "c"])
    assert parsed.ratings == ratings
    assert parsed.unrated == unrated


def test_values_off_the_scale_leave_their_row_unrated_with_the_reason_traps_4() -> None:
    answer = '{"a": 3, "b": 7, "c": 20, "d": 5, "e": "high"}'
    parsed = parse_ratings(answer, list("abcde"))
    assert parsed.ratings == {"a": 0.3, "b": 0.7, "d": 0.5}
    assert parsed.unrated == {"c": OUT_OF_RANGE, "e": NOT_A_NUMBER}


@pytest.mark.parametrize(
    "answer",
    [
        '{"ratings": [{"id": "a", "rating": 3}, {"id": "b", "rating": 7}]}',
        '[{"id": "b", "rating": "7"}, {"id": "a", "rating": "3/10"}]',
        '{"ratings": {"a": 3, "b": 7.0}}',
        '{"a": {"rating": 3, "why": "{\\"b\\": 10}"}, "b": {"score": 7}}',
        '```json\n{"a": 3, "b": 7}\n```',
        'Format is {id: rating}, so {here}: {"a": 3, "b": 7} }',
        '<think>{"a": 9, "b": 9}</think>{"a": 3, "b": 7}',
        '{"a": 9}</think>{"a": 3, "b": 7}',
        '{"a": 3, "b": 7,}',
        '{"id": "a", "rating": 3}\n{"id": "b", "rating": 7}',
        '{"ratings": [{"id": "a", "rating": 3}, {"id": "b", "rating": 7}, {"id": "z", "rat',
        '{"results": [{"ratings": [{"record_id": "a", "importance": 3}, {"record_id": "b", "importance": 7}]}]}',
    ],
)
def test_structures_in_fences_prose_and_after_thoughts_are_found_spec_3_3(answer: str) -> None:
    assert parse_ratings(answer, ["a", "b"]).ratings == {"a": 0.3, "b": 0.7}


@pytest.mark.parametrize(
    ("answer", "ratings"),
    [
        ('{"a": 3, "a": 9, "b": 7}', {"b": 0.7}),
        ('{"a": 3, "a": 3, "b": 7}', {"b": 0.7}),
        ('[{"id": "a", "rating": 3}, {"id": "a", "rating": 4}, {"id": "b", "rating": 7}]', {"b": 0.7}),
        ('{"id": "a", "id": "b", "rating": 7}', {"a": 0.7, "b": 0.7}),
        ('{"id": "a", "rating": 3, "rating": 9}', {}),
        ('{"a": 3} or rather {"a": 4}', {}),
    ],
)
def test_doubled_ids_rate_nothing(answer, ratings) -> None:
    parsed = parse_ratings(answer, ["a", "b"])
    assert {name: parsed.ratings[name] for name in ratings if name in parsed.ratings} == ratings or not ratings
    assert parsed.unrated.get("a") == DOUBLED or answer.startswith('{"id": "a", "id"')


@pytest.mark.parametrize(
    "answer",
    [
        '{"x": {"a": 10}}',
        '{"note": "{\\"a\\": 10}", "z": 3}',
        '"{\\"a\\": 10}"',
        '{"text": [{"a": 10}]}',
        "{'a': 10}",
        '{"a": true}',
        '{"a": null}',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": [10]}',
        '{"a": 0.7}',
        '{"a": 1e400}',
        '{"a": "' + "9" * 5000 + '"}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": "7", ',
        '{"a": 1',
    ],
)
def test_what_is_not_an_answer_about_a_row_does_not_rate_it(answer: str) -> None:
    assert parse_ratings(answer, ["a"]).ratings == {}


@pytest.mark.parametrize("value", [True, False, None, [], {}, "", "high", "7%", "7 of 9", float("nan"), b"7"])
def test_only_numbers_are_numbers(value) -> None:
    assert on_scale(value) == NOT_A_NUMBER


@pytest.mark.parametrize("value", [0, 0.99, 10.01, 11, -1, "-1", "0", 10**400, float("inf"), float("-inf")])
def test_the_scale_has_ends(value) -> None:
    assert on_scale(value) == OUT_OF_RANGE


@pytest.mark.parametrize("number", range(1, 11))
def test_every_step_of_the_scale(number: int) -> None:
    assert on_scale(number) == on_scale(str(number)) == on_scale(float(number)) == on_scale(f" {number}/10 ")
    assert on_scale(number) == number / 10


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 100000,
        "{" * 100000,
        '{"a":' * 50000,
        "<think>" * 30000,
        "</think>" * 30000,
        "1 to 10 " * 30000,
        "1" * 200000,
        "8/10" * 50000,
        "[1," * 60000,
        "-" * 100000,
        "rating " * 30000,
        '"' * 100000,
    ],
)
def test_hostile_answers_end_soon(answer: str) -> None:
    before = time.process_time()
    parse_ratings(answer, ["a", "b"])
    parse_rating(answer)
    assert time.process_time() - before < 60, "the parser's work must not explode with the answer"


IDS = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6, unique=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        "<think>",
        "</think>",
        "```json",
        "```",
        "7",
        "10",
        "/10",
        "-",
        "%",
        "\\",
        " ",
        '"a"',
        '"b"',
        '{"a": 3}',
        '{"id": "a", "rating": 4}',
        "ratings",
        "rating",
        "1 to 10",
        "NaN",
        "\ud800",
        "\x00",
    ]
)


@given(st.text() | st.lists(PIECES, max_size=30).map("".join) | JSON.map(json.dumps), IDS)
@settings(max_examples=400, deadline=None)
def test_no_answer_raises_and_every_row_is_accounted_for_once(answer: str, ids: list[str]) -> None:
    for names in (ids, ["a", "b"]):
        parsed = parse_ratings(answer, names)
        assert set(parsed.ratings) | set(parsed.unrated) == set(names)
        assert not set(parsed.ratings) & set(parsed.unrated)
        assert all(0.1 <= value <= 1.0 for value in parsed.ratings.values())
    single = parse_rating(answer)
    assert isinstance(single, str) or 0.1 <= single <= 1.0


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.integers(-3, 14), min_size=1, max_size=8),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_a_rating_never_binds_to_another_id(truth: dict[str, int], data: st.DataObject) -> None:
    """Whatever the order, the wrapping, the prose around it, and what else is in the answer."""
    entries = list(truth.items())
    shuffled = data.draw(st.permutations(entries))
    left_out = data.draw(st.integers(0, len(shuffled) - 1))
    given_ = shuffled[left_out:]
    form = data.draw(st.sampled_from(["map", "list", "wrapped"]))
    if form == "list" or form == "wrapped":
        body: object = [{"id": name, "rating": value} for name, value in given_]
        body = {"ratings": body} if form == "wrapped" else body
    else:
        body = {"ratings": dict(given_)}
    noise = data.draw(st.text(alphabet="ab {}[]:,.\n1234567890/", max_size=40))
    answer = f"{noise.replace('{', '(').replace('[', '(')}\n```json\n{json.dumps(body)}\n```\nDone."
    asked = data.draw(st.permutations(list(truth)))
    parsed = parse_ratings(answer, asked)
    for name, rating in parsed.ratings.items():
        assert rating == round(truth[name] / 10, 2)
    for name, value in given_:
        if 1 <= value <= 10:
            assert parsed.ratings.get(name) == value / 10
        else:
            assert name in parsed.unrated
