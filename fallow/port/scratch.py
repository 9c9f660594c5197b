"""What a kind of store gives the conformance kit: scratch stores, a native way into them, declared gaps (SPEC §12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fallow.model.keys import Row
from fallow.port.protocol import Provider


class ConformanceError(AssertionError):
    """A provider does not do what a check holds; the message says what it did instead, free of memory text."""


class NotHeldError(Exception):
    """A backend's store has no place for what a check wants to write into it; the message names it."""


class Store(Protocol):
    """One scratch store, empty at first, with a way into it past the provider.

    ``seed``, ``change``, ``remove`` and ``stored`` speak to the store natively, as its agents do, so that
    the provider is held against something that is not itself.
    """

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        """Another provider of this store; the check closes it."""
        ...

    def seed(self, memory_type: str, rows: Sequence[Row]) -> None:
        """Stores rows as agents would have written them, each under its ``_id``.

        Raises:
            NotHeldError: the store's layout has no place for such a row or type.
        """
        ...

    def change(self, memory_type: str, record_id: str, fields: Mapping[str, Any]) -> None:
        """Another writer sets top-level fields of a record, at once."""
        ...

    def remove(self, memory_type: str, record_id: str) -> None:
        """Another writer deletes a record."""
        ...

    def stored(self, memory_type: str) -> dict[str, dict[str, bytes]]:
        """Everything a type holds: by record id, each stored field's value in the store's own bytes, in its order."""
        ...

    def fault(self, kind: Fault) -> AbstractContextManager[None]:
        """The store is broken in that way for as long as this is held; only kinds that ``Backend.faults`` names."""
        ...


#: down       nothing answers
#: denied     the credentials or permissions do not allow reading
#: read_only  writes are refused, reading is not
#: slow       answers take longer than anybody waits
#: cut        a listing ends early or its answer is torn
#: old        the server is of a version that cannot be used
Fault = Literal["down", "denied", "read_only", "slow", "cut", "old"]


class Doubling(Protocol):
    """A scratch store that can hold two things under one record id."""

    def double(self, memory_type: str, record_id: str) -> None:
        """Stores a second thing whose id reads the same."""
        ...


class Spoiling(Protocol):
    """A scratch store that can hold what is no record."""

    def spoil(self, memory_type: str, record_id: str) -> None:
        """Makes a stored record unreadable."""
        ...


class HoldingNatives(Protocol):
    """A scratch store whose kind holds values beside those that every store can hold."""

    def natives(self) -> Mapping[str, Mapping[str, Any]]:
        """By a name for people, fields of a ``knowledge_base`` row that hold such a value, as ``seed`` takes them."""
        ...


class Showing(Protocol):
    """A scratch store whose agents' own reader is at hand."""

    def agents_see(self, memory_type: str, record_id: str) -> bool | None:
        """Whether that reader shows the record to agents; None where it has no word on such a type.

        It is the agents' code that is asked here, not the provider, and not what is stored.
        """
        ...


class Copying(Protocol):
    """A scratch store of which there can be a copy."""

    def copy(self) -> AbstractContextManager[Store]:
        """A complete copy of the store, for as long as it is held."""
        ...


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a provider does not pass a check, and what the check then raises.

    Strict: a check that passes in spite of its gap, or raises something else, fails the run.
    """

    reason: str
    raises: type[BaseException] = ConformanceError


class Backend(Protocol):
    """A kind of store and how to get scratch stores of it."""

    @property
    def name(self) -> str:
        """What the kind is called in reports and in the support matrix."""
        ...

    @property
    def gaps(self) -> Mapping[str, Gap]:
        """Declared gaps by check name."""
        ...

    @property
    def faults(self) -> frozenset[str]:
        """The kinds of fault that its stores can be put into."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords and tokens that no error may show."""
        ...

    def store(self) -> AbstractContextManager[Store]:
        """A new, empty store, gone without a trace when left."""
        ...
