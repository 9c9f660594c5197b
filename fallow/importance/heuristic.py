"""A free rating of what a turn is worth remembering (SPEC §3.1): deterministic, and it says why.

The thought behind it: people later ask about specifics. Who, when, how many, which one, what was decided,
what somebody likes. A turn that holds rare words, names, numbers and times, told in the first person, can
answer such questions; a greeting, an acknowledgement or a question back cannot. So each turn is read for
signals of specifics, each signal saturates, and the rating is their weighted sum, in 0..1. The weights are
round numbers set by that reasoning, not fitted to any data.

How rare a word is depends on the company: for a batch, the scope that is rated says (:class:`Rarity`); for a
single turn every word outside a small table of common words counts as rare. The company says more, where it is
known (:class:`Surroundings`): a turn that answers a question, or that the next one asks about, holds a fact that
somebody wanted; one that repeats what stands before it, or is like what was told long since, adds little.
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
    DATED,
    DECISION,
    EVENT,
    FIRST_PERSON,
    KINDS,
    NUMBER,
    POINTING,
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
    "rare words": 0.24,
    "content words": 0.16,
    "names": 0.10,
    "numbers": 0.05,
    "times": 0.04,
    "dated": 0.16,
    "first person": 0.10,
    "events": 0.06,
    "preference": 0.05,
    "commitment": 0.05,
    "decision": 0.08,
    "correction": 0.05,
    "question": -0.16,
    "small talk": -0.05,
    "second person": -0.05,
}
#: The same for what the company says; ``told before`` and ``usual topic`` are ranks, and count from their middle.
COMPANY_WEIGHTS: Final[Mapping[str, float]] = {
    "answer": 0.08,
    "asked about": 0.05,
    "repeats": -0.10,
    "told before": -0.20,
    "usual topic": -0.15,
}
_RANKS: Final = frozenset({"told before", "usual topic"})
#: An assistant's answer may be this long, in characters, before its length speaks against what it seems to hold:
#: a recital fills every signal, whatever it is about. Past it the rating goes towards :data:`RECITAL`.
ANSWER_LENGTH: Final = 400
RECITAL: Final = 0.4


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
class Surroundings:
    """What the records around a turn say about it.

    Attributes:
        answers: the turn before it in its thread asks.
        asked_about: the turn after it in its thread asks.
        repeats: how much it repeats the words of the turn before it, 0..1 (1: three words or more).
        told_before: how near it is, by embedding, to the nearest of what was told before it: its rank among the
            records of its memory, 0 (the least near) to 1; None where that is not known.
        usual_topic: how near it is to what its memory is mostly about, as such a rank.
    """

    answers: bool = False
    asked_about: bool = False
    repeats: float = 0.0
    told_before: float | None = None
    usual_topic: float | None = None

    def signals(self) -> dict[str, float]:
        """Each signal of :data:`COMPANY_WEIGHTS`: the ranks in -0.5..0.5, the others in 0..1."""
        return {
            "answer": float(self.answers),
            "asked about": float(self.asked_about),
            "repeats": self.repeats,
            "told before": 0.0 if self.told_before is None else self.told_before - 0.5,
            "usual topic": 0.0 if self.usual_topic is None else self.usual_topic - 0.5,
        }


#: Nothing is known of the company.
ALONE: Final = Surroundings()


@dataclass(frozen=True, slots=True)
class Rating:
    """An importance in 0..1, where it comes from, and which signals made it (they sum to it)."""

    importance: float | None
    source: str
    signals: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For output."""
        return {"importance": self.importance, "source": self.source, "signals": dict(self.signals)}


def content_words(text: str) -> list[str]:
    """The different words of a text that are neither grammar nor small talk, lower case, as they first come."""
    words = dict.fromkeys(word.lower().replace("\u2019", "'") for word in words_of(text))
    return [word for word in words if not KINDS.get(word, 0) & COMMON and (len(word) > 1 or not word.isalpha())]


def asks(text: str) -> bool:
    """Whether a turn asks for an answer."""
    return any(mark in text[:MAX_CHARACTERS] for mark in QUESTION_MARKS)


