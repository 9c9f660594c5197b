"""The pages that agents wrote to Notion, read and planned (issue: fixtures; STORES.md, end)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fallow.providers.notion import NotionProvider
from fallow.providers.notion_calls import Clock

from fallow.model.arguments import instant
from fallow.model.record import PLANNING_COLUMNS, PRIMARY_TYPES
from tests.conftest import FIXTURE_NAIVE_TIMEZONE
from tests.fallow.peer import differences, raw_rows, score_differences
from tests.providers.notion_fake import TOKEN, FakeNotion, SteppingClock

COUNTS = {
    "conversation_memory": 210,
    "knowledge_base": 80,
    "entity_memory": 40,
    "summaries": 30,
    "workflow_memory": 50,
    "shared_memory": 65,
    "semantic_cache": 4,
    "agents": 3,
}


@pytest.fixture
def store(shared: Path, tmp_path: Path) -> Iterator[NotionProvider]:
    folder = shared / "fixtures" / "notion"
    fake = FakeNotion()
    pages = [json.loads(line) for line in (folder / "pages.jsonl").read_text().splitlines()]
    for number, page in enumerate(pages):
        # The fixture was written within one minute; a store that lives was not.
        page["last_edited_time"] = f"2026-11-{1 + number // 24:02d}T{number % 24:02d}:00:00.000Z"
    source = fake.load(json.loads((folder / "data_source.json").read_text()), pages)
    clock = SteppingClock()
    with (
        fake.serve() as url,
        NotionProvider(
            source, TOKEN, FIXTURE_NAIVE_TIMEZONE, base_url=url, folder=tmp_path, clock=Clock(clock.now, clock.sleep)
        ) as provider,
    ):
        yield provider


def test_every_page_that_an_agent_wrote_is_readable(store: NotionProvider) -> None:
    for memory_type, count in COUNTS.items():
        batches = list(store.scan(memory_type, PLANNING_COLUMNS))
        assert sum(batch.frame.height for batch in batches) == count
        assert [bad for batch in batches for bad in batch.unreadable] == []
        assert len(list(store.find(memory_type))) == count


def test_every_recorded_scenario_differs_only_as_stores_md_lists(
    store: NotionProvider, shared: Path, request: pytest.FixtureRequest
) -> None:
    """Every fourth scenario; all of them in the long form."""
    expected: dict[str, Any] = json.loads((shared / "fixtures" / "expected-notion.json").read_text())
    rows = raw_rows((name, row["_id"], row) for name in PRIMARY_TYPES for row in store.find(name))
    as_of = instant(expected["now"])
    found: dict[str, list[str]] = {}
    step = 1 if request.config.getoption("--long") else 4
    for number, scenario in list(enumerate(expected["scenarios"]))[::step]:
        problems = differences(store, scenario, rows, as_of) + score_differences(store, scenario, rows, as_of)
        if problems:
            found[f"{number} {scenario['name']} {scenario['agent_id']} {scenario['memory_ids']}"] = problems
    assert len(expected["scenarios"]) == 32
    assert not found
