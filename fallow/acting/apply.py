"""Suppressing exactly what was approved (SPEC §7.3, §8).

One idempotent function over the stored plan and the records themselves: killed at any line and run again,
it ends where one run would have ended. Every write is conditional on the row it was decided on; a
condition that fails is read again and named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import polars as pl

from fallow.acting.configured_files import stop_file_says
from fallow.acting.deciding import check_recorded
from fallow.acting.evidence import gather_evidence
from fallow.acting.holds import active_holds
from fallow.judgement.holds import held_ids
from fallow.judgement.policy import Policy
from fallow.judgement.score import CONVERSATION, conversation_room
from fallow.judgement.verdicts import Evidence, protections
from fallow.judgement.words import skipped_for
from fallow.model.arguments import Time, instant
from fallow.model.canonical import cut
from fallow.model.errors import PlanExpiredError, PlanStateError, StoppedError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import Record, basis, fingerprint, read_record, requirements
from fallow.model.settings import ApprovalConfig, resolve
from fallow.model.times import iso, parse_time
from fallow.plans.events import forgotten_event, forgotten_key
from fallow.plans.plan import PlanEntry, RetentionPlan
from fallow.plans.storage import MAX_NOTE, check_same_store, load_plan, stored_plan
from fallow.port.gate import ContractGate, check_store
from fallow.port.journal import change_id, event_id, text_time
from fallow.port.journal_writing import Change, find_heads, insert_again, insert_control_rows, write_journal
from fallow.port.protocol import Patch, Provider, Unreadable
from fallow.port.reading import StoreView, chunks, fetch_keys, read_store

ApplyState = Literal["Applied", "PartiallyApplied", "Stale", "Closed", "NothingToDo"]
Progress = Callable[[int, int], None]
#: Says why everything is to stop, or None: go on.
StopSwitch = Callable[[], str | None]

#: How often a write whose condition failed is decided anew before it is reported as failed.
_ROUNDS: Final = 5
#: A plan smaller than this is applied record by record, however many have changed.
_STALE_FROM: Final = 5

#: Parts of a record's basis and the reason for which their change skips it, in the order of naming.
_CHANGES: Final[tuple[tuple[str, str], ...]] = (
    ("pinned", "pinned"),
    ("verified", "verified"),
    ("unsuppressed_at", "restored"),
    ("access_count", "recalled"),
    ("last_accessed_at", "recalled"),
    ("content", "edited"),
    ("citations", "edited"),
    ("importance", "re-rated"),
)


@dataclass(slots=True)
class ApplyReport:
    """What became of every approved record (SPEC §16.1): each id stands in exactly one place.

    ``applied`` counts what this run suppressed, ``already`` what an earlier run of the same plan had.
    """

    plan_id: str
    applied: int = 0
    already: int = 0
    skipped: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    state: ApplyState = "Applied"
    approved_by: str | None = None
    standing: str | None = None

    def to_json(self) -> dict[str, Any]:
        """SPEC §16.1's document."""
        return {
            "schema_version": 1,
            "plan_id": self.plan_id,
            "applied": self.applied,
            "already": self.already,
            "skipped": {reason: sorted(ids) for reason, ids in sorted(self.skipped.items())},
            "failed": {reason: sorted(ids) for reason, ids in sorted(self.failed.items())},
            "unknown": sorted(self.unknown),
            "left_out": sorted(self.left_out),
            "state": self.state,
            "approved_by": self.approved_by,
            "standing": self.standing,
        }


