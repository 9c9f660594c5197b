"""The same records in Notion and in files: the same plan, report and restore (SPEC §12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fallow.providers.filesystem import FilesystemProvider

from fallow.model.settings import RetentionConfig
from fallow.port.protocol import Provider
from fallow.usecases.planner import RetentionPlanner
from fallow.usecases.sample import write_sample_store
from tests.providers.notion_world import NOW, world

MINUTE = 60_000_000


def life(provider: Provider) -> dict[str, Any]:
    """A plan of the whole store, applied with a leave-out, and taken back; all that was said on the way."""
    planner = RetentionPlanner(provider, "", RetentionConfig())
    plan = planner.plan(as_of=NOW, now=NOW)
    left = plan.entries[0].key
    count = len(plan.entries)
    report = planner.apply(plan, approved_by="ann", reason="old", leave_out=[left], count=count, now=NOW + MINUTE)
    hidden = [vars(item) if hasattr(item, "__dict__") else repr(item) for item in planner.suppressed()]
    back = planner.restore_plan(plan.plan_id, approved_by="bea", reason="back", now=NOW + 2 * MINUTE)
    return {
        "plan": plan.plan_id,
        "entries": [(entry.key, entry.fingerprint, entry.reason) for entry in plan.entries],
        "counts": plan.counts,
        "report": report.to_json(),
        "suppressed": hidden,
        "restore": back.to_json(),
    }


@pytest.mark.parametrize("oddities", [False, True])
def test_one_sample_in_notion_and_in_files_lives_the_same_life(tmp_path: Path, oddities: bool) -> None:
    root = tmp_path / "files"
    (root / "agents").mkdir(parents=True)
    with FilesystemProvider(root) as files:
        wrote = write_sample_store(files, now=NOW, conversations=4, oddities=oddities)
        ours = life(files)
    with world(tmp_path / "cache") as notion:
        assert write_sample_store(notion.provider, now=NOW, conversations=4, oddities=oddities) == wrote
        theirs = life(notion.provider)
    assert len(ours["entries"]) > 5
    assert theirs == ours
