"""Finding the provider that serves a store's address (SPEC §12, §16)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from os import PathLike
from typing import Final
from urllib.parse import urlsplit

from fallow.model.arguments import address, refused
from fallow.model.errors import ProviderMissingError, UsageError
from fallow.port.protocol import Provider

#: Built-in providers by URI scheme; third parties register in the entry point group ``fallow.providers``.
_BUILT_IN: Final[Mapping[str, str]] = {
    "file": "fallow.providers.filesystem:FilesystemProvider",
    "mongodb": "fallow.providers.mongodb:MongoDBProvider",
    "mongodb+srv": "fallow.providers.mongodb:MongoDBProvider",
    "oracle": "fallow.providers.oracle:OracleProvider",
    "notion": "fallow.providers.notion:NotionProvider",
}


def open_provider(uri: str | PathLike[str], naive_timezone: Mapping[str, str] | None = None) -> Provider:
    """Opens the store at ``uri`` (SPEC §16): a path, ``file:///…``, ``mongodb://…/db``, ``oracle://…``, ``notion://…``.

    Args:
        uri: the store's address; a path may be a path object.
        naive_timezone: IANA zone by memory type for naive creation times; absent means UTC.

    Raises:
        UsageError: the address is empty, or no address.
        ProviderMissingError: no provider serves it, or the provider's package or extra is not installed.
        StoreNotFoundError: there is no such store.
    """
    uri = address(uri)
    if naive_timezone is not None and not isinstance(naive_timezone, Mapping):
        raise refused("naive_timezone", naive_timezone, "a mapping of memory type to zone")
    try:
        scheme = urlsplit(uri).scheme.lower() if "://" in uri else "file"
    except ValueError:
        raise UsageError(
            "the store's address cannot be read", hint="write scheme://host/…; an IPv6 host stands in brackets"
        ) from None
    target = _BUILT_IN.get(scheme)
    if target is None:
        # Imported where it is needed: an agent host that only ranks does not pay for it.
        from importlib.metadata import entry_points

        registered = {point.name: point for point in entry_points(group="fallow.providers")}
        if scheme not in registered:
            known = ", ".join(sorted({*_BUILT_IN, *registered}))
            raise ProviderMissingError(f"no provider serves '{scheme}://'", hint=f"known: {known}")
        factory = registered[scheme].load()
    else:
        module, _, name = target.partition(":")
        try:
            factory = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name in {"providers", module}:
                raise ProviderMissingError(
                    f"the provider for '{scheme}://' ({module}) is not importable here",
                    hint="providers are part of the application: run from a checkout (pip install -e) or the image",
                ) from error
            extra = scheme.partition("+")[0]
            raise ProviderMissingError(
                f"the provider for '{scheme}://' needs the package '{error.name}'",
                hint=f"pip install 'fallow[{extra}]'",
            ) from error
    provider: Provider = factory.from_uri(uri, naive_timezone or {})
    return provider
