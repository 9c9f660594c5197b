"""Changing one record's file beside a live agent (STORES.md, How to write beside a live agent; DESIGN §5).

A write is prepared outside the store's lock: decided on the record as it stands, its new bytes on the
disk in a temp file. It lands inside the lock by exchanging the two files. What an agent wrote in between
always wins: it goes back, and the write is decided again on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fallow.providers import filesystem_files as files
from fallow.providers.filesystem_rows import (
    NotARowError,
    contradicts,
    decode_leniently,
    decode_row,
    encode_value,
    replace_fields,
)

from fallow.model.keys import RecordKey, Row
from fallow.model.record import read_record
from fallow.model.times import iso
from fallow.model.values import holds
from fallow.port.protocol import Outcome, Patch, Status

#: Versions that another writer may put in our way, one after another, before a write is given up.
_ATTEMPTS: Final = 16

#: What a write decides on a row as it stands: the fields to set, or an outcome and its detail.
Decision = Mapping[str, Any] | tuple[Status, str]


@dataclass(slots=True, eq=False)
class Write:
    """One record's change on its way.

    Attributes:
        decide: what to do on a row as it stands.
        settled: whether a row read back carries the change.
        folder: descriptor of the folder that holds the record.
        seen: the file that the change was decided on.
        data: the file as it should become, in the temp file of that name and inode.
        outcome: set once the write has ended.
        refusal: the system's error number where the store refused the temp file.
    """

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
        """The record's file name."""
        return self.key.record_id + files.SUFFIX

    def end(self, status: Status, detail: str = "") -> None:
        """Sets the outcome."""
        self.outcome = Outcome(self.key, status, detail)

    def drop(self) -> None:
        """Removes the temp file, if there is one."""
        if self.temp:
            with contextlib.suppress(OSError):
                files.remove(self.folder, self.temp)
            self.temp = ""

    def prepare(self) -> None:
        """Decides on the record as it stands and writes the temp file that carries the change."""
        self.drop()
        row = self._load()
        if row is None or self.seen is None:
            return
        decision = self.decide(row)
        if isinstance(decision, tuple):
            self.end(*decision)
            return
        try:
            # As JSON gives them back, which is how they are looked for afterwards.
            self.changes = {name: decode_leniently(encode_value(value)) for name, value in decision.items()}
            self.data = replace_fields(self.seen.data, decision)
            self.temp = files.write_temp(self.folder, self.data, self.seen.status, self.name)
            self.inode = os.stat(self.temp, dir_fd=self.folder).st_ino
        except ValueError as error:
            self.end("failed", f"a value is {error}")
        except OSError as error:
            self.end("failed", files.reason(error))
            self.refusal = error.errno if error.errno in files.REFUSALS else 0

    def land(self) -> None:
        """Puts the prepared file in the record's place; the lock is held. Ends the write unless it landed."""
        for _ in range(_ATTEMPTS):
            if self.outcome is not None or self.seen is None:
                return
            try:
                if not _same_file(files.read_file(self.folder, self.name), self.seen):
                    self.prepare()
                elif self._exchange():
                    return
            except FileNotFoundError:
                self.end("gone")
            except files.OddFileError:
                self.end("failed", "unreadable: no regular file")
            except OSError as error:
                self.end("failed", files.reason(error))
        if self.outcome is None:
            self.end("failed", "another writer changes the record too fast")

    def _exchange(self) -> bool:
        """True where the change is in; False where it was decided anew, or has ended.

        Raises:
            FileNotFoundError: the record is gone.
            OSError: the system refuses.
        """
        try:
            if not files.exchange(self.folder, self.temp, self.name):
                files.replace(self.folder, self.temp, self.name)
                self.temp = ""
                return True
        except FileNotFoundError:
            if files.exists(self.folder, self.temp):
                raise
            # Somebody cleared temp files away.
            self.prepare()
            return False
        try:
            settled = self._settle()
        except FileNotFoundError:
            raise
        except OSError:
            # What came out cannot be looked at: it goes back unseen.
            with contextlib.suppress(OSError):
                files.exchange(self.folder, self.temp, self.name)
            raise
        if not settled:
            self.prepare()
        return settled

    def _settle(self) -> bool:
        """After an exchange: True where what came out is what the change was decided on.

        Otherwise another writer was faster. Its version goes back in exchange for ours; should yet another
        have landed meanwhile, that one comes out instead and goes back in turn, until what comes out is
        what was put in last: then the newest foreign version stands. A record deleted meanwhile stays
        deleted.

        Raises:
            FileNotFoundError: the record was deleted meanwhile.
        """
        try:
            out = _version(self.folder, self.temp)
        except FileNotFoundError:
            # Somebody cleared it away before it could be compared; reading back decides.
            self.temp = ""
            return True
        if self.seen is not None and out[1] == self.seen.data:
            self.drop()
            return True
        last: tuple[int, bytes | None] = (self.inode, self.data)
        while True:
            put = out
            files.exchange(self.folder, self.temp, self.name)
            out = _version(self.folder, self.temp)
            if out == last:
                self.drop()
                return False
            last = put

    def verify(self) -> None:
        """Reads a landed write back: applied, or open again where a stale write took it away."""
        changes = self.changes
        row = self._load()
        if row is not None:
            if self.settled(row, changes):
                self.end("applied")
        elif self.outcome is not None and self.outcome.status == "failed":
            self.end("unknown", f"written, but not to be read back: {self.outcome.detail}")

    def _load(self) -> Row | None:
        """The record as it stands, kept as what the write is decided on; None ends the write."""
        try:
            self.seen = files.read_file(self.folder, self.name)
            row = decode_row(self.seen.data)
        except FileNotFoundError:
            self.end("gone")
        except files.OddFileError:
            self.end("failed", "unreadable: no regular file")
        except NotARowError as error:
            self.end("failed", f"unreadable: {error}")
        except OSError as error:
            self.end("failed", files.reason(error))
        else:
            if not contradicts(row.get("_id"), self.key.record_id):
                return row
            self.end("failed", "unreadable: its _id names another record")
        return None


