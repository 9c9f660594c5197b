"""docs/langgraph.md runs on a real LangGraph graph and a real PostgreSQL, and does what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("langgraph.graph", reason="langgraph is not installed")
pytest.importorskip("langgraph.store.postgres", reason="langgraph-checkpoint-postgres is not installed")

from tests.conftest import REPOSITORY
from tests.servers.postgresql import PostgreSQL

PAGE = (REPOSITORY / "docs" / "langgraph.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SMALL_TALK = {"hi there", "ok thanks", "lol"}
WORTH = {"I decided to move to Lisbon in March", "I am allergic to nuts"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The plug-in in a folder of its own, as pip installs it; nothing is fetched."""
    target = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source") / "project"
    shutil.copytree(REPOSITORY / "plugins" / "fallow-langgraph", source, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sys.path.insert(0, str(target))
    yield target
    sys.path.remove(str(target))


def test_the_page_runs(server: PostgreSQL, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.database("agents") as name:
        monkeypatch.setenv("AGENT_DATABASE", server.address(name))
        module = ModuleType("langgraph_page")
        monkeypatch.setitem(sys.modules, "langgraph_page", module)
        names: dict[str, Any] = vars(module)
        for number, block in enumerate(BLOCKS, 1):
            exec(compile(block, f"docs/langgraph.md, example {number}", "exec"), names)
        assert set(names["before"]) == SMALL_TALK | WORTH
        assert {entry.record_id.split(":")[0] for entry in names["plan"].entries} == {"memories.ann"}
        assert len(names["plan"].entries) == len(SMALL_TALK) + 1
        assert len(names["nuts"]) == 1
        report = names["report"].to_json()
        assert (report["applied"], report["state"]) == (len(SMALL_TALK), "Applied")
        assert set(names["after"]) == WORTH | {"what do you know of me?"}
        assert len(names["back"].restored) == len(SMALL_TALK)
        assert set(names["restored"]) >= SMALL_TALK | WORTH


def test_it_is_found_by_its_entry_point_and_planned_by_the_command_line(server: PostgreSQL, installed: Path) -> None:
    from tests.plugins.langgraph_world import world

    with world(server) as made:
        with made.langgraph() as store:
            store.put(("memories", "u1"), "k1", {"content": "lol", "importance": 0.05})
            store.put(("cache", "a", "b", "c"), "k1", {"content": "no memory"})
        made.age(120)
        code = f"import sys; sys.path.insert(0, {str(installed)!r}); from fallow.cli import main; main()"

        def fallow(*arguments: str) -> str:
            command = [sys.executable, "-c", code, *arguments, "--store", made.uri]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout

        said = fallow("doctor")
        assert "memories.{user_id}" in said
        assert "cache.a.b.c (1)" in said
        assert "memories.u1:k1" in fallow("retention-plan", "--json")
