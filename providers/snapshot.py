"""Decision fields of a store's files kept between scans (DESIGN §3).

One Parquet file a store and memory type, in the user's cache folder and never in the store. It is a cache
and nothing else: what is missing, damaged, or of another version, store or time zone is built anew, and
where the folder cannot be written there is none. A row is used only while its file has the modification
time, size and inode it was read with; files that changed within two seconds of a scan are not kept at all,
because a second change could leave all three as they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fallow.model.record import schema

if TYPE_CHECKING:
    import polars as pl

#: Files changed this shortly before a scan are read again by the next one, in nanoseconds.
UNSETTLED_NS: Final = 2_000_000_000
_LEFTOVER_AGE: Final = 86_400.0
#: What a row means follows from these sources: another text of any of them is another version.
_MEANING: Final = (
    "fallow.model.record",
    "fallow.model.times",
    "fallow.providers.filesystem_rows",
    "fallow.providers.filesystem_scan",
    "fallow.providers.snapshot",
)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where snapshots go: ``FALLOW_CACHE_DIR``, else ``fallow`` in ``XDG_CACHE_HOME``, else ``~/.cache/fallow``.

    None where the environment names no home; relative XDG paths do not count, as the XDG rules say.
    """
    values = os.environ if environ is None else environ
    if named := values.get("FALLOW_CACHE_DIR", "").strip():
        return Path(named).expanduser()
    base = values.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "fallow"
    try:
        return Path.home() / ".cache" / "fallow"
    except RuntimeError:
        return None


@cache
def _version() -> str:
    """A digest of everything that decides what a stored row means."""
    digest = sha256(repr(sys.version_info[:2]).encode())
    for name in _MEANING:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            with contextlib.suppress(OSError):
                digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()


def file_schema() -> dict[str, pl.DataType]:
    """What names one version of a file: the columns that a listing and a snapshot are matched by."""
    import polars as pl

    return {
        "record_id": pl.String(),
        "folder": pl.String(),
        "mtime_ns": pl.Int64(),
        "size": pl.Int64(),
        "inode": pl.UInt64(),
    }


def snapshot_schema() -> dict[str, pl.DataType]:
    """All columns of a snapshot: the file's, the record's small ones, and why it is none where it is none."""
    import polars as pl

    small = {name: kind for name, kind in schema().items() if name not in {"text", "embedding"}}
    return {**file_schema(), **small, "reason": pl.String()}


class Snapshot:
    """The snapshot of one store and memory type.

    Args:
        folder: the cache folder.
        identity: which store.
        memory_type: the canonical type.
        zone_name: the zone in which its naive creation times were read.
    """

    def __init__(self, folder: Path, identity: str, memory_type: str, zone_name: str) -> None:
        self._folder = folder / "snapshots"
        self._key = "\n".join((_version(), identity, memory_type, zone_name))
        self._stem = sha256("\n".join((identity, memory_type, zone_name)).encode()).hexdigest()[:32]

    def load(self) -> pl.DataFrame | None:
        """The kept rows, or None where there is nothing that can be trusted."""
        import polars as pl

        with contextlib.suppress(OSError):
            for path in self._present():
                if path.stat().st_uid != os.getuid():
                    continue
                data = path.read_bytes()
                # The name carries the content's digest: damage is found before Polars meets it.
                if path.stem.rpartition("-")[2] != sha256(data).hexdigest():
                    continue
                with contextlib.suppress(pl.exceptions.PolarsError, ValueError):
                    if pl.read_parquet_metadata(BytesIO(data)).get("fallow") != self._key:
                        continue
                    frame = pl.read_parquet(BytesIO(data))
                    if frame.schema == pl.Schema(snapshot_schema()):
                        return frame
        return None

    def store(self, frame: pl.DataFrame) -> bool:
        """Keeps the rows for the next scan; False where that is not possible, which is no error."""
        buffer = BytesIO()
        frame.write_parquet(buffer, compression="lz4", statistics=False, metadata={"fallow": self._key})
        data = buffer.getbuffer()
        target = self._folder / f"{self._stem}-{sha256(data).hexdigest()}.parquet"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temp = tempfile.mkstemp(dir=self._folder, prefix=f"{self._stem}-", suffix=".tmp")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                Path(temp).replace(target)
            except BaseException:
                Path(temp).unlink(missing_ok=True)
                raise
        except OSError:
            return False
        self._tidy(target)
        return True

    def _present(self) -> list[Path]:
        """This snapshot's files, newest first: usually one, two while another planner stores its own."""
        found = []
        for path in self._folder.glob(f"{self._stem}-*.parquet"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]

    def _tidy(self, current: Path) -> None:
        """Removes what the new file replaces, and temp files of killed runs."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{self._stem}-*"):
                stale = path.suffix == ".parquet" or path.stat().st_mtime < time.time() - _LEFTOVER_AGE
                if path != current and stale:
                    path.unlink(missing_ok=True)
