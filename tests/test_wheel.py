"""The wheel alone, on a host that has packages named like the repository's folders (DESIGN §2, SPEC §17).

The environment holds the wheel and what its core dependencies need: no extra, no editable install, no checkout.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.building import build, copy_of_the_checkout
from tests.conftest import REPOSITORY

#: What the host calls packages of its own; each leaves a mark when it is imported, and raises.
HOST_PACKAGES = ("providers", "tasks", "flows", "data_contracts", "deployments", "tests", "docs", "benchmarks")
HOST_MODULE = """\
from pathlib import Path
Path(__file__).with_name("imported").touch()
raise ImportError("a package of the host was imported")
"""
WHERE = """\
import json, fallow
from importlib.metadata import entry_points
groups = ("fallow.providers", "fallow.contracts", "fallow.models", "fallow.kits")
points = [point for group in groups for point in entry_points(group=group)]
print(json.dumps({
    "module": fallow.__file__,
    "places": sorted({str(point.dist.locate_file("")) for point in points}),
    "providers": sorted(point.name for point in points if point.group == "fallow.providers"),
}))
"""


@dataclass(frozen=True, slots=True)
class Host:
    """An environment with the wheel in it, and the folder in which the host works."""

    environment: Path
    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment in the host's folder, whose packages come first on the path."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("FALLOW_", "PYTHON"))}
        clean |= {
            "PYTHONPATH": str(self.folder),
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        program = str(self.environment / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]], cwd=self.folder, env=clean, capture_output=True, text=True, check=False
        )

    def ok(self, *command: str) -> str:
        """What the program says; it must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


def core_files() -> Iterator[Path]:
    """The top-level files and folders of every distribution that the core needs, at any depth, without extras."""
    waiting, seen = ["fallow"], set()
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        found = distribution(name)
        needs = [Requirement(item) for item in found.requires or ()]
        waiting += [item.name for item in needs if item.marker is None or item.marker.evaluate({"extra": ""})]
        if name != "fallow":
            roots = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
            yield from (Path(str(found.locate_file(root))) for root in roots)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The wheel installed as pip installs it, the core's dependencies linked beside it, and a sample store."""
    base = tmp_path_factory.mktemp("host")
    wheel = build("wheel", copy_of_the_checkout(base / "checkout"), base / "dist")
    venv.create(base / "environment", symlinks=True)
    python = base / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (site,) = (base / "environment" / "lib").glob("python*/site-packages")
    for path in core_files():
        if not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    for name in HOST_PACKAGES:
        (base / "work" / name).mkdir(parents=True)
        (base / "work" / name / "__init__.py").write_text(HOST_MODULE, encoding="utf-8")
    made = Host(base / "environment", base / "work")
    assert "rows" in made.ok("fallow", "demo", "--store-only", "--directory", "memory")
    return made


@pytest.fixture(autouse=True)
def _nothing_of_the_host_is_imported(host: Host) -> Iterator[None]:
    for mark in host.folder.glob("*/imported"):
        mark.unlink()
    yield
    assert [mark.parent.name for mark in host.folder.glob("*/imported")] == []


def test_the_hosts_packages_are_what_an_import_would_find(host: Host) -> None:
    """Else the other tests would show nothing."""
    for name in HOST_PACKAGES:
        done = host.run("python", "-c", f"import {name}")
        assert "a package of the host was imported" in done.stderr
        (host.folder / name / "imported").unlink()


def test_code_and_entry_points_are_the_wheels(host: Host) -> None:
    found = json.loads(host.ok("python", "-c", WHERE))
    (place,) = found["places"]
    assert Path(found["module"]).is_relative_to(host.environment)
    assert Path(place).is_relative_to(host.environment)
    assert found["providers"] == ["filesystem", "mongodb", "notion", "oracle"]


def test_the_readmes_library_example(host: Host) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^## As a library\n+```python\n(.*?)^```", readme, re.M | re.S)
    (host.folder / "example.py").write_text(code, encoding="utf-8")
    said = host.ok("python", "example.py")
    assert "below 0.2" in said
    state, applied, skipped = said.splitlines()[-1].split()
    assert (state, skipped) == ("Applied", "{}")
    assert int(applied) > 0


def test_demo_runs_every_step(host: Host) -> None:
    assert "Restored:" in host.ok("fallow", "demo")


def test_contracts_are_found(host: Host) -> None:
    assert "conversation_memory" in host.ok("fallow", "contracts", "--store", "memory", "--json")


def test_a_plan_is_made(host: Host) -> None:
    said = json.loads(host.ok("fallow", "retention-plan", "--store", "memory", "--json"))
    assert said["plan_id"].startswith("forget-plan-")


def test_the_conformance_kit_is_in_it(host: Host) -> None:
    checks = ("identity_is_stable", "a_recall_counts")
    only = [part for check in checks for part in ("--only", check)]
    found = json.loads(host.ok("fallow", "conformance", "--store", "memory", "--json", *only))
    assert found["state"] == "Conforms"
    assert {(item["check"], item["verdict"]) for item in found["checks"]} == {(check, "holds") for check in checks}


def test_a_store_whose_extra_is_missing_says_what_to_install(host: Host) -> None:
    done = host.run("fallow", "plans", "--store", "mongodb://127.0.0.1:1/agents")
    assert done.returncode != 0
    assert "fallow[mongodb]" in done.stderr
    assert "Traceback" not in done.stderr
