"""The snapshot between scans (DESIGN §3): faster, and never anything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from fallow.providers import filesystem_scan
from fallow.providers.filesystem import FilesystemProvider
from fallow.providers.snapshot import Snapshot, cache_folder

from fallow.model.keys import RecordKey
from fallow.model.record import PLANNING_COLUMNS
from fallow.port.protocol import Patch


def settle(root: Path) -> None:
    """Makes every file older than the two seconds within which a change could go unseen."""
    for path in root.rglob("*.json"):
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10_000_000_000))


def put(root: Path, record_id: str, **row: object) -> Path:
    path = root / "summaries" / f"{record_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"_id": record_id, **row}))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    for number in range(20):
        put(root, f"r{number:02}", importance=0.25, source_id="r00", access_count=number, memory_id="m")
    put(root, "bad").write_text('{"_id": "bad", "x')
    settle(root)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Reads:
    """Which files the scans read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stems: list[str] = []
        real = filesystem_scan.RecordReader.read

        def read(reader, folder, stems, into):
            stems = list(stems)
            self.stems += stems
            real(reader, folder, stems, into)

        monkeypatch.setattr(filesystem_scan.RecordReader, "read", read)

    def take(self) -> list[str]:
        stems, self.stems = self.stems, []
        return sorted(stems)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def scan(root: Path, cache: Path | None, columns=PLANNING_COLUMNS, zone: str = "UTC") -> tuple[pl.DataFrame, list]:
    provider = FilesystemProvider(root, {"summaries": zone}, snapshot=cache is not None, cache_dir=cache)
    batches = list(provider.scan("summaries", columns))
    return pl.concat([batch.frame for batch in batches]), [bad for batch in batches for bad in batch.unreadable]


def same(root: Path, cache: Path, **options) -> bool:
    with_it, without = scan(root, cache, **options), scan(root, None, **options)
    return with_it[0].equals(without[0]) and with_it[1] == without[1]


def test_only_changed_files_are_read_again(store, cache, reads):
    scan(store, cache)
    assert len(reads.take()) == 21
    scan(store, cache)
    assert reads.take() == []
    scan(store, cache, ["record_id", "citations", "retention_state"])
    assert reads.take() == []

    put(store, "r03", importance=0.75)
    (store / "summaries" / "r04.json").unlink()
    put(store, "new")
    put(store, "moved").replace(store / "summaries" / "r05.json")
    settle(store)
    scan(store, cache)
    assert len(reads.take()) == 21  # settling moved the time of every file
    scan(store, cache)
    assert reads.take() == []
    assert same(store, cache)
    reads.take()

    old = (store / "summaries" / "r06.json").stat()
    temp = put(store, "r06x", importance=0.5)
    temp.write_text(json.dumps({"_id": "r06", "importance": 0.5}).ljust(old.st_size))
    os.utime(temp, ns=(old.st_atime_ns, old.st_mtime_ns))
    temp.replace(store / "summaries" / "r06.json")
    frame, _ = scan(store, cache)
    assert reads.take() == ["r06"]  # same time, same size: another inode
    assert frame.filter(pl.col("record_id") == "r06")["importance"].to_list() == [0.5]


