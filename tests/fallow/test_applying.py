"""What is applied, skipped and restored: SPEC §7-§9, and TRAPS.md's rows about them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.apply import ApplyReport, apply_plan
from fallow.acting.deciding import decide
from fallow.acting.restore import plan_keys, restore_records
from fallow.model.errors import (
    ApprovalRefusedError,
    OtherStoreError,
    PlanAlteredError,
    PlanExpiredError,
    PlanNotFoundError,
    PlanStateError,
)
from fallow.model.keys import RecordKey
from fallow.model.settings import ApprovalConfig
from fallow.model.times import MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import list_plans, load_plan, stored_plan
from fallow.port.protocol import Outcome, Patch, Provider
from fallow.port.registry import open_provider
from fallow.usecases.suppressed import suppressed_records
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, days_ago, ids, key, planned, protected, record, store, tree

HOUR = MICROSECONDS_PER_HOUR


class Behind:
    """A provider with something done just before one of its calls: what another process does meanwhile."""

    def __init__(self, provider: Provider, *, before: dict[str, Callable[[Sequence[Any]], None]]) -> None:
        self._provider, self._before = provider, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
        if "patch" in self._before:
            self._before["patch"](patches)
        return self._provider.patch(patches)

    def insert(self, memory_type: str, rows: Sequence[dict[str, Any]]) -> list[Outcome]:
        if "insert" in self._before:
            self._before["insert"](rows)
        return self._provider.insert(memory_type, rows)


def path_of(root: Path, record_id: str, memory_type: str = CONVERSATION) -> Path:
    return root / memory_type / f"{record_id}.json"


def read(root: Path, record_id: str, memory_type: str = CONVERSATION) -> dict[str, Any]:
    return json.loads(path_of(root, record_id, memory_type).read_text())


def edit(root: Path, record_id: str, **fields: Any) -> None:
    """What an agent's own update does to a record's file."""
    path_of(root, record_id).write_text(json.dumps({**read(root, record_id), **fields}, ensure_ascii=False, indent=2))


def approve(provider: Provider, plan: RetentionPlan, *, now: int = NOW, leave_out: Sequence[str] = ()) -> None:
    count = len(plan.entries) if plan.wide else None
    arguments = {"approved_by": "Ada", "reason": "spring", "leave_out": leave_out, "count": count}
    decide(provider, plan.plan_id, verdict="approved", approval=ApprovalConfig(), now=now, **arguments)


def approve_and_apply(provider: Provider, plan: RetentionPlan, **options: Any) -> ApplyReport:
    approve(provider, plan, **options)
    return apply_plan(provider, plan.plan_id, now=NOW + HOUR)


def control(root: Path, record_type: str) -> list[dict[str, Any]]:
    rows = [json.loads(path.read_text()) for path in (root / "shared_memory").glob("*.json") if path.stem != "index"]
    return [json.loads(row["content"]) for row in rows if row.get("record_type") == record_type]


def test_six_changes_since_planning_are_six_skips_with_six_reasons_trap_22(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}", days=90 + n) for n in range(1, 11)]) as provider:
        plan = planned(provider)
        assert len(plan.entries) == 10
        edit(root, "r1", access_count=50, last_accessed_at=days_ago(0))
        edit(root, "r2", content="something else")
        with_citation = record("s1", days=0, source_message_ids=["r3"])
        write_as_agent(root, {"summaries": [with_citation]})
        edit(root, "r4", pinned=True)
        path_of(root, "r5").unlink()
        edit(root, "r6", retention_state="suppressed", suppressed_by="forget-plan-" + "0" * 28)
        report = approve_and_apply(provider, plan)
        assert report.skipped == {
            "recalled": ["r1"],
            "edited": ["r2"],
            "newly cited": ["r3"],
            "pinned": ["r4"],
            "gone": ["r5"],
            "suppressed": ["r6"],
        }
        assert (report.applied, report.state) == (4, "Applied")
        assert {item.record_id for item in suppressed_records(provider)} == {"r6", "r7", "r8", "r9", "r10"}
        assert not path_of(root, "r5").exists()


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("re-rated", {"importance": 0.2}),
        ("re-rated", {"importance": None}),
        ("verified", {"verified": True}),
        ("sealed", {"retention_state": "sealed"}),
        ("recalled", {"access_count": 1}),
        ("recalled", {"last_accessed_at": days_ago(80)}),
        ("pinned", {"tags": ["pinned"]}),
        ("pinned", {"metadata": {"pinned": "yes"}}),
        ("edited", {"parent_id": "r2"}),
        ("edited", {"content": ""}),
        ("restored", {"unsuppressed_at": days_ago(1), "unsuppressed_by": "Bob"}),
        ("suppressed", {"retention_state": "suppressed"}),
        ("quarantined", {"retention_state": "on holiday"}),
    ],
)
def test_every_part_of_what_a_decision_rested_on_skips_when_it_changes_8_1(tmp_path: Path, reason, change) -> None:
    root = tmp_path / "s"
    with store(root, record("r1"), record("r2", days=2, importance=0.9)) as provider:
        plan = planned(provider)
        edit(root, "r1", **change)
        before = tree(root / CONVERSATION)
        report = approve_and_apply(provider, plan)
        assert report.skipped == {reason: ["r1"]}
        assert tree(root / CONVERSATION) == before


@pytest.mark.parametrize(
    "change",
    [
        {"x_custom": {"deep": [1, None, "é"]}},
        {"updated_at": days_ago(0)},
        {"embedding": [0.5, 0.25]},
        {"access_count": None, "recall_count": 0},
        {"last_accessed": None},
        {"tags": ["garden"]},
        {"importance": "0.1"},
    ],
)
def test_what_the_decision_did_not_rest_on_may_change_and_is_kept_trap_23(tmp_path: Path, change) -> None:
    root = tmp_path / "s"
    with store(root, record("r1")) as provider:
        plan = planned(provider)
        edit(root, "r1", **change)
        before = read(root, "r1")
        assert approve_and_apply(provider, plan).applied == 1
        after = read(root, "r1")
        assert {name: after[name] for name in before} == before
        assert set(after) - set(before) == {
            "retention_state",
            "suppressed_by",
            "suppressed_at",
            "suppression_reason",
            "suppression_approver",
            "suppression_note",
            "suppressed_from",
        }
        assert (after["suppressed_from"], after["suppressed_by"]) == ("active", plan.plan_id)


def test_records_appended_between_plan_and_apply_change_nothing_trap_23(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, record("r1"), record("r2", days=91)) as provider:
        plan = planned(provider)
        write_as_agent(root, {CONVERSATION: [record("r1"), record("r2", days=91), record("r3", days=300)]})
        edit(root, "r2", access_count=1)
        report = approve_and_apply(provider, plan)
        assert (report.applied, report.skipped) == (1, {"recalled": ["r2"]})
        assert "retention_state" not in read(root, "r3")


def test_a_record_deleted_between_reading_and_writing_stays_deleted_trap_24(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(1, 7)]) as provider:
        plan = planned(provider)
        approve(provider, plan)
        behind = Behind(provider, before={"patch": lambda _: path_of(root, "r5").unlink(missing_ok=True)})
        report = apply_plan(behind, plan.plan_id, now=NOW)
        assert (report.applied, report.skipped) == (5, {"gone": ["r5"]})
        assert not path_of(root, "r5").exists()
        assert "r5" not in {row["target_record_id"] for row in control(root, "memory_history_change")}


def test_a_change_between_reading_and_writing_is_decided_again_8_1(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(1, 7)]) as provider:
        plan = planned(provider)
        approve(provider, plan)
        changes = iter([("r1", {"access_count": 9}), ("r2", {"x_custom": 1})])

        def meanwhile(_: Sequence[Patch]) -> None:
            for record_id, fields in changes:
                edit(root, record_id, **fields)

        report = apply_plan(Behind(provider, before={"patch": meanwhile}), plan.plan_id, now=NOW)
        assert (report.applied, report.skipped, report.failed) == (5, {"recalled": ["r1"]}, {})
        assert (read(root, "r2")["x_custom"], read(root, "r2")["retention_state"]) == (1, "suppressed")


class Killed(BaseException):
    """Stands for a process that ends at this line."""


def dies_after(calls: int) -> Callable[[Any], None]:
    left = [calls]

    def die(_: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1

    return die


@pytest.mark.parametrize("where", ["patch", "insert"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_apply_that_died_is_completed_by_running_it_again_trap_25(tmp_path: Path, monkeypatch, where, after) -> None:
    """Ten records in chunks of three; the process dies between any two calls on the store."""
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(10)]) as provider:
        plan = planned(provider)
        approve(provider, plan)
        small = Behind(provider, before={where: dies_after(after)})
        import fallow.acting.apply

        real = fallow.acting.apply.chunks
        monkeypatch.setattr(fallow.acting.apply, "chunks", lambda items, size: real(items, 3))
        with pytest.raises(Killed):
            apply_plan(small, plan.plan_id, now=NOW + 1)
        first = len(suppressed_records(provider))
        report = apply_plan(provider, plan.plan_id, now=NOW + HOUR)
        assert (report.applied, report.already, report.state) == (10 - first, first, "Applied")
        again = apply_plan(provider, plan.plan_id, now=NOW + 2 * HOUR)
        assert (again.applied, again.already, again.state) == (0, 10, "Applied")
    targets = [row["target_record_id"] for row in control(root, "memory_history_change")]
    assert sorted(targets) == sorted(f"r{n}" for n in range(10))
    events = [row["event_type"] for row in control(root, "learning_event")]
    assert sorted(events) == ["forgetting_planned", "memory_forgotten"]


def test_a_sealed_record_is_sealed_again_after_its_restore_trap_33(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, record("r1", retention_state="sealed"), record("r2")) as provider:
        plan = planned(provider)
        assert sorted(ids(plan)) == ["r1", "r2"]
        approve_and_apply(provider, plan)
        assert [read(root, name)["suppressed_from"] for name in ("r1", "r2")] == ["sealed", "active"]
        report = restore_records(
            provider, plan_keys(provider, plan.plan_id), approved_by="Bob", reason="", now=NOW, plan_id=plan.plan_id
        )
        assert sorted(report.restored) == ["r1", "r2"]
        assert [read(root, name)["retention_state"] for name in ("r1", "r2")] == ["sealed", "active"]


def test_the_record_that_the_store_refuses_is_listed_with_its_reason_trap_34(tmp_path: Path) -> None:
    root = tmp_path / "s"

    class Refusing(Behind):
        def patch(self, patches: Sequence[Patch]) -> list[Outcome]:
            fine = [item for item in patches if item.key.record_id != "r4"]
            outcomes = {outcome.key: outcome for outcome in self._provider.patch(fine)}
            refused = Outcome(key("r4"), "failed", "the disk says no")
            return [outcomes.get(item.key, refused) for item in patches]

    with store(root, *[record(f"r{n}") for n in range(1, 11)]) as provider:
        plan = planned(provider)
        approve(provider, plan)
        report = apply_plan(Refusing(provider, before={}), plan.plan_id, now=NOW)
        assert (report.applied, report.failed, report.state) == (9, {"the disk says no": ["r4"]}, "PartiallyApplied")
        assert stored_plan(provider, plan.plan_id, NOW).state == "approved"
        done = apply_plan(provider, plan.plan_id, now=NOW + 1)
        assert (done.applied, done.already, done.state) == (1, 9, "Applied")


def test_a_long_reason_is_cut_and_marked_and_embeddings_stay_as_they_are_trap_45(tmp_path: Path) -> None:
    root = tmp_path / "s"
    sent: list[int] = []
    names: set[str] = set()
    embedding = [0.1 + n / 7 for n in range(64)]

    def watch(patches: Sequence[Patch]) -> None:
        sent.append(len(patches))
        names.update(name for item in patches for name in item.changes)

    with store(root, *[record(f"r{n:04d}", embedding=embedding) for n in range(1203)]) as provider:
        plan = planned(provider, max_candidates=2000)
        decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="Ada",
            reason="because " * 700,
            count=1203,
            approval=ApprovalConfig(),
            now=NOW,
        )
        report = apply_plan(Behind(provider, before={"patch": watch}), plan.plan_id, now=NOW)
        assert report.applied == 1203
        assert sum(sent) == 1203
        assert max(sent) <= 1000
        assert not names & {"embedding", "vector", "content"}
        row = read(root, "r0007")
        assert len(row["suppression_note"]) <= 2000
        assert row["suppression_note"].endswith(" …")
        assert row["embedding"] == embedding


def test_a_restored_record_stays_restored_and_is_not_proposed_again_in_its_grace_trap_49(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(1, 7)]) as provider:
        plan = planned(provider)
        approve(provider, plan)
        die = dies_after(0)

        def first_chunk_only(_: Any) -> None:
            die(_)

        with pytest.raises(Killed):
            apply_plan(Behind(provider, before={"insert": first_chunk_only}), plan.plan_id, now=NOW + 1)
        restore_records(provider, [key("r1")], approved_by="Bob", reason="needed", now=NOW + 2)
        report = apply_plan(provider, plan.plan_id, now=NOW + 3)
        assert report.skipped == {"restored": ["r1"]}
        assert read(root, "r1")["retention_state"] == "active"
        for days, expected in ((29.9, []), (30.1, ["r1"])):
            later = planned(provider, as_of=NOW + round(days * MICROSECONDS_PER_DAY))
            assert ids(later) == expected
            assert protected(later) == {"suppressed": 5} | ({} if expected else {"restored": 1})


def test_a_plan_of_a_copy_is_refused_by_the_original_trap_50(tmp_path: Path) -> None:
    rows = [record(f"r{n}") for n in range(6)]
    with store(tmp_path / "copy", *rows) as copy:
        plan = planned(copy)
        approve(copy, plan)
    write_as_agent(tmp_path / "original", {CONVERSATION: rows, "shared_memory": []})
    for path in (tmp_path / "copy" / "shared_memory").glob("*.json"):
        (tmp_path / "original" / "shared_memory" / path.name).write_bytes(path.read_bytes())
    before = tree(tmp_path / "original")
    with open_provider(str(tmp_path / "original")) as original:
        with pytest.raises(OtherStoreError, match="was made for"):
            apply_plan(original, plan.plan_id, now=NOW)
        with pytest.raises(OtherStoreError):
            approve(original, plan)
    assert tree(tmp_path / "original") == before


KEPT = ("last_accessed_at", "access_count", "created_at", "updated_at", "timestamp")


def test_no_write_of_ours_moves_a_time_or_a_count_trap_17(tmp_path: Path) -> None:
    from fallow.importance.backfill import backfill_importance

    root = tmp_path / "s"
    fields = {"last_accessed_at": days_ago(85), "updated_at": days_ago(86), "created_at": days_ago(90)}
    with store(root, record("r1", importance=None, content="ok", access_count=2, **fields)) as provider:
        before = {name: read(root, "r1")[name] for name in KEPT}
        backfill_importance(provider, now=NOW)
        assert {name: read(root, "r1")[name] for name in KEPT} == before
        assert read(root, "r1")["importance"] is not None
        plan = planned(provider, min_retention=1.0)
        assert ids(plan) == ["r1"]
        approve_and_apply(provider, plan)
        assert {name: read(root, "r1")[name] for name in KEPT} == before
        restore_records(provider, [key("r1")], approved_by="Bob", reason="", now=NOW + HOUR)
        assert {name: read(root, "r1")[name] for name in KEPT} == before
        assert read(root, "r1")["retention_state"] == "active"


def test_restoring_twice_says_so_and_changes_nothing_9(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(6)]) as provider:
        plan = planned(provider)
        approve_and_apply(provider, plan)
        restore_records(provider, [key("r1")], approved_by="Bob", reason="", now=NOW)
        before = tree(root)
        again = restore_records(provider, [key("r1")], approved_by="Carol", reason="", now=NOW + 1)
        assert (again.restored, again.already) == ([], ["r1"])
        never = restore_records(provider, [key("r9")], approved_by="Bob", reason="", now=NOW)
        assert never.skipped == {"gone": ["r9"]}
        assert tree(root) == before
        journal = [row for row in control(root, "memory_history_change") if row["target_record_id"] == "r1"]
        assert sorted(row["source"] for row in journal) == ["forgetting:" + plan.plan_id, "forgetting:unsuppress"]
        assert {row["actor"] for row in journal} == {"Ada", "Bob"}
        assert not [row for row in journal if "what r1 says" in json.dumps(row)]


def test_a_plan_restored_as_a_whole_leaves_what_another_suppressed_since_9(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(6)]) as provider:
        first = planned(provider)
        approve_and_apply(provider, first)
        restore_records(provider, [key("r1")], approved_by="Bob", reason="", now=NOW)
        later = NOW + 31 * MICROSECONDS_PER_DAY
        second = planned(provider, as_of=later)
        assert ids(second) == ["r1"]
        approve(provider, second, now=later)
        apply_plan(provider, second.plan_id, now=later)
        keys = plan_keys(provider, first.plan_id)
        report = restore_records(provider, keys, approved_by="Bob", reason="", now=later, plan_id=first.plan_id)
        assert sorted(report.restored) == ["r0", "r2", "r3", "r4", "r5"]
        assert report.skipped == {"suppressed by another plan": ["r1"]}
        assert read(root, "r1")["suppressed_by"] == second.plan_id


def test_nothing_is_written_without_an_approval_that_stands_7_2(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(6)]) as provider:
        plan = planned(provider)
        before = tree(root)
        known = ApprovalConfig(approvers=("Ada",))
        count = len(plan.entries)
        for name in ("", "  ", "\t", "Bob", "ada", "Ada\0", "x" * 300):
            with pytest.raises(ApprovalRefusedError):
                decide(
                    provider, plan.plan_id, verdict="approved", approved_by=name, count=count, approval=known, now=NOW
                )
        for wrong in ("forget-plan-" + "0" * 28, "forget-plan-xyz", "", plan.plan_id[:-1], plan.plan_id.upper()):
            with pytest.raises(PlanNotFoundError):
                decide(provider, wrong, verdict="approved", approved_by="Ada", count=count, approval=known, now=NOW)
        with pytest.raises(PlanStateError):
            apply_plan(provider, plan.plan_id, now=NOW)
        late = NOW + 73 * HOUR
        with pytest.raises(PlanExpiredError):
            decide(provider, plan.plan_id, verdict="approved", approved_by="Ada", count=count, approval=known, now=late)
        with pytest.raises(PlanExpiredError):
            apply_plan(provider, plan.plan_id, now=late)
        with pytest.raises(ApprovalRefusedError):
            approve(provider, plan, leave_out=["not-in-it"])
        assert tree(root) == before
        decide(provider, plan.plan_id, verdict="rejected", approved_by="Ada", approval=known, now=NOW)
        with pytest.raises(PlanStateError):
            apply_plan(provider, plan.plan_id, now=NOW)
        with pytest.raises(PlanStateError):
            approve(provider, plan)
        assert tree(root / CONVERSATION) == {
            k[len(CONVERSATION) + 1 :]: v for k, v in before.items() if CONVERSATION in k
        }


def test_what_is_left_out_is_not_applied_and_rests_for_thirty_days_6_3(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(6)]) as provider:
        plan = planned(provider)
        report = approve_and_apply(provider, plan, leave_out=["r2", f"{CONVERSATION}:r3"])
        assert (report.applied, sorted(report.left_out)) == (4, ["r2", "r3"])
        for days, expected in ((1, []), (29.9, []), (30.1, ["r2", "r3"])):
            later = planned(provider, as_of=NOW + round(days * MICROSECONDS_PER_DAY))
            assert sorted(ids(later)) == expected


def test_a_stored_plan_altered_anywhere_is_refused_6_7(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(6)]) as provider:
        plan = planned(provider)
        approve(provider, plan)
    (part,) = (root / "shared_memory").glob("fallow-planpart-*.json")
    good = part.read_bytes()
    row = json.loads(good)
    inner = json.loads(row["content"])
    text = inner["text"]
    for old, new in (
        ('"record_id": "r1"', '"record_id": "r9"'),
        ('"origin": "default"', '"origin": "option"'),
        ('"value": 0.15', '"value": 0.16'),
        ("0.1", "0.2"),
        ('"planned": 6', '"planned": 5'),
        ("}", ""),
    ):
        assert old in text, old
        altered = {**row, "content": json.dumps({**inner, "text": text.replace(old, new, 1)})}
        part.write_text(json.dumps(altered))
        with open_provider(str(root)) as provider, pytest.raises(PlanAlteredError):
            apply_plan(provider, plan.plan_id, now=NOW)
    part.unlink()
    with open_provider(str(root)) as provider, pytest.raises(PlanAlteredError):
        load_plan(provider, plan.plan_id)
    part.write_bytes(good)
    with open_provider(str(root)) as provider:
        assert apply_plan(provider, plan.plan_id, now=NOW).applied == 6


def test_more_changed_than_the_stale_share_applies_nothing_15(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n:02d}") for n in range(20)]) as provider:
        plan = planned(provider)
        for n in range(19):
            edit(root, f"r{n:02d}", access_count=3)
        report = approve_and_apply(provider, plan)
        assert (report.state, report.applied) == ("Stale", 0)
        assert suppressed_records(provider) == []
        assert stored_plan(provider, plan.plan_id, NOW).state == "stale"
        assert apply_plan(provider, plan.plan_id, now=NOW).state == "Stale"


def test_decisions_of_two_people_at_once_the_first_recorded_stands_7_3(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(6)]) as provider:
        plan = planned(provider)

        def bob_first(rows: Sequence[Any]) -> None:
            if rows[0]["_id"].startswith("fallow-decision-"):
                decide(
                    provider, plan.plan_id, verdict="rejected", approved_by="Bob", approval=ApprovalConfig(), now=NOW
                )

        with pytest.raises(PlanStateError, match="already rejected by Bob"):
            approve(Behind(provider, before={"insert": bob_first}), plan)
        assert [stored.state for stored in list_plans(provider, NOW)] == ["rejected"]


def test_a_plan_never_holds_a_nan(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("r1", importance=math.nan, access_count=math.inf)) as provider:
        plan = planned(provider, min_retention=1.0)
        json.dumps(plan.document, allow_nan=False)
        assert plan.entries[0].key == RecordKey(CONVERSATION, "r1")


def test_a_record_that_moved_under_every_write_of_a_chunk_is_skipped_and_nowhere_else_trap_23(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *[record(f"r{n}") for n in range(3)]) as provider:
        plan = planned(provider)
        approve(provider, plan)

        def meanwhile(patches: Sequence[Any]) -> None:
            for patch in patches:
                edit(root, patch.key.record_id, access_count=1)

        report = apply_plan(Behind(provider, before={"patch": meanwhile}), plan.plan_id, now=NOW)
        assert (report.state, report.applied, report.unknown, report.failed) == ("Applied", 0, [], {})
        assert report.skipped == {"recalled": ["r0", "r1", "r2"]}