@dataclass(slots=True)
class _Suppression:
    """One apply under way: what it rests on, and what it has found so far."""

    provider: Provider
    plan: RetentionPlan
    policy: Policy
    approver: str
    note: str
    now: int
    evidence: Evidence
    entries: dict[RecordKey, PlanEntry]
    kept: frozenset[RecordKey] = frozenset()
    applied: list[RecordKey] = field(default_factory=list)
    already: list[RecordKey] = field(default_factory=list)
    skipped: dict[RecordKey, str] = field(default_factory=dict)
    failed: dict[RecordKey, str] = field(default_factory=dict)
    unknown: dict[RecordKey, str] = field(default_factory=dict)
    heads: dict[str, str] | None = None

    def verdicts(
        self, keys: Sequence[RecordKey], rows: Mapping[RecordKey, Row | Unreadable]
    ) -> dict[RecordKey, str | None]:
        """For each record why it is not to be written now, or None where it is (SPEC §8.1)."""
        found: dict[RecordKey, str | None] = {}
        read: dict[RecordKey, tuple[Row, Record]] = {}
        for key in keys:
            row = rows.get(key)
            if row is None:
                found[key] = "gone"
            elif isinstance(row, Unreadable):
                found[key] = "unreadable"
            else:
                read[key] = row, read_record(row, key.memory_type, key.record_id)
                found[key] = None
        protected = protections([record for _, record in read.values()], self.policy, self.evidence, as_of=self.now)
        for (key, (row, record)), reason in zip(read.items(), protected, strict=True):
            found[key] = self._verdict(key, row, record, reason)
        return found

    def _verdict(self, key: RecordKey, row: Row, record: Record, protected: str | None) -> str | None:
        mine = record.suppressed_by == self.plan.plan_id
        if record.retention_state == "suppressed":
            return "already" if mine else "suppressed"
        if mine:
            return "restored"
        if protected in {"quarantined", "held"}:
            return skipped_for(protected)
        moved = self._moved(key, row, record)
        if moved is not None:
            return moved
        if protected is None and key in self.kept:
            protected = "conversation_minimum"
        return None if protected is None else skipped_for(protected)

    def _moved(self, key: RecordKey, row: Row, record: Record) -> str | None:
        """What has become of a record since it was planned; None where it is as it was."""
        entry = self.entries[key]
        parts = basis(row, record)
        if record.retention_state == "sealed" and entry.basis["retention_state"] != "sealed":
            return "sealed"
        if fingerprint(parts) != entry.fingerprint:
            return next((reason for name, reason in _CHANGES if parts[name] != entry.basis[name]), "edited")
        return None

    def changes(self, entry: PlanEntry, row: Row) -> dict[str, Any]:
        """The suppression keys, and only these (SPEC §8.1)."""
        state = read_record(row, entry.memory_type, entry.record_id).retention_state
        return {
            "retention_state": "suppressed",
            "suppressed_by": self.plan.plan_id,
            "suppressed_at": text_time(self.now),
            "suppression_reason": cut(entry.reason, MAX_NOTE),
            "suppression_approver": self.approver,
            "suppression_note": cut(self.note, MAX_NOTE),
            "suppressed_from": state,
        }

    def chunk(self, keys: Sequence[RecordKey]) -> None:
        """Suppresses a chunk: read, decide, write on condition, journal; what moved meanwhile is decided again."""
        done: dict[RecordKey, tuple[Row, Row]] = {}
        seen: dict[RecordKey, Row] = {}
        pending = list(keys)
        for _ in range(_ROUNDS):
            rows = fetch_keys(self.provider, pending)
            patches: list[Patch] = []
            for key, reason in self.verdicts(pending, rows).items():
                row = rows.get(key)
                if reason is None and isinstance(row, dict):
                    patches.append(Patch(key, requirements(row), self.changes(self.entries[key], row)))
                elif reason == "already" and isinstance(row, dict):
                    seen[key] = row
                elif reason is not None:
                    self.skipped[key] = reason
            pending = []
            if not patches:
                break
            for patch, outcome in zip(patches, self.provider.patch(patches), strict=True):
                before = rows[patch.key]
                if outcome.status == "applied" and isinstance(before, dict):
                    done[patch.key] = (before, {**before, **patch.changes})
                elif outcome.status == "gone":
                    self.skipped[patch.key] = "gone"
                elif outcome.status == "failed":
                    self.failed[patch.key] = outcome.detail or "refused by the store"
                else:
                    pending.append(patch.key)
                    self.unknown[patch.key] = outcome.status
            if not pending:
                break
        for key in pending:
            if self.unknown.pop(key, None) == "changed":
                self.failed[key] = "kept changing while it was written"
            else:
                self.unknown[key] = "unknown"
        # What was settled in a later round than the one that lost it is in one place only.
        for key in {*done, *seen, *self.failed, *self.skipped}:
            self.unknown.pop(key, None)
        mine = [key for key, row in seen.items() if row.get("suppressed_at") == text_time(self.now)]
        self.applied += [*done, *mine]
        self.already += [key for key in seen if key not in mine]
        self._journal(done, seen)

    def _journal(self, done: Mapping[RecordKey, tuple[Row, Row]], seen: Mapping[RecordKey, Row]) -> None:
        versions: dict[RecordKey, tuple[Row | None, Row]] = {**done, **{key: (None, row) for key, row in seen.items()}}
        if versions and self.heads is None:
            self.heads = find_heads(self.provider, {key.record_id for key in self.entries})
        write_journal(
            self.provider,
            [
                Change(
                    change_id("suppress", self.plan.plan_id, key),
                    read_record(after, *key),
                    actor=self.approver,
                    source=f"forgetting:{self.plan.plan_id}",
                    before=before,
                    after=after,
                    changed=tuple(self.changes(self.entries[key], after)),
                    now=parse_time(after.get("suppressed_at")) or self.now,
                )
                for key, (before, after) in versions.items()
            ],
            self.heads or {},
        )