def signals(text: str, rarity: Rarity) -> dict[str, float]:
    """Each signal of :data:`WEIGHTS` in 0..1."""
    kinds = before = dated = names = numbers = times = small = second = total = questions = sentences = 0
    content: dict[str, float] = {}
    at_start, open_sentence = True, False
    for token in TOKEN.findall(text[:MAX_CHARACTERS]):
        first = token[0]
        if first in SENTENCE_END:
            sentences += open_sentence
            questions += open_sentence and any(mark in token for mark in QUESTION_MARKS)
            at_start, open_sentence, before = True, False, 0
            continue
        total += 1
        open_sentence = True
        lower = token.lower()
        if "\u2019" in lower:
            lower = lower.replace("\u2019", "'")
        kind = 0
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
                # "yesterday"; "last week", "semana pasada"
                dated |= kind & DATED or (kind & TIME and before & POINTING) or (kind & POINTING and before & TIME)
            if not kind & COMMON and len(lower) > 1:
                content[lower] = rarity.weight(lower)
                names += not at_start and first.isupper()
        at_start, before = False, kind
    if not total:
        return dict.fromkeys(WEIGHTS, 0.0)
    sentences += open_sentence
    rarest = sorted(content.values(), reverse=True)[:5]
    return {
        "base": 1.0,
        "rare words": sum(rarest) / 5,
        "content words": min(1.0, len(content) / 14),
        "names": min(1.0, names / 3),
        "numbers": min(1.0, numbers / 2),
        "times": min(1.0, times / 1),
        "dated": float(dated > 0),
        "first person": float(kinds & FIRST_PERSON > 0),
        "events": float(kinds & EVENT > 0),
        "preference": float(kinds & PREFERENCE > 0),
        "commitment": float(kinds & COMMITMENT > 0),
        "decision": float(kinds & DECISION > 0),
        "correction": float(kinds & CORRECTION > 0),
        "question": questions / sentences,
        "small talk": min(1.0, small / total * 4),
        "second person": min(1.0, second / total * 6),
    }


def content_rating(
    text: str, rarity: Rarity, around: Surroundings = ALONE, *, recited: bool = False
) -> tuple[float, dict[str, float]]:
    """What a text's content is worth, 0..1 to two decimals, and what each signal contributed.

    Two decimals are what every store can hold. The contributions sum to the rating; ``bounds`` is what was
    cut off at 0.05 or 1 and by rounding, ``long answer`` what an assistant's length took (``recited``).
    """
    found = signals(text, rarity)
    parts = {name: WEIGHTS[name] * value for name, value in found.items() if value}
    if parts:
        told = {name: COMPANY_WEIGHTS[name] * value for name, value in around.signals().items() if value}
        ranks = {name: value for name, value in told.items() if name in _RANKS}
        parts |= {name: value for name, value in told.items() if name not in _RANKS}
        if recited and len(text) > ANSWER_LENGTH:
            total = math.fsum(parts.values())
            parts["long answer"] = (RECITAL - total) * (1 - ANSWER_LENGTH / len(text))
        parts |= ranks
    rating = round(min(1.0, max(FLOOR, math.fsum(parts.values()))), 2)
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
    around: Surroundings = ALONE,
    rarity: Rarity = Rarity(),
) -> Rating:
    """A turn's rating without a model (SPEC §3.1).

    Args:
        text: what was said; anything else than text rates as empty.
        role: ``user``, ``assistant``, ``tool``, ``system``.
        kind: what the host calls the turn, such as ``tool_result``.
        host_asserted: the host vouches for it as a fact.
        verified: its outcome was verified: 1.0.
        around: what the records around it say about it; by default nothing is known of them.
        rarity: how rare words are in its company; by default every uncommon word is rare.
    """
    if verified:
        return Rating(1.0, "verified", {"verified": 1.0})
    words = {str(role or "").lower(), str(kind or "").lower()}
    recited = not host_asserted and bool(words & {"assistant", "ai", "bot", "model"})
    rating, parts = content_rating(text if isinstance(text, str) else "", rarity, around, recited=recited)
    if host_asserted:
        raised = max(rating, HOST_FLOOR)
        return Rating(raised, "host", parts | ({"host asserted": round(raised - rating, 4)} if raised > rating else {}))
    if words & {"tool", "tool_result", "tool_output", "function", "system"} and rating > TOOL_CEILING:
        parts["tool output"] = round(TOOL_CEILING - rating, 4)
        rating = TOOL_CEILING
    return Rating(rating, "heuristic", parts)
