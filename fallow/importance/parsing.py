"""Reading a model's ratings out of whatever it answered (SPEC §3.3). Never raises, never guesses.

The scale is known: 1 to 10, and n is worth n/10. Nothing in a value changes that: 0.7, 70 and 85 % are off
the scale, and a row whose answer cannot be used has no rating from the model. In a batch an answer belongs to
the row whose id it names; place and order in the answer mean nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

SCALE_LOW: Final = 1
SCALE_HIGH: Final = 10

#: Why a row has no rating from the model.
MISSING: Final = "missing"
DOUBLED: Final = "doubled_id"
OUT_OF_RANGE: Final = "out_of_range"
NOT_A_NUMBER: Final = "not_a_number"
UNREADABLE: Final = "unreadable_answer"

#: Of a longer answer only the end is read: the ratings come last.
MAX_ANSWER: Final = 100_000
#: Braces that may turn out to be prose before the rest is not looked at, and how deep ratings may be wrapped.
_MAX_FAILURES: Final = 200
_MAX_DEPTH: Final = 6

_RATING_KEYS: Final = ("rating", "importance", "score", "poignancy", "value")
_ID_KEYS: Final = ("id", "record_id", "memory_id", "row_id")
#: Names that ratings may be wrapped in; anything under another key is not about rows.
_WRAPPERS: Final = frozenset(
    {"ratings", "results", "result", "answers", "answer", "scores", "items", "memories", "rows", "data", "output"}
)
_THOUGHT_TAG: Final = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)\b[^<>]{0,80}>", re.IGNORECASE)
_START: Final = re.compile(r"[{\[]")
_TRAILING_COMMA: Final = re.compile(r",(\s*[}\]])")

_PLAIN: Final = re.compile(r"[+]?(\d+(?:\.\d+)?)(?:\s*/\s*10(?:\.0+)?)?", re.ASCII)
#: A scale that is spoken about, not an answer on it.
_SCALE: Final = re.compile(
    r"\b1(?:\.0)?\s*(?:to|through|and|until|bis|-|−|–|—|\.\.+|…)\s*10\b(?!\s*/)|\b10[- ]point\b|\bscale\s+of\s+10\b",
    re.ASCII | re.IGNORECASE,
)
_OUT_OF_TEN: Final = re.compile(
    r"(?<![\w.,/%])([-−–]?)(\d+(?:\.\d+)?)\s*(?:/|\(?\s*out\s+of|\(?\s*von)\s*10(?:\.0+)?(?![\w%]|[.,]\d|/)",
    re.ASCII | re.IGNORECASE,
)
_MARKED: Final = re.compile(
    r"\b(?:rating|rate|score|importance|poignancy)\b[\"'*_`]*\s*(?:is|of|:|=|-(?=\s)|–|—)?\s*[\"'*_`]*"
    r"([-−]?)(\d+(?:\.\d+)?)(?![\w%]|[.,/]\d|\s*%|\s*/)",
    re.ASCII | re.IGNORECASE,
)
_ANY_NUMBER: Final = re.compile(r"([-−]?)(\d+(?:[.,]\d+)*)(\s*%|\s*/\s*\d+|\w*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """Ratings by row id, and for every other row of the batch the reason why it has none.

    ``unknown`` counts ids in the answer that were not asked about.
    """

    ratings: Mapping[str, float] = field(default_factory=dict)
    unrated: Mapping[str, str] = field(default_factory=dict)
    unknown: int = 0


def on_scale(value: Any) -> float | str:
    """A model's value as an importance in 0.1..1.0, or the reason why it is none.

    Numbers, numeric text and "7/10" are read; booleans, NaN, percentages and words are not numbers. The
    result has two decimals, which is what every store can hold.
    """
    if isinstance(value, str):
        match = _PLAIN.fullmatch(value.strip())
        if match is None:
            negative = re.fullmatch(r"[-−]\s*\d+(\.\d+)?", value.strip(), re.ASCII)
            return OUT_OF_RANGE if negative else NOT_A_NUMBER
        value = float(match[1])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOT_A_NUMBER
    if isinstance(value, float) and math.isnan(value):
        return NOT_A_NUMBER
    if not SCALE_LOW <= value <= SCALE_HIGH:
        return OUT_OF_RANGE
    return round(float(value) / SCALE_HIGH, 2)


def without_thoughts(answer: str) -> str:
    """The answer without its thinking, also where only the end of a thought is marked, or only its beginning."""
    kept: list[str] = []
    at = depth = 0
    for tag in _THOUGHT_TAG.finditer(answer):
        if depth == 0:
            kept.append(answer[at : tag.start()])
        if tag[1]:
            depth -= 1
            if depth < 0:
                # The template opened the thought outside of the answer: all of it so far was thinking.
                kept, depth = [], 0
        else:
            depth += 1
        at = tag.end()
    if depth == 0:
        kept.append(answer[at:])
    return " ".join(kept)


def parse_ratings(answer: str, ids: Sequence[str]) -> ParsedAnswer:
    """The ratings in a batch's answer, bound to rows by id and by nothing else.

    Understood are ``{"ratings": [{"id": …, "rating": …}]}``, the bare list, and objects of value by id, in
    code fences or prose, each as often as it occurs; complete entries of an answer that was cut off count.
    An id named twice has no rating.

    Args:
        answer: the model's text.
        ids: the ids that were asked about.
    """
    wanted = set(ids)
    text = without_thoughts(answer)[-MAX_ANSWER:]
    named, unknown, found = _bound(text, wanted)
    if not named and _TRAILING_COMMA.search(text):
        named, unknown, found = _bound(_TRAILING_COMMA.sub(r"\1", text), wanted)
    ratings: dict[str, float] = {}
    unrated: dict[str, str] = {}
    for name in ids:
        values = named.get(name, [])
        if len(values) > 1:
            unrated[name] = DOUBLED
        elif not values:
            unrated[name] = MISSING if found else UNREADABLE
        else:
            value = on_scale(values[0])
            if isinstance(value, str):
                unrated[name] = value
            else:
                ratings[name] = value
    return ParsedAnswer(ratings, unrated, unknown)


class _Pairs(list[tuple[str, Any]]):
    """An object as the pairs it was written in, so that a key written twice is seen."""


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Pairs)


def _values(text: str) -> Iterator[Any]:
    """Every JSON object or array in a text, outermost first; what does not decode is prose."""
    at = failures = 0
    while failures < _MAX_FAILURES:
        match = _START.search(text, at)
        if match is None:
            return
        try:
            value, at = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            failures += 1
            at = match.start() + 1
            continue
        yield value


def _bound(text: str, wanted: set[str]) -> tuple[dict[str, list[Any]], int, bool]:
    """Values by id, how many ids were not asked about, and whether there was any structure at all."""
    named: dict[str, list[Any]] = {}
    unknown: Counter[str] = Counter()
    found = False
    for value in _values(text):
        for name, rating in _entries(value, wanted, 0):
            found = True
            if name in wanted:
                named.setdefault(name, []).append(rating)
            else:
                unknown[name] += 1
    return named, unknown.total(), found


def _entries(value: Any, wanted: set[str], depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, _Pairs):
        ids = [item for key, item in value if key in _ID_KEYS and _id_text(item) is not None]
        ratings = [item for key, item in value if key in _RATING_KEYS]
        if ids and ratings and not isinstance(ratings[0], list):
            # An entry that names several ids or gives several ratings is read as each of them: doubled.
            for one in ids:
                for rating in ratings:
                    yield str(_id_text(one)), _inner(rating)
            return
        for key, item in value:
            if key in wanted:
                yield key, _inner(item)
            elif isinstance(item, list):
                if key.lower() in _WRAPPERS:
                    yield from _entries(item, wanted, depth + 1)
                else:
                    yield key, None
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield key, item
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, list):
                yield from _entries(item, wanted, depth + 1)


def _id_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _inner(value: Any) -> Any:
    """The rating in ``{"rating": 7, "why": …}``; anything else as it is."""
    if isinstance(value, _Pairs):
        ratings = [item for key, item in value if key in _RATING_KEYS]
        return ratings[0] if len(ratings) == 1 else None
    return value


def parse_rating(answer: str) -> float | str:
    """The one rating in an answer about a single memory, or the reason why there is none.

    "On a scale of 1 to 10 I would rate this 8" is 0.8 and "Rating - 7/10." is 0.7; "85%" and "-3" are none,
    and where several numbers could be meant none is.
    """
    text = without_thoughts(answer)[-MAX_ANSWER:].strip()
    for value in _values(text):
        # Structure that names a row, or several values, is no answer about this one.
        if not isinstance(value, _Pairs) or any(key in _ID_KEYS for key, _ in value):
            return NOT_A_NUMBER
        inner = _inner(value)
        return NOT_A_NUMBER if inner is None else on_scale(inner)
    bare = text.strip(" \t\r\n\"'*_`.!#=>")
    whole = on_scale(bare)
    if not isinstance(whole, str) or whole == OUT_OF_RANGE:
        return whole
    spoken = _SCALE.sub(" ", text)
    for pattern in (_OUT_OF_TEN, _MARKED):
        stated = {(sign, number) for sign, number in pattern.findall(spoken)}
        if len(stated) == 1:
            ((sign, number),) = stated
            return OUT_OF_RANGE if sign else on_scale(number)
        if stated:
            return NOT_A_NUMBER
    numbers = {match.groups() for match in _ANY_NUMBER.finditer(spoken)}
    if len(numbers) != 1:
        return NOT_A_NUMBER
    ((sign, number, tail),) = numbers
    if tail.strip():
        return NOT_A_NUMBER
    return OUT_OF_RANGE if sign else on_scale(number)