def apply_plan(
    provider: Provider,
    plan_id: str,
    *,
    now: Time | None = None,
    progress: Progress | None = None,
    gate: ContractGate | None = None,
    approval: ApprovalConfig | None = None,
    stop: StopSwitch | None = None,
) -> ApplyReport:
    """Suppresses what was approved, exactly, from the stored plan (SPEC §7.3, §8). Idempotent and resumable.

    Args:
        provider: the plan's own store.
        plan_id: an approved plan.
        now: the wall clock, a time of SPEC §1.5; becomes suppressed_at.
        progress: called with (records settled, records approved) after each chunk.
        gate: holds the store against its contracts, instead of the installed ones; what breaks a must is skipped.
        approval: who may approve and whether it must be signed; None: as the environment says.
        stop: asked before every chunk; None: the stop file that the environment names.

    Raises:
        ContractBreachError: the store as a whole breaks its contract; nothing was written.
        PlanNotFoundError, PlanAlteredError, OtherStoreError: as :func:`load_plan`, :func:`check_same_store`.
        PlanExpiredError: it expired undecided.
        PlanStateError: nobody approved it, it was rejected or superseded, or its time is not here yet.
        SignatureRefusedError: its approval's signature does not hold, or is missing where it must not be.
        StoppedError: the stop switch is on. What was written is journalled; applying again goes on.
    """
    now = instant(now)
    plan = load_plan(provider, plan_id)
    check_same_store(provider, plan)
    plan.check_time(now)
    stored = stored_plan(provider, plan.plan_id, now)
    decision = stored.decision
    if stored.state == "expired":
        raise PlanExpiredError(
            f"{plan.plan_id} expired at {iso(stored.expires_at)}", hint="plan again; nothing was written"
        )
    if decision is None or decision.verdict != "approved":
        state = "waits for its approval" if decision is None else f"is {stored.state}"
        raise PlanStateError(f"{plan.plan_id} {state}", hint="fallow approve records a decision; nothing was written")
    if decision.document_sha256 != plan.document_sha256:
        raise PlanStateError(f"the approval of {plan.plan_id} is for another document", hint="plan again")
    ended = stored.state in {"applied", "stale", "closed"}
    if not ended:
        check_recorded(plan, stored, resolve().approval if approval is None else approval)
    left_out = set(decision.leave_out)
    entries = {entry.key: entry for entry in plan.entries if entry.key not in left_out}
    keys = list(entries)
    policy = Policy.of_document(plan.document["policy"])
    view = read_store(provider)
    contracts = None if ended else check_store(provider, view, now) if gate is None else gate(view)
    if contracts is not None:
        contracts.refuse({entry.memory_type for entry in plan.entries})
    work = _Suppression(
        provider=provider,
        plan=plan,
        policy=policy,
        approver=decision.by,
        note=decision.reason,
        now=now,
        # What an approver left out of another plan is no reason here: this one was approved with the record in it.
        evidence=gather_evidence(provider, view, policy, as_of=now, contracts=contracts, left_out={}),
        entries=entries,
        kept=_kept(view, policy, entries),
    )
    report = ApplyReport(
        plan_id=plan.plan_id,
        left_out=[key.record_id for key in decision.leave_out],
        approved_by=decision.by,
        standing=decision.standing,
    )
    size = max(1, provider.capabilities.batch_size)
    if ended or _is_stale(work, keys, size):
        for chunk in chunks(keys, size):
            for key, row in _settled(work, chunk).items():
                if row == "already":
                    work.already.append(key)
                else:
                    work.skipped[key] = row
        report.state = {"stale": "Stale", "closed": "Closed"}.get(stored.state, "Applied") if ended else "Stale"  # type: ignore[assignment]
        _fill(report, work)
        if ended:
            insert_again(provider, [event_id(forgotten_key(plan.plan_id))])
        else:
            _end(work, report)
        return report
    if stop is None:
        stop = partial(stop_file_says, str(resolve().get("apply.stop_file")))
    for number, chunk in enumerate(chunks(keys, size)):
        why = stop()
        if why is not None:
            done = len(work.applied) + len(work.already)
            raise StoppedError(
                f"stopped after {done} of {len(keys)} records of {plan.plan_id}: {why}",
                hint="every change so far is journalled; take the stop away and apply the plan again",
            )
        if number:
            work.evidence = replace(work.evidence, held=held_ids(view.frames, active_holds(provider, now)))
        work.chunk(chunk)
        if progress is not None:
            progress(min(len(keys), (number + 1) * size), len(keys))
    _settle_lost(work)
    _fill(report, work)
    report.state = "PartiallyApplied" if report.failed or report.unknown else "Applied"
    if report.state == "Applied":
        _end(work, report)
    return report


