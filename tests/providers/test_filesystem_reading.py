"""Reading a filesystem store: everything or an error, nothing followed, nothing touched."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest
from fallow.providers.filesystem import FilesystemProvider

from fallow.model.errors import StoreNotFoundError, StoreUnreadableError
from fallow.model.record import PLANNING_COLUMNS, PRIMARY_TYPES, frame_of, read_record, schema
from fallow.model.times import parse_time, zone
from fallow.port.protocol import CachePurging, Provider, Touching, Unreadable
from fallow.port.registry import open_provider

UNSAFE_IDS = ["../../etc/x", "a/b", "a\\b", "é" * 150, "", ".hidden", "a\0b", "index", "..", "\ud800"]


def put(root: Path, memory_type: str, record_id: str, row: dict | bytes | None = None) -> Path:
    folder = root / memory_type
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record_id}.json"
    if not isinstance(row, bytes):
        row = json.dumps({"_id": record_id, "id": record_id, **(row or {})}).encode()
    path.write_bytes(row)
    return path


def scan(provider: FilesystemProvider, memory_type: str, columns=PLANNING_COLUMNS) -> tuple[pl.DataFrame, dict]:
    batches = list(provider.scan(memory_type, columns))
    frame = pl.concat([batch.frame for batch in batches]) if batches else pl.DataFrame(schema=dict.fromkeys(columns))
    return frame, {bad.key.record_id: bad.reason for batch in batches for bad in batch.unreadable}


@pytest.fixture(params=[False, True], ids=["files", "snapshot"])
def snapshot(request) -> bool:
    return request.param


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """What the file modes forbid is forbidden, also where tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that an unprivileged user reaches and owns."""
    folder = Path(tempfile.mkdtemp(prefix="fallow-test-"))
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    try:
        yield folder
    finally:
        for path in folder.rglob("*"):
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder)


def test_it_fulfils_the_port(tmp_path):
    put(tmp_path, "summaries", "s1")
    provider = FilesystemProvider(tmp_path)
    assert isinstance(provider, Provider)
    assert isinstance(provider, Touching)
    assert isinstance(provider, CachePurging)
    assert provider.capabilities.kind == "filesystem"
    assert not provider.capabilities.drops_owners


@pytest.mark.parametrize("form", ["{path}", "file://{quoted}", "file://localhost{quoted}", "FILE://{quoted}"])
def test_addresses(tmp_path, form):
    """SPEC §16: a path, or file:/// with percent-encoding."""
    root = tmp_path / "ein Speicher%20 é#1?"
    put(root, "summaries", "s1")
    uri = form.format(path=root, quoted=quote(str(root)))
    with open_provider(uri, {"summaries": "Asia/Tokyo"}) as provider:
        assert [row["_id"] for row in provider.find("summaries")] == ["s1"]
        assert provider.naive_timezone == {"summaries": "Asia/Tokyo"}


def test_a_missing_folder_and_one_without_memory_types_are_no_stores(tmp_path):
    (tmp_path / "holiday pictures").mkdir()
    for uri in (tmp_path / "no", tmp_path, f"file://elsewhere{tmp_path}", tmp_path / "f"):
        (tmp_path / "f").touch()
        with pytest.raises(StoreNotFoundError) as caught:
            open_provider(str(uri))
        assert caught.value.hint
    (tmp_path / "agents").mkdir()
    provider = open_provider(str(tmp_path))
    for memory_type in (*PRIMARY_TYPES, "shared_memory"):
        assert list(provider.scan(memory_type, PLANNING_COLUMNS)) == []
        assert list(provider.find(memory_type)) == []
        assert provider.fetch(memory_type, ["a"]) == {}


