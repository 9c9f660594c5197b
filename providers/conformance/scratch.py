"""Scratch stores: on what the kit runs beside an operator's own store, which stays as it is.

The scratch store lies where the real one lies (a folder beside it, a database on the same server), has
its permissions and its speed, and is removed afterwards. Its native side writes as the agents do.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from fallow.providers.conformance.kit import Fault, Gap, NotHeldError, Store
from fallow.providers.filesystem import FilesystemProvider
from fallow.providers.gaps import GAPS

from fallow.model.errors import StoreUnwritableError
from fallow.model.keys import Row, is_unicode
from fallow.model.times import iso, to_microseconds
from fallow.port.protocol import Provider

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: What the agents' index keeps of a record (STORES.md, Filesystem).
_INDEXED: Final = ("name", "memory_id", "user_id", "agent_id", "owner_agent_id", "application_id", "thread_id")


class FilesystemStore:
    """A scratch store in a folder (:class:`~fallow.providers.conformance.kit.Store`, doubling, spoiling, copying)."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self._cache = cache
        (root / "conversation_memory").mkdir(parents=True, exist_ok=True)
        (root / ".index-lock.sqlite3").touch()

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        return FilesystemProvider(self.root, naive_timezone, cache_dir=self._cache)

    def seed(self, memory_type: str, rows: Sequence[Row]) -> None:
        folder = self.root / memory_type
        folder.mkdir(exist_ok=True)
        index = folder / "index.json"
        items: dict[str, Any] = json.loads(index.read_text("utf-8"))["items"] if index.exists() else {}
        for row in rows:
            name = row["_id"]
            if not is_unicode(name) or "/" in name or len(name.encode()) > 250:
                raise NotHeldError("an id that no file can have")
            text = json.dumps({**row, "id": name}, ensure_ascii=False, default=_plain)
            (folder / f"{name}.json").write_text(text, "utf-8")
            items[name] = {"id": name, **{field: row.get(field) for field in _INDEXED}}
        index.write_text(json.dumps({"version": 1, "items": items}, ensure_ascii=False), "utf-8")

    def change(self, memory_type: str, record_id: str, fields: Mapping[str, Any]) -> None:
        path = self.root / memory_type / f"{record_id}.json"
        row = {**json.loads(path.read_text("utf-8")), **fields}
        temp = path.with_suffix(".agent.tmp")
        temp.write_text(json.dumps(row, ensure_ascii=False), "utf-8")
        temp.rename(path)

    def remove(self, memory_type: str, record_id: str) -> None:
        (self.root / memory_type / f"{record_id}.json").unlink()

    def stored(self, memory_type: str) -> dict[str, dict[str, bytes]]:
        found: dict[str, dict[str, bytes]] = {}
        for path in sorted((self.root / memory_type).glob("*.json")):
            if path.name == "index.json":
                continue
            data = path.read_bytes()
            try:
                found[path.stem] = {name: bytes(value) for name, value in _fields.decode(data).items()}
            except msgspec.DecodeError:
                found[path.stem] = _lenient(data)
        return found

    def fault(self, kind: Fault) -> AbstractContextManager[None]:
        raise NotHeldError(f"a folder is never {kind}")

    def natives(self) -> Mapping[str, Mapping[str, Any]]:
        """What Python's own JSON writes beyond JSON, and numbers that others read as times."""
        return {
            "NaN in metadata": {"metadata": {"x": math.nan}},
            "infinity in metadata": {"metadata": {"x": -math.inf}},
            "NaN in a list": {"metadata": {"x": [1, {"y": math.nan}]}},
            "a NaN rating": {"importance": math.nan},
            "a whole number beyond 64 bits": {"metadata": {"x": 2**80}},
            "an epoch time": {"last_accessed_at": 1_780_000_000},
            "an epoch time in milliseconds": {"last_accessed_at": 1_780_000_000_123.0},
        }

    def double(self, memory_type: str, record_id: str) -> None:
        if memory_type != "knowledge_base":
            raise NotHeldError("a second folder of that type")
        self.seed("long_term_memory", [{"_id": record_id, "content": "the other one"}])

    def spoil(self, memory_type: str, record_id: str) -> None:
        (self.root / memory_type / f"{record_id}.json").write_bytes(b'{"content": "what was sa')

    @contextmanager
    def copy(self) -> Iterator[Store]:
        target = self.root.with_name(self.root.name + ".copy")
        shutil.copytree(self.root, target)
        try:
            yield FilesystemStore(target, self._cache)
        finally:
            shutil.rmtree(target)


def _lenient(data: bytes) -> dict[str, bytes]:
    """Fields of a file that Python's JSON reads and others do not: bare NaN and infinities."""
    try:
        return {name: json.dumps(value, ensure_ascii=False).encode() for name, value in json.loads(data).items()}
    except (ValueError, AttributeError):
        return {"": data}


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return iso(to_microseconds(value))
    raise NotHeldError(f"a value of type {type(value).__name__}")


class FilesystemBackend:
    """Scratch stores in folders of their own beneath ``parent`` (:class:`~.kit.Backend`)."""

    name = "filesystem"
    faults: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    @property
    def gaps(self) -> Mapping[str, Gap]:
        return GAPS["filesystem"]

    @contextmanager
    def store(self) -> Iterator[FilesystemStore]:
        try:
            folder = tempfile.TemporaryDirectory(prefix=".fallow-conformance-", dir=self._parent)
        except OSError as error:
            raise StoreUnwritableError(
                f"no scratch folder can be made in {self._parent}: {error.strerror}",
                hint="the kit works in a folder beside the store; give it the right to make one",
            ) from error
        with folder as name:
            yield FilesystemStore(Path(name) / "store", Path(name) / "cache")