def _kept(view: StoreView, policy: Policy, entries: Mapping[RecordKey, PlanEntry]) -> frozenset[RecordKey]:
    """Planned rows whose conversations have shrunk since, so that too few of each would stay visible."""
    keep = policy.retention.keep_per_conversation
    if not keep:
        return frozenset()
    frame = view.frames[CONVERSATION]
    room = conversation_room(frame, keep)
    columns = ("record_id", "agent_id", "memory_id", "user_id", "thread_id")
    named = [key.record_id for key in entries if key.memory_type == CONVERSATION]
    visible = frame.filter(pl.col("record_id").is_in(named), pl.col("retention_state") != "suppressed")
    homes = {row[0]: tuple(row[1:]) for row in visible.select(columns).iter_rows()}
    kept: set[RecordKey] = set()
    for key in entries:
        home = homes.get(key.record_id) if key.memory_type == CONVERSATION else None
        if home is None:
            continue
        if room[home] <= 0:
            kept.add(key)
        room[home] -= 1
    return frozenset(kept)


def _is_stale(work: _Suppression, keys: Sequence[RecordKey], size: int) -> bool:
    """Whether so much has moved since planning that nothing of the plan should be applied (SPEC §15)."""
    if len(keys) < _STALE_FROM:
        return False
    changed = 0
    for chunk in chunks(keys, size):
        for reason in work.verdicts(chunk, fetch_keys(work.provider, chunk)).values():
            if reason in {"already", "restored"}:
                return False
            changed += reason is not None and reason not in {"held", "conversation minimum"}
    return changed > work.policy.retention.stale_share * len(keys)


def _settled(work: _Suppression, keys: Sequence[RecordKey]) -> dict[RecordKey, str]:
    verdicts = work.verdicts(keys, fetch_keys(work.provider, keys))
    return {key: reason or "not applied" for key, reason in verdicts.items()}


def _settle_lost(work: _Suppression) -> None:
    """Writes again what an agent's stale write took away after ours was verified (STORES.md, filesystem)."""
    size = max(1, work.provider.capabilities.batch_size)
    for _ in range(_ROUNDS):
        lost: list[RecordKey] = []
        for chunk in chunks(work.applied, size):
            verdicts = work.verdicts(chunk, fetch_keys(work.provider, chunk))
            lost += [key for key, reason in verdicts.items() if reason != "already"]
        if not lost:
            return
        work.applied = [key for key in work.applied if key not in set(lost)]
        for chunk in chunks(lost, size):
            work.chunk(chunk)


def _fill(report: ApplyReport, work: _Suppression) -> None:
    report.applied, report.already = len(work.applied), len(work.already)
    for key, reason in work.skipped.items():
        report.skipped.setdefault(reason, []).append(key.record_id)
    for key, reason in work.failed.items():
        report.failed.setdefault(reason, []).append(key.record_id)
    report.unknown = [key.record_id for key in work.unknown]


def _end(work: _Suppression, report: ApplyReport) -> None:
    """The plan has reached its end: its one ``memory_forgotten`` event."""
    outcome = {
        "outcome": report.state,
        "approved_by": report.approved_by,
        "standing": report.standing,
        "skipped": {reason: len(ids) for reason, ids in sorted(report.skipped.items())},
        "failed": {reason: len(ids) for reason, ids in sorted(report.failed.items())},
        "left_out": len(report.left_out),
    }
    event = forgotten_event(work.plan, outcome, [*work.applied, *work.already], now=work.now)
    insert_control_rows(work.provider, [event])


def close_plan(provider: Provider, plan_id: str, *, closed_by: str, now: int) -> ApplyReport:
    """Ends an approved plan that did not reach its end by itself: by the operator, or by expiry (SPEC §8.2).

    Nothing more of it is applied; its event says what was.

    Raises:
        PlanStateError: it is not approved, or already at its end.
    """
    plan = load_plan(provider, plan_id)
    stored = stored_plan(provider, plan.plan_id, now)
    if stored.state != "approved" or stored.decision is None:
        raise PlanStateError(
            f"{plan.plan_id} is {stored.state}", hint="only an approved, unfinished plan can be closed"
        )
    entries = {entry.key: entry for entry in plan.entries if entry.key not in set(stored.decision.leave_out)}
    report = ApplyReport(
        plan_id=plan.plan_id, state="Closed", approved_by=stored.decision.by, standing=stored.decision.standing
    )
    report.left_out = [key.record_id for key in stored.decision.leave_out]
    work = _Suppression(
        provider=provider,
        plan=plan,
        policy=Policy.of_document(plan.document["policy"]),
        approver=stored.decision.by,
        note=f"closed by {closed_by}",
        now=now,
        evidence=Evidence(),
        entries=entries,
    )
    for chunk in chunks(list(entries), max(1, provider.capabilities.batch_size)):
        for key, reason in _settled(work, chunk).items():
            if reason == "already":
                work.already.append(key)
            else:
                work.skipped[key] = reason
    _fill(report, work)
    _end(work, report)
    return report
