"""What scans of a Notion data source read, kept until the next scan (DESIGN §3).

One Parquet file a data source and memory type, in the user's cache folder: decision fields only, never
text. It is a cache and nothing else: what is missing, damaged or of another version is read anew, and
where the folder cannot be written there is none.

A later scan asks Notion only for what was edited since. Two things follow from how Notion tells that.
``last_edited_time`` names a minute, so everything edited in the two minutes before the last scan's newest
edit is read again. And a page that leaves the data source for good is in no answer, so a scan reads
everything once the last complete reading is :data:`COMPLETE_AFTER` old; until then such a record can
still stand in a plan, where applying finds it gone.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fallow.model.record import Record, schema

if TYPE_CHECKING:
    import polars as pl

#: Edits this long before the newest one that a scan knew are read again.
OVERLAP: Final = timedelta(minutes=2)
#: Seconds after which a scan reads everything again; less than a day, so that each night's first does.
COMPLETE_AFTER: Final = 20 * 3600.0

_LARGE: Final = frozenset({"text", "embedding"})
#: The columns that are kept of a record.
KEPT: Final = tuple(name for name in schema() if name not in _LARGE)
_MEANING: Final = (
    "fallow.model.record",
    "fallow.model.times",
    "fallow.providers.notion_pages",
    "fallow.providers.notion_cache",
)


@cache
def _version() -> str:
    """A digest of the sources that decide what a kept row means."""
    digest = sha256()
    for name in _MEANING:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            with contextlib.suppress(OSError):
                digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()


def page_schema() -> dict[str, pl.DataType]:
    """The columns of kept rows: the page, the record's decision fields, and why it is none where it is none."""
    import polars as pl

    types = schema()
    return {"page_id": pl.String(), "reason": pl.String(), **{name: types[name] for name in KEPT}}


def page_frame(rows: Iterable[tuple[str, str | None, Record]]) -> pl.DataFrame:
    """Pages as kept rows: (page id, reason or None, record)."""
    import polars as pl

    listed = list(rows)
    data: dict[str, Sequence[Any]] = {
        "page_id": [page_id for page_id, _, _ in listed],
        "reason": [reason for _, reason, _ in listed],
        **{name: [getattr(record, name) for _, _, record in listed] for name in KEPT},
    }
    return pl.DataFrame(data, schema=page_schema())


@dataclass(frozen=True, slots=True)
class Kept:
    """What a scan left behind.

    Attributes:
        newest: the newest ``last_edited_time`` that any page had before the scan began; empty where none.
        complete_at: when everything was last read, seconds since the epoch.
    """

    frame: pl.DataFrame
    newest: str
    complete_at: float

    @property
    def since(self) -> str:
        """From when on edits are asked for."""
        return (datetime.fromisoformat(self.newest) - OVERLAP).isoformat()


class ScanCache:
    """The kept rows of one data source and memory type.

    Args:
        folder: the user's cache folder.
        identity: which store.
        memory_type: the canonical type.
        zone_name: the zone in which its naive creation times were read.
    """

    def __init__(self, folder: Path, identity: str, memory_type: str, zone_name: str) -> None:
        self._folder = folder / "notion"
        self._key = "\n".join((_version(), identity, memory_type, zone_name))
        stem = sha256("\n".join((identity, memory_type, zone_name)).encode()).hexdigest()[:32]
        self._path = self._folder / f"{stem}.parquet"

    def load(self) -> Kept | None:
        """What was kept, or None where nothing can be trusted."""
        import polars as pl

        with contextlib.suppress(OSError, ValueError, KeyError, pl.exceptions.PolarsError):
            if hasattr(os, "getuid") and self._path.stat().st_uid != os.getuid():
                return None
            digest, _, data = self._path.read_bytes().partition(b"\n")
            # Damage is found before Polars meets it.
            if digest.decode() != sha256(data).hexdigest():
                return None
            notes = pl.read_parquet_metadata(BytesIO(data))
            if notes.get("fallow") != self._key:
                return None
            frame = pl.read_parquet(BytesIO(data))
            if frame.schema == pl.Schema(page_schema()):
                return Kept(frame, notes["newest"], float(notes["complete_at"]))
        return None

    def store(self, kept: Kept) -> bool:
        """Keeps the rows for the next scan; False where that is not possible, which is no error."""
        buffer = BytesIO()
        notes = {"fallow": self._key, "newest": kept.newest, "complete_at": repr(kept.complete_at)}
        kept.frame.write_parquet(buffer, compression="lz4", statistics=False, metadata=notes)
        data = buffer.getvalue()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temp = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(sha256(data).hexdigest().encode() + b"\n" + data)
                Path(temp).replace(self._path)
            except BaseException:
                Path(temp).unlink(missing_ok=True)
                raise
        except OSError:
            return False
        return True
