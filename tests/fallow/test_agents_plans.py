"""Plans of the agents' own control plane, and events that it passes over, without MemoRizz at hand (TRAPS 62)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.repair_events import REQUIRED, repair_events
from fallow.acting.restore import plan_keys
from fallow.cli import main
from fallow.model.errors import PlanNotFoundError
from fallow.model.keys import RecordKey
from fallow.model.settings import RetentionConfig
from fallow.port.journal import SHARED, content_of, content_text
from fallow.port.protocol import Patch, Provider
from fallow.port.registry import open_provider
from fallow.usecases.drift import find_drift
from fallow.usecases.planner import RetentionPlanner
from tests.fallow.small_stores import CONVERSATION, NOW, key, record, store, tree

PLAN = "forget-plan-" + "0" * 27 + "1"
AT = "2026-11-30T08:00:00.000001+00:00"
HIDDEN = {
    "retention_state": "suppressed",
    "suppressed_by": PLAN,
    "suppressed_at": AT,
    "suppression_approver": "ann",
    "suppressed_from": "active",
}


def tombstone(record_id: str, **fields: Any) -> dict[str, Any]:
    """A row as MemoRizz writes one for each record that a plan of its own suppressed."""
    content = {
        "record_type": "learning_tombstone",
        "agent_id": "gardener",
        "plan_id": PLAN,
        "target_id": record_id,
        "target_type": CONVERSATION,
        "approved_by": "ann",
        "approved_at": AT,
        "operator_reason": "old",
        "reversible": True,
        **fields,
    }
    row_id = f"learn-tomb-{record_id}"
    return {"_id": row_id, "memory_id": row_id, "record_type": "learning_tombstone", "content": json.dumps(content)}


def make_old(provider: Provider) -> None:
    """Events as earlier releases wrote them: without a stream."""
    for row in list(provider.find(SHARED, "learn-evt-")):
        content = {name: value for name, value in content_of(row).items() if name != "stream_id"}
        patch = Patch(RecordKey(SHARED, row["_id"]), {}, {"content": content_text(content)})
        assert provider.patch([patch])[0].status == "applied"


def test_what_agents_own_plans_suppressed_is_no_drift_and_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [record("r0", **HIDDEN), record("r1", **HIDDEN), record("other")]
    with store(tmp_path / "s", *rows, shared_memory=[tombstone("r0"), tombstone("r1")]) as provider:
        report = find_drift(provider, now=NOW)
        assert (report.findings, report.by_agents) == ([], 2)
        assert plan_keys(provider, PLAN) == [key("r0"), key("r1")]
    place = str(tmp_path / "s")
    main(["plans", "--store", place])
    assert "applied by MemoRizz" in capsys.readouterr().out
    main(["show", PLAN, "--store", place, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["applied_by"], shown["approved_by"], len(shown["entries"])) == ("MemoRizz", "ann", 2)
    assert main(["restore", "--plan", PLAN, "--approved-by", "bea", "--store", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["restored"] == ["r0", "r1"]


def test_a_tombstone_clears_only_what_it_names(tmp_path: Path) -> None:
    """Another record, another approver, or a suppression that no row tells of is drift as before."""
    rows = [record("r0", **{**HIDDEN, "suppression_approver": "Eve"}), record("r1", **HIDDEN)]
    with store(tmp_path / "s", *rows, shared_memory=[tombstone("r0")]) as provider:
        kinds = [(item.kind, item.key) for item in find_drift(provider, now=NOW).findings]
        assert kinds == [("other_approver", key("r0")), ("suppressed_without_plan", key("r1"))]
        assert plan_keys(provider, PLAN) == [key("r0"), key("r1")]
        with pytest.raises(PlanNotFoundError):
            plan_keys(provider, "forget-plan-" + "9" * 28)


def test_a_restore_that_the_record_itself_tells_of_is_no_drift(tmp_path: Path) -> None:
    with store(tmp_path / "s", *[record(f"r{n}") for n in range(3)]) as provider:
        planner = RetentionPlanner(provider, "", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        planner.apply(plan, approved_by="ann", reason="old", count=3, now=NOW + 60_000_000)
        back = {"retention_state": "active", "unsuppressed_by": "zoe"}
        times = {"r0": "2026-12-02T00:00:00+00:00", "r1": "2026-11-01T00:00:00+00:00"}
        provider.patch([Patch(key(name), {}, {**back, "unsuppressed_at": at}) for name, at in times.items()])
        report = find_drift(provider, now=NOW)
        assert report.restored_by_agents == 1
        assert [(item.kind, item.key) for item in report.findings] == [("restored_not_in_journal", key("r1"))]


def test_repair_says_what_it_will_write_and_writes_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with store(tmp_path / "s", *[record(f"r{n}") for n in range(3)]) as provider:
        planner = RetentionPlanner(provider, "gardener", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        planner.apply(plan, approved_by="ann", reason="old", count=3, now=NOW + 60_000_000)
        assert repair_events(provider).found == []
        right = {row["_id"]: row["content"] for row in provider.find(SHARED, "learn-evt-")}
        assert all(json.loads(text).get(name) for text in right.values() for name in REQUIRED)
        make_old(provider)
    place = str(tmp_path / "s")
    before = tree(tmp_path / "s")
    assert main(["repair-events", "--store", place]) == 0
    assert tree(tmp_path / "s") == before
    said = capsys.readouterr().out
    assert plan.plan_id in said
    assert "stream_id" in said
    assert main(["repair-events", "--write", "--store", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 2
    repaired = tree(tmp_path / "s")
    assert main(["repair-events", "--write", "--store", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema_version": 1, "count": 0, "events": [], "written": 0, "failed": {},
    }  # fmt: skip
    assert tree(tmp_path / "s") == repaired
    with open_provider(place) as provider:
        assert {row["_id"]: row["content"] for row in provider.find(SHARED, "learn-evt-")} == right
        assert find_drift(provider, now=NOW + 120_000_000).findings == []
