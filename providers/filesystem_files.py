"""Files of a filesystem store: names, reading, temp files, exchanging, and the store's own lock (STORES.md).

Everything here works on an open folder and a plain file name in it, so no record id can lead elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from fallow.model.errors import StoreBusyError, StoreUnreadableError, StoreUnwritableError
from fallow.model.keys import is_unicode

SUFFIX: Final = ".json"
INDEX_NAME: Final = "index.json"
LOCK_NAME: Final = ".index-lock.sqlite3"
#: A file name ends at 255 bytes, five of which are the suffix.
MAX_ID_BYTES: Final = 250

#: The lock is held at most this long at a time, in seconds; agents give up after five.
MAX_HOLD: Final = 0.8
#: After holding the lock it is left free for at least this long, and as long as it was held.
MIN_GAP: Final = 0.1
#: With the lock held, agents end the write they are in and then wait for the lock.
SETTLE: Final = 0.005

_TEMP_PREFIX: Final = ".fallow-"
_TEMP_SUFFIX: Final = ".tmp"
#: Temp files older than this belong to a run that was killed.
_LEFTOVER_AGE_NS: Final = 3_600 * 1_000_000_000
READ_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)
_NO_DATA: Final = frozenset({errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
#: The store as a whole refuses writes, whatever the record.
REFUSALS: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})

_counter = itertools.count()


class OddFileError(Exception):
    """A directory entry that is named like a record but is no regular file: a link, a folder, a pipe."""


class Content(NamedTuple):
    """A file's bytes with what says whether it is still the same file."""

    data: bytes
    status: os.stat_result


def is_record_id(text: str) -> bool:
    """Whether a file of this store can be named by that id (STORES.md): nothing else ever reaches the disk."""
    if not text or text[0] == "." or text == "index" or "/" in text or "\\" in text or not is_unicode(text):
        return False
    return len(text.encode()) <= MAX_ID_BYTES


def printable(text: str) -> str:
    """A file name's text where it is no valid Unicode, with the odd bytes spelt out."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def open_folder(path: Path) -> int | None:
    """A descriptor of the folder, or None where there is none.

    Raises:
        StoreUnreadableError: it cannot be opened.
    """
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path.name, error) from error


def unreadable(where: str, error: OSError) -> StoreUnreadableError:
    """The error of a listing or a file that cannot be read, with its cause."""
    return StoreUnreadableError(
        f"{where} cannot be read: {reason(error)}",
        hint="nothing is decided over part of a store; check the folder's permissions and its disk",
    )


def reason(error: OSError) -> str:
    """The system's words for an error, without paths."""
    return os.strerror(error.errno).lower() if error.errno else type(error).__name__


def read_file(folder: int, name: str) -> Content:
    """A record file's bytes and status, from one opened file.

    Raises:
        FileNotFoundError: it is gone.
        OddFileError: it is no regular file; links are never followed.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EMLINK}:
            raise OddFileError from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OddFileError
        size = status.st_size
        data = os.read(descriptor, size + 1)
        if len(data) != size:
            pieces = [data]
            while piece := os.read(descriptor, 1 << 20):
                pieces.append(piece)
            data = b"".join(pieces)
    finally:
        os.close(descriptor)
    return Content(data, status)


def within_64_bits(nanoseconds: int) -> int:
    """A file's modification time, within 64 bits: absurd ones are years the bits do not reach."""
    return max(-(2**63), min(nanoseconds, 2**63 - 1))


def modified_ns(status: os.stat_result) -> int:
    """A file's modification time in nanoseconds, within 64 bits."""
    return within_64_bits(status.st_mtime_ns)


def list_names(where: str, folder: int) -> list[str]:
    """The stems of all record files of a folder, sorted; they may hold undecodable bytes.

    Raises:
        StoreUnreadableError: the listing failed.
    """
    return sorted(_list(where, folder, with_status=False))


#: What says that a file is still the same: modification time in nanoseconds, size, inode.
Version = tuple[int, int, int]


