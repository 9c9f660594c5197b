"""Checks of stores that are down, closed to us, slow or strange: an error that says so, never an empty store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fallow.providers.conformance.kit import Bench, ConformanceError, check, expect, expect_equal
from fallow.providers.conformance.rows import CONVERSATION, NOW, SHARED, message, record_id, scanned
from fallow.providers.conformance.writing import SUPPRESSION

from fallow.model.errors import FallowError, StoreUnreadableError, StoreUnwritableError, TransientError
from fallow.model.keys import RecordKey
from fallow.port.journal import control_row
from fallow.port.protocol import Patch, Provider

ROOM: Final = "errors"


def _raises(
    bench: Bench, kinds: tuple[type[FallowError], ...], what: str, act: Callable[[Provider], object]
) -> FallowError:
    """Opens a provider and acts on it: one of these errors must come, with a hint, without a secret or memory text."""
    try:
        with bench.open() as provider:
            found = act(provider)
    except kinds as error:
        text = f"{error}"
        expect(error.hint, f"{what}: the error has no hint: {error.message}")
        expect(not any(secret in text for secret in bench.backend.secrets), f"{what}: the error shows a secret")
        expect("what was said" not in text, f"{what}: the error shows memory text")
        return error
    except FallowError as error:
        raise ConformanceError(f"{what}: {type(error).__name__} instead of {kinds[0].__name__}: {error}") from error
    raise ConformanceError(f"{what}: no error, but {str(found)[:200]}")


def _scan(provider: Provider) -> list[str]:
    return sorted(scanned(provider, CONVERSATION))


def _readers() -> dict[str, Callable[[Provider], object]]:
    return {
        "a scan": _scan,
        "a fetch": lambda provider: provider.fetch(CONVERSATION, [record_id("a")]),
        "a search": lambda provider: list(provider.find(CONVERSATION)),
    }


def _writers() -> dict[str, Callable[[Provider], object]]:
    return {
        "a patch": lambda provider: provider.patch(
            [Patch(RecordKey(CONVERSATION, record_id("a")), {"access_count": 1}, SUPPRESSION)]
        ),
        "an insert": lambda provider: provider.insert(
            SHARED, [control_row("conformance-a", "fallow_conformance", {}, now=NOW)]
        ),
    }


def _recovers(bench: Bench) -> None:
    with bench.open() as provider:
        expect_equal(_scan(provider), sorted([record_id("a"), record_id("b")]), "the records afterwards")


@check("a store that is down is busy, never empty; once it is up again all is there", needs=["down"], room=ROOM)
def down_is_not_empty(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    with bench.store.fault("down"):
        for what, act in {**_readers(), **_writers()}.items():
            _raises(bench, (TransientError, StoreUnreadableError), what, act)
    _recovers(bench)


@check("a store that goes down between two calls is busy, never empty", needs=["down"], room=ROOM)
def going_down_is_not_empty(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    for what, act in _readers().items():

        def broken(provider: Provider, act: Callable[[Provider], object] = act) -> object:
            _scan(provider)
            with bench.store.fault("down"):
                return act(provider)

        _raises(bench, (TransientError, StoreUnreadableError), what, broken)
    _recovers(bench)


@check("a store that may not be read says so", needs=["denied"], room=ROOM)
def denied_is_said(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    with bench.store.fault("denied"):
        for what, act in _readers().items():
            error = _raises(bench, (StoreUnreadableError,), what, act)
            expect(not isinstance(error, TransientError), f"{what}: trying again would not help")
    _recovers(bench)


@check("a store that may not be written says so, is read as before and is not changed", needs=["read_only"], room=ROOM)
def read_only_is_said(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    before = bench.store.stored(CONVERSATION)
    with bench.store.fault("read_only"):
        with bench.open() as provider:
            expect_equal(len(_scan(provider)), 2, "the records listed")
        for what, act in _writers().items():
            _raises(bench, (StoreUnwritableError,), what, act)
    expect_equal(bench.store.stored(CONVERSATION), before, "what is stored")
    _recovers(bench)


@check("a store that does not answer in time is busy, and one waits no longer than it takes", needs=["slow"], room=ROOM)
def slow_is_busy(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    with bench.store.fault("slow"):
        for what, act in _readers().items():
            _raises(bench, (TransientError,), what, act)
    _recovers(bench)


@check("a listing that ends early is an error, never a shorter list", needs=["cut"], room=ROOM)
def a_cut_listing_is_an_error(bench: Bench) -> None:
    names = [record_id(number) for number in range(237)]
    bench.store.seed(CONVERSATION, [message(number) for number in range(237)])
    with bench.store.fault("cut"):
        for what, act in (("a scan", _scan), ("a search", lambda provider: list(provider.find(CONVERSATION)))):
            _raises(bench, (StoreUnreadableError, TransientError), what, act)
    with bench.open() as provider:
        expect_equal(_scan(provider), sorted(names), "the records afterwards")


@check("a server of a version that cannot be used is named as that", needs=["old"], room=ROOM)
def an_old_server_is_named(bench: Bench) -> None:
    bench.store.seed(CONVERSATION, [message("a"), message("b")])
    with bench.store.fault("old"):
        error = _raises(bench, (FallowError,), "opening and scanning", _scan)
        expect(not isinstance(error, TransientError), "trying again would not help")
        expect("version" in str(error).lower(), "the error does not speak of a version")
    _recovers(bench)
