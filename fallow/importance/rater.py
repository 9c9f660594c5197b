"""Rating what turns are worth (SPEC §3): one door for a host's single turn and for a batch of history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, overload

from fallow.importance.config import ImportanceConfig
from fallow.importance.heuristic import Rarity, Rating, heuristic_rating

#: Batches smaller than this say too little about which words are rare among them.
_ENOUGH_FOR_RARITY: Final = 20

Generate = Callable[[str], str]


class ImportanceRater:
    """Rates turns: off, by the free heuristic, or by a model with the heuristic as fallback (SPEC §3.1).

    Args:
        config: mode, purpose, model and batch size.
        rarity: how rare words are in the scope; None counts every batch of 20 or more by itself.
    """

    def __init__(self, config: ImportanceConfig | None = None, *, rarity: Rarity | None = None) -> None:
        self.config = config or ImportanceConfig()
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
        """One turn's ``(importance, source)``; with ``explain`` a :class:`Rating` that says which signals made it."""
        turn = {"text": text, "role": role, "kind": kind, "host_asserted": host_asserted, "verified": verified}
        (rating,) = self.rate_all([turn])
        return rating if explain else (rating.importance, rating.source)

    def rate_many(self, turns: Sequence[Mapping[str, Any]]) -> list[tuple[float | None, str]]:
        """``(importance, source)`` of each turn, in order.

        A turn has ``text`` and may have ``id``, ``role``, ``kind``, ``host_asserted``, ``verified``, and
        ``answers`` (the turn before it in its thread asked something).
        """
        return [(rating.importance, rating.source) for rating in self.rate_all(turns)]

    def rate_all(self, turns: Sequence[Mapping[str, Any]]) -> list[Rating]:
        """As :meth:`rate_many`, with the signals of each rating."""
        if self.config.mode == "off":
            return [Rating(None, "off") for _ in turns]
        rarity = self._rarity
        if rarity is None:
            texts = [text for turn in turns if isinstance(text := turn.get("text"), str)]
            rarity = Rarity.of(texts) if len(texts) >= _ENOUGH_FOR_RARITY else Rarity()
        return [self._heuristic(turn, rarity) for turn in turns]

    def _heuristic(self, turn: Mapping[str, Any], rarity: Rarity) -> Rating:
        text = turn.get("text")
        return heuristic_rating(
            text if isinstance(text, str) else "",
            role=turn.get("role"),
            kind=turn.get("kind"),
            host_asserted=turn.get("host_asserted") is True,
            verified=turn.get("verified") is True,
            answers=turn.get("answers") is True,
            rarity=rarity,
        )
