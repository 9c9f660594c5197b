"""The port to a model that rates, and to the memory of what it was already paid for (SPEC §3.6).

Adapters fulfil these: ``fallow.providers.models`` over HTTP, ``fallow.providers.model_answers`` on disk. The core
decides what is asked and what an answer means.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fallow.importance.budget import Usage

Finish = Literal["stop", "length", "refusal"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said: its text, why it ended, and what the endpoint counted for it."""

    text: str
    finish: Finish = "stop"
    usage: Usage = field(default_factory=Usage)


class Model(Protocol):
    """A model behind an endpoint. May be asked from several threads at once."""

    @property
    def name(self) -> str:
        """The model's name, as the endpoint knows it."""
        ...

    @property
    def in_flight(self) -> int:
        """How many calls may be out at once."""
        ...

    @property
    def unsettled(self) -> int:
        """Calls that were sent and whose answer never came: they may have been paid for."""
        ...

    def ask(
        self, messages: Sequence[Mapping[str, str]], *, max_tokens: int, schema: Mapping[str, Any] | None = None
    ) -> Answer:
        """One answer, after the pace, the waits and the retries that the endpoint needs.

        Raises:
            ModelRefusedError: no request will be answered.
            ModelRequestError: this one will not.
            ModelUnavailableError: it was tried long enough.
        """
        ...


class PaidAnswers(Protocol):
    """Ratings that were paid for, by content (:func:`fallow.importance.prompt.cache_key`), and calls under way.

    A cache: without it a run still goes on from the rows that have ratings. It holds hashes and numbers, never
    a text. May be used from several threads and processes at once.
    """

    def known(self, keys: Collection[str]) -> dict[str, float]:
        """The ratings that these contents have."""
        ...

    def sent(self, rows: int) -> int:
        """Notes that a call about so many rows goes out; returns its number."""
        ...

    def answered(self, call: int, ratings: Mapping[str, float]) -> None:
        """Notes a call's answer: from now on it is neither paid again nor lost."""
        ...

    def lost(self) -> list[int]:
        """Takes out the calls of runs that died before their answer came: how many rows each was about."""
        ...


class AnswersInMemory:
    """Paid answers of one run alone."""

    def __init__(self) -> None:
        self._ratings: dict[str, float] = {}

    def known(self, keys: Collection[str]) -> dict[str, float]:
        """As :meth:`PaidAnswers.known`."""
        return {key: self._ratings[key] for key in keys if key in self._ratings}

    def sent(self, rows: int) -> int:  # noqa: ARG002
        """As :meth:`PaidAnswers.sent`; nothing outlives this process."""
        return 0

    def answered(self, call: int, ratings: Mapping[str, float]) -> None:  # noqa: ARG002
        """As :meth:`PaidAnswers.answered`."""
        self._ratings.update(ratings)

    def lost(self) -> list[int]:
        """Nothing is known of other runs."""
        return []
