"""A free rating of what a turn is worth remembering (SPEC §3.1): deterministic, and it says why.

The thought behind it: people later ask about specifics. Who, when, how many, which one, what was decided,
what somebody likes. A turn that holds rare words, names, numbers and times, told in the first person, can
answer such questions; a greeting, an acknowledgement or a question back cannot. So each turn is read for
signals of specifics, each signal saturates, and the rating is their weighted sum, in 0..1. The weights are
round numbers set by that reasoning, not fitted to any data.

How rare a word is depends on the company: for a batch, the scope that is rated says (:class:`Rarity`); for a
single turn every word outside a small table of common words counts as rare.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from fallow.importance.words import (
    COMMITMENT,
    COMMON,
    CORRECTION,
    DECISION,
    EVENT,
    FIRST_PERSON,
    KINDS,
    NUMBER,
    PREFERENCE,
    QUESTION_MARKS,
    SECOND_PERSON,
    SENTENCE_END,
    SMALL_TALK,
    TIME,
    TOKEN,
    UNSPACED,
    WORD,
)

#: Only this much of a text is read: what makes a long text worth keeping shows early, and time stays bounded.
MAX_CHARACTERS: Final = 20_000
#: The rating of a text without words.
FLOOR: Final = 0.05
#: Tool output is machine talk that can be had again.
TOOL_CEILING: Final = 0.25
#: Facts that the host asserted are worth at least this.
HOST_FLOOR: Final = 0.8

#: What each signal adds at most. Negative ones take away.
WEIGHTS: Final[Mapping[str, float]] = {
    "base": 0.12,
    "rare words": 0.30,
    "content words": 0.16,
    "names": 0.06,
    "numbers": 0.05,
    "times": 0.10,
    "first person": 0.10,
    "events": 0.06,
    "preference": 0.05,
    "commitment": 0.05,
    "decision": 0.08,
    "correction": 0.05,
    "answer": 0.08,
    "question": -0.16,
    "small talk": -0.10,
    "second person": -0.05,
}


def words_of(text: str) -> list[str]:
    """The words of a text in reading order, as written; whole words, or pairs of characters where none are spaced."""
    found: list[str] = []
    for word in WORD.findall(text[:MAX_CHARACTERS]):
        if UNSPACED.match(word):
            found += [word] if len(word) == 1 else [word[at : at + 2] for at in range(len(word) - 1)]
        else:
            found.append(word)
    return found


@dataclass(frozen=True, slots=True)
class Rarity:
    """In how many texts of a scope each word occurs: what makes ratings of a batch reproducible.

    ``documents`` is the number of texts; words that occur once are left out of ``counts`` (a word that is not
    listed is as rare as can be).
    """

    documents: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Counted over a scope's texts, in any order."""
        documents = 0
        counts: Counter[str] = Counter()
        for text in texts:
            documents += 1
            counts.update({word.lower() for word in words_of(text)})
        return cls(documents, {word: number for word, number in counts.items() if number > 1})

    def weight(self, word: str) -> float:
        """How rare a word is, 0 (in every text) to 1 (in no other)."""
        number = self.counts.get(word)
        if number is None or self.documents <= 1:
            return 1.0
        return 1.0 - math.log(number) / math.log(self.documents)