def test_identity_is_of_this_store_alone(tmp_path):
    """TRAPS 50: a copy is another store, also when it is moved to where the original was."""
    put(tmp_path / "a", "summaries", "s1")
    first = FilesystemProvider(tmp_path / "a").identity()
    assert first == FilesystemProvider(f"{tmp_path}/./a/").identity()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert first == FilesystemProvider(tmp_path / "link").identity()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert FilesystemProvider(tmp_path / "b").identity() != first
    (tmp_path / "a").rename(tmp_path / "old")
    (tmp_path / "b").rename(tmp_path / "a")
    assert FilesystemProvider(tmp_path / "a").identity() != first
    assert str(tmp_path) not in first


def test_what_is_no_record_is_listed_and_the_rest_is_read(tmp_path, snapshot):
    """SPEC §1.2: unreadable files are named with a reason; temp files, index and dotfiles are none at all."""
    put(tmp_path, "summaries", "good")
    put(tmp_path, "summaries", "torn", b'{"_id": "torn", "con')
    put(tmp_path, "summaries", "empty", b"")
    put(tmp_path, "summaries", "list", b"[1, 2]")
    put(tmp_path, "summaries", "other", {"_id": "good"})
    put(tmp_path, "summaries", "back\\slash")
    put(tmp_path, "summaries", "nan", b'{"_id": "nan", "importance": NaN, "embedding": [Infinity, 0.5]}')
    put(tmp_path, "summaries", "no-id", b'{"importance": 0.25}')
    for ignored in ("x.json.tmp", ".hidden.json", "index.json", "notes.txt", ".fallow-1-1-1.tmp"):
        (tmp_path / "summaries" / ignored).write_text("{")
    (tmp_path / "summaries" / "folder.json").mkdir()
    os.mkfifo(tmp_path / "summaries" / "pipe.json")
    outside = tmp_path.parent / "secret.json"
    outside.write_text('{"_id": "link"}')
    (tmp_path / "summaries" / "link.json").symlink_to(outside)
    (tmp_path / "summaries" / "inner.json").symlink_to("good.json")
    (tmp_path / "summaries" / "dangling.json").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/summaries/caf\xe9.json")).write_text("{}")
    provider = FilesystemProvider(tmp_path, snapshot=snapshot)
    for _ in range(2):
        frame, bad = scan(provider, "summaries")
        assert frame["record_id"].to_list() == ["good", "nan", "no-id"]
        assert frame["breaches"].to_list() == [[], ["importance_not_a_number"], []]
        assert set(bad) == {
            *("torn", "empty", "list", "other", "back\\slash", "folder", "pipe"),
            *("link", "inner", "dangling", "caf\\xe9"),
        }
        assert bad["link"] == bad["folder"] == "no regular file"
    assert [row["_id"] for row in provider.find("summaries")] == ["good", "nan", "no-id"]
    fetched = provider.fetch("summaries", ["good", "torn", "link", "other", "absent", "no-id"])
    assert [isinstance(fetched[name], Unreadable) for name in ("good", "torn", "link", "other", "no-id")] == [
        *(False, True, True, True, False)
    ]
    assert "absent" not in fetched


def test_ids_that_would_leave_the_folder_never_reach_the_disk(tmp_path):
    """TRAPS 48."""
    put(tmp_path, "summaries", "a")
    (tmp_path / "summaries" / "a").mkdir()
    put(tmp_path / "summaries" / "a", ".", "b")
    (tmp_path / "summaries" / "index.json").write_text('{"version": 1, "items": {}}')
    (tmp_path.parent / "x.json").write_text('{"_id": "../../x"}')
    provider = FilesystemProvider(tmp_path)
    assert provider.fetch("summaries", [*UNSAFE_IDS, "../../x", "a"]).keys() == {"a"}
    assert list(provider.find("summaries", "../")) == []
    for memory_type in ("../summaries", "", ".", "a/b", "summaries/a"):
        assert list(provider.scan(memory_type, PLANNING_COLUMNS)) == []
        assert provider.fetch(memory_type, ["a", "b"]) == {}


