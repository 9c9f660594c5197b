"""The free rating: deterministic, bounded, explained, and about content (SPEC §3.1)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fallow.importance import ImportanceConfig, ImportanceRater, Rarity
from fallow.importance.heuristic import (
    COMPANY_WEIGHTS,
    FLOOR,
    WEIGHTS,
    asks,
    content_rating,
    heuristic_rating,
    signals,
    words_of,
)

HEURISTIC = ImportanceRater(ImportanceConfig(mode="heuristic"))


def rating(text: str, **more) -> float:
    return HEURISTIC.rate(text, **more)[0]


PAIRS = [
    ("My sister Ines moved to Porto on 3 May and bought a blue boat.", "Wow, that's so cool! How was it?"),
    ("We decided to sell the orchard to Mr Brandt for 40,000 crowns.", "Okay, thanks, sounds good."),
    ("I'm allergic to walnuts and prefer tea over coffee.", "Haha yes, I know right!"),
    ("Actually, the meeting is on Thursday, not Tuesday.", "Is it? Oh no, really?"),
    ("Remind me to call Dr Okafor about the X-ray next Monday.", "Sure, no problem, you're welcome!"),
    ("Meine Tochter Lena hat am 12. Juni in Graz geheiratet.", "Ja klar, danke, bitte!"),
    ("Мы решили продать дачу в Суздале за два миллиона.", "Спасибо, хорошо, да."),
    ("私の姉は五月三日に京都へ引っ越して青い船を買いました。", "はい。"),
    ("أختي ليلى انتقلت إلى القاهرة يوم 3 مايو واشترت قاربا أزرق.", "نعم؟"),
    ("Ma sœur Inès a déménagé à Porto le 3 mai.", "Merci, d'accord, salut !"),
]


@pytest.mark.parametrize(("told", "small"), PAIRS, ids=[f"{number}" for number in range(len(PAIRS))])
def test_what_can_answer_a_question_later_is_worth_more_than_small_talk(told: str, small: str) -> None:
    assert rating(told) > rating(small) + 0.1


def test_sources_and_bounds_3_2() -> None:
    assert ImportanceRater().rate("anything") == (None, "off")
    assert HEURISTIC.rate("anything", verified=True) == (1.0, "verified")
    importance, source = HEURISTIC.rate("ok", host_asserted=True)
    assert (importance >= 0.8, source) == (True, "host")
    dump = 'GET /v1/orders 200 {"id": 4711, "customer": "Brandt", "total": 129.5, "items": ["pump", "hose"]}'
    for machine in ({"role": "tool"}, {"kind": "tool_result"}, {"role": "TOOL"}):
        assert rating(dump, **machine) <= 0.25 < rating(dump, role="user")
    for empty in ("", "   ", "\n", "!!!", "👍"):
        assert rating(empty) == FLOOR


def test_turns_come_back_in_order_with_ids_or_without_17() -> None:
    turns = [
        {"id": "a", "text": "ok"},
        {"text": "Ines moved to Porto on 3 May."},
        {"id": "c", "text": "x", "verified": True},
    ]
    rated = HEURISTIC.rate_many(turns)
    assert [source for _, source in rated] == ["heuristic", "heuristic", "verified"]
    assert rated[1][0] > rated[0][0]
    assert HEURISTIC.rate_many([]) == []
    assert HEURISTIC.rate_many([{"id": "odd"}, {"text": None}, {"text": 7}]) == [(FLOOR, "heuristic")] * 3


def test_every_rating_says_which_signals_made_it() -> None:
    text = "We decided that Ines moves to Porto on 3 May, thanks?"
    found = HEURISTIC.rate(text, explain=True)
    assert found.importance == rating(text)
    assert {"decision", "names", "numbers", "first person", "question", "small talk"} <= set(found.signals)
    assert math.fsum(found.signals.values()) == pytest.approx(found.importance, abs=1e-9)
    assert found.signals["question"] < 0 < found.signals["decision"]
    host = HEURISTIC.rate("ok", host_asserted=True, explain=True)
    assert math.fsum(host.signals.values()) == pytest.approx(host.importance, abs=1e-9)
    tool = HEURISTIC.rate(text, role="tool", explain=True)
    assert math.fsum(tool.signals.values()) == pytest.approx(tool.importance, abs=1e-9)


def test_whole_words_only() -> None:
    flat = signals("Unplanned decidedly actuallyish lovesome", Rarity())
    assert flat["decision"] == flat["correction"] == flat["preference"] == flat["commitment"] == 0.0
    assert signals("We decided.", Rarity())["decision"] == 1.0
    assert words_of("don’t well-known 3.5 km/h 12:30 naïve") == [
        "don’t",
        "well-known",
        "3.5",
        "km",
        "h",
        "12:30",
        "naïve",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("京都へ行く", ["京都", "都へ", "へ行", "行く"]),
        ("猫", ["猫"]),
        ("สวัสดี", None),
        ("İstanbul'da", ["İstanbul'da"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("Ünïcödé", ["Ünïcödé"]),
    ],
)
def test_scripts_are_not_broken(text: str, expected: list[str] | None) -> None:
    found = words_of(text)
    assert found if expected is None else found == expected


def test_a_word_is_as_rare_as_its_company_says() -> None:
    common = ["the kettle is on"] * 30 + ["the zither is on"]
    rarity = Rarity.of(common)
    assert (rarity.documents, rarity.weight("zither"), rarity.weight("unheard")) == (31, 1.0, 1.0)
    assert rarity.weight("kettle") < 0.02
    assert content_rating("the zither", rarity)[0] > content_rating("the kettle", rarity)[0]
    assert Rarity.of([]).weight("x") == Rarity.of(["x"]).weight("x") == 1.0


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300), st.sampled_from(["user", "assistant", "tool", None, "owner"]), st.booleans())
def test_whatever_is_said_the_rating_is_a_number_from_0_to_1(text: str, role: str | None, asserted: bool) -> None:
    found = heuristic_rating(text, role=role, host_asserted=asserted)
    assert found.importance is not None
    assert 0.0 <= found.importance <= 1.0
    assert round(found.importance, 2) == found.importance
    assert math.fsum(found.signals.values()) == pytest.approx(found.importance, abs=1e-9)
    assert heuristic_rating(text, role=role, host_asserted=asserted) == found
    assert all(0.0 <= value <= 1.0 for value in signals(text, Rarity()).values())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([text for pair in PAIRS for text in pair]), max_size=40), st.randoms())
def test_the_order_of_a_batch_changes_no_rating(texts: list[str], chance) -> None:
    turns = [{"id": str(number), "text": text} for number, text in enumerate(texts)]
    first = dict(zip([turn["id"] for turn in turns], HEURISTIC.rate_many(turns), strict=True))
    chance.shuffle(turns)
    assert dict(zip([turn["id"] for turn in turns], HEURISTIC.rate_many(turns), strict=True)) == first


def test_a_text_of_any_length_is_rated_in_bounded_time_and_no_text_becomes_worth_more_by_being_said_twice() -> None:
    text = "Ines moved to Porto on 3 May."
    assert rating(text * 100_000) <= 1.0
    assert abs(rating(f"{text} {text}") - rating(text)) < 0.1
    assert rating("blah " * 5000) < 0.5


def test_the_weights_are_round_and_the_best_possible_turn_is_worth_one() -> None:
    assert all(round(weight, 2) == weight for weight in (*WEIGHTS.values(), *COMPANY_WEIGHTS.values()))
    assert 1.0 <= math.fsum(weight for weight in WEIGHTS.values() if weight > 0) <= 1.3


def test_a_turn_that_answers_a_question_is_worth_more() -> None:
    turn = {"text": "Ines moved to Porto."}
    (plain, _), (answer, _) = HEURISTIC.rate_many([turn, {**turn, "answers": True}])
    assert answer == pytest.approx(plain + COMPANY_WEIGHTS["answer"], abs=0.011)
    assert asks("Where?")
    assert asks("どこ？")
    assert not asks("There.")
