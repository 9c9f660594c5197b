"""Drift: where records, plans, decisions and journal no longer tell the same story (SPEC §9, §10).

fallow's own steps leave a trail: a plan, a decision, a journal entry for every record, an event at the end.
What was suppressed without it, or taken back past it, was done by something else; this finds it. Reads only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fallow.acting.deciding import check_recorded
from fallow.model.arguments import Time, instant
from fallow.model.errors import FallowError
from fallow.model.keys import RecordKey, Row
from fallow.model.record import Record, read_record
from fallow.model.settings import ApprovalConfig
from fallow.model.times import parse_time
from fallow.plans.agents import agents_plans
from fallow.plans.events import forgotten_key
from fallow.plans.storage import StoredPlan, list_plans, load_plan
from fallow.port.journal import CHANGE_PREFIX, SHARED, content_of, event_id, ids_digest
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import chunks, fetch_keys
from fallow.port.reflections import NOTHING_KEPT, SUMMARIES
from fallow.usecases.suppressed import suppressed_records

_RESTORED = "forgetting:unsuppress"
_BY_PLAN = "forgetting:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One disagreement. ``kind`` is stable; ``says`` is for people and holds no memory text.

    Kinds: ``suppressed_without_plan``, ``suppressed_without_approval``, ``suppressed_not_in_plan``,
    ``suppressed_not_in_journal``, ``other_approver``, ``unsuppressed_behind_our_back``,
    ``restored_not_in_journal``, ``event_and_journal_differ``, ``plan_altered``, ``approval_does_not_hold``.
    """

    kind: str
    says: str
    plan_id: str | None = None
    key: RecordKey | None = None

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "kind": self.kind,
            "plan_id": self.plan_id,
            "memory_type": None if self.key is None else self.key.memory_type,
            "record_id": None if self.key is None else self.key.record_id,
            "says": self.says,
        }


@dataclass(slots=True)
class DriftReport:
    """What was compared, and what disagrees. ``gone``: suppressed records that their agents deleted since.

    ``by_agents``: records that a plan of the agents' own control plane suppressed, as its tombstone rows say;
    ``restored_by_agents``: records of our plans that it took back, as the record itself says who and when. Both
    are recorded, so neither is drift.
    """

    findings: list[Finding] = field(default_factory=list)
    plans: int = 0
    suppressed: int = 0
    journalled: int = 0
    gone: int = 0
    by_agents: int = 0
    restored_by_agents: int = 0

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "count": len(self.findings),
            "kinds": dict(sorted(Counter(item.kind for item in self.findings).items())),
            "checked": {
                "plans": self.plans,
                "suppressed": self.suppressed,
                "journalled": self.journalled,
                "gone": self.gone,
                "by_agents": self.by_agents,
                "restored_by_agents": self.restored_by_agents,
            },
            "findings": [item.to_json() for item in self.findings],
        }


@dataclass(slots=True)
class _Trail:
    """What the journal says about one record: every plan that suppressed it, and when it was last what."""

    suppressed: dict[str, int] = field(default_factory=dict)
    restored: list[int] = field(default_factory=list)

    @property
    def latest(self) -> str | None:
        """The plan that suppressed it last, where it was not restored since."""
        if not self.suppressed:
            return None
        plan_id, at = max(self.suppressed.items(), key=lambda item: item[1])
        return None if any(restored >= at for restored in self.restored) else plan_id


def find_drift(provider: Provider, *, now: Time | None = None, approval: ApprovalConfig | None = None) -> DriftReport:
    """Compares a store's records with its plans, decisions, journal and events.

    Args:
        approval: with registered operators, recorded signatures are verified too.

    Raises:
        StoreUnreadableError: a listing failed or was cut short; there is no report over part of a store.
    """
    now = instant(now)
    plans = {plan.plan_id: plan for plan in list_plans(provider, now)}
    trails = _trails(provider)
    report = DriftReport(plans=len(plans), journalled=sum(len(trail.suppressed) for trail in trails.values()))
    entries: dict[str, set[RecordKey]] = {}
    for plan in plans.values():
        report.findings += _of_plan(provider, plan, trails, entries, approval)
    hidden: set[RecordKey] = set()
    theirs = agents_plans(provider)
    for item in suppressed_records(provider):
        report.suppressed += 1
        key = RecordKey(item.memory_type, item.record_id)
        hidden.add(key)
        if item.suppressed_by == NOTHING_KEPT and item.memory_type == SUMMARIES:
            continue  # hidden from the start, by the reflection that stored it
        foreign = theirs.get(item.suppressed_by or "")
        if foreign is not None and key in foreign.keys and foreign.plan_id not in plans:
            report.by_agents += 1
            report.findings += _other_approver(key, foreign.plan_id, item.approver, foreign.approved_by)
            continue
        report.findings += _of_suppressed(key, item.suppressed_by, item.approver, plans, trails, entries)
    open_trails = {key: trail.latest for key, trail in trails.items() if trail.latest and key not in hidden}
    for chunk in chunks(list(open_trails), provider.capabilities.batch_size):
        rows = fetch_keys(provider, chunk)
        for key in chunk:
            row = rows.get(key)
            if row is None or isinstance(row, Unreadable):
                report.gone += row is None
                continue
            record = read_record(row, *key)
            if record.retention_state == "suppressed":
                continue
            if _took_back(row, record, trails[key]):
                report.restored_by_agents += 1
                continue
            kind, how = ("unsuppressed_behind_our_back", "is visible again, and nobody restored it")
            if record.unsuppressed_at is not None:
                kind, how = ("restored_not_in_journal", "was restored, and the journal has no entry of it")
            report.findings.append(Finding(kind=kind, says=how, plan_id=open_trails[key], key=key))
    report.findings.sort(key=lambda item: (item.kind, item.plan_id or "", item.key or RecordKey("", "")))
    return report


