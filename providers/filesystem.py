"""The filesystem store: one JSON file a record (STORES.md, Filesystem; DESIGN §3 and §5).

Reading never changes a byte. Writing goes beside live agents: prepared outside the store's lock, landed
inside it by exchanging files, verified after it; what an agent wrote in between always wins.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import unquote, urlsplit

from fallow.providers import filesystem_files as files
from fallow.providers.filesystem_index import add_to_index, remove_from_index
from fallow.providers.filesystem_rows import NotARowError, contradicts, decode_row, encode_row
from fallow.providers.filesystem_scan import BATCH_ROWS, BATCH_VECTORS, LARGE_COLUMNS, Columns, RecordReader
from fallow.providers.filesystem_writing import Write, patching, purge, touching
from fallow.providers.kinds import FILESYSTEM
from fallow.providers.snapshot import UNSETTLED_NS, Snapshot, cache_folder, file_schema, snapshot_schema

from fallow.model.errors import StoreBusyError, StoreNotFoundError, StoreUnwritableError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import TYPE_ALIASES
from fallow.model.times import zone
from fallow.port.protocol import Batch, Capabilities, Outcome, Patch, Status, Unreadable

if TYPE_CHECKING:
    import polars as pl

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
#: Times that a landed write is put back after an agent's stale write took it away.
_ROUNDS: Final = 6
#: Seconds after which an agent's write that was under way when ours landed has landed too.
_VERIFY_AFTER: Final = 0.05
_TYPE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z", re.ASCII)

#: A folder, by name or by descriptor.
Place = TypeVar("Place", str, int)


class FilesystemProvider:
    """One store folder (:class:`fallow.port.protocol.Provider`, ``Touching`` and ``CachePurging``).

    Args:
        root: the store's folder.
        naive_timezone: IANA zone by memory type for naive creation times.
        snapshot: keep decision fields in the user's cache folder between scans (fallow.providers.snapshot).
        cache_dir: another folder for them; unset: :func:`fallow.providers.snapshot.cache_folder`.
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
        try:
            self.root = Path(os.path.realpath(root))
            found = stat.S_ISDIR(self.root.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            found = False
        except ValueError:
            raise StoreNotFoundError("a folder's name holds no NUL", hint="name the store's folder") from None
        except OSError as error:
            raise files.unreadable(str(root)[:200], error) from error
        self.snapshot = snapshot
        self._cache_dir = cache_folder() if cache_dir is None else cache_dir
        self._naive_timezone = dict(naive_timezone or {})
        self._zones = {name: zone(value) for name, value in self._naive_timezone.items()}
        if not found:
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
        return cls(os.path.expanduser(path), naive_timezone)  # noqa: PTH111  a name that is no user stays as it is

    @property
    def capabilities(self) -> Capabilities:
        return FILESYSTEM.capabilities

    @property
    def naive_timezone(self) -> Mapping[str, str]:
        return self._naive_timezone

    def identity(self) -> str:
        """A hash over the folder's real path and its inode: another for a copy, also in the same place later."""
        try:
            inode = self.root.stat().st_ino
        except OSError as error:
            raise StoreNotFoundError(f"the folder {self.root} is no longer there: {files.reason(error)}") from error
        text = f"{self.root}\0{inode}"
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
        listing, odd = _list_plain(memory_type, versions) or _list_any(memory_type, versions)
        del versions
        match_on = list(file_schema())
        old = kept.load()
        if old is None:
            old = pl.DataFrame(schema=snapshot_schema())
        if old.height == listing.height and old.select(match_on).equals(listing):
            known, changed = old, listing.clear()
        else:
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
        if changed.is_empty() and known is old:
            whole = known
        else:
            whole = pl.concat(parts)
            # What was read anew from one folder is in the order of the ids already.
            if not (known.is_empty() and len(folders) == 1):
                whole = whole.sort("record_id")
        if changed.height or known.height != old.height:
            settled = pl.col("mtime_ns") < began - UNSETTLED_NS
            kept.store(whole if whole.select(settled.all()).item() else whole.filter(settled))
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
                if not folders or not files.is_record_id(record_id):
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
        return self._write([patching(patch) for patch in patches])

    def touch_many(self, memory_type: str, record_ids: Sequence[str], now: int) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        return self._write([touching(RecordKey(canonical, record_id), now) for record_id in record_ids])

    def _write(self, writes: list[Write]) -> list[Outcome]:
        """Writes each record's change and gives the outcomes in order; a record named twice is written twice.

        Raises:
            StoreUnwritableError: the store refused every write there was to do.
            StoreBusyError: its lock did not become free and nothing was written.
        """
        waves: list[list[Write]] = []
        seen: dict[RecordKey, int] = {}
        for write in writes:
            turn = seen.get(write.key, 0)
            seen[write.key] = turn + 1
            if turn == len(waves):
                waves.append([])
            waves[turn].append(write)
        for wave in waves:
            self._write_wave(wave)
        refusals = [write.refusal for write in writes if write.refusal]
        if refusals and all(
            write.refusal or (write.outcome is not None and write.outcome.status in {"gone", "changed"})
            for write in writes
        ):
            raise _unwritable(refusals[0])
        return [write.outcome or Outcome(write.key, "unknown") for write in writes]

    def _write_wave(self, writes: list[Write]) -> None:
        with contextlib.ExitStack() as stack:
            opened: dict[str, list[tuple[str, int]]] = {}
            for write in writes:
                memory_type = write.key.memory_type
                if memory_type not in opened:
                    opened[memory_type] = stack.enter_context(self._open(memory_type))
                    self._sweep(opened[memory_type])
                _locate(write, opened[memory_type])
            live = [write for write in writes if write.outcome is None]
            try:
                _prepare_all(live)
                self._land_all([write for write in live if write.outcome is None])
            finally:
                for write in live:
                    write.drop()

    def _sweep(self, folders: list[tuple[str, int]]) -> None:
        """Clears old temp files of killed runs away, once a folder."""
        for name, descriptor in folders:
            if name not in self._swept:
                self._swept.add(name)
                files.sweep_leftovers(descriptor)

    def _land_all(self, writes: list[Write]) -> None:
        """Lands prepared writes a lock's holding at a time, and puts back what stale writes take away."""
        begun = False
        for _ in range(_ROUNDS):
            queue = deque(writes)
            landed: list[Write] = []
            while queue:
                try:
                    with self._lock.hold() as leave_at:
                        begun = True
                        while queue:
                            write = queue.popleft()
                            write.land()
                            if write.outcome is None:
                                landed.append(write)
                            if time.monotonic() > leave_at:
                                break
                except (StoreBusyError, StoreUnwritableError) as error:
                    if not begun:
                        raise
                    while queue:
                        queue.popleft().end("failed", error.message)
            for folder in {write.folder for write in landed}:
                with contextlib.suppress(OSError):
                    os.fsync(folder)
            if not landed:
                return
            time.sleep(_VERIFY_AFTER)
            for write in landed:
                write.verify()
            writes = [write for write in landed if write.outcome is None]
            _prepare_all(writes)
            writes = [write for write in writes if write.outcome is None]
            if not writes:
                return
        for write in writes:
            write.end("failed", "another writer took the change back each time")

    def insert(self, memory_type: str, rows: Sequence[Row]) -> list[Outcome]:
        canonical = TYPE_ALIASES.get(memory_type, memory_type)
        insertions = [_Insertion(RecordKey(canonical, _id_of(row)), row) for row in rows]
        for insertion in insertions:
            if not _TYPE_NAME.match(canonical):
                insertion.end("failed", "invalid memory type: the store cannot hold it")
            elif not files.is_record_id(insertion.key.record_id):
                insertion.end("failed", "invalid record id: the store cannot hold it")
        todo = [insertion for insertion in insertions if insertion.outcome is None]
        if todo:
            with self._open(canonical) as folders:
                if folders:
                    self._insert(todo, folders)
                else:
                    self._make_folder(canonical)
                    with self._open(canonical) as made:
                        self._insert(todo, made)
        return [insertion.outcome or Outcome(insertion.key, "unknown") for insertion in insertions]

    def _insert(self, insertions: list[_Insertion], folders: list[tuple[str, int]]) -> None:
        """Writes new rows into the first folder unless any of them has the id, then the folder's index."""
        home = folders[0][1]
        like = os.fstat(home)
        self._sweep(folders)
        try:
            with ThreadPoolExecutor(min(_FSYNC_THREADS, len(insertions))) as pool:
                list(pool.map(lambda insertion: insertion.prepare(home, like), insertions))
            refusals = [insertion.refusal for insertion in insertions if insertion.refusal]
            if len(refusals) == len(insertions):
                raise _unwritable(refusals[0])
            queue = deque(insertion for insertion in insertions if insertion.outcome is None)
            begun = False
            while queue:
                try:
                    with self._lock.hold() as leave_at:
                        begun = True
                        done: list[_Insertion] = []
                        while queue:
                            insertion = queue.popleft()
                            insertion.place([descriptor for _, descriptor in folders])
                            done.append(insertion)
                            if time.monotonic() > leave_at:
                                break
                        _list_in_index(done)
                except (StoreBusyError, StoreUnwritableError) as error:
                    if not begun:
                        raise
                    while queue:
                        queue.popleft().end("failed", error.message)
            with contextlib.suppress(OSError):
                os.fsync(home)
        finally:
            for insertion in insertions:
                insertion.drop()

    def _make_folder(self, name: str) -> None:
        try:
            (self.root / name).mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(error.errno or 0) from error
        files.adopt(self.root / name, self.root.stat())

    def purge_cache(self, expected: Mapping[str, Mapping[str, Any]]) -> list[Outcome]:
        outcomes: dict[str, Outcome] = {}
        queue = deque(expected)
        with self._open("semantic_cache") as folders:
            if not folders:
                return [Outcome(RecordKey("semantic_cache", record_id), "gone") for record_id in expected]
            folder = folders[0][1]
            self._sweep(folders)
            while queue:
                try:
                    with self._lock.hold() as leave_at:
                        removed: list[str] = []
                        while queue:
                            record_id = queue.popleft()
                            outcomes[record_id] = purge(folder, record_id, expected[record_id])
                            if outcomes[record_id].status in {"applied", "gone"}:
                                removed.append(record_id)
                            if time.monotonic() > leave_at:
                                break
                        # An entry left in the index is one that the agent finds gone, so this may fail.
                        with contextlib.suppress(OSError):
                            remove_from_index(folder, removed)
                except (StoreBusyError, StoreUnwritableError) as error:
                    if not outcomes:
                        raise
                    while queue:
                        record_id = queue.popleft()
                        outcomes[record_id] = Outcome(RecordKey("semantic_cache", record_id), "failed", error.message)
            with contextlib.suppress(OSError):
                os.fsync(folder)
        return [outcomes[record_id] for record_id in expected]


@dataclass(slots=True, eq=False)
class _Insertion:
    """One new row on its way: its temp file, and the folder that holds its id in the end."""

    key: RecordKey
    row: Row
    folder: int = -1
    temp: str = ""
    holder: int = -1
    outcome: Outcome | None = None
    refusal: int = 0

    def end(self, status: Status, detail: str = "") -> None:
        self.outcome = Outcome(self.key, status, detail)

    def drop(self) -> None:
        if self.temp:
            with contextlib.suppress(OSError):
                files.remove(self.folder, self.temp)
            self.temp = ""

    def prepare(self, folder: int, like: os.stat_result) -> None:
        """Writes the row to a temp file that belongs to whom the folder belongs."""
        self.folder = folder
        try:
            self.temp = files.write_temp(folder, encode_row(self.row, self.key.record_id), new_in=like)
        except ValueError as error:
            self.end("failed", f"a value is {error}")
        except OSError as error:
            self.end("failed", files.reason(error))
            self.refusal = error.errno if error.errno in files.REFUSALS else 0

    def place(self, folders: list[int]) -> None:
        """Gives the row its name unless the id is taken; the lock is held."""
        name = self.key.record_id + files.SUFFIX
        try:
            taken = [folder for folder in folders if files.exists(folder, name)]
            if not taken and files.place(self.folder, self.temp, name):
                self.temp = ""
                self.holder = self.folder
                self.end("applied")
            else:
                self.holder = taken[0] if taken else self.folder
                self.end("already")
        except OSError as error:
            self.end("failed", files.reason(error))


def _list_in_index(insertions: list[_Insertion]) -> None:
    """Adds rows to their folders' index where it lacks them, those of an earlier, interrupted call too."""
    for folder in {insertion.holder for insertion in insertions if insertion.holder >= 0}:
        held = [insertion for insertion in insertions if insertion.holder == folder]
        try:
            add_to_index(folder, [insertion.key.record_id for insertion in held])
        except OSError as error:
            for insertion in held:
                insertion.end("unknown", f"stored, but the folder's index could not be written: {files.reason(error)}")


def _id_of(row: Row) -> str:
    stored = row.get("_id")
    return stored if isinstance(stored, str) else ""


def _unwritable(number: int) -> StoreUnwritableError:
    return StoreUnwritableError(
        f"the store refuses writes: {os.strerror(number).lower()}",
        hint="nothing was written; check the disk, the mount and the folder's permissions",
    )


def _locate(write: Write, folders: list[tuple[str, int]]) -> None:
    """Sets the folder that holds the record, or ends the write."""
    if not files.is_record_id(write.key.record_id):
        write.end("failed", "invalid record id: the store cannot hold it")
    elif not folders:
        write.end("gone")
    else:
        where = _where(write.key.record_id, folders)
        if len(where) > 1:
            write.end("failed", DUPLICATE)
        write.folder = where[0]


def _prepare_all(writes: list[Write]) -> None:
    if len(writes) == 1:
        writes[0].prepare()
    elif writes:
        with ThreadPoolExecutor(min(_FSYNC_THREADS, len(writes))) as pool:
            list(pool.map(Write.prepare, writes))


def _where(record_id: str, folders: list[tuple[str, int]]) -> list[int]:
    """The folders that hold the record; the first of several where none does."""
    if len(folders) == 1:
        return [folders[0][1]]
    found = [descriptor for _, descriptor in folders if files.exists(descriptor, record_id + files.SUFFIX)]
    return found or [descriptor for _, descriptor in folders[:1]]


def _list_plain(
    memory_type: str, versions: Mapping[str, Mapping[str, files.Version]]
) -> tuple[pl.DataFrame, list[Unreadable]] | None:
    """The listing of a type in one folder whose names and times are all plain, by id; None where they are not."""
    import polars as pl

    if len(versions) != 1:
        return None
    ((folder, found),) = versions.items()
    times, sizes, inodes = zip(*found.values(), strict=True) if found else ((), (), ())
    columns = {"record_id": list(found), "mtime_ns": times, "size": sizes, "inode": inodes}
    schema = {name: kind for name, kind in file_schema().items() if name != "folder"}
    try:
        frame = pl.DataFrame(columns, schema=schema)
    except (UnicodeEncodeError, OverflowError, TypeError, pl.exceptions.PolarsError):
        return None
    name = pl.col("record_id")
    good = (name.str.len_bytes() <= files.MAX_ID_BYTES) & ~name.str.contains("\\", literal=True) & (name != "")
    odd = [
        Unreadable(RecordKey(memory_type, stem), INVALID_NAME)
        for stem in frame.filter(~good).sort("record_id")["record_id"].to_list()
    ]
    listing = frame.filter(good).with_columns(pl.lit(folder).alias("folder")).select(list(file_schema()))
    return listing.sort("record_id"), odd


def _list_any(
    memory_type: str, versions: Mapping[str, Mapping[str, files.Version]]
) -> tuple[pl.DataFrame, list[Unreadable]]:
    """The listing of a type in several folders, or with names and times of any kind, by id."""
    import polars as pl

    located: dict[str, list[str]] = {}
    for name, found in versions.items():
        for stem in found:
            located.setdefault(stem, []).append(name)
    places, odd = _sort_out(memory_type, located)
    listed = [(stem, name, versions[name][stem]) for stem, name in places.items()]
    data = {
        "record_id": [stem for stem, _, _ in listed],
        "folder": [name for _, name, _ in listed],
        "mtime_ns": [files.within_64_bits(version[0]) for _, _, version in listed],
        "size": [version[1] for _, _, version in listed],
        "inode": [version[2] for _, _, version in listed],
    }
    return pl.DataFrame(data, schema=file_schema()), odd


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
