"""docs/agent-loop.md runs, and does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fallow.port.registry import open_provider
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "agent-loop.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(sample_store: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's examples leave behind, run one after another."""
    monkeypatch.setenv("FALLOW_STORE", str(sample_store))
    module = ModuleType("agent_loop")
    monkeypatch.setitem(sys.modules, "agent_loop", module)
    names = vars(module)
    for number, block in enumerate(BLOCKS, 1):
        exec(compile(block, f"docs/agent-loop.md, example {number}", "exec"), names)
    return names


def test_the_examples_of_the_agent_loop_run_2(page: dict[str, Any], sample_store: Path) -> None:
    assert len(BLOCKS) == 6
    assert page["problems"] == ()
    assert 1 <= len(page["texts"]) <= 5
    owned = {item["record_id"] for item in page["ledger"]}
    assert len(owned) == len(page["ledger"]) > 20
    assert page["prompt"].count("\n") >= 1
    shown = [(item["source"], item["origin"]["record_id"]) for item in page["chosen"]]
    shown += [(item.metadata["source"], item.metadata["record_id"]) for item in page["documents"]]
    before = {(kind, str(row["_id"])): row for kind, row in page_rows(page, sample_store)}
    for key in shown:
        row = before[key]
        assert row["access_count"] >= shown.count(key)
        assert row.get("retention_state", "active") == "active"


def page_rows(page: dict[str, Any], store: Path) -> Any:
    with open_provider(str(store)) as provider:
        for kind in ("conversation_memory", "knowledge_base", "summaries"):
            for row in provider.find(kind):
                yield kind, row


HOST = """
import sys
from fallow import RetrievalScoring, dedupe_and_select, score_candidates, scoring_for, touch_many
rows = [{"_id": str(n), "content": f"text {n}", "embedding": [n == m for m in range(9)]} for n in range(9)]
before = set(sys.modules)
assert not before & {"numpy", "polars"}
assert len(dedupe_and_select(rows, query_embedding=[1.0] * 9)) == 5
heavy = {"polars", "msgspec", "pydantic", "typer", "prefect", "rich", "stamina", "cryptography", "pandas", "asyncio"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def test_a_host_loads_numpy_and_nothing_heavier_2() -> None:
    done = subprocess.run([sys.executable, "-c", HOST], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
