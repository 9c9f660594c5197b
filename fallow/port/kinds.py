"""What a kind of store says of itself, as plain data: the one object behind the entry point (SPEC §12, §16).

A provider, ours or anybody's, is one frozen :class:`StoreKind` that the entry point group
``fallow.providers`` names. Opening, ``doctor``, ``settings``, ``conformance``, the support matrix and the docs read
this and nothing else. The module that holds it should import no driver: it is loaded whenever any store is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fallow.model.errors import UsageError
from fallow.port.protocol import Capabilities, Provider
from fallow.port.scratch import Backend, Gap


@dataclass(frozen=True, slots=True)
class StoreSetting:
    """One thing that a kind of store is told by the environment.

    Attributes:
        env: the environment variable's name.
        meaning: what it says, for ``fallow settings`` and the docs.
        required: no store of the kind opens without it.
        secret: its value is never shown.
    """

    env: str
    meaning: str
    required: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class StoreKind:
    """One kind of store.

    Attributes:
        name: what the kind is called, in plans (``store.kind``) and reports; ``capabilities.kind`` says the same.
        schemes: what its addresses start with, in lower case, without ``://``.
        open: opens the store at an address; the second argument is the zone by memory type for naive creation times.
            What only an extra brings is imported in there. Raises a :class:`~fallow.model.errors.FallowError` for
            whatever a user can cause.
        capabilities: what every store of the kind can do.
        address: an address as its user writes it, for errors and the docs.
        docs: one line for the docs.
        settings: what it is told by the environment.
        install: what one tells pip to get what it needs, such as ``fallow[mongodb]``; empty: nothing is needed.
        packages: the importable packages that ``install`` brings.
        scratch: scratch stores beside the store at an address, for the conformance kit; None: it cannot make any.
        gaps: declared gaps by the kit's check.
    """

    name: str
    schemes: tuple[str, ...]
    open: Callable[[str, Mapping[str, str]], Provider]
    capabilities: Capabilities
    address: str
    docs: str
    settings: tuple[StoreSetting, ...] = ()
    install: str = ""
    packages: tuple[str, ...] = ()
    scratch: Callable[[str], Backend] | None = None
    gaps: Mapping[str, Gap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError where it contradicts itself: no scheme, one in another form, another kind's name."""
        if not self.name or not self.schemes:
            raise UsageError("a kind of store has a name and a scheme", hint="StoreKind(name=…, schemes=(…,), …)")
        if any(scheme != scheme.lower() or "/" in scheme or ":" in scheme for scheme in self.schemes):
            raise UsageError(f"the schemes of {self.name} are not in lower case without ://", hint="'sqlite'")
        if self.capabilities.kind != self.name:
            raise UsageError(
                f"{self.name} has the capabilities of '{self.capabilities.kind}'", hint="give both the same name"
            )
