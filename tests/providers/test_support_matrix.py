"""docs/support-matrix.md says what the kit finds: on folders each time, on every backend with --long (SPEC §12)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from fallow.providers.conformance import CHECKS, GAPS

from tests.conftest import REPOSITORY
from tests.providers.backends import backend

PAGE = REPOSITORY / "docs" / "support-matrix.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("support_matrix", REPOSITORY / "docs" / "support_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def columns(script: ModuleType) -> dict[str, dict[str, str]]:
    """The page read back: by store and check, what stands there."""
    names = {script.cell(check.holds): name for name, check in CHECKS.items()}
    found: dict[str, dict[str, str]] = {store: {} for store in script.BEHIND}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        parts = [part.strip() for part in line.removeprefix("| ").removesuffix(" |").split(" | ")]
        if len(parts) == 1 + len(found) and parts[0] in names:
            for store, verdict in zip(found, parts[1:], strict=True):
                found[store][names[parts[0]]] = verdict
    return found


def test_every_check_and_every_gap_stands_in_the_matrix(script: ModuleType) -> None:
    found = columns(script)
    assert all(set(each) == set(CHECKS) for each in found.values()), "python docs/support_matrix.py writes it"
    for store, gaps in GAPS.items():
        assert {name for name, verdict in found[store].items() if verdict == "gap"} == set(gaps), store
    text = PAGE.read_text(encoding="utf-8")
    assert "FAILS" not in text
    assert "GAP CLOSED" not in text


def test_the_column_of_folders_is_what_the_kit_finds_now(script: ModuleType, tmp_path: Path) -> None:
    found = script.verdicts(backend("filesystem", tmp_path))
    assert {name: script.MARK[verdict] for name, verdict in found.items()} == columns(script)["filesystem"]


@pytest.mark.long
def test_the_whole_page_is_current(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0
