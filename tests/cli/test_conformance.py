"""The kit from the command line: beside an operator's store, which stays as it is (SPEC §16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.test_commands import document, fallow
from tests.conftest import write_as_agent
from tests.fallow.small_stores import record, tree


def test_the_kit_runs_beside_a_store_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_as_agent(store, {"conversation_memory": [record("r1")], "shared_memory": []})
    before = tree(tmp_path)
    checks = ["true_is_not_one", "one_of_many_writers_wins", "every_spelling_is_read"]
    named = [part for name in checks for part in ("--only", name)]
    told: dict[str, Any] = document("conformance", "--store", store, *named)
    assert (told["state"], [item["verdict"] for item in told["checks"]]) == ("Conforms", ["holds"] * 3)
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert fallow("conformance", "--store", store, "--only", "nothing").returncode == 2
    assert fallow("conformance", "--store", tmp_path / "nowhere").returncode == 1