def test_files_just_changed_are_read_again_next_time(store, cache, reads):
    scan(store, cache)
    reads.take()
    path = put(store, "r03", importance=0.5)
    for _ in range(2):
        scan(store, cache)
        assert reads.take() == ["r03"]
    status = path.stat()
    path.write_text(path.read_text().replace("0.5", "0.6"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    frame, _ = scan(store, cache)
    assert frame.filter(pl.col("record_id") == "r03")["importance"].to_list() == [0.6]


def test_files_from_the_far_future_are_read_each_time(store, cache, reads):
    """Modification times that 64 bits of nanoseconds do not reach, and any after now."""
    for record_id, seconds in (("r01", 20_000_000_000), ("r02", int(time.time()) + 3_600)):
        os.utime(store / "summaries" / f"{record_id}.json", (seconds, seconds))
    for _ in range(2):
        assert same(store, cache)
        reads.take()
    scan(store, cache)
    assert reads.take() == ["r01", "r02"]


def test_text_and_vectors_are_not_kept(store, cache, reads):
    scan(store, cache, ["record_id", "text"])
    assert not cache.exists()
    scan(store, cache)
    reads.take()
    scan(store, cache, ["record_id", "embedding"])
    assert len(reads.take()) == 21
    for path in cache.rglob("*.parquet"):
        assert not {"text", "embedding"} & set(pl.read_parquet_schema(path))


def damage_nothing(path: Path) -> None:
    path.unlink()


def damage_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_all(path: Path) -> None:
    path.write_bytes(b"PAR1 nonsense")


@pytest.mark.parametrize("damage", [damage_nothing, damage_byte, damage_end, damage_all])
def test_a_damaged_snapshot_is_built_anew(store, cache, reads, damage):
    expected = scan(store, cache)
    for path in cache.rglob("*.parquet"):
        damage(path)
    reads.take()
    again = scan(store, cache)
    assert len(reads.take()) == 21
    assert again[0].equals(expected[0])
    assert again[1] == expected[1]
    scan(store, cache)
    assert reads.take() == []


def test_another_version_is_built_anew(store, cache, reads, monkeypatch):
    """A later fallow may read the same file differently."""
    scan(store, cache)
    reads.take()
    monkeypatch.setattr("fallow.providers.snapshot._version", lambda: "later")
    scan(store, cache)
    assert len(reads.take()) == 21
    monkeypatch.undo()
    assert len(list(cache.rglob("*.parquet"))) == 1


def test_another_store_or_zone_has_its_own(store, cache, reads, tmp_path):
    put(store, "naive", created_at="2026-03-01T02:12:00")
    settle(store)
    scan(store, cache)
    reads.take()
    assert same(store, cache, zone="Asia/Tokyo")
    assert not scan(store, cache, zone="Asia/Tokyo")[0].equals(scan(store, cache)[0])
    reads.take()
    store.rename(tmp_path / "elsewhere")
    scan(tmp_path / "elsewhere", cache)
    assert len(reads.take()) == 22


def test_what_fallow_wrote_itself_is_seen(store, cache):
    scan(store, cache)
    provider = FilesystemProvider(store, snapshot=True, cache_dir=cache)
    key = RecordKey("summaries", "r07")
    assert [out.status for out in provider.patch([Patch(key, {}, {"retention_state": "suppressed"})])] == ["applied"]
    frame, _ = scan(store, cache)
    assert frame.filter(pl.col("retention_state") == "suppressed")["record_id"].to_list() == ["r07"]
    assert same(store, cache)


def test_a_cache_that_cannot_be_written_is_none(store, tmp_path, reads):
    blocked = tmp_path / "file"
    blocked.write_text("")
    expected = scan(store, None)
    for _ in range(2):
        reads.take()
        frame, bad = scan(store, blocked / "cache")
        assert len(reads.take()) == 21
        assert frame.equals(expected[0])
        assert bad == expected[1]


def test_it_is_never_in_the_store(store, reads, tmp_path):
    (tmp_path / "link").symlink_to(store)
    before = sorted(store.rglob("*"))
    for folder in (store, store / "cache", tmp_path / "link" / "cache"):
        scan(store, folder)
    assert sorted(store.rglob("*")) == before


def test_where_it_goes(monkeypatch, tmp_path):
    assert cache_folder({"FALLOW_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/fallow")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "fallow"
    assert cache_folder({}) == Path.home() / ".cache" / "fallow"
    monkeypatch.setenv("FALLOW_CACHE_DIR", str(tmp_path / "named"))
    (tmp_path / "store" / "agents").mkdir(parents=True)
    put(tmp_path / "store", "r1")
    settle(tmp_path / "store")
    list(FilesystemProvider.from_uri(str(tmp_path / "store"), {}).scan("summaries", ["record_id"]))
    [file] = (tmp_path / "named").rglob("*.parquet")
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_two_planners_at_once(store, cache):
    """Each leaves a whole snapshot or none, and both read the same."""
    script = (
        "import sys; from pathlib import Path; from fallow.providers.filesystem import FilesystemProvider as F\n"
        "for _ in range(15):\n"
        "    p = F(sys.argv[1], snapshot=True, cache_dir=Path(sys.argv[2]))\n"
        "    n = sum(b.frame.height for b in p.scan('summaries', ['record_id', 'access_count']))\n"
        "    assert n == 20, n\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", script, str(store), str(cache)]) for _ in range(2)]
    deadline = time.monotonic() + 60
    while any(run.poll() is None for run in runs) and time.monotonic() < deadline:
        temp = store / "summaries" / "r00.tmp"
        temp.write_text('{"_id": "r00", "importance": 0.25}')
        os.utime(temp, ns=(1, time.time_ns() - 10_000_000_000))
        temp.replace(store / "summaries" / "r00.json")
        scan(store, cache)
        time.sleep(0.02)
    assert [run.wait(1) for run in runs] == [0, 0]
    assert same(store, cache)
    assert not list(cache.rglob("*.tmp"))
    assert len(list(cache.rglob("*.parquet"))) == 1


def test_leftovers_of_killed_runs_are_cleared(store, cache):
    snapshot = Snapshot(cache, "filesystem:x", "summaries", "UTC")
    scan(store, cache)
    [file] = cache.rglob("*.parquet")
    left = file.with_name(file.name.split("-")[0] + "-dead.tmp")
    left.write_bytes(b"")
    os.utime(left, (1, 1))
    put(store, "more")
    settle(store)
    scan(store, cache)
    assert not left.exists()
    assert snapshot.load() is None