def test_the_old_name_of_the_knowledge_base_is_read_with_it(tmp_path, snapshot):
    """SPEC §1: long_term_memory is knowledge_base; an id in both folders is no record in either."""
    put(tmp_path, "knowledge_base", "new")
    put(tmp_path, "knowledge_base", "both")
    put(tmp_path, "long_term_memory", "old", {"importance": 0.5})
    put(tmp_path, "long_term_memory", "both")
    provider = FilesystemProvider(tmp_path, snapshot=snapshot)
    for memory_type in ("knowledge_base", "long_term_memory", "knowledge_base"):
        frame, bad = scan(provider, memory_type)
        assert frame["record_id"].to_list() == ["new", "old"]
        assert list(bad) == ["both"]
        assert "duplicate id" in bad["both"]
    fetched = provider.fetch("knowledge_base", ["new", "old", "both"])
    assert fetched["old"]["importance"] == 0.5
    assert "duplicate id" in fetched["both"].reason
    assert fetched["both"].key.memory_type == "knowledge_base"
    assert [row["_id"] for row in provider.find("knowledge_base")] == ["new", "old"]


def test_a_file_or_folder_that_cannot_be_read_fails_the_scan(public_folder, snapshot):
    """SPEC §1.4: no plan over part of a scope."""
    with unprivileged():
        put(public_folder, "summaries", "s1")
        secret = put(public_folder, "summaries", "s2")
        provider = FilesystemProvider(public_folder, snapshot=snapshot, cache_dir=public_folder.with_suffix(".cache"))
        secret.chmod(0)
        with pytest.raises(StoreUnreadableError, match=r"summaries/s2\.json.*permission denied"):
            list(provider.scan("summaries", PLANNING_COLUMNS))
        with pytest.raises(StoreUnreadableError, match=r"summaries/s2\.json"):
            provider.fetch("summaries", ["s2"])
        secret.chmod(0o600)
        (public_folder / "summaries").chmod(0)
        with pytest.raises(StoreUnreadableError, match=r"summaries.*permission denied"):
            list(provider.scan("summaries", PLANNING_COLUMNS))
    shutil.rmtree(public_folder.with_suffix(".cache"), ignore_errors=True)


def test_a_file_that_vanishes_while_a_scan_runs_is_gone(tmp_path, monkeypatch):
    from fallow.providers import filesystem_files

    put(tmp_path, "summaries", "s1")
    put(tmp_path, "summaries", "s2")
    real = filesystem_files.list_names

    def list_then_delete(where, folder):
        names = real(where, folder)
        (tmp_path / "summaries" / "s1.json").unlink()
        return names

    monkeypatch.setattr(filesystem_files, "list_names", list_then_delete)
    frame, bad = scan(FilesystemProvider(tmp_path, snapshot=False), "summaries")
    assert frame["record_id"].to_list() == ["s2"]
    assert bad == {}


def test_a_listing_is_complete(tmp_path, snapshot):
    """TRAPS 26: 20 137 rows, every one."""
    folder = tmp_path / "conversation_memory"
    folder.mkdir()
    for number in range(20_137):
        (folder / f"r{number}.json").write_bytes(b'{"_id":"r%d","memory_id":"m%d"}' % (number, number % 7))
    provider = FilesystemProvider(tmp_path, snapshot=snapshot)
    batches = list(provider.scan("conversation_memory", ["record_id", "memory_id"]))
    assert [batch.frame.height for batch in batches] == [10_000, 10_000, 137]
    assert {name for batch in batches for name in batch.frame["record_id"]} == {f"r{n}" for n in range(20_137)}
    assert batches[0].frame.columns == ["record_id", "memory_id"]


