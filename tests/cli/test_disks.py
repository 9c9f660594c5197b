"""Full and read-only disks: one clear line, exit 1, no record half-written, and the run after it finishes the job."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fallow.cli.app import run
from tests.cli.test_commands import fallow
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, record

PLANNED = 12
MEMORY_TYPE = ("--memory-type", CONVERSATION)


def mount(folder: Path, *options: str) -> None:
    """Mounts a small disk of its own, or skips: only root of a machine may."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs a disk of its own: there is no mount command")
    if done.returncode:
        pytest.skip(f"needs a disk of its own, and mounting one is refused: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB that is gone after the test."""
    folder = tmp_path / "disk"
    mount(folder, "-o", "size=4m")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def document(*arguments: Any) -> dict[str, Any]:
    """What a command says, run in this process: what surrounds the run under test."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert run([*map(str, arguments), "--json"]) == 0, out.getvalue()
    return json.loads(out.getvalue())


def every_file(root: Path) -> dict[str, bytes]:
    """Every file of a store, lock and index and left-overs included."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def fill(folder: Path, but: int) -> Path:
    """Fills a disk until only ``but`` bytes are free."""
    free = os.statvfs(folder)
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * (free.f_bavail * free.f_frsize - but))
    return ballast


def prepared(root: Path, command: str) -> tuple[list[Any], str]:
    """A store just before ``command``: the arguments that run it, and the plan's id."""
    rows = [record(f"r{n}", days=200 + n) for n in range(PLANNED)] + [record("unrated", days=1, importance=None)]
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})
    plan_id = ""
    if command not in {"retention-plan", "backfill-importance", "touch"}:
        plan_id = document("retention-plan", "--store", root)["plan_id"]
    who: list[Any] = ["--approved-by", "Ada", "--store", root]
    if command in {"restore", "unsuppress"}:
        document("retention-apply", plan_id, *who, "--count", PLANNED)
    arguments: dict[str, list[Any]] = {
        "retention-plan": ["--store", root],
        "approve": [plan_id, *who, "--count", PLANNED],
        "reject": [plan_id, *who],
        "retention-apply": [plan_id, *who, "--count", PLANNED],
        "restore": ["--plan", plan_id, *who],
        "unsuppress": ["r1", *MEMORY_TYPE, *who],
        "backfill-importance": ["--store", root],
        "touch": ["r1", *MEMORY_TYPE, "--store", root],
    }
    return [command, *arguments[command]], plan_id


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a run that could not write."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if "recorded as" not in line]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


WRITING = [
    "retention-plan",
    "approve",
    "reject",
    "retention-apply",
    "restore",
    "unsuppress",
    "backfill-importance",
    "touch",
]


@pytest.mark.parametrize("command", WRITING)
def test_a_full_disk_is_one_clear_line_and_nothing_changes_14(disk: Path, command: str) -> None:
    root = disk / "store"
    arguments, _ = prepared(root, command)
    before = every_file(root)
    ballast = fill(disk, but=0)
    line = refused(fallow(*arguments))
    assert "space" in line or "full" in line
    assert every_file(root) == before
    ballast.unlink()
    document(*arguments)


@pytest.mark.parametrize("free", [4096, 12288, 32768])
@pytest.mark.parametrize("command", ["retention-plan", "retention-apply", "restore"])
def test_a_disk_that_fills_up_on_the_way_leaves_whole_files_and_the_next_run_finishes_8_2(
    disk: Path, command: str, free: int
) -> None:
    root = disk / "store"
    arguments, plan_id = prepared(root, command)
    ballast = fill(disk, but=free)
    done = fallow(*arguments)
    assert done.returncode in {0, 1, 5}, done.stderr
    assert "Traceback" not in done.stderr
    for name, data in every_file(root).items():
        if name.endswith(".json"):
            json.loads(data)  # whole, or not there
    ballast.unlink()
    document(*arguments)
    if command == "retention-plan":
        plans = document("plans", "--store", root)["plans"]
        assert plans[-1]["planned"] == PLANNED
        plan_id = plans[-1]["plan_id"]
        assert document("show", plan_id, "--store", root)["counts"]["planned"] == PLANNED
        return
    hidden = {item["record_id"] for item in document("suppressed", "--store", root)["records"]}
    assert len(hidden) == (PLANNED if command == "retention-apply" else 0)
    actions = [row["content"] for row in journal(root) if row["record_type"] == "memory_history_change"]
    expected = PLANNED if command == "retention-apply" else 2 * PLANNED
    assert len(actions) == expected
    events = [row for row in journal(root) if json.loads(row["content"]).get("event_type") == "memory_forgotten"]
    assert len(events) == 1


def journal(root: Path) -> list[dict[str, Any]]:
    folder = root / "shared_memory"
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json") if path.name != "index.json"]


@pytest.mark.parametrize("command", WRITING)
def test_a_read_only_disk_is_one_clear_line_and_nothing_changes_14(disk: Path, command: str) -> None:
    root = disk / "store"
    arguments, _ = prepared(root, command)
    before = every_file(root)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    line = refused(fallow(*arguments))
    assert "read-only" in line.lower() or "readonly" in line.lower()
    assert every_file(root) == before


@pytest.mark.parametrize("command", [["plans"], ["suppressed"], ["explain", "r1"], ["doctor"], ["settings"]])
def test_reading_needs_no_disk_to_write_on_1_3(disk: Path, command: list[str]) -> None:
    root = disk / "store"
    prepared(root, "approve")
    before = every_file(root)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = fallow(*command, "--json", "--store", root)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert json.loads(done.stdout)["schema_version"] == 1
    assert every_file(root) == before


def test_without_a_cache_folder_the_plan_is_the_same_6_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    prepared(root, "touch")
    at = ("retention-plan", "--as-of", "2026-12-01T00:00:00Z", "--store", root)
    cached = document(*at)["plan_id"]
    (tmp_path / "taken").write_text("a file where the cache folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert document(*at)["plan_id"] == cached