@dataclass(frozen=True, slots=True)
class Rating:
    """An importance in 0..1, where it comes from, and which signals made it (they sum to it)."""

    importance: float | None
    source: str
    signals: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For output."""
        return {"importance": self.importance, "source": self.source, "signals": dict(self.signals)}


def asks(text: str) -> bool:
    """Whether a turn asks for an answer."""
    return any(mark in text[:MAX_CHARACTERS] for mark in QUESTION_MARKS)


def signals(text: str, rarity: Rarity, answers: bool = False) -> dict[str, float]:
    """Each signal of :data:`WEIGHTS` in 0..1; ``answers`` where the turn before it in its thread asked."""
    kinds = names = numbers = times = small = second = total = questions = sentences = 0
    content: dict[str, float] = {}
    at_start, open_sentence = True, False
    for token in TOKEN.findall(text[:MAX_CHARACTERS]):
        first = token[0]
        if first in SENTENCE_END:
            sentences += open_sentence
            questions += open_sentence and any(mark in token for mark in QUESTION_MARKS)
            at_start, open_sentence = True, False
            continue
        total += 1
        open_sentence = True
        lower = token.lower()
        if "\u2019" in lower:
            lower = lower.replace("\u2019", "'")
        if first.isdigit():
            numbers += 1
            content[lower] = rarity.weight(lower)
        elif first > "\u0dff" and UNSPACED.match(first):
            for pair in words_of(token):
                content[pair] = rarity.weight(pair)
        else:
            kind = KINDS.get(lower, 0)
            if kind:
                kinds |= kind
                numbers += kind & NUMBER > 0
                times += kind & TIME > 0
                small += kind & SMALL_TALK > 0
                second += kind & SECOND_PERSON > 0
            if not kind & COMMON and len(lower) > 1:
                content[lower] = rarity.weight(lower)
                names += not at_start and first.isupper()
        at_start = False
    if not total:
        return dict.fromkeys(WEIGHTS, 0.0)
    sentences += open_sentence
    rarest = sorted(content.values(), reverse=True)[:5]
    return {
        "base": 1.0,
        "rare words": sum(rarest) / 5,
        "content words": min(1.0, len(content) / 14),
        "names": min(1.0, names / 2),
        "numbers": min(1.0, numbers / 2),
        "times": min(1.0, times / 1),
        "first person": float(kinds & FIRST_PERSON > 0),
        "events": float(kinds & EVENT > 0),
        "preference": float(kinds & PREFERENCE > 0),
        "commitment": float(kinds & COMMITMENT > 0),
        "decision": float(kinds & DECISION > 0),
        "correction": float(kinds & CORRECTION > 0),
        "answer": float(answers),
        "question": questions / sentences,
        "small talk": min(1.0, small / total * 4),
        "second person": min(1.0, second / total * 6),
    }


def content_rating(text: str, rarity: Rarity, answers: bool = False) -> tuple[float, dict[str, float]]:
    """What a text's content is worth, 0..1 to two decimals, and what each signal contributed.

    Two decimals are what every store can hold. The contributions sum to the rating; ``bounds`` is what was
    cut off at 0.05 or 1 and by rounding.
    """
    parts = {name: WEIGHTS[name] * value for name, value in signals(text, rarity, answers).items() if value}
    total = math.fsum(parts.values())
    rating = round(min(1.0, max(FLOOR, total)), 2)
    parts = {name: round(value, 4) for name, value in parts.items()}
    rest = round(rating - math.fsum(parts.values()), 4)
    return rating, parts | ({"bounds": rest} if rest else {})


def heuristic_rating(
    text: str,
    *,
    role: str | None = None,
    kind: str | None = None,
    host_asserted: bool = False,
    verified: bool = False,
    answers: bool = False,
    rarity: Rarity = Rarity(),
) -> Rating:
    """A turn's rating without a model (SPEC §3.1).

    Args:
        text: what was said; anything else than text rates as empty.
        role: ``user``, ``assistant``, ``tool``, ``system``.
        kind: what the host calls the turn, such as ``tool_result``.
        host_asserted: the host vouches for it as a fact.
        verified: its outcome was verified: 1.0.
        answers: the turn before it in its thread asked something.
        rarity: how rare words are in its company; by default every uncommon word is rare.
    """
    if verified:
        return Rating(1.0, "verified", {"verified": 1.0})
    rating, parts = content_rating(text if isinstance(text, str) else "", rarity, answers)
    words = {str(role or "").lower(), str(kind or "").lower()}
    if host_asserted:
        raised = max(rating, HOST_FLOOR)
        return Rating(raised, "host", parts | ({"host asserted": round(raised - rating, 4)} if raised > rating else {}))
    if words & {"tool", "tool_result", "tool_output", "function", "system"} and rating > TOOL_CEILING:
        parts["tool output"] = round(TOOL_CEILING - rating, 4)
        rating = TOOL_CEILING
    return Rating(rating, "heuristic", parts)
