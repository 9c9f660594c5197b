"""retention.superseded: what becomes of a fact that another record corrects (SPEC §6.3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallow.acting.apply import apply_plan
from fallow.acting.deciding import decide
from fallow.model.settings import resolve
from fallow.plans.plan import RetentionPlan
from fallow.port.protocol import Provider
from tests.fallow.small_stores import NOW, ids, planned, protected, record, store


def facts() -> list[dict]:
    """A low old fact, a high old fact, their corrections, and an idle record."""
    return [
        record("low", importance=0.1),
        record("high", importance=0.95),
        record("idle", importance=0.05),
        record("low.new", importance=0.9, supersedes="low"),
        record("high.new", importance=0.9, supersedes_id="high", days=40),
    ]


def plan(provider: Provider, superseded: str, **options) -> RetentionPlan:
    return planned(provider, superseded=superseded, min_retention=0.2, **options)


@pytest.mark.parametrize(
    ("superseded", "expected"),
    [("protect", ["idle"]), ("allow", ["idle", "low"]), ("first", ["low", "high", "idle"])],
)
def test_protect_allow_and_first_6_3(tmp_path: Path, superseded: str, expected: list[str]) -> None:
    with store(tmp_path / "s", *facts()) as provider:
        made = plan(provider, superseded)
        assert ids(made) == expected
        assert made.counts["superseded"] == 2
        assert protected(made) == ({"cited": 1} if superseded == "protect" else {})
        assert ("superseded" in made.document["policy"]) is (superseded != "protect")
        decide(
            provider,
            made.plan_id,
            verdict="approved",
            approved_by="Ada",
            count=len(expected),
            approval=resolve({}, environ={}).approval,
            now=NOW,
        )
        report = apply_plan(provider, made.plan_id, now=NOW)
        assert report.applied == len(expected), "applying reads the plan's own policy"


def test_the_default_changes_no_plan_id(tmp_path: Path) -> None:
    with store(tmp_path / "s", *facts()) as provider:
        assert plan(provider, "protect").plan_id == planned(provider, min_retention=0.2).plan_id
        assert plan(provider, "allow").plan_id != planned(provider, min_retention=0.2).plan_id


def test_first_waits_for_the_grace_period_and_for_every_other_protection_6_3(tmp_path: Path) -> None:
    rows = [
        record("young", days=5, importance=0.9),
        record("pinned", pinned=True),
        record("built on", importance=0.9),
        record("a", importance=0.9, supersedes=["young", "pinned"]),
        record("b", importance=0.9, supersedes="built on", source_ids=["built on"]),
    ]
    with store(tmp_path / "s", *rows) as provider:
        assert ids(plan(provider, "first")) == []
        assert ids(plan(provider, "allow")) == []


def test_a_suppressed_successor_supersedes_nothing_and_rings_neither_6_3(tmp_path: Path) -> None:
    rows = [
        record("old", importance=0.9),
        record("new", importance=0.9, supersedes="old", retention_state="suppressed"),
        record("one", importance=0.9, supersedes="two"),
        record("two", importance=0.9, supersedes="one"),
    ]
    with store(tmp_path / "s", *rows) as provider:
        made = plan(provider, "first")
    assert ids(made) == []
    assert made.counts["superseded"] == 0


def test_of_a_chain_only_the_newest_stays_6_3(tmp_path: Path) -> None:
    rows = [
        record("v1", importance=0.9),
        record("v2", importance=0.9, supersedes="v1"),
        record("v3", importance=0.9, supersedes="v2"),
    ]
    with store(tmp_path / "s", *rows) as provider:
        made = plan(provider, "first")
    assert sorted(ids(made)) == ["v1", "v2"]
    assert "a newer record supersedes it" in made.entries[0].reason


def test_a_conversations_minimum_holds_for_outdated_rows_too(tmp_path: Path) -> None:
    rows = [record("v1", importance=0.9), record("v2", importance=0.9, supersedes="v1")]
    with store(tmp_path / "s", *rows) as provider:
        assert ids(plan(provider, "first", keep_per_conversation=2)) == []
        assert ids(plan(provider, "first", keep_per_conversation=1)) == ["v1"]