def _trails(provider: Provider) -> dict[RecordKey, _Trail]:
    trails: dict[RecordKey, _Trail] = {}
    for row in provider.find(SHARED, CHANGE_PREFIX):
        content = content_of(row)
        source = str(content.get("source"))
        if not source.startswith(_BY_PLAN):
            continue
        key = RecordKey(str(content.get("memory_type")), str(content.get("target_record_id")))
        at = parse_time(content.get("created_at")) or 0
        trail = trails.setdefault(key, _Trail())
        if source == _RESTORED:
            trail.restored.append(at)
        else:
            trail.suppressed[source.removeprefix(_BY_PLAN)] = at
    return trails


def _of_plan(
    provider: Provider,
    stored: StoredPlan,
    trails: dict[RecordKey, _Trail],
    entries: dict[str, set[RecordKey]],
    approval: ApprovalConfig | None,
) -> Iterator[Finding]:
    try:
        plan = load_plan(provider, stored.plan_id)
    except FallowError as error:
        yield Finding(kind="plan_altered", says=error.message, plan_id=stored.plan_id)
        return
    left_out = set() if stored.decision is None else set(stored.decision.leave_out)
    entries[stored.plan_id] = {entry.key for entry in plan.entries} - left_out
    if approval is not None and (approval.operators or approval.operators_file) and stored.decision is not None:
        try:
            check_recorded(plan, stored, approval)
        except FallowError as error:
            yield Finding(kind="approval_does_not_hold", says=error.message, plan_id=stored.plan_id)
    if stored.ended is None:
        return
    name = event_id(forgotten_key(stored.plan_id))
    row = provider.fetch(SHARED, [name]).get(name)
    ended_at = parse_time(content_of(row).get("created_at")) if isinstance(row, dict) else None
    done = [
        key
        for key, trail in trails.items()
        if stored.plan_id in trail.suppressed
        and not any(trail.suppressed[stored.plan_id] <= at <= (ended_at or 0) for at in trail.restored)
    ]
    if stored.ended.get("suppressed_digest") != ids_digest(done):
        number = stored.ended.get("tombstoned")
        says = f"its event counts {number} records, the journal {len(done)}, or they are others"
        yield Finding(kind="event_and_journal_differ", says=says, plan_id=stored.plan_id)


def _of_suppressed(
    key: RecordKey,
    plan_id: str | None,
    approver: str | None,
    plans: dict[str, StoredPlan],
    trails: dict[RecordKey, _Trail],
    entries: dict[str, set[RecordKey]],
) -> Iterator[Finding]:
    plan = plans.get(plan_id or "")
    if plan is None:
        says = "is suppressed, and names no plan" if not plan_id else "is suppressed by a plan that is not stored here"
        yield Finding(kind="suppressed_without_plan", says=says, plan_id=plan_id, key=key)
        return
    decision = plan.decision
    if decision is None or decision.verdict != "approved":
        says = f"is suppressed by a plan that is {plan.state}"
        yield Finding(kind="suppressed_without_approval", says=says, plan_id=plan_id, key=key)
        return
    if plan.plan_id in entries and key not in entries[plan.plan_id]:
        says = "is suppressed by a plan that does not name it, or left it out"
        yield Finding(kind="suppressed_not_in_plan", says=says, plan_id=plan_id, key=key)
        return
    if plan.plan_id not in trails.get(key, _Trail()).suppressed:
        says = "is suppressed by its plan, and the journal has no entry of it"
        yield Finding(kind="suppressed_not_in_journal", says=says, plan_id=plan_id, key=key)
    yield from _other_approver(key, plan_id, approver, decision.by)


def _other_approver(key: RecordKey, plan_id: str | None, named: str | None, right: str | None) -> Iterator[Finding]:
    if named != right:
        says = "names another approver than its plan's decision"
        yield Finding(kind="other_approver", says=says, plan_id=plan_id, key=key)


def _took_back(row: Row, record: Record, trail: _Trail) -> bool:
    """Whether the record itself says who restored it, after it was last suppressed: an agent's own ``unsuppress``."""
    by = row.get("unsuppressed_by")
    named = isinstance(by, str) and bool(by.strip())
    return named and record.unsuppressed_at is not None and record.unsuppressed_at >= max(trail.suppressed.values())
