"""Rating what turns are worth (SPEC §3): one door for a host's single turn and for a batch of history."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, overload

from fallow.importance.config import ImportanceConfig
from fallow.importance.heuristic import Rarity, Rating, Surroundings, heuristic_rating
from fallow.importance.parsing import MISSING, UNREADABLE, parse_rating, parse_ratings
from fallow.importance.prompt import build_prompt, has_words
from fallow.model.arguments import mappings, refused, switch, text_or_none
from fallow.model.arguments import text as checked_text

#: Batches smaller than this say too little about which words are rare among them.
_ENOUGH_FOR_RARITY: Final = 20

Generate = Callable[[str], str]


class ImportanceRater:
    """Rates turns: off, by the free heuristic, or by a model with the heuristic as fallback (SPEC §3.1).

    Args:
        config: mode, purpose, model and batch size.
        generate: a model, as a function from a prompt to its answer; without one, mode ``llm`` is the heuristic.
            What it raises counts as no answer.
        rarity: how rare words are in the scope; None counts every batch of 20 or more by itself.

    ``fallbacks`` counts the turns that the model was to rate and the heuristic did, by reason.
    """

    def __init__(
        self,
        config: ImportanceConfig | None = None,
        *,
        generate: Generate | None = None,
        rarity: Rarity | None = None,
    ) -> None:
        if config is not None and not isinstance(config, ImportanceConfig):
            raise refused("config", config, "an ImportanceConfig")
        if generate is not None and not callable(generate):
            raise refused("generate", generate, "a function from a prompt to its answer")
        self.config = config or ImportanceConfig()
        self.fallbacks: Counter[str] = Counter()
        self._generate = generate
        self._rarity = rarity

    @overload
    def rate(
        self,
        text: str,
        role: str | None = ...,
        *,
        kind: str | None = ...,
        host_asserted: bool = ...,
        verified: bool = ...,
        explain: Literal[False] = ...,
    ) -> tuple[float | None, str]: ...

    @overload
    def rate(
        self,
        text: str,
        role: str | None = ...,
        *,
        kind: str | None = ...,
        host_asserted: bool = ...,
        verified: bool = ...,
        explain: Literal[True],
    ) -> Rating: ...

    def rate(
        self,
        text: str,
        role: str | None = None,
        *,
        kind: str | None = None,
        host_asserted: bool = False,
        verified: bool = False,
        explain: bool = False,
    ) -> tuple[float | None, str] | Rating:
        """One turn's ``(importance, source)``; with ``explain`` a :class:`Rating` that says which signals made it.

        Raises:
            UsageError: an argument is none of SPEC §1.5.
        """
        turn = {
            "text": checked_text(text, "text"),
            "role": text_or_none(role, "role"),
            "kind": text_or_none(kind, "kind"),
            "host_asserted": switch(host_asserted, "host_asserted"),
            "verified": switch(verified, "verified"),
        }
        (rating,) = self.rate_all([turn])
        return rating if explain else (rating.importance, rating.source)

    def rate_many(self, turns: Iterable[Mapping[str, Any]]) -> list[tuple[float | None, str]]:
        """``(importance, source)`` of each turn, in order.

        A turn has ``text`` and may have ``id``, ``role``, ``kind``, ``host_asserted``, ``verified``, and what is
        known of its surroundings: ``around`` (:class:`~fallow.importance.heuristic.Surroundings`), or ``answers``
        alone (the turn before it in its thread asked something). Any iterable of turns is read once.

        Raises:
            UsageError: one turn, a frame, or a turn that is no mapping.
        """
        return [(rating.importance, rating.source) for rating in self.rate_all(mappings(turns, "turns"))]

    def rate_all(self, turns: Sequence[Mapping[str, Any]]) -> list[Rating]:
        """As :meth:`rate_many`, with the signals of each rating."""
        if self.config.mode == "off":
            return [Rating(None, "off") for _ in turns]
        rarity = self._rarity
        if rarity is None:
            texts = [text for turn in turns if isinstance(text := turn.get("text"), str)]
            rarity = Rarity.of(texts) if len(texts) >= _ENOUGH_FOR_RARITY else Rarity()
        ratings = [self._heuristic(turn, rarity) for turn in turns]
        if self.config.mode == "llm" and self._generate is not None:
            asked = [at for at, turn in enumerate(turns) if self._worth_asking(turn, ratings[at])]
            for start in range(0, len(asked), self.config.batch_size):
                batch = asked[start : start + self.config.batch_size]
                for at, value in zip(batch, self._by_model([turns[at] for at in batch]), strict=True):
                    if isinstance(value, str):
                        self.fallbacks[value] += 1
                    else:
                        ratings[at] = Rating(value, "llm")
        return ratings

    def _worth_asking(self, turn: Mapping[str, Any], rating: Rating) -> bool:
        """Whether a model is asked: not about what is known without it, nor where there are no words."""
        if rating.source != "heuristic":
            return False
        text = turn.get("text")
        if isinstance(text, str) and has_words(text):
            return True
        self.fallbacks["empty_text"] += 1
        return False

    def _by_model(self, turns: Sequence[Mapping[str, Any]]) -> list[float | str]:
        """The model's rating of each turn, or the reason why there is none."""
        rows = [(str(at), turn["text"], turn.get("role")) for at, turn in enumerate(turns)]
        prompt = build_prompt(rows, purpose=self.config.purpose, salt=secrets.token_hex(8))
        try:
            answer = self._generate(f"{prompt.system}\n\n{prompt.user}") if self._generate is not None else ""
        except Exception:  # any function of the host's: whatever it raises, the turn must still be rated
            return ["no_answer"] * len(turns)
        if not isinstance(answer, str) or not answer.strip():
            return ["empty_answer"] * len(turns)
        return _bound(answer, list(prompt.rows), turns)

    def _heuristic(self, turn: Mapping[str, Any], rarity: Rarity) -> Rating:
        text, around = turn.get("text"), turn.get("around")
        return heuristic_rating(
            text if isinstance(text, str) else "",
            role=turn.get("role"),
            kind=turn.get("kind"),
            host_asserted=turn.get("host_asserted") is True,
            verified=turn.get("verified") is True,
            around=around if isinstance(around, Surroundings) else Surroundings(answers=turn.get("answers") is True),
            rarity=rarity,
        )


def _bound(answer: str, tags: list[str], turns: Sequence[Mapping[str, Any]]) -> list[float | str]:
    """Each turn's value: by the tags that the model was shown, else by the turns' own ids, never by position.

    An answer about a single turn may be a bare number.
    """
    names = [turn.get("id") for turn in turns]
    ids = [name for name in names if isinstance(name, str)]
    for keys in (tags, ids if len(set(ids)) == len(turns) else []):
        parsed = parse_ratings(answer, keys)
        if parsed.ratings or set(parsed.unrated.values()) - {MISSING, UNREADABLE}:
            return [parsed.ratings[key] if key in parsed.ratings else parsed.unrated[key] for key in keys]
    if len(turns) == 1:
        return [parse_rating(answer)]
    parsed = parse_ratings(answer, tags)
    return [parsed.unrated[tag] for tag in tags]
