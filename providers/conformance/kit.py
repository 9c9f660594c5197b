"""What a check is, what a backend gives it, and how checks are run (SPEC §12, HOUSE: a kit that ships).

No test framework is needed here: pytest runs the checks on every provider of ours, and ``fallow
conformance`` runs the same ones against a scratch store beside an operator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fallow.port.protocol import CachePurging, Capabilities, Provider, Touching
from fallow.port.scratch import Backend as Backend
from fallow.port.scratch import ConformanceError as ConformanceError
from fallow.port.scratch import Copying as Copying
from fallow.port.scratch import Doubling as Doubling
from fallow.port.scratch import Fault as Fault
from fallow.port.scratch import Gap as Gap
from fallow.port.scratch import HoldingNatives as HoldingNatives
from fallow.port.scratch import NotHeldError as NotHeldError
from fallow.port.scratch import Showing as Showing
from fallow.port.scratch import Spoiling as Spoiling
from fallow.port.scratch import Store as Store


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
    "agents_reading",
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
_POWERS: Final = {
    "doubling": "double",
    "spoiling": "spoil",
    "copying": "copy",
    "native_values": "natives",
    "agents_reading": "agents_see",
}
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
