"""Finding the kind of store that an address names, among those that are installed (SPEC §12, §16)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from typing import Final, TypeVar
from urllib.parse import urlsplit

from fallow.model.arguments import address as address_of
from fallow.model.arguments import refused
from fallow.model.errors import FallowError, ProviderMissingError, UsageError
from fallow.port.kinds import StoreKind
from fallow.port.protocol import Provider
from fallow.port.scratch import Backend

#: The entry point group. A name in it is for people; its object is a :class:`~fallow.port.kinds.StoreKind`.
GROUP: Final = "fallow.providers"

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class Registered:
    """One entry point: where it comes from, and its kind of store or why there is none."""

    name: str
    origin: str
    kind: StoreKind | None
    problem: str = ""


def registered() -> list[Registered]:
    """Every entry point of the group, by name; one that cannot be used says why, and the others work."""
    return list(_registered(tuple(sys.path)))


@cache
def _registered(_path: tuple[str, ...]) -> tuple[Registered, ...]:
    # Looked up once a path: with some hundred distributions it takes tens of milliseconds. Imported where it is
    # needed: an agent host that only ranks does not pay for it.
    from importlib.metadata import entry_points

    found = []
    for point in sorted(set(entry_points(group=GROUP)), key=lambda item: (item.name, item.value)):
        origin = f"{point.dist.name} ({point.value})" if point.dist is not None else point.value
        try:
            kind = point.load()
        except Exception as error:  # whatever somebody else's module does on import
            found.append(Registered(point.name, origin, None, f"{type(error).__name__}: {str(error)[:200]}"))
            continue
        if isinstance(kind, StoreKind):
            found.append(Registered(point.name, origin, kind))
        else:
            found.append(Registered(point.name, origin, None, f"it is no StoreKind but a {type(kind).__name__}"))
    return tuple(found)


def kinds() -> list[StoreKind]:
    """The kinds of store that are installed and can be used, by name."""
    return [item.kind for item in registered() if item.kind is not None]


def missing_packages(kind: StoreKind) -> list[str]:
    """The packages that a kind needs and that are not installed."""
    return [name for name in kind.packages if find_spec(name) is None]


def scheme_of(address: str) -> str:
    """The scheme of a store's address; a path has ``file``.

    Raises:
        UsageError: the address cannot be read.
    """
    try:
        return urlsplit(address).scheme.lower() if "://" in address else "file"
    except ValueError:
        raise UsageError(
            "the store's address cannot be read", hint="write scheme://host/…; an IPv6 host stands in brackets"
        ) from None


def kind_of(address: str) -> StoreKind:
    """The kind of store that serves an address.

    Raises:
        UsageError: the address cannot be read.
        ProviderMissingError: no kind serves it, or two do.
    """
    scheme = scheme_of(address)
    everything = registered()
    serving = [item for item in everything if item.kind is not None and scheme in item.kind.schemes]
    if len(serving) > 1:
        raise ProviderMissingError(
            f"two providers serve '{scheme}://': {' and '.join(item.origin for item in serving)}",
            hint="uninstall one of them",
        )
    if serving and serving[0].kind is not None:
        return serving[0].kind
    raise ProviderMissingError(
        f"no provider serves '{scheme}://'{_broken(everything)}", hint=_known(scheme, everything)
    )


def _broken(everything: list[Registered]) -> str:
    return "".join(f"; {item.origin} cannot be used: {item.problem}" for item in everything if item.kind is None)


def _known(scheme: str, everything: list[Registered]) -> str:
    """The schemes there are, what brings those that lack a package, and the one that was probably meant."""
    by_scheme = {name: item.kind for item in everything if item.kind is not None for name in item.kind.schemes}
    told = [
        f"{name} (pip install '{kind.install}')" if missing_packages(kind) else name
        for name, kind in sorted(by_scheme.items())
    ]
    meant = get_close_matches(scheme, by_scheme, n=1)
    guess = f"did you mean {by_scheme[meant[0]].address}? " if meant else ""
    return f"{guess}known: {', '.join(told) or 'none'}"


def open_provider(uri: str | os.PathLike[str], naive_timezone: Mapping[str, str] | None = None) -> Provider:
    """Opens the store at ``uri`` (SPEC §16): a path, or an address that a kind of store serves.

    Args:
        uri: the store's address: a path, ``file:///…``, ``mongodb://…/db``, ``oracle://…``, ``notion://…``, or what a
            provider that is installed beside serves.
        naive_timezone: IANA zone by memory type for naive creation times; absent means UTC.

    Raises:
        UsageError: the address is empty, or no address.
        ProviderMissingError: no provider serves it, two do, or the provider's package or extra is not installed.
        StoreNotFoundError: there is no such store.
    """
    address = address_of(uri)
    if naive_timezone is not None and not isinstance(naive_timezone, Mapping):
        raise refused("naive_timezone", naive_timezone, "a mapping of memory type to zone")
    kind = kind_of(address)
    return with_its_packages(kind, lambda: kind.open(address, naive_timezone or {}))


def with_its_packages(kind: StoreKind, act: Callable[[], _Made]) -> _Made:
    """What ``act`` gives, where it may import what only an extra brings.

    Raises:
        ProviderMissingError: a package that the kind needs is not installed; one line with the command.
    """
    try:
        return act()
    except FallowError:
        raise
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in kind.packages:
            raise
        raise ProviderMissingError(
            f"a store of kind {kind.name} needs the package '{name}'", hint=f"pip install '{kind.install}'"
        ) from error


def scratch_backend(uri: str | os.PathLike[str]) -> Backend:
    """Scratch stores beside the store at ``uri``, for ``fallow conformance --store``.

    Raises:
        ProviderMissingError: the kind makes none, or lacks a package.
        FallowError: there is no such store, or it cannot be opened.
    """
    address = address_of(uri)
    kind = kind_of(address)
    scratch = kind.scratch
    if scratch is None:
        raise ProviderMissingError(
            f"no scratch store can be made for a store of kind {kind.name}",
            hint="the kit's own tests run it against a stand-in of that kind",
        )
    return with_its_packages(kind, lambda: scratch(address))
