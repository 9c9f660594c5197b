"""Taking suppressions back (SPEC §9): idempotent, conditional, journalled like the suppression itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fallow.acting.apply import Progress
from fallow.model.arguments import Time, instant, record_keys, text, text_or_none
from fallow.model.canonical import cut
from fallow.model.errors import ApprovalRefusedError, PlanNotFoundError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import read_record, requirements
from fallow.model.times import parse_time
from fallow.plans.agents import keys_suppressed_by
from fallow.plans.storage import MAX_NOTE, check_plan_id, load_plan
from fallow.port.journal import change_id, text_time
from fallow.port.journal_writing import Change, find_heads, write_journal
from fallow.port.protocol import Patch, Provider, Unreadable
from fallow.port.reading import chunks, fetch_keys

#: How often a write whose condition failed is decided anew before it is reported as failed.
_ROUNDS: Final = 5


@dataclass(slots=True)
class RestoreReport:
    """What became of every record that was to be restored."""

    restored: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    plan_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The same keys as an apply report, so that one reader serves both."""
        bad = bool(self.failed or self.unknown)
        return {
            "schema_version": 1,
            "plan_id": self.plan_id,
            "applied": len(self.restored),
            "already": len(self.already),
            "restored": sorted(self.restored),
            "already_restored": sorted(self.already),
            "skipped": {reason: sorted(ids) for reason, ids in sorted(self.skipped.items())},
            "failed": {reason: sorted(ids) for reason, ids in sorted(self.failed.items())},
            "unknown": sorted(self.unknown),
            "state": "PartiallyRestored" if bad else "Restored",
        }


def restore_records(
    provider: Provider,
    keys: Iterable[RecordKey],
    *,
    approved_by: str,
    reason: str,
    now: Time | None = None,
    plan_id: str | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Puts suppressed records back to the state they had (SPEC §9). Idempotent and resumable.

    Args:
        provider: the store.
        keys: which records.
        approved_by: a checked approver (:func:`fallow.acting.deciding.check_approver`).
        reason: why; cut at 2000 characters.
        now: the wall clock, a time of SPEC §1.5; becomes unsuppressed_at.
        plan_id: restore only what this plan suppressed; what another plan suppressed since is left alone.
        progress: called with (settled, all) after each chunk.

    Raises:
        UsageError: an argument is none of SPEC §1.5.
        ApprovalRefusedError: nobody is named.
    """
    wanted, now = record_keys(keys, "keys"), instant(now)
    reason, plan_id = text(reason, "reason"), text_or_none(plan_id, "plan_id")
    if not text(approved_by, "approved_by").strip():
        raise ApprovalRefusedError("no approver is named", hint="give a name with --approved-by")
    report = RestoreReport(plan_id=plan_id)
    heads: dict[str, str] | None = None
    size = max(1, provider.capabilities.batch_size)
    for number, chunk in enumerate(chunks(wanted, size)):
        done, seen = _restore_chunk(provider, chunk, report, approved_by, reason, now, plan_id)
        if (done or seen) and heads is None:
            heads = find_heads(provider, {key.record_id for key in wanted})
        write_journal(
            provider,
            [_restoration(key, before, after, now) for key, (before, after) in {**done, **seen}.items()],
            heads or {},
        )
        if progress is not None:
            progress(min(len(wanted), (number + 1) * size), len(wanted))
    return report


def _restore_chunk(
    provider: Provider,
    chunk: Sequence[RecordKey],
    report: RestoreReport,
    approved_by: str,
    reason: str,
    now: int,
    plan_id: str | None,
) -> tuple[dict[RecordKey, tuple[Row | None, Row]], dict[RecordKey, tuple[Row | None, Row]]]:
    done: dict[RecordKey, tuple[Row | None, Row]] = {}
    seen: dict[RecordKey, tuple[Row | None, Row]] = {}
    pending, last = list(chunk), dict.fromkeys(chunk, "changed")
    for _ in range(_ROUNDS):
        rows = fetch_keys(provider, pending)
        patches: list[Patch] = []
        for key in pending:
            row = rows.get(key)
            if row is None:
                report.skipped.setdefault("gone", []).append(key.record_id)
                continue
            if isinstance(row, Unreadable):
                report.skipped.setdefault("unreadable", []).append(key.record_id)
                continue
            record = read_record(row, *key)
            if record.retention_state != "suppressed":
                if record.unsuppressed_at is None:
                    report.skipped.setdefault("not suppressed", []).append(key.record_id)
                elif last[key] == "unknown" and row.get("unsuppressed_at") == text_time(now):
                    done[key] = (None, row)
                else:
                    seen[key] = (None, row)
                continue
            if plan_id is not None and record.suppressed_by != plan_id:
                report.skipped.setdefault("suppressed by another plan", []).append(key.record_id)
                continue
            patches.append(Patch(key, requirements(row), _restore_changes(row, approved_by, reason, now)))
        pending = []
        if not patches:
            break
        for patch, outcome in zip(patches, provider.patch(patches), strict=True):
            before = rows[patch.key]
            if outcome.status == "applied" and isinstance(before, dict):
                done[patch.key] = (before, {**before, **patch.changes})
            elif outcome.status == "gone":
                report.skipped.setdefault("gone", []).append(patch.key.record_id)
            elif outcome.status == "failed":
                report.failed.setdefault(outcome.detail or "refused by the store", []).append(patch.key.record_id)
            else:
                pending.append(patch.key)
                last[patch.key] = outcome.status
        if not pending:
            break
    for key in pending:
        if last[key] == "unknown":
            report.unknown.append(key.record_id)
        else:
            report.failed.setdefault("kept changing while it was written", []).append(key.record_id)
    report.restored += [key.record_id for key in done]
    report.already += [key.record_id for key in seen]
    return done, seen


def _restore_changes(row: Row, approved_by: str, reason: str, now: int) -> dict[str, Any]:
    previous = row.get("suppressed_from")
    state = previous.strip().lower() if isinstance(previous, str) else ""
    return {
        "retention_state": state if state in {"active", "sealed"} else "active",
        "unsuppressed_by": approved_by,
        "unsuppressed_at": text_time(now),
        "unsuppression_note": cut(reason.strip(), MAX_NOTE),
    }


def _restoration(key: RecordKey, before: Row | None, after: Row, now: int) -> Change:
    origin = f"{after.get('suppressed_by')}\0{after.get('suppressed_at')}"
    return Change(
        change_id("restore", origin, key),
        read_record(after, *key),
        actor=str(after.get("unsuppressed_by") or ""),
        source="forgetting:unsuppress",
        before=before,
        after=after,
        changed=("retention_state", "unsuppressed_by", "unsuppressed_at", "unsuppression_note"),
        now=parse_time(after.get("unsuppressed_at")) or now,
    )


def plan_keys(provider: Provider, plan_id: str) -> list[RecordKey]:
    """The records that a stored plan names, for restoring it as a whole; leave-outs are found not suppressed by it.

    Of a plan that the agents' own control plane applied (SPEC §9): those whose ``suppressed_by`` names it.

    Raises:
        PlanNotFoundError: no such plan here, and no record names it.
    """
    plan_id = check_plan_id(plan_id)
    try:
        return [entry.key for entry in load_plan(provider, plan_id).entries]
    except PlanNotFoundError:
        keys = keys_suppressed_by(provider, plan_id)
        if not keys:
            raise
        return keys
