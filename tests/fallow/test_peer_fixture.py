"""Our plans against the answers recorded from MemoRizz on the same filesystem store (issue A1; STORES.md, end)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fallow.model.arguments import instant
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from fallow.model.scoring import RetrievalScoring
from fallow.model.settings import RetentionConfig
from fallow.model.times import parse_time
from fallow.port.registry import open_provider
from fallow.usecases.planner import RetentionPlanner
from fallow.usecases.sample import sample_rows
from fallow.usecases.suppressed import suppressed_records
from tests.conftest import FIXTURE_NAIVE_TIMEZONE, write_as_agent
from tests.fallow.peer import Rows, differences, raw_rows, score_differences


def read_raw(root: Path) -> Rows:
    return raw_rows(
        (name, path.stem, json.loads(path.read_text()))
        for name in PRIMARY_TYPES
        for path in (root / name).glob("*.json")
        if path.name != "index.json"
    )


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.json")}


@pytest.fixture
def expected(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "fixtures" / "expected-fs.json").read_text())


def test_every_recorded_scenario_differs_only_as_stores_md_lists(fs_store: Path, expected: dict[str, Any]) -> None:
    rows = read_raw(fs_store)
    as_of = instant(expected["now"])
    found: dict[str, list[str]] = {}
    with open_provider(str(fs_store), FIXTURE_NAIVE_TIMEZONE) as provider:
        for number, scenario in enumerate(expected["scenarios"]):
            problems = differences(provider, scenario, rows, as_of) + score_differences(provider, scenario, rows, as_of)
            if problems:
                found[f"{number} {scenario['name']} {scenario['agent_id']} {scenario['memory_ids']}"] = problems
    assert len(expected["scenarios"]) == 32
    assert not found


def tame(row: dict[str, Any]) -> bool:
    """MemoRizz's own planner ends with an error on an infinite access count (TRAPS 42)."""
    return all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def test_the_same_holds_on_a_small_store_of_our_own(tmp_path: Path) -> None:
    """The answers were recorded from MemoRizz 0.17.16 on the sample store, without rows that it cannot plan."""
    recorded = json.loads((Path(__file__).parent / "recorded" / "sample_plans.json").read_text())
    as_of = instant(recorded["now"])
    sample = sample_rows(now=as_of, conversations=4)
    write_as_agent(tmp_path / "s", {name: [row for row in rows if tame(row)] for name, rows in sample.items()})
    rows = read_raw(tmp_path / "s")
    with open_provider(str(tmp_path / "s")) as provider:
        for scenario in recorded["scenarios"]:
            assert len(scenario["candidates"]) >= 17
            assert differences(provider, scenario, rows, as_of) == [], scenario["name"]
        suppressed = {(item["memory_type"], item["record_id"]) for item in recorded["scenarios"][0]["suppressed"]}
        assert {(item.memory_type, item.record_id) for item in suppressed_records(provider)} == suppressed


def test_ten_of_the_default_candidates_are_cited_elsewhere(fs_store: Path, expected: dict[str, Any]) -> None:
    """The comparison can fail: without citations across types the plan would be theirs, 58 entries."""
    scenario = expected["scenarios"][0]
    config = RetentionConfig(**scenario["retention"])
    with open_provider(str(fs_store), FIXTURE_NAIVE_TIMEZONE) as provider:
        plan = RetentionPlanner(provider, "", config, RetrievalScoring(**scenario["scoring"])).plan(
            as_of=instant(expected["now"])
        )
    assert (len(scenario["candidates"]), len(plan.entries), plan.counts["protected"]["cited"]) == (58, 48, 10)


def test_the_suppressed_view_is_theirs(fs_store: Path, expected: dict[str, Any]) -> None:
    with open_provider(str(fs_store)) as provider:
        for scenario in expected["scenarios"]:
            if scenario["suppressed"] is None:
                continue
            theirs = {
                (item["memory_type"], item["record_id"], item["suppressed_by"], item["approver"], item["reason"])
                for item in scenario["suppressed"]
            }
            scope = Scope(
                agent_id=scenario["agent_id"] or None,
                memory_ids=None if scenario["memory_ids"] is None else tuple(scenario["memory_ids"]),
            )
            ours = {
                (item.memory_type, item.record_id, item.suppressed_by, item.approver, item.reason)
                for item in suppressed_records(provider, scope)
            }
            assert ours == theirs, scenario["name"]


def test_planning_changes_no_record_and_adds_its_own_rows_once(fs_store: Path, expected: dict[str, Any]) -> None:
    """SPEC §1.3, TRAPS 16."""
    before = tree(fs_store)
    as_of = parse_time(expected["now"])
    ids = set()
    with open_provider(str(fs_store), FIXTURE_NAIVE_TIMEZONE) as provider:
        for _ in range(3):
            ids.add(RetentionPlanner(provider, "").plan(as_of=as_of).plan_id)
    after = tree(fs_store)
    assert len(ids) == 1
    assert {name: data for name, data in after.items() if name in before and "shared_memory/index" not in name} == {
        name: data for name, data in before.items() if "shared_memory/index" not in name
    }
    added = sorted(name for name in after if name not in before)
    assert [name.split("/")[1].split("-")[0] for name in added] == ["fallow", "fallow", "learn"]
