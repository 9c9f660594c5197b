"""The port that stores fulfil (SPEC §12, DESIGN §3 and §5): narrow on purpose.

A provider lists, fetches, conditionally patches, inserts. It decides nothing: what a field means is in
:mod:`fallow.model.record`, what may be suppressed in :mod:`fallow.judgement.protection`. Anything a store can do beyond
this is a small optional protocol beside it (:class:`Touching`, :class:`CachePurging`), and what it cannot
do is said in its :class:`Capabilities`, never guessed from its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    import polars as pl
from fallow.model.keys import RecordKey, Row


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
    """A piece of a scan: a frame with the asked columns of the schema, and what was unreadable."""

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
        listing_rows: a listing past so many rows is what the conformance kit asks for; smaller, but at least 1,000,
            only where writing so many one by one is too slow.
    """

    kind: str
    batch_size: int = 1000
    conditional_write: bool = True
    atomic_touch: bool = True
    insert_if_absent: bool = True
    drops_owners: bool = False
    max_row_bytes: int | None = None
    requests_per_second: float | None = None
    listing_rows: int = 20_000


@runtime_checkable
class Provider(Protocol):
    """One open store. What a user can cause is raised as a :class:`~fallow.model.errors.FallowError`, nothing else."""

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
