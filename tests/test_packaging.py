"""What is built and what is pinned: the wheel, the constraints, and no address of any host in the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def pinned() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> list[Requirement]:
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    named = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        named += extra
    for group in groups.values():
        named += [item for item in group if isinstance(item, str)]
    return [found for item in named if (found := Requirement(item)).name != "fallow"]


def test_every_dependency_is_pinned_to_a_version_that_fits() -> None:
    versions = pinned()
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is not in constraints.txt"
        assert requirement.specifier.contains(versions[name], prereleases=True), requirement


def test_constraints_hold_names_and_versions_only() -> None:
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", line), line


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [REPOSITORY / name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def test_no_lock_file_and_no_registry_host_in_the_repository() -> None:
    assert not [path for path in tracked() if re.search(r"(\.lock|lock\.json|poetry\.lock|uv\.lock)$", path.name)]
    hosts = re.compile("|".join(["pypi" + r"\.org", "files.pythonhosted" + r"\.org", "registry.npmjs" + r"\.org"]))
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [str(path)] if hosts.search(text) else []
    assert not found


def test_the_wheel_holds_fallow_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    roots = {name.split("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"fallow"}
    assert "fallow/py.typed" in names
    assert "License-Expression: Apache-2.0" in metadata
    for extra in PROJECT["project"]["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata


def test_ci_runs_the_readmes_own_commands() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    for heading in ("## Try it", "## Work on it"):
        assert f"\n{heading}\n" in readme
        assert heading in script
    assert ".venv/bin/fallow demo" in readme
    assert ".venv/bin/pytest" in readme
