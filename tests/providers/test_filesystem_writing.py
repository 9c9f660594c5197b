"""Writing to a filesystem store: conditional, whole or not at all, and nothing else moves."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from fallow.providers import filesystem_files as files
from fallow.providers.filesystem import FilesystemProvider
from fallow.providers.filesystem_index import index_item

from fallow.model.errors import StoreBusyError, StoreUnwritableError
from fallow.model.keys import MISSING, RecordKey
from fallow.model.record import PRIMARY_TYPES, requirements
from fallow.model.times import parse_time
from fallow.port.protocol import Outcome, Patch
from tests.providers.test_filesystem_reading import UNSAFE_IDS, public_folder, put, unprivileged

__all__ = ["public_folder"]  # a fixture

TYPE = "summaries"
NOW = parse_time("2026-12-01T00:00:00Z")


def state(root: Path) -> dict[str, tuple]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file() and path.name != files.LOCK_NAME
    }


def changed_files(before: dict, after: dict) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def statuses(outcomes: list[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def key(record_id: str) -> RecordKey:
    return RecordKey(TYPE, record_id)


def suppress(record_id: str, expected: dict | None = None) -> Patch:
    return Patch(key(record_id), expected or {"retention_state": MISSING}, {"retention_state": "suppressed"})


def read(root: Path, record_id: str, memory_type: str = TYPE) -> dict:
    return json.loads((root / memory_type / f"{record_id}.json").read_bytes())


def replace_as_agent(root: Path, record_id: str, row: dict) -> bytes:
    """What an agent does: temp file, rename."""
    data = json.dumps(row).encode()
    temp = root / TYPE / f"{record_id}.agent.tmp"
    temp.write_bytes(data)
    temp.replace(root / TYPE / f"{record_id}.json")
    return data


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for number in range(5):
        put(tmp_path, TYPE, f"r{number}", {"importance": 0.5, "access_count": 1, "content": "text"})
    return tmp_path


@pytest.fixture
def provider(store: Path) -> FilesystemProvider:
    return FilesystemProvider(store, snapshot=False, lock_timeout=0.5)


# Patching


def test_only_the_named_keys_of_the_named_record_change(store, provider):
    """SPEC §8.1, TRAPS 17: other fields and other files keep their bytes, times and places."""
    odd = (
        b'{ "_id":"odd",\n\t"caf\\u00e9" : [1.50, 1e2,NaN] ,"x_custom":{"a":  1},"access_count":1.0,"importance":-0 }\n'
    )
    path = put(store, TYPE, "odd", odd)
    path.chmod(0o640)
    before = state(store)
    row = provider.fetch(TYPE, ["odd"])["odd"]
    patch = Patch(key("odd"), requirements(row), {"importance": 0.25, "retention_state": "suppressed", "note": "é"})
    assert provider.patch([patch]) == [Outcome(key("odd"), "applied")]
    assert path.read_bytes() == odd.replace(
        b'"importance":-0', '"importance":0.25,"retention_state": "suppressed","note": "é"'.encode()
    )
    assert path.stat().st_mode & 0o777 == 0o640
    assert changed_files(before, state(store)) == {"summaries/odd.json"}


def test_each_requirement_counts(store, provider):
    """DESIGN §5: values are compared as JSON values, absence is not null, and nothing is written otherwise."""
    put(store, TYPE, "x", b'{"_id": "x", "a": true, "n": null, "nan": NaN, "one": 1, "deep": {"l": [1, {"t": true}]}}')
    before = state(store)
    holding = {"a": True, "n": None, "nan": math.nan, "one": 1.0, "deep": {"l": [1, {"t": True}]}, "gone": MISSING}
    for name, value in [
        *(("a", 1), ("a", "true"), ("n", MISSING), ("n", 0), ("nan", None), ("one", True), ("gone", None)),
        *(("deep", {"l": [1, {"t": 1}]}), ("deep", MISSING)),
    ]:
        outcomes = provider.patch([Patch(key("x"), {**holding, name: value}, {"a": False})])
        assert statuses(outcomes) == ["changed"], (name, value)
    assert state(store) == before
    assert statuses(provider.patch([Patch(key("x"), holding, {"a": False})])) == ["applied"]
    assert read(store, "x")["a"] is False


def test_one_bad_record_does_not_stop_the_others(store, provider):
    """TRAPS 22, 34, 48 at the provider: one outcome a patch, in order, each with its reason."""
    put(store, TYPE, "torn", b'{"_id": "torn"')
    put(store, TYPE, "other", {"_id": "r1"})
    (store / TYPE / "link.json").symlink_to(store / TYPE / "r4.json")
    before = state(store)
    names = ["r0", "absent", "torn", "r1", "../../etc/x", "other", "link", "r2", *UNSAFE_IDS, "r3"]
    patches = [suppress(name) for name in names]
    patches[3] = suppress("r1", {"importance": 0.4})
    patches.append(Patch(key("r4"), {}, {"note": math.nan}))
    patches.append(Patch(RecordKey("nothing_such", "r4"), {}, {"a": 1}))
    outcomes = provider.patch(patches)
    assert [outcome.key for outcome in outcomes] == [patch.key for patch in patches]
    by_name = {outcome.key.record_id: outcome for outcome in outcomes[:-2]}
    assert by_name["torn"] == Outcome(key("torn"), "failed", "unreadable: torn or malformed JSON")
    assert by_name["../../etc/x"].status == "failed"
    assert "invalid record id" in by_name["../../etc/x"].detail
    assert statuses(outcomes) == [
        *("applied", "gone", "failed", "changed", "failed", "failed", "failed", "applied"),
        *["failed"] * len(UNSAFE_IDS),
        *("applied", "failed", "gone"),
    ]
    assert changed_files(before, state(store)) == {f"summaries/r{n}.json" for n in (0, 2, 3)}
    assert (store / TYPE / "link.json").is_symlink()


def test_nothing_to_do_touches_nothing(store, provider):
    before = sorted(store.rglob("*"))
    assert provider.patch([]) == []
    assert provider.insert(TYPE, []) == []
    assert provider.touch_many(TYPE, [], NOW) == []
    assert provider.purge_cache({}) == []
    assert sorted(store.rglob("*")) == before


def test_the_same_record_twice_in_one_call(store, provider):
    first = Patch(key("r0"), {"a": MISSING}, {"a": 1})
    outcomes = provider.patch([first, first, Patch(key("r0"), {"a": 1}, {"b": 2})])
    assert statuses(outcomes) == ["applied", "changed", "applied"]
    assert (read(store, "r0")["a"], read(store, "r0")["b"]) == (1, 2)


def test_times_and_text_are_written_as_they_are_meant(store, provider):
    """TRAPS 15: an instant goes in with its offset and comes out the same; text is unescaped UTF-8."""
    moment = datetime.fromisoformat("2026-11-30T23:30:00-05:00")
    patch = Patch(key("r0"), {}, {"last_accessed_at": "2026-11-30T23:30:00-05:00", "at": moment, "note": "日本"})
    assert statuses(provider.patch([patch])) == ["applied"]
    row = read(store, "r0")
    assert parse_time(row["last_accessed_at"]) == parse_time(row["at"]) == parse_time("2026-12-01T04:30:00Z")
    assert "日本".encode() in (store / TYPE / "r0.json").read_bytes()


def test_records_under_the_old_name_of_their_type_are_written_where_they_are(tmp_path):
    put(tmp_path, "long_term_memory", "old")
    put(tmp_path, "long_term_memory", "both")
    put(tmp_path, "knowledge_base", "both")
    provider = FilesystemProvider(tmp_path)
    patches = [Patch(RecordKey("knowledge_base", name), {}, {"a": 1}) for name in ("old", "both", "absent")]
    outcomes = provider.patch(patches)
    assert statuses(outcomes) == ["applied", "failed", "gone"]
    assert "duplicate id" in outcomes[1].detail
    assert read(tmp_path, "old", "long_term_memory")["a"] == 1
    assert statuses(provider.insert("knowledge_base", [{"_id": "old"}, {"_id": "new"}])) == ["already", "applied"]
    assert (tmp_path / "knowledge_base" / "new.json").exists()


# Races, at the moment they matter


@pytest.fixture
def before_exchange(monkeypatch) -> Callable[[int, Callable[[], object]], None]:
    """Runs something right before the n-th exchange of files."""
    due: dict[int, Callable[[], object]] = {}
    count = 0
    real = files.exchange

    def exchange(folder: int, temp: str, name: str) -> bool:
        nonlocal count
        count += 1
        if count in due:
            due[count]()
        return real(folder, temp, name)

    monkeypatch.setattr(files, "exchange", exchange)
    return due.__setitem__


def no_temps(root: Path) -> bool:
    return not list(root.rglob("*.tmp"))


def test_a_field_added_in_between_survives(store, provider, before_exchange):
    """TRAPS 23: the agent adds x_custom at the last moment; both writes are in the record."""
    row = read(store, "r0")
    before_exchange(1, lambda: replace_as_agent(store, "r0", {**row, "x_custom": [1]}))
    assert statuses(provider.patch([suppress("r0", {"access_count": 1})])) == ["applied"]
    assert read(store, "r0") == {**row, "x_custom": [1], "retention_state": "suppressed"}
    assert no_temps(store)


def test_a_recall_in_between_wins(store, provider, before_exchange):
    """TRAPS 23: the agent raises access_count at the last moment; its file stands byte for byte."""
    row = read(store, "r0")
    written: list[bytes] = []
    before_exchange(1, lambda: written.append(replace_as_agent(store, "r0", {**row, "access_count": 2})))
    assert statuses(provider.patch([suppress("r0", {"access_count": 1})])) == ["changed"]
    assert (store / TYPE / "r0.json").read_bytes() == written[0]
    assert no_temps(store)


def test_a_record_deleted_in_between_stays_deleted(store, provider, before_exchange):
    """TRAPS 24: gone, nothing created."""
    before_exchange(1, (store / TYPE / "r0.json").unlink)
    assert statuses(provider.patch([suppress("r0"), suppress("r1")])) == ["gone", "applied"]
    assert not (store / TYPE / "r0.json").exists()
    assert no_temps(store)


@pytest.mark.parametrize("more", [1, 2, 3])
def test_of_several_writes_in_between_the_newest_stands(store, provider, before_exchange, more):
    """An agent that writes again while its first write is being put back must not get the older one."""
    row = read(store, "r0")
    written: list[bytes] = []
    for number in range(1, more + 2):
        version = {**row, "access_count": 1 + number}
        before_exchange(number, lambda version=version: written.append(replace_as_agent(store, "r0", version)))
    assert statuses(provider.patch([suppress("r0", {"access_count": 1})])) == ["changed"]
    assert (store / TYPE / "r0.json").read_bytes() == written[-1]
    assert no_temps(store)


def test_a_record_deleted_while_a_write_is_put_back_stays_deleted(store, provider, before_exchange):
    row = read(store, "r0")
    before_exchange(1, lambda: replace_as_agent(store, "r0", {**row, "access_count": 2}))
    before_exchange(2, (store / TYPE / "r0.json").unlink)
    assert statuses(provider.patch([suppress("r0", {"access_count": 1})])) == ["gone"]
    assert not (store / TYPE / "r0.json").exists()
    assert no_temps(store)


def test_a_stale_write_that_takes_ours_away_is_answered(store, provider, monkeypatch):
    """An agent read before our write and wrote after it: ours is put back on top of its write, once per time."""
    row = read(store, "r0")
    real = files.StoreLock.hold
    times = 0

    @contextlib.contextmanager
    def hold(lock: files.StoreLock) -> Iterator[float]:
        nonlocal times
        with real(lock) as leave_at:
            yield leave_at
        times += 1
        if times <= 2:
            replace_as_agent(store, "r0", {**row, "x_agent": times})

    monkeypatch.setattr(files.StoreLock, "hold", hold)
    assert statuses(provider.patch([suppress("r0", {"access_count": 1})])) == ["applied"]
    assert read(store, "r0") == {**row, "x_agent": 2, "retention_state": "suppressed"}
    assert times == 3


def test_a_stale_write_after_which_the_condition_fails_is_left(store, provider, monkeypatch):
    row = read(store, "r0")
    real = files.StoreLock.hold

    @contextlib.contextmanager
    def hold(lock: files.StoreLock) -> Iterator[float]:
        with real(lock) as leave_at:
            yield leave_at
        replace_as_agent(store, "r0", {**row, "access_count": 2})

    monkeypatch.setattr(files.StoreLock, "hold", hold)
    assert statuses(provider.patch([suppress("r0", {"access_count": 1})])) == ["changed"]
    assert read(store, "r0") == {**row, "access_count": 2}


def test_temp_files_cleared_away_by_others_are_written_again(store, provider, before_exchange):
    def clear() -> None:
        for path in (store / TYPE).glob("*.tmp"):
            path.unlink()
        for path in (store / TYPE).glob(".*.tmp"):
            path.unlink()

    before_exchange(1, clear)
    assert statuses(provider.patch([suppress("r0")])) == ["applied"]
    assert read(store, "r0")["retention_state"] == "suppressed"


def test_without_exchange_the_write_is_a_rename(store, provider, monkeypatch):
    """Where the system cannot exchange files, what was deleted before the last look stays deleted still."""
    monkeypatch.setattr(files, "_renameat2", None)
    real = files.replace

    def replace(folder: int, temp: str, name: str) -> None:
        if name == "r1.json":
            (store / TYPE / name).unlink()
        real(folder, temp, name)

    monkeypatch.setattr(files, "replace", replace)
    assert statuses(provider.patch([suppress("r0"), suppress("r1")])) == ["applied", "gone"]
    assert read(store, "r0")["retention_state"] == "suppressed"
    assert statuses(provider.insert(TYPE, [{"_id": "n1"}, {"_id": "r0"}])) == ["applied", "already"]
    assert no_temps(store)


def test_without_exchange_a_write_before_the_lock_is_seen(store, provider, monkeypatch):
    """Prepared on one version, landed on the next: what the agent wrote before we had the lock is in it."""
    monkeypatch.setattr(files, "_renameat2", None)
    row = read(store, "r0")
    real = files.StoreLock.hold

    @contextlib.contextmanager
    def hold(lock: files.StoreLock) -> Iterator[float]:
        with real(lock) as leave_at:
            replace_as_agent(store, "r0", {**row, "x_agent": 1})
            replace_as_agent(store, "r1", {**row, "_id": "r1", "access_count": 2})
            yield leave_at

    monkeypatch.setattr(files.StoreLock, "hold", hold)
    outcomes = provider.patch([suppress(name, {"access_count": 1}) for name in ("r0", "r1")])
    assert statuses(outcomes) == ["applied", "changed"]
    assert read(store, "r0") == {**row, "x_agent": 1, "retention_state": "suppressed"}


KILLED = """
import os, sys
from fallow.model.keys import MISSING
from fallow.port.protocol import Patch
from fallow.model.keys import RecordKey
from fallow.providers import filesystem_files as files
from fallow.providers.filesystem import FilesystemProvider
root, step, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
real = getattr(files, step)
def counted(*args, **options):
    global turns
    turns -= 1
    if turns < 0:
        os.kill(os.getpid(), 9)
    return real(*args, **options)