def test_scanning_changes_nothing(fs_store, snapshot):
    """SPEC §1.3: not a byte, not a time, not a file more."""

    def state() -> dict[str, tuple]:
        return {
            str(path.relative_to(fs_store)): (
                path.lstat().st_mtime_ns,
                path.lstat().st_ino,
                path.lstat().st_ctime_ns,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in [fs_store, *fs_store.rglob("*")]
        }

    before = state()
    provider = FilesystemProvider(fs_store, snapshot=snapshot)
    for memory_type in (*PRIMARY_TYPES, "shared_memory", "semantic_cache", "agents", "tool_log"):
        list(provider.scan(memory_type, [*PLANNING_COLUMNS, "text"]))
        list(provider.scan(memory_type, PLANNING_COLUMNS))
        provider.fetch(memory_type, [row["_id"] for row in provider.find(memory_type)])
    provider.identity()
    assert state() == before


def test_a_store_that_agents_wrote_reads_as_its_files_say(fs_store, snapshot):
    """Every type of the fixture, against the files read with the standard json."""
    provider = FilesystemProvider(fs_store, {"conversation_memory": "America/New_York"}, snapshot=snapshot)
    columns = list(schema())
    small = [name for name in columns if name not in {"text", "embedding"}]
    for memory_type in (*PRIMARY_TYPES, "semantic_cache"):
        naive = zone("America/New_York" if memory_type == "conversation_memory" else "UTC")
        paths = sorted(path for path in (fs_store / memory_type).glob("*.json") if path.name != "index.json")
        rows = {path.stem: json.loads(path.read_text("utf-8")) for path in paths}
        records = [read_record(rows[stem], memory_type, stem, naive) for stem in sorted(rows)]
        assert scan(provider, memory_type, small)[0].equals(frame_of(records, small))
        texts = scan(provider, memory_type, ["record_id", "text"])[0]
        assert texts.equals(frame_of(records, ["record_id", "text"]))
        vectors = scan(provider, memory_type, ["embedding", "record_id"])[0]
        expected = frame_of(records, ["embedding", "record_id"], [rows[name].get("embedding") for name in sorted(rows)])
        assert vectors.equals(expected)
        assert provider.fetch(memory_type, rows) == rows
        assert list(provider.find(memory_type)) == [rows[name] for name in sorted(rows)]


def test_find_takes_a_prefix_in_order(tmp_path):
    for name in ("fallow-plan-b", "fallow-plan-a", "fallow-decision-a", "other"):
        put(tmp_path, "shared_memory", name)
    provider = FilesystemProvider(tmp_path)
    assert [row["_id"] for row in provider.find("shared_memory", "fallow-plan-")] == ["fallow-plan-a", "fallow-plan-b"]


def test_times_with_offsets_are_instants(tmp_path, snapshot):
    """TRAPS 15, at the reading end."""
    put(tmp_path, "summaries", "s1", {"created_at": "2026-11-30T23:30:00-05:00"})
    frame, _ = scan(FilesystemProvider(tmp_path, snapshot=snapshot), "summaries")
    assert frame["created_at"].to_list() == [parse_time("2026-12-01T04:30:00Z")]


CONTENTS = [
    "plain",
    "x",
    "",
    " ",
    " leading blank",
    "\ttab",
    '{"content": "inside", "retention_state": "sealed"}',
    '{"no": "object',
    "日本",
    "naïve",
    'a "quoted" \\ text\n',
    "\x00 starts with NUL",
    "\ud800 alone",
    "ends with \udc00",
    None,
    7,
    True,
    ["a", "b"],
    [],
    {"content": "nested"},
    {"text": ""},
]


@pytest.mark.parametrize(
    "beside", [{}, {"text": "of text"}, {"name": "Ines", "attributes": [{"name": "a", "value": "b"}]}]
)
def test_texts_are_as_read_record_finds_them_however_the_content_looks(tmp_path, beside):
    folder = tmp_path / "knowledge_base"
    folder.mkdir()
    expected = {}
    for number, content in enumerate(CONTENTS):
        for escaped in (True, False):
            row = {"_id": f"r{number}{escaped}", **beside, "content": content}
            try:
                data = json.dumps(row, ensure_ascii=escaped).encode()
            except UnicodeEncodeError:
                continue
            (folder / f"{row['_id']}.json").write_bytes(data)
            expected[row["_id"]] = read_record(row, "knowledge_base", row["_id"]).text
    frame, bad = scan(FilesystemProvider(tmp_path, snapshot=False), "knowledge_base", ["record_id", "text"])
    assert bad == {}
    assert dict(frame.select("record_id", "text").rows()) == expected
