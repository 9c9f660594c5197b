"""The filesystem store: one JSON file a record (STORES.md, Filesystem; DESIGN §3 and §5).

Reading never changes a byte. Writing goes beside live agents: prepared outside the store's lock, landed
inside it by exchanging files, verified after it; what an agent wrote in between always wins.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from fallow.errors import StoreBusyError, StoreNotFoundError, StoreUnwritableError
from fallow.provider import Batch, Capabilities, Outcome, Patch, RecordKey, Row, Unreadable
from fallow.record import TYPE_ALIASES, read_record
from fallow.times import iso, zone
from providers import filesystem_files as files
from providers.filesystem_rows import (
    NotARowError,
    contradicts,
    decode_row,
    encode_row,
    encode_value,
    holds,
    replace_fields,
)
from providers.filesystem_scan import BATCH_ROWS, BATCH_VECTORS, LARGE_COLUMNS, Columns, RecordReader
from providers.snapshot import UNSETTLED_NS, Snapshot, cache_folder, file_schema, snapshot_schema

#: Folders by which a store is known (STORES.md, Common).
TYPE_FOLDERS: Final = frozenset(
    {
        "conversation_memory",
        "knowledge_base",
        "long_term_memory",
        "entity_memory",
        "summaries",
        "workflow_memory",
        "shared_memory",
        "semantic_cache",
        "agents",
        "personas",
        "toolbox",
        "skillbox",
        "short_term_memory",
        "tool_log",
    }
)
INVALID_NAME: Final = "its file name is no valid record id"
DUPLICATE: Final = "duplicate id: in the type's folder and in the one of its old name"
_FSYNC_THREADS: Final = 8
#: Versions that an agent may put in our way, one after another, before a write is given up.
_ATTEMPTS: Final = 16
#: Times that a landed write is put back after an agent's stale write took it away.
_ROUNDS: Final = 6
#: Seconds after which an agent's write that was under way when ours landed has landed too.
_VERIFY_AFTER: Final = 0.05
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z", re.ASCII)

#: A folder, by name or by descriptor.
Place = TypeVar("Place", str, int)
#: What a write decides on a row as it stands: the fields to set, or an outcome and its detail.
Decision = Mapping[str, Any] | tuple[str, str]


@dataclass(slots=True, eq=False)
class _Write:
    """One record's change on its way: what it was decided on, and the temp file that carries it."""

    key: RecordKey
    decide: Callable[[Row], Decision]
    settled: Callable[[Row, Mapping[str, Any]], bool]
    folder: int = -1
    seen: files.Content | None = None
    data: bytes = b""
    temp: str = ""
    inode: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome | None = None
    refusal: int = 0

    @property
    def name(self) -> str:
        return self.key.record_id + files.SUFFIX

    def end(self, status: Any, detail: str = "") -> None:
        self.outcome = Outcome(self.key, status, detail)


