"""A folder's ``index.json``, which agents list from (STORES.md): new files are added, removed ones taken out.

The store's lock is held by the caller. An index that is missing or not valid is left to the agent, which
rebuilds it from the files.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

import msgspec
from fallow.providers import filesystem_files as files
from fallow.providers.filesystem_rows import NotARowError, decode_leniently, decode_row, encode_value

from fallow.model.keys import Row

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def index_item(row: Row, record_id: str) -> dict[str, Any]:
    """A record's line in its folder's index, as agents write it."""
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


class _Index:
    """A valid index: its items as they stand in the file, and the bytes of everything else."""

    def __init__(self, folder: int, content: files.Content) -> None:
        self._folder = folder
        self._content = content
        self.items: dict[str, Any]
        try:
            self._rest: dict[str, Any] = _decoder.decode(content.data)
            version = msgspec.json.decode(self._rest["version"])
            self.items = _decoder.decode(self._rest["items"])
            self._raw = True
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
            # Python's json writes NaN where an item's timestamp is one, and agents read it back.
            self._rest = decode_leniently(content.data)
            if not isinstance(self._rest, dict) or not isinstance(self._rest.get("items"), dict):
                raise NotARowError("no index") from None
            version = self._rest.get("version")
            self.items = self._rest["items"]
            self._raw = False
        if version != 1:
            raise NotARowError("an index of another version")

    def add(self, record_id: str, item: dict[str, Any]) -> None:
        self.items[record_id] = msgspec.Raw(encode_value(item)) if self._raw else item

    def store(self) -> None:
        """Puts the changed index in its place in one step.

        Raises:
            OSError: it cannot be written; the old one stays.
        """
        if self._raw:
            data = msgspec.json.encode({**self._rest, "items": self.items})
        else:
            data = json.dumps({**self._rest, "items": self.items}, ensure_ascii=False).encode()
        temp = files.write_temp(self._folder, data, self._content.status, files.INDEX_NAME)
        try:
            os.rename(temp, files.INDEX_NAME, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            files.remove(self._folder, temp)
            raise


def _load(folder: int) -> _Index | None:
    try:
        return _Index(folder, files.read_file(folder, files.INDEX_NAME))
    except (FileNotFoundError, files.OddFileError, NotARowError):
        return None


def add_to_index(folder: int, record_ids: Sequence[str]) -> None:
    """Adds those of the records that the index does not have, as their files say.

    Raises:
        OSError: the index is there and cannot be read or written.
    """
    index = _load(folder)
    if index is None:
        return
    changed = False
    for record_id in record_ids:
        if record_id not in index.items:
            with contextlib.suppress(FileNotFoundError, files.OddFileError, NotARowError, ValueError):
                row = decode_row(files.read_file(folder, record_id + files.SUFFIX).data)
                index.add(record_id, index_item(row, record_id))
                changed = True
    if changed:
        index.store()


def remove_from_index(folder: int, record_ids: Sequence[str]) -> None:
    """Takes removed records out of the index.

    Raises:
        OSError: the index is there and cannot be read or written.
    """
    index = _load(folder)
    if index is None:
        return
    present = [record_id for record_id in record_ids if record_id in index.items]
    for record_id in present:
        del index.items[record_id]
    if present:
        index.store()
