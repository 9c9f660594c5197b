"""Options, and the stores that tests work on.

Tests never touch anything of the machine they run on: settings of the person running them are taken out of
the environment, and caches go to a temporary folder.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fallow.model.arguments import instant
from fallow.usecases.sample import sample_rows
from tests.prefect_server import prefect_api, prefect_server  # noqa: F401  # fixtures for every room

REPOSITORY = Path(__file__).resolve().parent.parent
#: When the stores in the shared fixtures were planned by the agents' own planner.
FIXTURE_AS_OF = "2026-03-01T12:00:00Z"
#: When the year of the sample stores ends.
SAMPLE_NOW = "2026-12-01T00:00:00Z"
#: The zone in which the fixture's naive creation times were written.
FIXTURE_NAIVE_TIMEZONE = {
    "conversation_memory": "America/New_York",
    "knowledge_base": "America/New_York",
    "workflow_memory": "America/New_York",
}


def shared_folder() -> Path | None:
    """The folder of specifications and fixtures: FALLOW_SHARED, else ``shared`` beside the repository."""
    named = os.environ.get("FALLOW_SHARED")
    folder = Path(named) if named else REPOSITORY.parent / "shared"
    return folder if folder.is_dir() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", default=False, help="also run the long forms of the tests")


def pytest_configure(config: pytest.Config) -> None:
    for name in [name for name in os.environ if name.startswith(("MEMORIZZ_", "FALLOW_"))]:
        if name != "FALLOW_SHARED":
            del os.environ[name]
    os.environ.pop("PREFECT_API_URL", None)


def pytest_report_header(config: pytest.Config) -> str:
    if shared_folder() is None:
        return "shared: NOT FOUND; the tests against stores that agents wrote will skip (set FALLOW_SHARED)"
    return "shared: found"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_long = None if config.getoption("--long") else pytest.mark.skip(reason="a long form: run with --long")
    browser = shutil.which("chromium")
    skip_browser = None if browser else pytest.mark.skip(reason="chromium is not installed: run .ci/debian-packages")
    for item in items:
        if skip_long is not None and "long" in item.keywords:
            item.add_marker(skip_long)
        if skip_browser is not None and "browser" in item.keywords:
            item.add_marker(skip_browser)


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots and other caches go to a temporary folder of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared folder; a test that needs it skips without it."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("needs the folder 'shared' beside the repository, or FALLOW_SHARED naming it")
    return folder


@pytest.fixture
def make_fs_store(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A function that unpacks the filesystem store an agent wrote under the given name in tmp_path."""

    def make(name: str = "fs_store") -> Path:
        target = tmp_path / name
        unpacking = tmp_path / f"{name}.unpacking"
        with tarfile.open(shared / "fixtures" / "fs_store.tar.gz") as archive:
            archive.extractall(unpacking, filter="data")
        (unpacking / "fs_store").rename(target)
        unpacking.rmdir()
        return target

    return make


@pytest.fixture
def fs_store(make_fs_store: Callable[[str], Path]) -> Path:
    """One copy of the filesystem store that an agent wrote, to read and to change."""
    return make_fs_store("fs_store")


def write_as_agent(root: Path, rows_by_type: dict[str, list[dict[str, Any]]]) -> None:
    """Writes rows into a filesystem store the way agents do, bare NaN and index included (STORES.md).

    Independent of fallow's provider, so that the two can be held against each other.
    """
    root.mkdir(parents=True, exist_ok=True)
    (root / ".index-lock.sqlite3").touch()
    for memory_type, rows in rows_by_type.items():
        folder = root / memory_type
        folder.mkdir(exist_ok=True)
        items = {}
        for row in rows:
            key = row["_id"]
            text = json.dumps({**row, "id": key}, ensure_ascii=False, indent=2)
            (folder / f"{key}.json").write_text(text, encoding="utf-8")
            scope = ("name", "memory_id", "user_id", "agent_id", "owner_agent_id", "application_id", "thread_id")
            items[key] = {
                "id": key,
                **{name: row.get(name) for name in scope},
                "observation_scope_version": 1,
                "timestamp": row.get("timestamp"),
                "has_embedding": bool(row.get("embedding")),
            }
        (folder / "index.json").write_text(json.dumps({"version": 1, "items": items}, ensure_ascii=False), "utf-8")


@pytest.fixture
def make_sample_store(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a sample store under the given name in tmp_path; options as for sample_rows."""

    def make(name: str = "sample", *, now: str = SAMPLE_NOW, conversations: int = 4, **options: Any) -> Path:
        root = tmp_path / name
        write_as_agent(root, sample_rows(now=instant(now), conversations=conversations, **options))
        return root

    return make


@pytest.fixture
def sample_store(make_sample_store: Callable[..., Path]) -> Path:
    """A small sample store of our own, one year that ends at SAMPLE_NOW; every kind of record is in it."""
    return make_sample_store()


@pytest.fixture(scope="session")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a MongoDB server, one for all tests of a session."""
    from tests.servers.mongodb import mongodb_server

    with mongodb_server(tmp_path_factory.mktemp("mongodb")) as address:
        yield address


@pytest.fixture(scope="session")
def oracle() -> Iterator[Any]:
    """What stands in for Oracle, one for all tests of a session; skips where PostgreSQL is missing."""
    from tests.servers.oracle_standin import oracle_standin

    with oracle_standin() as standin:
        yield standin