class FilesystemProvider:
    """One store folder (:class:`fallow.provider.Provider`, ``Touching`` and ``CachePurging``).

    Args:
        root: the store's folder.
        naive_timezone: IANA zone by memory type for naive creation times.
        snapshot: keep decision fields in the user's cache folder between scans (providers.snapshot).
        cache_dir: another folder for them; unset: :func:`providers.snapshot.cache_folder`.
        lock_timeout: seconds to wait for the store's lock.

    Raises:
        StoreNotFoundError: the folder is missing, or holds no store.
        SettingError: a zone name is unknown.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        naive_timezone: Mapping[str, str] | None = None,
        *,
        snapshot: bool = True,
        cache_dir: Path | None = None,
        lock_timeout: float = 10.0,
    ) -> None:
        self.root = Path(os.path.realpath(root))
        self.snapshot = snapshot
        self._cache_dir = cache_folder() if cache_dir is None else cache_dir
        self._naive_timezone = dict(naive_timezone or {})
        self._zones = {name: zone(value) for name, value in self._naive_timezone.items()}
        if not self.root.is_dir():
            raise StoreNotFoundError(
                f"there is no folder {self.root}", hint="name the folder that the agents write their memories to"
            )
        try:
            present = {entry.name for entry in os.scandir(self.root)}
        except OSError as error:
            raise files.unreadable(str(self.root), error) from error
        if not present & TYPE_FOLDERS:
            raise StoreNotFoundError(
                f"the folder {self.root} holds no store: none of its folders is a memory type",
                hint="a store has folders such as conversation_memory and agents",
            )
        self._lock = files.StoreLock(self.root, lock_timeout)
        self._swept: set[str] = set()

    @classmethod
    def from_uri(cls, uri: str, naive_timezone: Mapping[str, str]) -> Self:
        """The store at a path or ``file:///…`` address (percent-encoded).

        Raises:
            StoreNotFoundError: there is none.
        """
        path = uri
        if uri[:6].lower() == "file:/":
            parts = urlsplit(uri)
            if parts.netloc not in {"", "localhost"}:
                raise StoreNotFoundError(
                    f"{uri} names another host", hint="write file:///absolute/path, or a plain path"
                )
            path = unquote(uri.split("//", 1)[1][len(parts.netloc) :] if "//" in uri[:7] else uri[5:])
        return cls(Path(path).expanduser(), naive_timezone)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(kind="filesystem", batch_size=500)

    @property
    def naive_timezone(self) -> Mapping[str, str]:
        return self._naive_timezone

    def identity(self) -> str:
        """A hash over the folder's real path and its inode: another for a copy, also in the same place later."""
        text = f"{self.root}\0{self.root.stat().st_ino}"
        return "filesystem:" + sha256(os.fsencode(text)).hexdigest()[:24]

    def close(self) -> None:
        """Nothing is held open between calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Reading

    def _folders_of(self, memory_type: str) -> tuple[str, ...]:
        """The folders that hold a type's records, its own first, then the old stores' name of it."""
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        if not _TYPE_NAME.match(canonical):
            return ()
        return (canonical, *(old for old, new in TYPE_ALIASES.items() if new == canonical))

    @contextlib.contextmanager
    def _open(self, memory_type: str) -> Iterator[list[tuple[str, int]]]:
        """The type's existing folders as (name, descriptor)."""
        with contextlib.ExitStack() as stack:
            opened = []
            for name in self._folders_of(memory_type):
                descriptor = files.open_folder(self.root / name)
                if descriptor is not None:
                    stack.callback(os.close, descriptor)
                    opened.append((name, descriptor))
            yield opened

    def _list(self, folders: list[tuple[str, int]], prefix: str = "") -> dict[str, list[int]]:
        """Where each stem stands: its stem to the descriptors of the folders that hold it, ordered by stem."""
        places: dict[str, list[int]] = {}
        for name, descriptor in folders:
            for stem in files.list_names(name, descriptor):
                if stem.startswith(prefix):
                    places.setdefault(stem, []).append(descriptor)
        return dict(sorted(places.items())) if len(folders) > 1 else places

    def _read(self, memory_type: str, stem: str, places: list[int]) -> Row | Unreadable | None:
        """A whole row, why it is none, or None where it is gone.

        Raises:
            StoreUnreadableError: the file is there and cannot be read.
        """
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        if not files.is_record_id(stem):
            return Unreadable(RecordKey(canonical, files.printable(stem)), INVALID_NAME)
        key = RecordKey(canonical, stem)
        if len(places) > 1:
            return Unreadable(key, DUPLICATE)
        try:
            data = files.read_file(places[0], stem + files.SUFFIX).data
            row = decode_row(data)
        except FileNotFoundError:
            return None
        except files.OddFileError:
            return Unreadable(key, "no regular file")
        except NotARowError as error:
            return Unreadable(key, str(error))
        except OSError as error:
            raise files.unreadable(f"{canonical}/{stem}{files.SUFFIX}", error) from error
        if contradicts(row.get("_id"), stem):
            return Unreadable(key, "its _id names another record")
        if row.get("_id") is None:
            row["_id"] = stem
        return row

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        kept = self._snapshot_of(canonical) if LARGE_COLUMNS.isdisjoint(columns) else None
        with self._open(canonical) as folders:
            if not folders:
                return
            if kept is None:
                yield from self._scan_files(canonical, folders, columns)
            else:
                yield from self._scan_changed(canonical, folders, columns, kept)

    def _snapshot_of(self, memory_type: str) -> Snapshot | None:
        if not self.snapshot or self._cache_dir is None:
            return None
        place = Path(os.path.realpath(self._cache_dir))
        if place == self.root or self.root in place.parents:
            return None
        return Snapshot(place, self.identity(), memory_type, self._naive_timezone.get(memory_type, "UTC"))

    def _reader(self, memory_type: str, columns: Sequence[str]) -> RecordReader:
        naive_zone = self._zones.get(memory_type, UTC)
        return RecordReader(memory_type, naive_zone, text="text" in columns, vectors="embedding" in columns)

    def _scan_files(self, memory_type: str, folders: list[tuple[str, int]], columns: Sequence[str]) -> Iterator[Batch]:
        """Reads every file, in the order of the ids."""
        places, odd = _sort_out(memory_type, self._list(folders))
        reader = self._reader(memory_type, columns)
        stems = list(places)
        step = BATCH_VECTORS if "embedding" in columns else BATCH_ROWS
        for begin in range(0, len(stems), step):
            into = Columns()
            for folder, run in groupby(stems[begin : begin + step], places.__getitem__):
                reader.read(folder, run, into)
            yield Batch(
                into.frame(columns),
                tuple(Unreadable(RecordKey(memory_type, stem), why) for stem, why, _ in into.unreadable),
            )
        if odd:
            yield Batch(Columns().frame(columns), tuple(odd))

    def _scan_changed(
        self, memory_type: str, folders: list[tuple[str, int]], columns: Sequence[str], kept: Snapshot
    ) -> Iterator[Batch]:
        """Reads the files that changed since they were last read; the others come from the snapshot."""
        import polars as pl

        began = time.time_ns()
        versions = {name: files.list_versions(name, descriptor) for name, descriptor in folders}
        located: dict[str, list[str]] = {}
        for name, found in versions.items():
            for stem in found:
                located.setdefault(stem, []).append(name)
        places, odd = _sort_out(memory_type, located)
        listed = [(stem, name, versions[name][stem]) for stem, name in places.items()]
        listing = pl.DataFrame(
            {
                "record_id": [stem for stem, _, _ in listed],
                "folder": [name for _, name, _ in listed],
                "mtime_ns": [status.st_mtime_ns for _, _, status in listed],
                "size": [status.st_size for _, _, status in listed],
                "inode": [status.st_ino for _, _, status in listed],
            },
            schema=file_schema(),
        )
        match_on = list(file_schema())
        old = kept.load()
        if old is None:
            old = pl.DataFrame(schema=snapshot_schema())
        known = old.join(listing, on=match_on, how="semi")
        changed = listing.join(old, on=match_on, how="anti")
        reader = self._reader(memory_type, columns)
        parts = [known]
        for name, descriptor in folders:
            stems = changed.filter(pl.col("folder") == name)["record_id"].to_list()
            for begin in range(0, len(stems), BATCH_ROWS):
                into = Columns()
                reader.read(descriptor, stems[begin : begin + BATCH_ROWS], into)
                parts.append(into.versions(name))
        whole = pl.concat(parts).sort("record_id")
        if changed.height or known.height != old.height:
            kept.store(whole.filter(pl.col("mtime_ns") < began - UNSETTLED_NS))
        for part in whole.iter_slices(BATCH_ROWS):
            records = part.filter(pl.col("reason").is_null()).select(columns)
            bad = part.filter(pl.col("reason").is_not_null()).select("record_id", "reason").rows()
            yield Batch(records, tuple(Unreadable(RecordKey(memory_type, stem), why) for stem, why in bad))
        if odd:
            yield Batch(whole.select(columns).clear(), tuple(odd))

    def fetch(self, memory_type: str, record_ids: Iterable[str]) -> dict[str, Row | Unreadable]:
        found: dict[str, Row | Unreadable] = {}
        with self._open(memory_type) as folders:
            for record_id in dict.fromkeys(record_ids):
                if not files.is_record_id(record_id):
                    continue
                row = self._read(memory_type, record_id, _where(record_id, folders))
                if row is not None:
                    found[record_id] = row
        return found

    def find(self, memory_type: str, id_prefix: str = "") -> Iterator[Row]:
        with self._open(memory_type) as folders:
            for stem, where in self._list(folders, id_prefix).items():
                row = self._read(memory_type, stem, where)
                if row is not None and not isinstance(row, Unreadable):
                    yield row

    # Writing

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        return self._write([_patching(patch) for patch in patches])

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        return self._write([_touching(RecordKey(canonical, record_id), now) for record_id in record_ids])

    def _write(self, writes: list[_Write]) -> list[Outcome]:
        """Writes each record's change, in order for records named twice, and gives their outcomes in order."""
        waves: list[list[_Write]] = []
        seen: dict[RecordKey, int] = {}
        for write in writes:
            turn = seen.get(write.key, 0)
            seen[write.key] = turn + 1
            if turn == len(waves):
                waves.append([])
            waves[turn].append(write)
        for wave in waves:
            self._write_wave(wave)
        outcomes = [write.outcome or Outcome(write.key, "unknown") for write in writes]
        refused = [write.refusal for write in writes if write.refusal]
        if refused and not any(outcome.status in {"applied", "already"} for outcome in outcomes):
            self._refuse_all(writes, refused[0])
        return outcomes

    def _refuse_all(self, writes: list[_Write], number: int) -> None:
        """Raises where the store took no write at all and none failed for a reason of its own."""
        if all(write.refusal or (write.outcome and write.outcome.status in {"gone", "changed"}) for write in writes):
            raise StoreUnwritableError(
                f"the store refuses writes: {os.strerror(number).lower()}",
                hint="nothing was written; check the disk, the mount and the folder's permissions",
            )

    def _write_wave(self, writes: list[_Write]) -> None:
        with contextlib.ExitStack() as stack:
            opened: dict[str, list[tuple[str, int]]] = {}
            for write in writes:
                memory_type = write.key.memory_type
                if memory_type not in opened:
                    opened[memory_type] = stack.enter_context(self._open(memory_type))
                    for name, descriptor in opened[memory_type]:
                        self._sweep(name, descriptor)
                self._locate(write, opened[memory_type])
            live = [write for write in writes if write.outcome is None]
            try:
                self._prepare_all(live)
                self._land_all([write for write in live if write.outcome is None])
            finally:
                for write in live:
                    _drop(write)

    def _sweep(self, name: str, descriptor: int) -> None:
        if name not in self._swept:
            self._swept.add(name)
            files.sweep_leftovers(descriptor)

    def _locate(self, write: _Write, folders: list[tuple[str, int]]) -> None:
        if not files.is_record_id(write.key.record_id):
            write.end("failed", "invalid record id: the store cannot hold it")
            return
        where = _where(write.key.record_id, folders)
        if len(where) > 1:
            write.end("failed", DUPLICATE)
        elif not folders:
            write.end("gone")
        else:
            write.folder = where[0]

    def _prepare_all(self, writes: list[_Write]) -> None:
        if len(writes) == 1:
            _prepare(writes[0])
        elif writes:
            with ThreadPoolExecutor(min(_FSYNC_THREADS, len(writes))) as pool:
                list(pool.map(_prepare, writes))

    def _land_all(self, writes: list[_Write]) -> None:
        for _ in range(_ROUNDS):
            if not writes:
                return
            queue = deque(writes)
            landed: list[_Write] = []
            while queue:
                try:
                    with self._lock.hold() as leave_at:
                        while queue and (not landed or time.monotonic() < leave_at):
                            write = queue.popleft()
                            _land(write)
                            if write.outcome is None:
                                landed.append(write)
                except StoreBusyError as busy:
                    if not landed and all(write.outcome is None for write in writes):
                        raise
                    for write in queue:
                        write.end("failed", busy.message)
                    break
            for folder in {write.folder for write in landed}:
                with contextlib.suppress(OSError):
                    os.fsync(folder)
            if not landed:
                return
            time.sleep(_VERIFY_AFTER)
            again = []
            for write in landed:
                _verify(write)
                if write.outcome is None:
                    again.append(write)
            self._prepare_all(again)
            writes = [write for write in again if write.outcome is None]
        for write in writes:
            write.end("failed", "another writer took the change back each time")

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        outcomes: list[Outcome | None] = [None] * len(rows)
        if not rows:
            return []
        keys = [RecordKey(canonical, row["_id"] if isinstance(row.get("_id"), str) else "") for row in rows]
        for number, key in enumerate(keys):
            if not _TYPE_NAME.match(canonical):
                outcomes[number] = Outcome(key, "failed", "invalid memory type: the store cannot hold it")
            elif not files.is_record_id(key.record_id):
                outcomes[number] = Outcome(key, "failed", "invalid record id: the store cannot hold it")
        todo = [number for number, outcome in enumerate(outcomes) if outcome is None]
        if not todo:
            return [outcome for outcome in outcomes if outcome is not None]
        refusals: list[int] = []
        with contextlib.ExitStack() as stack:
            folders = stack.enter_context(self._open(canonical))
            if not folders:
                self._make_folder(canonical)
                folders = stack.enter_context(self._open(canonical))
            _, home = folders[0]
            for name, descriptor in folders:
                self._sweep(name, descriptor)
            temps: dict[int, str] = {}
            stack.callback(_remove_all, home, temps)

            def prepare(number: int) -> None:
                key = keys[number]
                try:
                    temps[number] = files.write_temp(home, encode_row(rows[number], key.record_id))
                except ValueError as error:
                    outcomes[number] = Outcome(key, "failed", f"a value is {error}")
                except OSError as error:
                    outcomes[number] = Outcome(key, "failed", files.reason(error))
                    if error.errno in files.REFUSALS:
                        refusals.append(error.errno or 0)

            with ThreadPoolExecutor(min(_FSYNC_THREADS, len(todo))) as pool:
                list(pool.map(prepare, todo))
            queue = deque(number for number in todo if outcomes[number] is None)
            while queue:
                with self._lock.hold() as leave_at:
                    placed: list[tuple[str, int]] = []
                    while queue and (not placed or time.monotonic() < leave_at):
                        number = queue.popleft()
                        key = keys[number]
                        try:
                            elsewhere = [where for _, where in folders[1:] if _exists(where, key.record_id)]
                            if not elsewhere and files.place(home, temps[number], key.record_id + files.SUFFIX):
                                del temps[number]
                                outcomes[number] = Outcome(key, "applied")
                            else:
                                outcomes[number] = Outcome(key, "already")
                            placed.append((key.record_id, elsewhere[0] if elsewhere else home))
                        except OSError as error:
                            outcomes[number] = Outcome(key, "failed", files.reason(error))
                    self._index(folders, placed)
            with contextlib.suppress(OSError):
                os.fsync(home)
        if refusals and len(refusals) == len(todo):
            raise StoreUnwritableError(
                f"the store refuses writes: {os.strerror(refusals[0]).lower()}",
                hint="nothing was written; check the disk, the mount and the folder's permissions",
            )
        return [outcome for outcome in outcomes if outcome is not None]

    def _make_folder(self, name: str) -> None:
        try:
            (self.root / name).mkdir(exist_ok=True)
        except OSError as error:
            raise StoreUnwritableError(
                f"the folder {name} cannot be created: {files.reason(error)}", hint="check the store's permissions"
            ) from error

    def _index(self, folders: list[tuple[str, int]], placed: list[tuple[str, int]]) -> None:
        """Adds records to their folders' index where they are missing there; the lock is held."""
        for _, folder in folders:
            ids = [record_id for record_id, where in placed if where == folder]
            if ids:
                _add_to_index(folder, ids)

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        queue = deque(expected)
        with self._open("semantic_cache") as folders:
            if not folders:
                return [Outcome(RecordKey("semantic_cache", record_id), "gone") for record_id in expected]
            folder = folders[0][1]
            while queue:
                with self._lock.hold() as leave_at:
                    removed: list[str] = []
                    first = True
                    while queue and (first or time.monotonic() < leave_at):
                        first = False
                        record_id = queue.popleft()
                        outcome = _purge(folder, record_id, expected[record_id])
                        outcomes[record_id] = outcome
                        if outcome.status in {"applied", "gone"} and files.is_record_id(record_id):
                            removed.append(record_id)
                    if removed:
                        _remove_from_index(folder, removed)
            with contextlib.suppress(OSError):
                os.fsync(folder)
        return [outcomes[record_id] for record_id in expected]


