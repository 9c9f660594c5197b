"""Examples in the docs run, links resolve, and the reference pages are current."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fallow.sample import sample_rows
from fallow.times import wall_clock
from tests.conftest import REPOSITORY, write_as_agent

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
#: Pages whose examples are one story, run by a test of their own.
ELSEWHERE = {"agent-loop.md": "tests/fallow/test_agent_loop.py"}
EXAMPLES = [
    (path.name, number, code)
    for path in PAGES
    if path.name not in ELSEWHERE
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S))
]


@pytest.mark.parametrize(("page", "number", "code"), EXAMPLES, ids=[f"{page}-{number}" for page, number, _ in EXAMPLES])
def test_an_example_runs_as_it_stands(page: str, number: int, code: str, tmp_path: Path) -> None:
    """In a folder with a sample store called ``memory``."""
    write_as_agent(tmp_path / "memory", sample_rows(now=wall_clock(), conversations=4))
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{code}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_with_examples_run_somewhere() -> None:
    for page, test in ELSEWHERE.items():
        assert (REPOSITORY / "docs" / page).is_file()
        assert page in (REPOSITORY / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_within_the_repository_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_the_reference_pages_are_current() -> None:
    command = [sys.executable, "docs/reference.py", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_setting_stands_in_the_docs_and_every_command_that_the_docs_show_exists() -> None:
    from fallow.cli.app import app
    from fallow.cli.commands import register

    register(app)
    names = {info.name for info in app.registered_commands}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S):
            for command in re.findall(r"^(?:\S*/)?fallow ([a-z-]+)", block, re.M):
                assert command in names, f"{path.name}: fallow {command}"


def test_the_index_leads_to_every_page() -> None:
    text = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "docs").glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in text, path.name
    assert "](docs/index.md)" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
