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

from tests.building import build, copy_of_the_checkout
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
    for name in ("constraints.txt", "pyproject.toml", ".ci/run", ".ci/debian-packages", ".ci/lowest"):
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


#: Folders of the repository that are packages under another place than their own.
ROOMS = {"data_contracts", "deployments", "flows", "providers", "tasks"}


def packages_by_folder() -> set[str]:
    """What the folders say: every folder with Python modules, under the name it is imported by."""
    found = set()
    for room in ("fallow", *sorted(ROOMS)):
        for path in (REPOSITORY / room).rglob("__init__.py"):
            name = ".".join(path.parent.relative_to(REPOSITORY).parts)
            found.add(name if room == "fallow" else f"fallow.{name}")
    return found


def test_the_list_of_packages_is_what_the_folders_are() -> None:
    tool = PROJECT["tool"]["setuptools"]
    assert tool["packages"] == sorted(packages_by_folder())
    assert tool["package-dir"] == {"fallow": "fallow", **{f"fallow.{room}": room for room in sorted(ROOMS)}}
    homeless = [
        path
        for room in ("fallow", *ROOMS)
        for path in (REPOSITORY / room).rglob("*.py")
        if not (path.parent / "__init__.py").is_file()
    ]
    assert homeless == []


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_checkout(tmp_path_factory.mktemp("checkout"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_fallow_alone_and_all_of_it(checkout: Path, tmp_path: Path) -> None:
    files = contents(build("wheel", checkout, tmp_path))
    roots = {name.split("/")[0] for name in files}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"fallow"}
    (metadata,) = (data.decode() for name, data in files.items() if name.endswith("METADATA"))
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in files)
    for extra in PROJECT["project"]["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata
    expected = {"fallow/py.typed"}
    for path in tracked():
        name = path.relative_to(REPOSITORY).as_posix()
        room = name.split("/")[0]
        if path.suffix == ".py" and room in {"fallow", *ROOMS}:
            expected.add(name if room == "fallow" else f"fallow/{name}")
        elif path.name.endswith(".odcs.yaml") or name == "deployments/prefect.yaml":
            expected.add(f"fallow/{name}")
    assert expected <= files.keys()
    assert {name for name in files if name.endswith(".py")} <= expected


def test_the_source_distribution_builds_the_same_wheel(checkout: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", checkout, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    missing = [
        name
        for path in tracked()
        if not (source / (name := path.relative_to(REPOSITORY).as_posix())).is_file() and name != ".gitignore"
    ]
    assert missing == []
    assert not (source / ".git").exists()
    first, second = (contents(build("wheel", folder, tmp_path / folder.name)) for folder in (checkout, source))
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name] and "RECORD" not in name} == set()


def test_an_editable_install_adds_fallow_and_nothing_else(tmp_path: Path) -> None:
    """From another folder: the checkout's own folders are no packages of the environment."""
    names = [*sorted(ROOMS), "tests", "docs", "benchmarks"]
    code = f"from importlib.util import find_spec; print([n for n in {names!r} if find_spec(n)], find_spec('fallow'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] ModuleSpec"), done.stdout


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
        ".ci/tree",
        "bin/mypy",
        "bin/lint-imports",
        ".ci/lowest",
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
