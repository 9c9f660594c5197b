"""Providers with one plausible bug each: what a kit that is worth something must reject.

Each wraps the filesystem provider and spoils one thing that a careless adapter would get wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from fallow.providers.conformance.kit import Gap
from fallow.providers.conformance.scratch import FilesystemBackend, FilesystemStore
from fallow.providers.gaps import GAPS

from fallow.model.errors import FallowError
from fallow.model.keys import MISSING, RecordKey, Row
from fallow.port.protocol import Batch, Outcome, Patch, Provider, Unreadable


class Mutant:
    """A provider that passes everything on; the bug is in a subclass."""

    def __init__(self, good: Provider) -> None:
        self.good = good

    def __getattr__(self, name: str) -> Any:
        return getattr(self.good, name)

    def __enter__(self) -> Mutant:
        return self

    def __exit__(self, *_: object) -> None:
        self.good.close()

    def identity(self) -> str:
        return self.good.identity()

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        return self.good.scan(memory_type, columns)

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        return self.good.fetch(memory_type, record_ids)

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        return self.good.find(memory_type, id_prefix)

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        return self.good.patch(patches)

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        return self.good.insert(memory_type, rows)

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        return self.good.touch_many(memory_type, record_ids, now)  # type: ignore[attr-defined]

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        return self.good.purge_cache(expected)  # type: ignore[attr-defined]


class DropsTheLastPage(Mutant):
    """A pager that stops one row early."""

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        for batch in self.good.scan(memory_type, columns):
            yield Batch(batch.frame.head(max(0, batch.frame.height - 1)), batch.unreadable)


class StopsAt1000(Mutant):
    """A listing in one request, of which the store answers the first thousand."""

    cap = 1_000

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        left = self.cap
        for batch in self.good.scan(memory_type, columns):
            yield Batch(batch.frame.head(left), batch.unreadable)
            left = max(0, left - batch.frame.height)


class StopsAt10000(Mutant):
    """A listing with a cursor, which the store ends after ten thousand as if that were all."""

    scan = StopsAt1000.scan
    cap = 10_000


class RepeatsARow(Mutant):
    """A pager whose pages overlap."""

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        for batch in self.good.scan(memory_type, columns):
            yield Batch(pl.concat([batch.frame, batch.frame.tail(1)]), batch.unreadable)


class HidesWhatIsUnreadable(Mutant):
    """An adapter that passes over what it cannot decode."""

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        for batch in self.good.scan(memory_type, columns):
            yield Batch(batch.frame)


class SwallowsAnError(Mutant):
    """An adapter that logs an error and answers with nothing."""

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        try:
            yield from self.good.scan(memory_type, columns)
        except FallowError:
            return

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        return [replace(outcome, status="applied", detail="") for outcome in self.good.patch(patches)]


class IgnoresTheCondition(Mutant):
    """A write without its requirements."""

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        return self.good.patch([Patch(item.key, {}, item.changes) for item in patches])


class IgnoresAbsence(Mutant):
    """A condition that cannot say that a field must be absent."""

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        return self.good.patch(
            [
                Patch(item.key, {k: v for k, v in item.expected.items() if v is not MISSING}, item.changes)
                for item in patches
            ]
        )


class JsonOnlyEquality(Mutant):
    """A condition compared as JSON: what JSON has no word for equals nothing, itself included."""

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        return [
            Outcome(item.key, "changed")
            if any(map(_beyond_json, item.expected.values()))
            else self.good.patch([item])[0]
            for item in patches
        ]


def _beyond_json(value: Any) -> bool:
    try:
        json.dumps(None if value is MISSING else value, allow_nan=False)
    except (TypeError, ValueError):
        return True
    return False


class OverwritesTheRecord(Mutant):
    """A write of the whole record as it was read earlier, without what came since."""

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        outcomes = self.good.patch(patches)
        for item, outcome in zip(patches, outcomes, strict=True):
            if outcome.status == "applied":
                row = self.good.fetch(item.key.memory_type, [item.key.record_id])[item.key.record_id]
                extra = {name: None for name in row if name.startswith("x_")} if isinstance(row, dict) else {}
                self.good.patch([Patch(item.key, {}, extra)])
        return outcomes


class RevivesTheDeleted(Mutant):
    """An upsert where an update was meant."""

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        outcomes = self.good.patch(patches)
        for index, (item, outcome) in enumerate(zip(patches, outcomes, strict=True)):
            if outcome.status == "gone":
                self.good.insert(item.key.memory_type, [{"_id": item.key.record_id, **item.changes}])
                outcomes[index] = Outcome(item.key, "applied")
        return outcomes


class OneBadStopsAll(Mutant):
    """A bulk that ends at the first refusal."""

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        outcomes = []
        for item in patches:
            (outcome,) = self.good.patch([item])
            outcomes.append(outcome)
            if outcome.status != "applied":
                return outcomes + [Outcome(rest.key, "failed", "stopped") for rest in patches[len(outcomes) :]]
        return outcomes


class OutcomesOutOfOrder(Mutant):
    """Outcomes in the order in which they came back."""

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        return list(reversed(self.good.patch(patches)))


class InsertsTwice(Mutant):
    """An insert that replaces what has the id already."""

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        outcomes = self.good.insert(memory_type, rows)
        for index, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
            if outcome.status == "already":
                changes = {name: value for name, value in row.items() if name not in {"_id", "id"}}
                self.good.patch([Patch(RecordKey(memory_type, row["_id"]), {}, changes)])
                outcomes[index] = Outcome(outcome.key, "applied")
        return outcomes


class TouchesTheSuppressed(Mutant):
    """Reinforcement of what is hidden."""

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        outcomes = self.good.touch_many(memory_type, record_ids, now)  # type: ignore[attr-defined]
        return [Outcome(item.key, "applied") if item.detail == "suppressed" else item for item in outcomes]


class CountsOnce(Mutant):
    """A touch that sets the count it read instead of raising it."""

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        rows = self.good.fetch(memory_type, record_ids)
        outcomes = self.good.touch_many(memory_type, record_ids, now)  # type: ignore[attr-defined]
        for name, row in rows.items():
            if isinstance(row, dict):
                count = int(row.get("access_count") or 0) + 1
                self.good.patch([Patch(RecordKey(memory_type, name), {}, {"access_count": count})])
        return outcomes


class PurgesUnconditionally(Mutant):
    """A purge that does not look whether the entry was renewed."""

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        return self.good.purge_cache({key: {} for key in expected})  # type: ignore[attr-defined]


class FindsWithoutPrefix(Mutant):
    """A prefix search that matches anywhere."""

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        return (row for row in self.good.find(memory_type) if id_prefix in str(row["_id"]))


class FetchesOnlyTheFirst(Mutant):
    """A fetch that answers the first page of ids."""

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        return self.good.fetch(memory_type, list(record_ids)[:3])


class TheSameForACopy(Mutant):
    """An identity that is the kind's name."""

    def identity(self) -> str:
        return "filesystem:store"


