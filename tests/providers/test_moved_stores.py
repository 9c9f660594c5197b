"""A store that was moved or restored from a backup: all of it reads, every way back works (SPEC §7.3, TRAPS 70)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.apply import apply_plan
from fallow.acting.deciding import decide
from fallow.acting.holds import active_holds
from fallow.acting.restore import plan_keys
from fallow.cli import main
from fallow.model.errors import OtherStoreError
from fallow.model.settings import ApprovalConfig, RetentionConfig
from fallow.plans.storage import load_plan, stored_plan
from fallow.port.registry import open_provider
from fallow.usecases.certificate import certificate_text, certify, verify
from fallow.usecases.drift import find_drift
from fallow.usecases.planner import RetentionPlanner
from tests.fallow.small_stores import NOW, record, store, tree
from tests.providers import test_parity as four

MINUTE = 60_000_000


class Moved:
    """A provider of the same rows under another identity: another folder, host, database or data source."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def identity(self) -> str:
        return "moved:" + self._provider.identity()


@pytest.mark.parametrize(
    "opened", [four.filesystem, four.notion, four.mongo, four.oracle], ids=lambda kind: kind.__name__
)
def test_what_was_applied_is_read_and_taken_back_on_every_store_trap_70(
    tmp_path: Path, request: pytest.FixtureRequest, opened: Any
) -> None:
    with opened(tmp_path, request) as provider:
        for memory_type, rows in four.data_set().items():
            provider.insert(memory_type, rows)
        planner = RetentionPlanner(provider, "", RetentionConfig())
        plan = planner.plan(as_of=four.NOW, now=four.NOW)
        count = len(plan.entries)
        planner.apply(plan, approved_by="ann", reason="old", count=count, now=four.NOW + MINUTE)
        waiting = planner.plan(as_of=four.NOW - 1, now=four.NOW + MINUTE)

        moved: Any = Moved(provider)
        assert load_plan(moved, plan.plan_id).store_identity == provider.identity()
        assert stored_plan(moved, plan.plan_id, four.NOW).state == "applied"
        assert active_holds(moved, four.NOW) == ()
        certificate = certify(moved, plan.plan_id, now=four.NOW + MINUTE)
        assert certificate["store"]["identity"] == provider.identity()
        assert certificate["store"]["read_on"] == moved.identity()
        assert verify(certificate_text(certificate).encode()).problems == []
        assert find_drift(moved, now=four.NOW + MINUTE).findings == []
        assert len(plan_keys(moved, plan.plan_id)) == count
        for verdict in ("approved",):
            with pytest.raises(OtherStoreError, match="can be restored here"):
                decide(
                    moved, waiting.plan_id, verdict=verdict, approved_by="ann", approval=ApprovalConfig(), now=four.NOW
                )  # fmt: skip
        with pytest.raises(OtherStoreError):
            apply_plan(moved, plan.plan_id, now=four.NOW + MINUTE)
        back = RetentionPlanner(moved, "", RetentionConfig()).restore_plan(
            plan.plan_id, approved_by="bea", reason="back", now=four.NOW + 2 * MINUTE
        )
        assert (len(back.restored), back.failed, back.skipped) == (count, {}, {})


def test_a_copied_folder_says_whose_plan_it_was_trap_70(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with store(tmp_path / "s", *[record(f"r{n}") for n in range(3)]) as provider:
        planner = RetentionPlanner(provider, "", RetentionConfig())
        plan = planner.plan(as_of=NOW, now=NOW)
        planner.apply(plan, approved_by="ann", reason="old", count=3, now=NOW + MINUTE)
        first = provider.identity()
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    place = str(tmp_path / "copy")
    before = tree(tmp_path / "copy")
    for words in (["show", plan.plan_id], ["certificate", plan.plan_id], ["explain", "r0"], ["drift"]):
        assert main([*words, "--store", place]) == 0, words
        shown = capsys.readouterr()
        assert words[0] not in {"show", "certificate"} or first in shown.out + shown.err, words
    assert tree(tmp_path / "copy") == before
    assert main(["restore", "--plan", plan.plan_id, "--approved-by", "bea", "--store", place, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["restored"] == ["r0", "r1", "r2"]
    with open_provider(place) as provider:
        assert find_drift(provider, now=NOW).findings == []