def _remove_all(folder: int, temps: dict[int, str]) -> None:
    for temp in temps.values():
        with contextlib.suppress(OSError):
            files.remove(folder, temp)


def _where(record_id: str, folders: list[tuple[str, int]]) -> list[int]:
    """The folders that hold the record; the first of several where none does."""
    if len(folders) == 1:
        return [folders[0][1]]
    found = [descriptor for _, descriptor in folders if _exists(descriptor, record_id)]
    return found or [descriptor for _, descriptor in folders[:1]]


def _exists(folder: int, record_id: str) -> bool:
    try:
        os.stat(record_id + files.SUFFIX, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _sort_out(memory_type: str, places: Mapping[str, list[Place]]) -> tuple[dict[str, Place], list[Unreadable]]:
    """The one place of each id, in order; and the files that cannot be records, whatever is in them."""
    good: dict[str, Place] = {}
    odd: list[Unreadable] = []
    for stem in sorted(places):
        if not files.is_record_id(stem):
            odd.append(Unreadable(RecordKey(memory_type, files.printable(stem)), INVALID_NAME))
        elif len(places[stem]) > 1:
            odd.append(Unreadable(RecordKey(memory_type, stem), DUPLICATE))
        else:
            good[stem] = places[stem][0]
    return good, odd


def _patching(patch: Patch) -> _Write:
    def decide(row: Row) -> Decision:
        return patch.changes if holds(row, patch.expected) else ("changed", "a requirement no longer holds")

    return _Write(patch.key, decide, holds)


def _touching(key: RecordKey, now: int) -> _Write:
    def decide(row: Row) -> Decision:
        record = read_record(row, key.memory_type, key.record_id)
        if record.retention_state == "suppressed":
            return ("changed", "suppressed")
        changes: dict[str, Any] = {"access_count": record.access_count + 1}
        if record.last_accessed_at is None or now > record.last_accessed_at:
            changes["last_accessed_at"] = iso(now)
        return changes

    def settled(row: Row, changes: Mapping[str, Any]) -> bool:
        record = read_record(row, key.memory_type, key.record_id)
        return record.access_count >= int(changes["access_count"])

    return _Write(key, decide, settled)


def _drop(write: _Write) -> None:
    """Removes the write's temp file, if there is one."""
    if write.temp:
        with contextlib.suppress(OSError):
            files.remove(write.folder, write.temp)
        write.temp = ""


def _load(write: _Write) -> Row | None:
    """The record as it stands, kept as what the write was decided on; None ends the write with its outcome."""
    try:
        write.seen = files.read_file(write.folder, write.name)
        row = decode_row(write.seen.data)
    except FileNotFoundError:
        write.end("gone")
        return None
    except files.OddFileError:
        write.end("failed", "unreadable: no regular file")
        return None
    except NotARowError as error:
        write.end("failed", f"unreadable: {error}")
        return None
    except OSError as error:
        write.end("failed", files.reason(error))
        return None
    if contradicts(row.get("_id"), write.key.record_id):
        write.end("failed", "unreadable: its _id names another record")
        return None
    return row


def _prepare(write: _Write) -> None:
    """Decides on the record as it stands and writes the temp file that carries the change."""
    _drop(write)
    row = _load(write)
    if row is None or write.seen is None:
        return
    decision = write.decide(row)
    if isinstance(decision, tuple):
        write.end(*decision)
        return
    write.changes = decision
    try:
        write.data = replace_fields(write.seen.data, decision)
        write.temp = files.write_temp(write.folder, write.data, write.seen.status, write.name)
        write.inode = os.stat(write.temp, dir_fd=write.folder).st_ino
    except ValueError as error:
        write.end("failed", f"a value is {error}")
    except OSError as error:
        write.end("failed", files.reason(error))
        if error.errno in files.REFUSALS:
            write.refusal = error.errno or 0


def _same_file(left: files.Content, right: files.Content) -> bool:
    """Whether nothing happened to a file between two readings."""
    return left.data == right.data and (left.status.st_mode, left.status.st_uid, left.status.st_gid) == (
        right.status.st_mode,
        right.status.st_uid,
        right.status.st_gid,
    )


def _land(write: _Write) -> None:
    """Puts the prepared file in the record's place; the lock is held. Ends the write unless it landed."""
    for _ in range(_ATTEMPTS):
        if write.outcome is not None or write.seen is None:
            return
        try:
            now = files.read_file(write.folder, write.name)
            if not _same_file(now, write.seen):
                _prepare(write)
                continue
            if not files.exchange(write.folder, write.temp, write.name):
                files.replace(write.folder, write.temp, write.name)
                write.temp = ""
                return
            if _settle_exchange(write):
                return
            _prepare(write)
        except FileNotFoundError:
            write.end("gone")
        except files.OddFileError:
            write.end("failed", "unreadable: no regular file")
        except OSError as error:
            write.end("failed", files.reason(error))
    if write.outcome is None:
        write.end("failed", "another writer changes the record too fast")


def _mark(folder: int, name: str) -> tuple[int, bytes | None]:
    """What tells one version of a file from another: its inode and its bytes, None for no regular file."""
    try:
        content = files.read_file(folder, name)
    except files.OddFileError:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino, None
    return content.status.st_ino, content.data


def _settle_exchange(write: _Write) -> bool:
    """After an exchange: True where what came out is what the change was decided on.

    Otherwise another writer was faster. Its version goes back in exchange for ours; should yet another
    have landed meanwhile, that one comes out instead and goes back in turn, until what comes out is what
    was put in last: then the newest foreign version stands. A record deleted meanwhile stays deleted.

    Raises:
        FileNotFoundError: the record was deleted meanwhile.
    """
    out = _mark(write.folder, write.temp)
    if write.seen is not None and out[1] == write.seen.data:
        _drop(write)
        return True
    last: tuple[int, bytes | None] = (write.inode, write.data)
    while True:
        put = out
        files.exchange(write.folder, write.temp, write.name)
        out = _mark(write.folder, write.temp)
        if out == last:
            break
        last = put
    _drop(write)
    return False


def _verify(write: _Write) -> None:
    """Reads a landed write back: applied, or open again where a stale write took it away."""
    changes = write.changes
    row = _load(write)
    if row is not None and write.settled(row, changes):
        write.end("applied")


def _index_item(row: Row, record_id: str) -> dict[str, Any]:
    """A record's line in its folder's index (STORES.md)."""
    return {
        "id": record_id,
        "name": row.get("name"),
        "memory_id": row.get("memory_id"),
        "user_id": row.get("user_id"),
        "agent_id": row.get("agent_id"),
        "owner_agent_id": row.get("owner_agent_id"),
        "application_id": row.get("application_id"),
        "observation_scope_version": 1,
        "timestamp": row.get("timestamp") or row.get("created_at"),
        "has_embedding": bool(row.get("embedding")),
        "thread_id": row.get("thread_id") or row.get("conversation_id"),
    }


class _Index(msgspec.Struct):
    version: int
    items: dict[str, msgspec.Raw]


_index_decoder = msgspec.json.Decoder(_Index)


def _load_index(folder: int) -> tuple[_Index, files.Content] | None:
    """A folder's index, or None where it is missing or not valid: the agent rebuilds it then from the files."""
    try:
        content = files.read_file(folder, files.INDEX_NAME)
        index = _index_decoder.decode(content.data)
    except (OSError, files.OddFileError, msgspec.MsgspecError, RecursionError):
        return None
    return (index, content) if index.version == 1 else None


def _store_index(folder: int, index: _Index, old: files.Content) -> None:
    temp = files.write_temp(folder, msgspec.json.encode(index), old.status, files.INDEX_NAME)
    os.rename(temp, files.INDEX_NAME, src_dir_fd=folder, dst_dir_fd=folder)


def _add_to_index(folder: int, record_ids: list[str]) -> None:
    loaded = _load_index(folder)
    if loaded is None:
        return
    index, content = loaded
    missing = [record_id for record_id in record_ids if record_id not in index.items]
    for record_id in missing:
        with contextlib.suppress(OSError, files.OddFileError, NotARowError, ValueError):
            row = decode_row(files.read_file(folder, record_id + files.SUFFIX).data)
            index.items[record_id] = msgspec.Raw(encode_value(_index_item(row, record_id)))
    if missing:
        _store_index(folder, index, content)


def _remove_from_index(folder: int, record_ids: list[str]) -> None:
    loaded = _load_index(folder)
    if loaded is None:
        return
    index, content = loaded
    if any(index.items.pop(record_id, None) is not None for record_id in record_ids):
        for record_id in record_ids:
            index.items.pop(record_id, None)
        _store_index(folder, index, content)


def _purge(folder: int, record_id: str, expected: Mapping[str, Any]) -> Outcome:
    """Removes one cache entry if its fields still hold; the lock is held.

    The file is first taken aside and looked at again: an entry that was renewed in between goes back.
    """
    key = RecordKey("semantic_cache", record_id)
    if not files.is_record_id(record_id):
        return Outcome(key, "failed", "invalid record id: the store cannot hold it")
    name = record_id + files.SUFFIX
    aside = files.temp_name()
    try:
        if not _still(folder, name, expected):
            return Outcome(key, "changed", "a requirement no longer holds")
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        if not _still(folder, aside, expected):
            if not files.place(folder, aside, name):
                files.remove(folder, aside)
            return Outcome(key, "changed", "a requirement no longer holds")
        files.remove(folder, aside)
    except FileNotFoundError:
        return Outcome(key, "gone")
    except (files.OddFileError, NotARowError):
        return Outcome(key, "failed", "unreadable")
    except OSError as error:
        return Outcome(key, "failed", files.reason(error))
    return Outcome(key, "applied")


def _still(folder: int, name: str, expected: Mapping[str, Any]) -> bool:
    return holds(decode_row(files.read_file(folder, name).data), expected)