class NaiveTimesInUtc(Mutant):
    """Creation times whose zone was not asked for."""

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        for batch in self.good.scan(memory_type, columns):
            frame = batch.frame
            if self.good.naive_timezone and "created_at" in columns:
                frame = frame.with_columns(pl.col("created_at") - 3_600_000_000)
            yield Batch(frame, batch.unreadable)


class _MutantStore(FilesystemStore):
    mutant: type[Mutant] = Mutant

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        return self.mutant(super().open(naive_timezone))  # type: ignore[return-value]


class MutantBackend(FilesystemBackend):
    """The filesystem backend, whose providers have the bug."""

    def __init__(self, mutant: type[Mutant], folder: Path) -> None:
        super().__init__(folder)
        self._kind = type("Store", (_MutantStore,), {"mutant": mutant})
        self._folder = folder

    @property
    def gaps(self) -> Mapping[str, Gap]:
        return GAPS["filesystem"]

    @contextmanager
    def store(self) -> Iterator[FilesystemStore]:
        with super().store() as plain:
            yield self._kind(plain.root, self._folder / "cache")


class ReadStore(FilesystemStore):
    """A folder with agents' code of its own: it reads a file and passes over what is suppressed."""

    def agents_see(self, memory_type: str, record_id: str) -> bool | None:
        return self.record(memory_type, record_id).get("retention_state") != "suppressed"

    def record(self, memory_type: str, record_id: str) -> Row:
        row: Row = json.loads((self.root / memory_type / f"{record_id}.json").read_text("utf-8"))
        return row


class ShowsTheSuppressed(ReadStore):
    """Agents' code that knows nothing of suppression."""

    def agents_see(self, memory_type: str, record_id: str) -> bool | None:
        return bool(self.record(memory_type, record_id))


class HidesTheRestored(ReadStore):
    """Agents' code that takes any trace of a suppression for one."""

    def agents_see(self, memory_type: str, record_id: str) -> bool | None:
        return "retention_state" not in self.record(memory_type, record_id)


class HasNoWord(ReadStore):
    """Agents' code that reads no conversations."""

    def agents_see(self, memory_type: str, record_id: str) -> bool | None:
        return None


class ReadBackend(FilesystemBackend):
    """The filesystem backend, whose stores hand in agents' code."""

    def __init__(self, kind: type[ReadStore], folder: Path) -> None:
        super().__init__(folder)
        self._kind, self._folder = kind, folder

    @contextmanager
    def store(self) -> Iterator[FilesystemStore]:
        with super().store() as plain:
            yield self._kind(plain.root, self._folder / "cache")


MUTANTS: dict[str, type[Mutant]] = {kind.__name__: kind for kind in Mutant.__subclasses__()}