def list_versions(where: str, folder: int) -> dict[str, Version]:
    """As :func:`list_names`, with each file's version.

    Raises:
        StoreUnreadableError: the listing failed.
    """
    return _list(where, folder, with_status=True)


def _list(where: str, folder: int, *, with_status: bool) -> dict[str, Version]:
    """Stems, and each one's version where asked.

    A folder that changed while it was listed is listed again and the answers are joined: what is replaced
    in between can be missed by one listing on some file systems.
    """
    found: dict[str, Version] = {}
    unasked = (0, 0, 0)
    try:
        for _ in range(4):
            before = os.fstat(folder).st_mtime_ns
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if name[-5:] == SUFFIX and name[0] != "." and name != INDEX_NAME:
                        if with_status:
                            try:
                                status = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue
                            found[name[:-5]] = (status.st_mtime_ns, status.st_size, status.st_ino)
                        else:
                            found[name[:-5]] = unasked
            if os.fstat(folder).st_mtime_ns == before:
                break
    except OSError as error:
        raise unreadable(where, error) from error
    return found


def temp_name() -> str:
    """A name that agents and listings pass over, ours, unique, and that tells its own age."""
    return f"{_TEMP_PREFIX}{time.time_ns():x}-{os.getpid():x}-{next(_counter):x}{_TEMP_SUFFIX}"


def write_temp(
    folder: int,
    data: bytes,
    like: os.stat_result | None = None,
    source: str = "",
    *,
    new_in: os.stat_result | None = None,
) -> str:
    """A new temp file in the folder, on the disk.

    Args:
        folder: the folder's descriptor.
        data: its bytes.
        like: the file it will replace, whose mode and owner it takes.
        source: that file's name, for its extended attributes.
        new_in: for a file that replaces none: the folder, to whose owner it will belong.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    name = temp_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(name, flags, 0o666, dir_fd=folder)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if like is not None:
                _copy_owner(descriptor, like)
                if source:
                    _copy_attributes(folder, source, descriptor)
                os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            if new_in is not None:
                adopt(descriptor, new_in)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        remove(folder, name)
        raise
    return name


def adopt(made: int | Path, parent: os.stat_result) -> None:
    """Gives what was made anew to its folder's owner, with the folder's mode, as far as we may.

    fallow may run as another user than the agents, who have to be able to write what they find.
    """
    folder = isinstance(made, Path)
    with contextlib.suppress(OSError):
        os.chown(made, parent.st_uid, parent.st_gid)
    with contextlib.suppress(OSError):
        os.chmod(made, stat.S_IMODE(parent.st_mode) & (0o7777 if folder else 0o666))  # noqa: PTH101


def _copy_owner(descriptor: int, like: os.stat_result) -> None:
    """Owner and group as they were; another owner only where the agent keeps its access by group or mode."""
    ours = os.fstat(descriptor)
    if (ours.st_uid, ours.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.fchown(descriptor, like.st_uid, like.st_gid)
    except OSError:
        if like.st_mode & 0o006 == 0o006:
            return
        if like.st_mode & 0o060 != 0o060:
            raise
        if ours.st_gid != like.st_gid:
            os.fchown(descriptor, -1, like.st_gid)


def _copy_attributes(folder: int, source: str, descriptor: int) -> None:
    """Extended attributes (access lists among them) where the system has them; one that is refused is left."""
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        old = os.open(source, READ_FLAGS, dir_fd=folder)
        try:
            for attribute in os.listxattr(old):
                with contextlib.suppress(OSError):
                    os.setxattr(descriptor, attribute, os.getxattr(old, attribute))
        finally:
            os.close(old)


def exists(folder: int, name: str) -> bool:
    """Whether the folder has an entry of that name.

    Raises:
        OSError: it cannot be said.
    """
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def remove(folder: int, name: str) -> None:
    """Removes a temp file of ours; one that is gone already is fine."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def sweep_leftovers(folder: int) -> int:
    """Removes temp files that runs of fallow left behind over an hour ago; says how many.

    Age is read from the name: a file that was exchanged out keeps the time of its own writer.
    """
    removed = 0
    now = time.time_ns()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if not (name.startswith(_TEMP_PREFIX) and name.endswith(_TEMP_SUFFIX)):
                continue
            try:
                born = int(name[len(_TEMP_PREFIX) :].split("-", 1)[0], 16)
            except ValueError:
                continue
            if now - born > _LEFTOVER_AGE_NS:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                    removed += 1
    return removed


