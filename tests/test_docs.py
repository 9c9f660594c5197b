"""Examples in the docs run, links resolve, and the reference pages are current."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from fallow.model.times import wall_clock
from fallow.usecases.sample import sample_rows
from tests.conftest import REPOSITORY, write_as_agent

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
#: Pages whose examples are one story, run by a test of their own.
ELSEWHERE = {
    "agent-loop.md": "tests/fallow/test_agent_loop.py",
    "langgraph.md": "tests/plugins/test_langgraph_example.py",
}
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


@pytest.mark.parametrize("script", ["docs/reference.py", "docs/structure.py"])
def test_the_pages_made_from_the_code_are_current(script: str) -> None:
    command = [sys.executable, script, "--check"]
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


def blocks(page: str) -> list[str]:
    """A page's shell blocks, in order."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)


def test_the_tutorial_followed_literally_works(tmp_path: Path) -> None:
    """Block by block, in one shell session and a fresh home, as a person pastes them: ``forget-plan-…`` and ``N`` are
    the id and the number that the plan before them has printed."""
    (tmp_path / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FALLOW_", "PREFECT_", "XDG_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**kept, "HOME": str(tmp_path / "home"), "PATH": path, "NO_COLOR": "1"}
    plan_id = number = ""
    exported, told = "", []
    for block in blocks("tutorial.md"):
        text = block.replace("forget-plan-…", plan_id or "forget-plan-…").replace("--count N", f"--count {number}")
        assert "…" not in text, block
        done = subprocess.run(
            ["bash", "-euc", exported + text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        exported += "".join(re.findall(r"^export .*\n", block, re.M))
        told.append(done.stdout)
        if found := re.findall(r"forget-plan-[0-9a-f]{28}", done.stdout) if "retention-plan" in block else []:
            plan_id = plan_id or found[0]
            number = number or re.findall(r": (\d+) of \d+ records would be suppressed", done.stdout)[0]
    everything = "\n".join(told)
    for promised in ("WIDE", "eligible", "not eligible: pinned", f"{int(number) - 1} suppressed now", "restored"):
        assert promised in everything, promised


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """Links, anchors, navigation and the Python reference: a warning is a failure."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install -c constraints.txt --group docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    assert "RetentionPlanner" in api
    assert "blast_radius" in api, "docstrings stand in the Python reference"
    remote = [
        (path.relative_to(tmp_path).as_posix(), address)
        for path in (tmp_path / "site").rglob("*.html")
        for address in re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\" >]+)", path.read_text("utf-8")
        )
    ]
    assert not remote, "the site loads nothing from other hosts"


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install -c constraints.txt --group docs")
    for name in ("docs", "fallow"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / name, tmp_path)
    with (tmp_path / "docs" / "limits.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr


def test_every_page_stands_in_the_navigation() -> None:
    listed = re.findall(r"[\w-]+\.md", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {path.name for path in (REPOSITORY / "docs").glob("*.md")}
    assert there == set(listed)
    assert len(listed) == len(set(listed))
    assert yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["strict"] is True


def test_the_index_leads_to_every_page() -> None:
    text = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "docs").glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in text, path.name
    assert "](docs/index.md)" in (REPOSITORY / "README.md").read_text(encoding="utf-8")
