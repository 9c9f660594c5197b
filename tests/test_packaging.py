"""What is built and what is pinned: the wheel, the constraints, and no address of any host in the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
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
    for name, group in groups.items():
        # The one with a set-up of its own pins itself: it needs other versions than the rest.
        if name != "contract-files":
            named += [item for item in group if isinstance(item, str)]
    return [found for item in named if (found := Requirement(item)).name != "fallow"]


def test_every_dependency_is_pinned_to_a_version_that_fits() -> None:
    versions = pinned()
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is not in constraints.txt"
        assert requirement.specifier.contains(versions[name], prereleases=True), requirement


def test_what_has_a_set_up_of_its_own_pins_itself() -> None:
    (item,) = PROJECT["dependency-groups"]["contract-files"]
    assert [specifier.operator for specifier in Requirement(item).specifier] == ["=="]


def test_constraints_hold_names_and_versions_only() -> None:
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", line), line


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [REPOSITORY / name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def test_no_file_names_a_place_of_one_machine() -> None:
    places = re.compile("|".join(["/ho" + "me/[a-z]", "/wo" + "rk/", "/ro" + "ot/", "/Us" + "ers/"]))
    found = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data[:4096] and (match := places.search(data.decode("utf-8"))):
            found.append(f"{path.relative_to(REPOSITORY)}: {match[0]}")
    assert not found


def test_constraints_and_configuration_hold_no_address() -> None:
    for name in ("constraints.txt", "pyproject.toml", ".ci/run", ".ci/debian-packages"):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        assert "://" not in text, name
        assert not re.search(r"(--index-url|--extra-index-url|--find-links|--trusted-host|^\s*-[if] )", text, re.M), (
            name
        )


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


def test_the_source_distribution_builds_the_same_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t"]
    subprocess.run([*build, "sdist", "-d", str(tmp_path)], cwd=REPOSITORY, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    for name in (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "providers/filesystem.py",
        "tests/conftest.py",
    ):
        assert (source / name).is_file(), name
    assert not (source / ".git").exists()
    contents = []
    for number, folder in enumerate((REPOSITORY, source)):
        subprocess.run(
            [*build, "wheel", "-d", str(tmp_path / str(number))], cwd=folder, check=True, capture_output=True
        )
        (wheel,) = (tmp_path / str(number)).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            contents.append({name: archive.read(name) for name in archive.namelist() if "RECORD" not in name})
    assert contents[0].keys() == contents[1].keys()
    assert contents[0] == contents[1]


def test_every_extra_is_named_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    for extra in PROJECT["project"]["optional-dependencies"]:
        assert f"`{extra}`" in text, extra


def test_constraints_cover_what_is_installed_here() -> None:
    """Every distribution that an extra or group brings, at any depth, is pinned."""
    versions, seen = pinned(), set()
    waiting = [canonicalize_name(item.name) for item in requirements()]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        assert name in versions, f"{name} is installed and not in constraints.txt"
        for item in map(Requirement, needs):
            if item.marker is None or item.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(item.name))


def ci(folder: Path, readme: str) -> subprocess.CompletedProcess[str]:
    """.ci/run of a checkout that holds nothing but a README."""
    (folder / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", folder / ".ci")
    (folder / ".ci" / "debian-packages").write_text("exit 0\n")
    (folder / "README.md").write_text(readme)
    return subprocess.run(
        ["bash", str(folder / ".ci" / "run")], cwd=folder.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("readme", "step", "code"),
    [
        ("## Try it\n```sh\ntrue\nexit 7\n```\n", "README: try it", 7),
        ("## Try it\n```sh\nfalse\ntrue\n```\n", "README: try it", 1),
        ("## Try this\n```sh\ntrue\n```\n", "README: try it", 1),
        ("## Try it\n```sh\ntrue\n```\n", "README: set up and run the tests", 1),
        ("## Try it\n```sh\ntrue\n```\n## Work on it\n```sh\ntrue\n```\n", "lint", 127),
    ],
)
def test_ci_says_which_step_failed(tmp_path: Path, readme: str, step: str, code: int) -> None:
    done = ci(tmp_path, readme)
    assert done.returncode == code
    assert done.stdout.rstrip().endswith(f"!!! failed: {step} (exit {code})")


def test_ci_calls_every_check() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    for command in (
        "debian-packages",
        "ruff check .",
        "ruff format --check .",
        "bin/mypy",
        "lint-imports",
        ".ci/contracts",
    ):
        assert command in script
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


def test_ci_runs_the_readmes_own_commands() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    for heading in ("## Try it", "## Work on it"):
        assert f"\n{heading}\n" in readme
        assert heading in script
    assert ".venv/bin/fallow demo" in readme
    assert ".venv/bin/pytest" in readme