_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2


def _find_renameat2() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function


_renameat2 = _find_renameat2()


def _rename_with(folder: int, source: str, target: str, flag: int) -> bool:
    """``renameat2`` with a flag; False where system or file system do not offer it."""
    if _renameat2 is None:
        return False
    if _renameat2(folder, os.fsencode(source), folder, os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_DATA:
        return False
    raise OSError(number, os.strerror(number))


def exchange(folder: int, temp: str, name: str) -> bool:
    """Swaps two files in one step; False where that is not offered and nothing was done.

    Raises:
        FileNotFoundError: the target is gone; nothing was created.
        OSError: the system refuses.
    """
    return _rename_with(folder, temp, name, _RENAME_EXCHANGE)


def replace(folder: int, temp: str, name: str) -> None:
    """Renames over a file that exists."""
    os.stat(name, dir_fd=folder, follow_symlinks=False)
    os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)


def place(folder: int, temp: str, name: str) -> bool:
    """Gives a temp file its name unless the name is taken; the temp name is gone afterwards only where that succeeded.

    Raises:
        OSError: the system refuses.
    """
    try:
        if _rename_with(folder, temp, name, _RENAME_NOREPLACE):
            return True
        os.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    remove(folder, temp)
    return True


class StoreLock:
    """The store's cross-process lock: ``BEGIN IMMEDIATE`` on ``.index-lock.sqlite3`` (STORES.md).

    Agents wait five seconds for it, so it is held briefly and left free in between: :meth:`hold` first
    waits until the gap after the last holding is over.
    """

    def __init__(self, root: Path, timeout: float) -> None:
        self._path = root / LOCK_NAME
        self._timeout = timeout
        self._free_until = 0.0

    @contextlib.contextmanager
    def hold(self) -> Iterator[float]:
        """Holds the lock; gives the monotonic time at which it should be left at the latest.

        Raises:
            StoreBusyError: it did not become free in time.
            StoreUnwritableError: the lock file cannot be created or written.
        """
        pause = self._free_until - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        connection = self._connect()
        try:
            taken = time.monotonic()
            time.sleep(SETTLE)
            yield taken + MAX_HOLD
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            connection.close()
            left = time.monotonic()
            self._free_until = left + max(MIN_GAP, left - taken)

    def _create(self) -> None:
        """Makes the lock file under another name first.

        Closing a descriptor of the lock file itself would drop the lock that another thread may hold on it.
        """
        folder = os.open(self._path.parent, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            temp = write_temp(folder, b"", new_in=os.fstat(folder))
            if not place(folder, temp, LOCK_NAME):
                remove(folder, temp)
        finally:
            os.close(folder)

    def _connect(self) -> sqlite3.Connection:
        try:
            if not self._path.exists():
                self._create()
            # On a file that it may not write SQLite begins a reading transaction, which locks nobody out.
            if not os.access(self._path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            connection = sqlite3.connect(
                self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
        except OSError as error:
            raise StoreUnwritableError(
                f"the store's lock cannot be opened: {reason(error)}",
                hint="writing needs the store's folder writable, and room on its disk",
            ) from error
        except sqlite3.Error as error:
            raise StoreUnwritableError(f"the store's lock cannot be opened: {error}") from error
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            connection.close()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                raise StoreBusyError(
                    f"the store's lock was not free within {self._timeout:g} seconds",
                    hint="another writer holds it; try again",
                ) from error
            raise StoreUnwritableError(
                f"the store's lock cannot be taken: {error}",
                hint="writing needs the store's folder writable, and room on its disk",
            ) from error
        return connection
