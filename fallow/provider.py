"""The port that stores fulfil (SPEC §12, DESIGN §3 and §5): narrow on purpose.

A provider lists, fetches, conditionally patches, inserts. It decides nothing: what a field means is in
:mod:`fallow.record`, what may be suppressed in :mod:`fallow.protection`. Anything a store can do beyond
this is a small optional protocol beside it (:class:`Touching`, :class:`CachePurging`), and what it cannot
do is said in its :class:`Capabilities`, never guessed from its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, runtime_checkable
from urllib.parse import urlsplit

from fallow.errors import ProviderMissingError, UsageError

if TYPE_CHECKING:
    import polars as pl

#: A stored row: the store's own fields and values, the key under ``_id``. Never written back whole.
Row = dict[str, Any]


class RecordKey(NamedTuple):
    """What names a record in a store: its memory type and its canonical record id (SPEC §1)."""

    memory_type: str
    record_id: str


class _Missing(Enum):
    MISSING = "missing"


#: In :attr:`Patch.expected`: the field must not be present at all (present with null is something else).
MISSING: Final = _Missing.MISSING


@dataclass(frozen=True, slots=True)
class Patch:
    """A change as data: requirements plus updates.

    ``expected`` maps top-level field names to the values they were read with (or :data:`MISSING`);
    the patch lands only if each of them is still exactly that (compared as JSON values: true and 1 differ,
    null and absent differ) and the record still exists. ``changes`` are the top-level fields to set;
    every other field keeps its bytes.
    """

    key: RecordKey
    expected: Mapping[str, Any]
    changes: Mapping[str, Any]


#: applied  the write is in the store and was read back (or acknowledged by a majority)
#: already  an insert found its id taken; nothing was changed
#: changed  a requirement of the patch no longer holds; nothing was changed
#: gone     there is no such record; nothing was created
#: failed   refused by the store for this record; nothing was changed; ``detail`` says why
#: unknown  sent, but the answer was lost: read before deciding anything
Status = Literal["applied", "already", "changed", "gone", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one write. ``detail`` is the store's reason, free of memory text and secrets."""

    key: RecordKey
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stored thing that is no record: torn JSON, wrong root type, id that contradicts its key (SPEC §1.2)."""

    key: RecordKey
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A piece of a scan: a frame with the asked columns of :data:`fallow.record.SCHEMA`, and what was unreadable."""

    frame: pl.DataFrame
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this kind of store can do, as plain data; core code asks this and never the kind's name.

    Attributes:
        kind: the name in plans and reports (``filesystem``, ``mongodb``, ``oracle``, ``notion``).
        batch_size: records a patch or insert call should carry at most.
        conditional_write: a patch's requirements are checked atomically with its write.
        atomic_touch: touches of one record by several processes are all counted.
        insert_if_absent: of two inserts of one id exactly one is ``applied``.
        drops_owners: the agents' own store drops scope keys, so owners follow from lineage (SPEC §6.4).
        max_row_bytes: control rows larger than this are stored in parts.
        requests_per_second: the store's own limit, if it has one.
    """

    kind: str
    batch_size: int = 1000
    conditional_write: bool = True
    atomic_touch: bool = True
    insert_if_absent: bool = True
    drops_owners: bool = False
    max_row_bytes: int | None = None
    requests_per_second: float | None = None


@runtime_checkable
class Provider(Protocol):
    """One open store. What a user can cause is raised as a :class:`~fallow.errors.FallowError`, nothing else."""

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        ...

    @property
    def naive_timezone(self) -> Mapping[str, str]:
        """The zone name by memory type in which naive creation times are read; absent means UTC (SPEC §1.1)."""
        ...

    def identity(self) -> str:
        """Which store this is: stable over restarts, different for a copy; no secret in it."""
        ...

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        """Every record of a type, whole store, as frames with exactly ``columns`` of the canonical schema.

        A type that the store does not have is empty. Side-effect free (SPEC §1.3).

        Raises:
            StoreUnreadableError: the listing failed or was cut short (SPEC §1.4).
            StoreBusyError: the store could not be reached in time.
        """
        ...

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        """Whole rows by record id; ids that are not there are absent from the answer."""
        ...

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        """Whole rows of a type whose id starts with ``id_prefix``, ordered by id: control rows, agents.

        Unreadable rows are passed over. Raises as :meth:`scan`.
        """
        ...

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        """Conditional writes, one outcome a patch, in order. One bad record does not stop the others."""
        ...

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        """New rows, each under its ``_id``, only where that id is not taken; one outcome a row, in order.

        The store's own agents see them in their listings afterwards, also after a crash and a second call.
        """
        ...

    def close(self) -> None:
        """Let go of connections; the provider is not used afterwards."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Touching(Protocol):
    """A provider that can reinforce (SPEC §4)."""

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        """last_accessed_at = the later of itself and ``now`` (microseconds), access_count + 1, atomic per record.

        ``gone`` for ids that are not there, ``changed`` with detail ``suppressed`` for suppressed records.
        """
        ...


@runtime_checkable
class Snapshotting(Protocol):
    """A provider that keeps decision fields in a cache of its own between scans (DESIGN §3)."""

    #: Whether scans may use the snapshot; off reads every record afresh. The plan is the same with and without.
    snapshot: bool


@runtime_checkable
class Diagnosing(Protocol):
    """A provider that can say more to ``fallow doctor`` about how it stands."""

    def diagnose(self) -> list[tuple[str, str, str]]:
        """Checks as (name, ``ok`` | ``info`` | ``warning`` | ``error``, what was found)."""
        ...


@runtime_checkable
class Indexing(Protocol):
    """A provider whose own reading gains by indexes that agents do not make."""

    def create_indexes(self) -> list[str]:
        """Makes those that are missing, and says their names; only where an operator asks for it.

        Raises:
            StoreUnwritableError: the store does not let us.
        """
        ...


@runtime_checkable
class CachePurging(Protocol):
    """A provider that can remove semantic cache entries, the only thing fallow ever deletes (SPEC §11)."""

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        """Removes ``semantic_cache`` entries by id where their fields still are what ``expected`` says."""
        ...


#: Built-in providers by URI scheme; third parties register in the entry point group ``fallow.providers``.
_BUILT_IN: Final[Mapping[str, str]] = {
    "file": "providers.filesystem:FilesystemProvider",
    "mongodb": "providers.mongodb:MongoDBProvider",
    "mongodb+srv": "providers.mongodb:MongoDBProvider",
    "oracle": "providers.oracle:OracleProvider",
    "notion": "providers.notion:NotionProvider",
}


def open_provider(uri: str, naive_timezone: Mapping[str, str] | None = None) -> Provider:
    """Opens the store at ``uri`` (SPEC §16): a path, ``file:///…``, ``mongodb://…/db``, ``oracle://…``, ``notion://…``.

    Args:
        uri: the store's address.
        naive_timezone: IANA zone by memory type for naive creation times; absent means UTC.

    Raises:
        UsageError: the address is empty.
        ProviderMissingError: no provider serves it, or the provider's package or extra is not installed.
        StoreNotFoundError: there is no such store.
    """
    if not uri.strip():
        raise UsageError("no store is named", hint="pass --store or set FALLOW_STORE")
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
