"""Drift: what was done past fallow is found, what fallow and agents do is not drift (SPEC §9, §10)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.apply import apply_plan
from fallow.acting.deciding import decide, sign_decision
from fallow.acting.restore import restore_records
from fallow.acting.signatures import add_operator, make_key, operators_text, public_text, revoke_operator
from fallow.model.settings import ApprovalConfig
from fallow.model.times import MICROSECONDS_PER_HOUR
from fallow.plans.events import forgotten_key
from fallow.port.journal import change_id, event_id
from fallow.port.protocol import Provider
from fallow.usecases.drift import find_drift
from tests.fallow.small_stores import CONVERSATION, NOW, key, planned, record, store, tree

HOUR = MICROSECONDS_PER_HOUR
ADA = make_key()
OPERATORS = add_operator((), "Ada", public_text(ADA), now=NOW)
SIGNED = ApprovalConfig(operators=operators_text(OPERATORS))


class World:
    """A store in which a signed plan over r0 to r3 was applied, r1 left out, r2 restored."""

    def __init__(self, provider: Provider, root: Path) -> None:
        self.provider, self.root = provider, root
        plan = planned(provider)
        self.plan_id = plan.plan_id
        asked: dict[str, Any] = {"verdict": "approved", "approved_by": "Ada", "leave_out": ["r1"]}
        token = sign_decision(provider, plan.plan_id, **asked, key=ADA, now=NOW)
        decide(provider, plan.plan_id, **asked, approval=SIGNED, now=NOW, signature=token)
        apply_plan(provider, plan.plan_id, now=NOW + HOUR, approval=SIGNED)
        restore_records(provider, [key("r2")], approved_by="Ada", reason="needed", now=NOW + 2 * HOUR)

    def edit(self, name: str, folder: str = CONVERSATION, **fields: Any) -> None:
        path = self.root / folder / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def edit_content(self, name: str, **fields: Any) -> None:
        path = self.root / "shared_memory" / f"{name}.json"
        row = json.loads(path.read_text())
        path.write_text(json.dumps({**row, "content": json.dumps({**json.loads(row["content"]), **fields})}))

    def remove(self, name: str, folder: str = "shared_memory") -> None:
        (self.root / folder / f"{name}.json").unlink()

    def kinds(self, approval: ApprovalConfig | None = SIGNED) -> dict[str, int]:
        before = tree(self.root)
        kinds: dict[str, int] = find_drift(self.provider, now=NOW + 3 * HOUR, approval=approval).to_json()["kinds"]
        assert tree(self.root) == before
        return kinds


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    rows = [record(f"r{n}") for n in range(4)] + [record("kept", importance=0.9)]
    with store(tmp_path / "s", *rows) as provider:
        yield World(provider, tmp_path / "s")


def test_what_fallow_and_agents_do_is_no_drift_10(world: World) -> None:
    assert world.kinds() == {}
    world.edit("r0", access_count=7, x_custom=1)
    world.edit("r2", content="another text")
    world.remove("r3", CONVERSATION)
    report = find_drift(world.provider, now=NOW + 3 * HOUR, approval=SIGNED)
    assert report.findings == []
    assert (report.plans, report.suppressed, report.journalled, report.gone) == (1, 1, 3, 1)


SUPPRESSED = {"retention_state": "suppressed", "suppressed_at": "2026-12-01T01:00:00+00:00"}
DRIFT: dict[str, Callable[[World], Any]] = {
    "suppressed_without_plan": lambda w: w.edit("kept", **SUPPRESSED),
    "suppressed_not_in_plan": lambda w: w.edit("kept", **SUPPRESSED, suppressed_by=w.plan_id),
    "suppressed_not_in_journal": lambda w: w.remove(change_id("suppress", w.plan_id, key("r0"))),
    "other_approver": lambda w: w.edit("r0", suppression_approver="Eve"),
    "unsuppressed_behind_our_back": lambda w: w.edit("r0", retention_state="active"),
    "restored_not_in_journal": lambda w: w.edit("r0", retention_state="active", unsuppressed_at="2026-12-01T02:00:00Z"),
    "event_and_journal_differ": lambda w: w.edit_content(
        event_id(forgotten_key(w.plan_id)), payload={"outcome": "Applied", "tombstoned": 2, "suppressed_digest": "0"}
    ),
    "plan_altered": lambda w: w.edit_content(f"fallow-plan-{w.plan_id[12:]}", expires_at="2036-01-01T00:00:00Z"),
    "approval_does_not_hold": lambda w: w.edit_content(f"fallow-decision-{w.plan_id[12:]}-0000", reason="other"),
    "suppressed_without_approval": lambda w: w.remove(f"fallow-decision-{w.plan_id[12:]}-0000"),
}


@pytest.mark.parametrize("kind", DRIFT)
def test_what_was_done_past_fallow_is_found_10(world: World, kind: str) -> None:
    DRIFT[kind](world)
    assert kind in world.kinds()


def test_a_plan_by_nobody_we_know_and_a_left_out_record_are_found_10(world: World) -> None:
    world.edit("kept", **SUPPRESSED, suppressed_by="forget-plan-" + "0" * 28)
    world.edit("r1", **SUPPRESSED, suppressed_by=world.plan_id)
    assert world.kinds() == {"suppressed_without_plan": 1, "suppressed_not_in_plan": 1}


def test_a_revoked_key_is_found_where_operators_are_registered_7(world: World) -> None:
    revoked = ApprovalConfig(operators=operators_text(revoke_operator(OPERATORS, "Ada", now=NOW + HOUR)))
    assert world.kinds(revoked) == {"approval_does_not_hold": 1}
    assert world.kinds(None) == {}


def test_a_record_restored_before_the_plan_reached_its_end_is_no_drift_49(tmp_path: Path) -> None:
    """TRAPS.md 49: killed, a human restores r1, applied to its end; the event rightly counts one record less."""
    from tests.crash.child import Points, Watched

    with store(tmp_path / "s", *(record(f"r{n}") for n in range(12))) as provider:
        plan = planned(provider)
        decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="Ada",
            count=12,
            approval=ApprovalConfig(),
            now=NOW,
        )
        watched: Any = Watched(provider, Points(None))

        def die(done: int, _all: int) -> None:
            if done == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            apply_plan(watched, plan.plan_id, now=NOW, progress=die)
        hidden = next(entry.record_id for entry in plan.entries)
        restore_records(provider, [key(hidden)], approved_by="Ada", reason="", now=NOW + HOUR)
        report = apply_plan(provider, plan.plan_id, now=NOW + 2 * HOUR)
        assert (report.applied, report.already, report.skipped) == (8, 3, {"restored": [hidden]})
        assert find_drift(provider, now=NOW + 3 * HOUR).findings == []