setattr(files, step, counted)
provider = FilesystemProvider(root, snapshot=False)
provider.patch([Patch(RecordKey("summaries", f"r{n}"), {"note": MISSING}, {"note": n}) for n in range(5)])
provider.insert("summaries", [{"_id": f"n{n}", "note": n} for n in range(5)])
"""


#: After how many calls of each step the run is killed.
KILL_POINTS = {"write_temp": (2, 8, 10), "exchange": (0, 3), "remove": (0, 2), "place": (0, 3)}


@pytest.mark.parametrize(
    ("step", "turns"),
    [(step, turn) for step, turns in KILL_POINTS.items() for turn in turns],
)
def test_killed_at_any_point_nothing_is_half_written(store, step, turns):
    """TRAPS 25 at the provider: each file is the old or the new one, and a second run ends the work."""
    (store / files.LOCK_NAME).touch()
    index = store / TYPE / "index.json"
    index.write_text('{"version": 1, "items": {}}')
    ran = subprocess.run([sys.executable, "-c", KILLED, str(store), step, str(turns)], timeout=60)
    assert ran.returncode == -9
    for number in range(5):
        assert read(store, f"r{number}").get("note", number) == number
    for path in (store / TYPE).glob("*.json"):
        json.loads(path.read_bytes())
    provider = FilesystemProvider(store, snapshot=False)
    batches = list(provider.scan(TYPE, ["record_id"]))
    assert not [bad for batch in batches for bad in batch.unreadable]
    patches = [Patch(key(f"r{n}"), {"note": MISSING}, {"note": n}) for n in range(5)]
    assert set(statuses(provider.patch(patches))) <= {"applied", "changed"}
    assert set(statuses(provider.insert(TYPE, [{"_id": f"n{n}", "note": n} for n in range(5)]))) <= {
        "applied",
        "already",
    }
    assert [read(store, f"{kind}{n}")["note"] for kind in "rn" for n in range(5)] == [*range(5), *range(5)]
    assert set(json.loads(index.read_bytes())["items"]) == {f"n{n}" for n in range(5)}


# The lock


def test_the_lock_is_the_agents_and_is_created_for_them(store, provider):
    assert not (store / files.LOCK_NAME).exists()
    provider.patch([suppress("r0")])
    assert (store / files.LOCK_NAME).read_bytes() == b""
    connection = sqlite3.connect(store / files.LOCK_NAME, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for write in (
            lambda: provider.patch([suppress("r1")]),
            lambda: provider.insert(TYPE, [{"_id": "n1"}]),
            lambda: provider.touch_many(TYPE, ["r1"], NOW),
        ):
            with pytest.raises(StoreBusyError):
                write()
    finally:
        connection.close()
    assert "retention_state" not in read(store, "r1")
    assert not (store / TYPE / "n1.json").exists()
    assert no_temps(store)
    assert statuses(provider.patch([suppress("r1")])) == ["applied"]


def test_the_lock_is_left_free_between_two_holdings(store, monkeypatch):
    """STORES.md: for a tenth of a second at least, and as long as it was held; across calls too."""
    monkeypatch.setattr(files, "MAX_HOLD", 0.0)
    real = files.StoreLock.hold
    held: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def hold(lock: files.StoreLock) -> Iterator[float]:
        with real(lock) as leave_at:
            began = time.monotonic()
            if len(held) == 1:
                time.sleep(0.3)
            yield leave_at
            ended = time.monotonic()
        held.append((began, ended))

    monkeypatch.setattr(files.StoreLock, "hold", hold)
    provider = FilesystemProvider(store, snapshot=False)
    assert statuses(provider.patch([suppress(f"r{number}") for number in range(3)])) == ["applied"] * 3
    assert statuses(provider.insert(TYPE, [{"_id": "n1"}])) == ["applied"]
    assert len(held) == 4
    for (began, ended), (taken, _) in itertools.pairwise(held):
        assert taken - ended >= max(0.1, ended - began)


# What the system refuses


def test_one_record_that_the_store_refuses(store, provider):
    """TRAPS 34: nine applied, the fourth listed with the system's reason, and its file whole."""
    big = put(store, TYPE, "big", {"content": "x" * 300_000}).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        outcomes = provider.patch([suppress(name) for name in ("r0", "r1", "r2", "big", "r3", "r4")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert statuses(outcomes) == ["applied"] * 3 + ["failed"] + ["applied"] * 2
    assert outcomes[3].detail == "file too large"
    assert (store / TYPE / "big.json").read_bytes() == big
    assert no_temps(store)


def test_a_store_that_refuses_every_write(public_folder):
    with unprivileged():
        put(public_folder, TYPE, "r0")
        put(public_folder, TYPE, "r1")
        put(public_folder, "entity_memory", "e0")
        provider = FilesystemProvider(public_folder, snapshot=False)
        (public_folder / TYPE).chmod(0o500)
        with pytest.raises(StoreUnwritableError, match="permission denied"):
            provider.patch([suppress("r0"), suppress("r1"), suppress("absent")])
        with pytest.raises(StoreUnwritableError, match="permission denied"):
            provider.insert(TYPE, [{"_id": "n1"}])
        mixed = provider.patch([suppress("r0"), Patch(RecordKey("entity_memory", "e0"), {}, {"a": 1})])
        assert statuses(mixed) == ["failed", "applied"]
        assert mixed[0].detail == "permission denied"
        public_folder.chmod(0o500)
        with pytest.raises(StoreUnwritableError):
            provider.insert("agents", [{"_id": "n1"}])
        (public_folder / files.LOCK_NAME).chmod(0o400)
        with pytest.raises(StoreUnwritableError):
            provider.patch([Patch(RecordKey("entity_memory", "e0"), {}, {"a": 2})])
        public_folder.chmod(0o700)
        assert read(public_folder, "e0", "entity_memory")["a"] == 1
        assert no_temps(public_folder)


def test_a_file_keeps_its_owner_and_new_ones_belong_to_the_stores(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("giving files to another user needs root")
    put(tmp_path, TYPE, "r0")
    for path in (tmp_path, tmp_path / TYPE, tmp_path / TYPE / "r0.json"):
        os.chown(path, 12345, 23456)
    (tmp_path / TYPE).chmod(0o770)
    provider = FilesystemProvider(tmp_path, snapshot=False)
    provider.patch([suppress("r0")])
    provider.insert(TYPE, [{"_id": "n1"}])
    provider.insert("shared_memory", [{"_id": "n2"}])
    for name in ("summaries/r0.json", "summaries/n1.json", "shared_memory", "shared_memory/n2.json", files.LOCK_NAME):
        status = (tmp_path / name).stat()
        assert (status.st_uid, status.st_gid) == (12345, 23456), name
    assert (tmp_path / TYPE / "n1.json").stat().st_mode & 0o777 == 0o660


def test_temp_files_of_killed_runs_are_cleared_by_a_later_write(store):
    """Only ours, only old, and by the time in their names: a file exchanged out keeps its own."""
    folder = store / TYPE
    hour_ago = time.time_ns() - 3_700 * 1_000_000_000
    old, young = folder / f".fallow-{hour_ago:x}-1-1.tmp", folder / f".fallow-{time.time_ns():x}-1-1.tmp"
    others = [folder / "agent.json.tmp", folder / ".fallow-zz.tmp", folder / f".fallow-{hour_ago:x}-1-1.json"]
    for path in (old, young, *others):
        path.write_text("{}")
        os.utime(path, (1, 1))
    FilesystemProvider(store, snapshot=False).patch([suppress("r0")])
    assert not old.exists()
    assert all(path.exists() for path in (young, *others))


# Inserting


def test_inserted_rows_are_whole_once_and_in_the_index(fs_store):
    """SPEC §5.2, STORES.md: both ids, unescaped, in the agents' listing; a second insert changes nothing."""
    provider = FilesystemProvider(fs_store, snapshot=False)
    before = state(fs_store)
    rows = [
        {"_id": "sum-1", "content": "café", "memory_id": "m", "created_at": 1.5, "agent_id": "a", "thread_id": "t"},
        {"_id": "sum 2", "content": "日本", "embedding": [0.5], "timestamp": "2026-01-01T00:00:00Z"},
    ]
    assert statuses(provider.insert(TYPE, rows)) == ["applied", "applied"]
    assert (fs_store / TYPE / "sum-1.json").read_bytes().startswith('{"_id": "sum-1", "content": "café"'.encode())
    assert read(fs_store, "sum 2")["id"] == "sum 2"
    after = state(fs_store)
    assert changed_files(before, after) == {"summaries/index.json", "summaries/sum-1.json", "summaries/sum 2.json"}
    old = json.loads(before["summaries/index.json"][2])
    new = json.loads(after["summaries/index.json"][2])
    assert new["version"] == 1
    nothing = ("name", "memory_id", "user_id", "agent_id", "owner_agent_id", "application_id", "thread_id")
    blank = dict.fromkeys(nothing) | {"observation_scope_version": 1, "has_embedding": False}
    assert new["items"] == {
        **old["items"],
        "sum-1": blank | {"id": "sum-1", "memory_id": "m", "agent_id": "a", "timestamp": 1.5, "thread_id": "t"},
        "sum 2": blank | {"id": "sum 2", "timestamp": "2026-01-01T00:00:00Z", "has_embedding": True},
    }
    again = provider.insert(TYPE, [{**rows[0], "content": "other"}, rows[1], {"_id": "sum-3"}, {"_id": "sum-3"}])
    assert statuses(again) == ["already", "already", "applied", "already"]
    assert read(fs_store, "sum-1")["content"] == "café"


def test_index_items_are_those_that_agents_write(fs_store):
    """Each line of the fixture's indexes follows from its row as ours would."""
    compared = 0
    for path in fs_store.glob("*/index.json"):
        for record_id, item in json.loads(path.read_bytes())["items"].items():
            row = json.loads((path.parent / f"{record_id}.json").read_bytes())
            assert index_item(row, record_id) == item, (path.parent.name, record_id)
            compared += 1
    assert compared > 400


def test_an_index_that_lost_a_row_to_a_crash_is_mended_by_the_second_call(store, provider):
    """Killed between the row and the index: the retry answers `already` and agents see the row."""
    (store / TYPE / "index.json").write_text('{"version": 1, "later": [1, 2], "items": {"r0": {"id": "r0"}}}')
    put(store, TYPE, "n1", {"memory_id": "as stored"})
    assert statuses(provider.insert(TYPE, [{"_id": "n1", "memory_id": "as sent"}])) == ["already"]
    index = json.loads((store / TYPE / "index.json").read_bytes())
    assert index["later"] == [1, 2]
    assert index["items"]["r0"] == {"id": "r0"}
    assert index["items"]["n1"]["memory_id"] == "as stored"
    written = (store / TYPE / "index.json").stat().st_mtime_ns
    provider.insert(TYPE, [{"_id": "n1"}])
    assert (store / TYPE / "index.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("index", [None, b"{torn", b"[]", b'{"version": 2, "items": {}}', b'{"version": 1}'])
def test_an_index_that_is_missing_or_not_valid_is_left_to_the_agent(store, provider, index):
    path = store / TYPE / "index.json"
    if index is not None:
        path.write_bytes(index)
    assert statuses(provider.insert(TYPE, [{"_id": "n1"}])) == ["applied"]
    assert (path.read_bytes() if path.exists() else None) == index


def test_an_index_with_bare_nan_is_valid_to_agents_and_kept(store, provider):
    (store / TYPE / "index.json").write_text('{"version": 1, "items": {"r0": {"timestamp": NaN}}}')
    assert statuses(provider.insert(TYPE, [{"_id": "n1"}])) == ["applied"]
    items = json.loads((store / TYPE / "index.json").read_bytes())["items"]
    assert set(items) == {"r0", "n1"}
    assert math.isnan(items["r0"]["timestamp"])


def test_rows_that_cannot_be_stored_are_refused_one_by_one(store, provider):
    """TRAPS 48: before any file is touched."""
    before = sorted(store.rglob("*"))
    rows = [*({"_id": name} for name in UNSAFE_IDS), {"_id": 5}, {}, {"_id": "nan", "x": math.nan}]
    outcomes = provider.insert(TYPE, rows)
    assert statuses(outcomes) == ["failed"] * len(rows)
    assert all("invalid record id" in outcome.detail for outcome in outcomes[:-1])
    assert statuses(provider.insert("../up", [{"_id": "a"}])) == ["failed"]
    assert sorted(path for path in store.rglob("*") if path.name != files.LOCK_NAME) == before
    assert not (store.parent / "up").exists()
    assert statuses(provider.insert(TYPE, [{"_id": "é" * 125}])) == ["applied"]


def test_two_inserts_of_one_id_at_once(store):
    """SPEC §5.2: exactly one is applied."""
    results: list[list[str]] = []

    def insert(number: int) -> None:
        provider = FilesystemProvider(store, snapshot=False)
        rows = [{"_id": f"n{row}", "content": str(number)} for row in range(8)]
        results.append(statuses(provider.insert(TYPE, rows)))

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row in range(8):
        assert sorted(result[row] for result in results) == ["already", "already", "already", "applied"]


# Recalls


def test_touching(store, provider):
    """SPEC §4: one more access, a later time, never an earlier one; suppressed and gone are reported."""
    put(store, TYPE, "later", {"last_accessed_at": "2027-01-01T00:00:00Z", "access_count": 3, "updated_at": "x"})
    put(store, TYPE, "hidden", {"metadata": {"retention_state": "Suppressed"}})
    put(store, TYPE, "fresh")
    put(store, TYPE, "other-names", {"last_recalled_at": "2026-05-01T00:00:00Z", "recall_count": 7})
    put(store, TYPE, "bad", {"access_count": "many"})
    before = state(store)
    names = ["later", "hidden", "absent", "fresh", "other-names", "bad", "../x"]
    outcomes = provider.touch_many(TYPE, names, NOW)
    assert statuses(outcomes) == ["applied", "changed", "gone", "applied", "applied", "applied", "failed"]
    assert outcomes[1].detail == "suppressed"
    later = {"last_accessed_at": "2027-01-01T00:00:00Z", "access_count": 4, "updated_at": "x"}
    assert read(store, "later") == {"_id": "later", "id": "later", **later}
    assert (read(store, "fresh")["access_count"], read(store, "fresh")["last_accessed_at"]) == (
        1,
        "2026-12-01T00:00:00Z",
    )
    assert read(store, "other-names")["access_count"] == 8
    assert read(store, "bad")["access_count"] == 1
    touched = {f"summaries/{name}.json" for name in ("later", "fresh", "other-names", "bad")}
    assert changed_files(before, state(store)) == touched


def test_touches_at_once_are_all_counted(store):
    """SPEC §4: atomic per record."""
    statuses_seen: list[str] = []

    def touch(number: int) -> None:
        provider = FilesystemProvider(store, snapshot=False)
        for turn in range(3):
            statuses_seen.extend(statuses(provider.touch_many(TYPE, ["r0", "r1", "r0"], NOW + 10 * number + turn)))

    threads = [threading.Thread(target=touch, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses_seen == ["applied"] * 27
    assert read(store, "r0")["access_count"] == 1 + 18
    assert read(store, "r1")["access_count"] == 1 + 9
    assert parse_time(read(store, "r0")["last_accessed_at"]) == NOW + 22


# Purging the cache


def test_purging_removes_what_still_is_as_expected_and_only_that(fs_store, monkeypatch):
    """SPEC §11: by condition, out of the index too; an entry renewed at the last moment stays."""
    provider = FilesystemProvider(fs_store, snapshot=False)
    entries = {row["_id"]: row for row in provider.find("semantic_cache")}
    one, two, three, four = sorted(entries)
    before = state(fs_store)
    expected = {
        one: {"created_at": entries[one].get("created_at", MISSING), "absent": MISSING},
        two: {"created_at": "another"},
        "absent": {},
        "../agents/x": {},
        three: {"hit_count": entries[three].get("hit_count", MISSING)},
    }
    real = os.rename

    def rename(source, target, **options) -> None:
        if source == f"{three}.json":
            path = fs_store / "semantic_cache" / source
            temp = path.with_suffix(".tmp")
            temp.write_text(json.dumps({**entries[three], "hit_count": 99}))
            temp.replace(path)
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)
    outcomes = provider.purge_cache(expected)
    assert [outcome.key.record_id for outcome in outcomes] == list(expected)
    assert statuses(outcomes) == ["applied", "changed", "gone", "failed", "changed"]
    assert {row["_id"] for row in provider.find("semantic_cache")} == {two, three, four}
    assert read(fs_store, three, "semantic_cache")["hit_count"] == 99
    index = json.loads((fs_store / "semantic_cache" / "index.json").read_bytes())
    assert set(index["items"]) == {two, three, four}
    assert changed_files(before, state(fs_store)) == {
        f"semantic_cache/{name}" for name in ("index.json", f"{one}.json", f"{three}.json")
    }
    assert no_temps(fs_store)


def test_no_primary_record_can_be_purged(fs_store):
    provider = FilesystemProvider(fs_store, snapshot=False)
    ids = {row["_id"]: {} for memory_type in PRIMARY_TYPES for row in provider.find(memory_type)}
    before = state(fs_store)
    assert set(statuses(provider.purge_cache(ids))) == {"gone"}
    assert state(fs_store) == before