def _same_file(left: files.Content, right: files.Content) -> bool:
    """Whether nothing happened to a file between two readings."""
    return left.data == right.data and (left.status.st_mode, left.status.st_uid, left.status.st_gid) == (
        right.status.st_mode,
        right.status.st_uid,
        right.status.st_gid,
    )


def _version(folder: int, name: str) -> tuple[int, bytes | None]:
    """What tells one version of a file from another: its inode and its bytes, None for no regular file."""
    try:
        content = files.read_file(folder, name)
    except files.OddFileError:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino, None
    return content.status.st_ino, content.data


def patching(patch: Patch) -> Write:
    """The write of a patch: its changes where its requirements hold."""

    def decide(row: Row) -> Decision:
        return patch.changes if holds(row, patch.expected) else ("changed", "a requirement no longer holds")

    return Write(patch.key, decide, holds)


def touching(key: RecordKey, now: int) -> Write:
    """The write of a recall (SPEC §4): one more access, and its time unless a later one is stored."""

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

    return Write(key, decide, settled)


def purge(folder: int, record_id: str, expected: Mapping[str, Any]) -> Outcome:
    """Removes one cache entry if its fields still hold; the lock is held.

    The file is first taken aside and looked at again: an entry that was renewed in between goes back.
    """
    key = RecordKey("semantic_cache", record_id)
    if not files.is_record_id(record_id):
        return Outcome(key, "failed", "invalid record id: the store cannot hold it")
    name = record_id + files.SUFFIX
    try:
        if not _still(folder, name, expected):
            return Outcome(key, "changed", "a requirement no longer holds")
        aside = files.temp_name()
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        try:
            still = _still(folder, aside, expected)
        except (OSError, files.OddFileError, NotARowError):
            still = False
        if not still:
            if not files.place(folder, aside, name):
                files.remove(folder, aside)
            return Outcome(key, "changed", "a requirement no longer holds")
        files.remove(folder, aside)
    except FileNotFoundError:
        return Outcome(key, "gone")
    except files.OddFileError:
        return Outcome(key, "failed", "unreadable: no regular file")
    except NotARowError as error:
        return Outcome(key, "failed", f"unreadable: {error}")
    except OSError as error:
        return Outcome(key, "failed", files.reason(error))
    return Outcome(key, "applied")


def _still(folder: int, name: str, expected: Mapping[str, Any]) -> bool:
    return holds(decode_row(files.read_file(folder, name).data), expected)
