"""What a check is, what a backend gives it, and how checks are run (SPEC §12, HOUSE: a kit that ships).

No test framework is needed here: pytest runs the checks on every provider of ours, and ``fallow
conformance`` runs the same ones against a scratch store beside an operator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from fallow.model.keys import Row
from fallow.port.protocol import CachePurging, Capabilities, Provider, Touching


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


@dataclass(slots=True)
class Bench:
    """What a check works on: a fresh store, and its backend for those that need more than one."""

    backend: Backend
    store: Store
    capabilities: Capabilities

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        """Another provider of the store."""
        return self.store.open(naive_timezone)


#: What a check needs of a provider before it means anything; see :func:`_lacks`.
Need = Literal[
    "conditional_write",
    "atomic_touch",
    "insert_if_absent",
    "touching",
    "cache_purging",
    "doubling",
    "spoiling",
    "copying",
    "native_values",
    "down",
    "denied",
    "read_only",
    "slow",
    "cut",
    "old",
]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that every provider must do.

    Attributes:
        name: how gaps, mutants and reports call it.
        holds: what it holds, in a sentence.
        needs: without these capabilities, or these powers of the backend, it does not apply.
        room: the part of the contract it belongs to, for the support matrix.
    """

    name: str
    holds: str
    needs: tuple[Need, ...]
    room: str
    run: Callable[[Bench], None]


CHECKS: Final[dict[str, Check]] = {}


def check(
    holds: str, *, needs: Iterable[Need] = (), room: str
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Registers a function as a check under its own name."""

    def register(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        name = function.__name__
        if name in CHECKS:
            raise ValueError(f"two checks are called {name}")
        CHECKS[name] = Check(name, holds, tuple(needs), room, function)
        return function

    return register


def expect(condition: object, message: str) -> None:
    """Raises a :class:`ConformanceError` with this message unless the condition holds."""
    if not condition:
        raise ConformanceError(message)


def expect_equal(found: object, right: object, what: str) -> None:
    """Raises a :class:`ConformanceError` naming ``what``, with both values, unless they are equal."""
    if found != right:
        raise ConformanceError(f"{what}: expected {_short(right)}, found {_short(found)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:297] + "..."


Verdict = Literal["holds", "fails", "gap", "gap closed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one check on one backend; ``gap closed`` and ``fails`` are what a run must not have."""

    check: Check
    verdict: Verdict
    detail: str = ""
    error: BaseException | None = None

    @property
    def good(self) -> bool:
        """Whether the provider is as it was declared to be."""
        return self.verdict not in {"fails", "gap closed"}


_CAPABILITIES: Final = ("conditional_write", "atomic_touch", "insert_if_absent")
_POWERS: Final = {"doubling": "double", "spoiling": "spoil", "copying": "copy", "native_values": "natives"}
_FAULTS: Final = ("down", "denied", "read_only", "slow", "cut", "old")


def _lacks(check: Check, backend: Backend, store: Store, provider: Provider) -> str:
    """What the check needs and is not there, in words; empty where nothing is."""
    for need in check.needs:
        if need in _CAPABILITIES and not getattr(provider.capabilities, need):
            return f"the store has no {need.replace('_', ' ')}"
        if need == "touching" and not isinstance(provider, Touching):
            return "the provider does not reinforce"
        if need == "cache_purging" and not isinstance(provider, CachePurging):
            return "the provider does not purge the cache"
        if need in _POWERS and not hasattr(store, _POWERS[need]):
            return f"{need} is not possible in this store"
        if need in _FAULTS and need not in backend.faults:
            return f"a store that is {need.replace('_', ' ')} cannot be had here"
    return ""


def run_check(check: Check, backend: Backend) -> Result:
    """Runs one check on a new scratch store, and compares with the declared gap if there is one."""
    gap = backend.gaps.get(check.name)
    with backend.store() as store:
        with store.open() as provider:
            lacks = _lacks(check, backend, store, provider)
            capabilities = provider.capabilities
        if lacks:
            if gap is not None:
                return Result(check, "gap closed", f"declared ({gap.reason}), but does not even apply: {lacks}")
            return Result(check, "not applicable", lacks)
        try:
            check.run(Bench(backend, store, capabilities))
        except Exception as error:
            if gap is not None and isinstance(error, gap.raises):
                return Result(check, "gap", gap.reason, error)
            detail = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
            return Result(check, "fails", detail, error)
    if gap is not None:
        return Result(check, "gap closed", f"declared ({gap.reason}), and yet it passes: take the gap out")
    return Result(check, "holds")


def run(backend: Backend, only: Iterable[str] | None = None) -> Iterator[Result]:
    """Runs all checks, or the named ones, in the order of the contract.

    Raises:
        KeyError: a gap or a name belongs to no check.
    """
    for name in (*backend.gaps, *(only or ())):
        if name not in CHECKS:
            raise KeyError(f"no check is called {name}")
    wanted = None if only is None else set(only)
    for item in CHECKS.values():
        if wanted is None or item.name in wanted:
            yield run_check(item, backend)
