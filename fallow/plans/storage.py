"""Stored plans, who was asked, and what a named human decided (SPEC §6.7, §7).

Everything lives in the store itself, as rows that are inserted once and never changed: a plan's document
in parts and its head, openings (a plan is published, or reopened after it expired), one decision an
opening. Of two decisions at once the first inserted stands and the other reads it back. The state of a
plan follows from its rows and the clock; nothing else remembers it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from fallow.model.arguments import text as checked_text
from fallow.model.errors import (
    OtherStoreError,
    PlanAlteredError,
    PlanNotFoundError,
    PlanStateError,
    UsageError,
)
from fallow.model.keys import Row
from fallow.model.scope import Scope
from fallow.model.times import MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR, iso, parse_time
from fallow.plans.decision import Decision, Verdict, read_decision, read_instant
from fallow.plans.events import forgotten_key, planned_event
from fallow.plans.plan import PLAN_ID_PREFIX, RetentionPlan
from fallow.port.journal import SHARED, content_of, control_row, event_id
from fallow.port.journal_writing import insert_again, insert_control_rows
from fallow.port.protocol import Provider, Unreadable

HEAD: Final = "fallow-plan-"
PART: Final = "fallow-planpart-"
OPENING: Final = "fallow-open-"
DECISION: Final = "fallow-decision-"
MAX_NOTE: Final = 2000

#: planned     stored, nobody was asked
#: open        published and waiting
#: approved    decided, not yet at its end
#: applied, stale, closed    at its end: its memory_forgotten event says which
PlanState = Literal["planned", "open", "approved", "rejected", "expired", "superseded", "applied", "stale", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A plan's head with everything that happened to it; the document itself is read by :func:`load_plan`."""

    plan_id: str
    document_sha256: str
    scope: Scope
    as_of: str
    planned_at: int
    expires_at: int
    planned: int
    item_set: str
    wide: bool
    requested_by: str | None
    requesters: tuple[str, ...]
    store_identity: str
    parts: tuple[str, ...]
    generation: int
    published_at: int | None
    flow_run_id: str | None
    decision: Decision | None
    ended: Mapping[str, Any] | None
    state: PlanState

    def to_json(self) -> dict[str, Any]:
        """For listings."""
        return {
            "plan_id": self.plan_id,
            "state": self.state,
            "scope": self.scope.to_json(),
            "as_of": self.as_of,
            "planned_at": iso(self.planned_at),
            "expires_at": iso(self.expires_at),
            "published_at": None if self.published_at is None else iso(self.published_at),
            "planned": self.planned,
            "wide": self.wide,
            "requested_by": self.requested_by,
            "decision": None if self.decision is None else self.decision.to_json(),
            "outcome": None if self.ended is None else dict(self.ended),
        }


def _short(plan_id: str) -> str:
    return plan_id.removeprefix(PLAN_ID_PREFIX)


def check_plan_id(plan_id: str) -> str:
    """A plan id as written by a person, without white space around it.

    Raises:
        UsageError: it is no text.
        PlanNotFoundError: the text cannot be a plan id.
    """
    text = checked_text(plan_id, "plan_id").strip()
    digits = text.removeprefix(PLAN_ID_PREFIX)
    if digits == text or len(digits) != 28 or set(digits) - set("0123456789abcdef"):
        raise PlanNotFoundError(
            f"'{text[:60]}' is not a plan id", hint="it reads forget-plan- and 28 hex digits; fallow plans lists them"
        )
    return text


def full_plan_id(provider: Provider, shortened: str) -> str:
    """A plan's whole id, of which a person may have typed the beginning: four hex digits or more (SPEC §16).

    Raises:
        PlanNotFoundError: no plan here begins so.
        UsageError: several do.
    """
    text = checked_text(shortened, "plan_id").strip()
    digits = text.removeprefix(PLAN_ID_PREFIX)
    if not 4 <= len(digits) < 28 or set(digits) - set("0123456789abcdef"):
        return check_plan_id(text)
    heads = (content_of(row) for row in provider.find(SHARED, HEAD + digits))
    found = sorted({str(head["plan_id"]) for head in heads if head.get("plan_id")})
    if not found:
        raise PlanNotFoundError(f"no plan here begins with {text}", hint="fallow plans lists them")
    if len(found) > 1:
        raise UsageError(
            f"{text} is the beginning of {len(found)} plans", hint=f"write more of it: {', '.join(found[:3])}"
        )
    return found[0]


def store_plan(provider: Provider, plan: RetentionPlan) -> RetentionPlan:
    """Stores a plan durably, once per plan id, and returns the one that stands (SPEC §6.7).

    Parts first, then the head, then the ``forgetting_planned`` event: a plan without its event was never
    finished and is completed by planning again. A plan id already stored keeps its first document.
    """
    short, digest = _short(plan.plan_id), plan.document_sha256
    head = provider.fetch(SHARED, [HEAD + short]).get(HEAD + short)
    if head is None:
        text = _document_text(plan.document)
        limit = provider.capabilities.max_row_bytes
        size = len(text) if limit is None else max(1, limit // 8)
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        parts = [f"{PART}{short}-{digest[:12]}-{number:04d}" for number in range(len(pieces))]
        scope = plan.scope
        rows = [
            control_row(
                name,
                "fallow_plan",
                {"plan_id": plan.plan_id, "part": number, "text": piece},
                now=plan.planned_at,
                agent_id=scope.agent_id,
            )
            for number, (name, piece) in enumerate(zip(parts, pieces, strict=True))
        ]
        content = {
            "plan_id": plan.plan_id,
            "document_sha256": digest,
            "parts": parts,
            "scope": scope.to_json(),
            "as_of": plan.document["as_of"],
            "planned_at": plan.document["planned_at"],
            "expires_at": plan.document["expires_at"],
            "planned": len(plan.entries),
            "item_set": plan.item_set,
            "wide": plan.wide,
            "requested_by": plan.document.get("requested_by"),
            "store_identity": plan.store_identity,
        }
        step = max(1, provider.capabilities.batch_size) if limit is None else 1
        for start in range(0, len(rows), step):
            insert_control_rows(provider, rows[start : start + step])
        insert_control_rows(
            provider, [control_row(HEAD + short, "fallow_plan", content, now=plan.planned_at, agent_id=scope.agent_id)]
        )
    stored = _read_document(provider, _head(provider, plan.plan_id))
    again = [] if head is None or isinstance(head, Unreadable) else [head]
    insert_control_rows(provider, [*again, planned_event(stored)])
    return stored


def _head(provider: Provider, plan_id: str) -> dict[str, Any]:
    row = provider.fetch(SHARED, [HEAD + _short(plan_id)]).get(HEAD + _short(plan_id))
    if row is None:
        raise PlanNotFoundError(f"no plan {plan_id} is stored here", hint="fallow plans lists the plans of this store")
    content = {} if isinstance(row, Unreadable) else content_of(row)
    if content.get("plan_id") != plan_id:
        raise PlanAlteredError(f"the stored head of {plan_id} is not readable", hint="plan again")
    return content


def _document_text(document: Mapping[str, Any]) -> str:
    """The one text that a document is stored as: a stored plan is the same down to the byte, or it is refused."""
    return json.dumps(document, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _read_document(provider: Provider, head: Mapping[str, Any]) -> RetentionPlan:
    parts = [str(name) for name in head.get("parts") or ()]
    rows = provider.fetch(SHARED, parts)
    pieces: list[str] = []
    for name in parts:
        row = rows.get(name)
        text = None if row is None or isinstance(row, Unreadable) else content_of(row).get("text")
        if not isinstance(text, str):
            raise PlanAlteredError(f"a part of {head.get('plan_id')} is missing or torn", hint="plan again")
        pieces.append(text)
    text = "".join(pieces)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise PlanAlteredError(
            f"the stored document of {head.get('plan_id')} is torn", hint="it was altered after planning; plan again"
        ) from None
    plan = RetentionPlan.from_document(document)
    if _document_text(document) != text:
        raise PlanAlteredError(
            f"the stored text of {head.get('plan_id')} is not as it was written",
            hint="it was altered after planning; plan again",
        )
    if plan.plan_id != head.get("plan_id") or plan.document_sha256 != head.get("document_sha256"):
        raise PlanAlteredError(f"the head of {head.get('plan_id')} names another document", hint="plan again")
    return plan


def _check_head(head: Mapping[str, Any], plan: RetentionPlan) -> None:
    """A head repeats its document for listings, and decides nothing by itself."""
    document = plan.document
    repeated = {
        "document_sha256": plan.document_sha256,
        "as_of": document["as_of"],
        "planned_at": document["planned_at"],
        "expires_at": document["expires_at"],
        "planned": len(plan.entries),
        "item_set": plan.item_set,
        "wide": plan.wide,
        "requested_by": document.get("requested_by"),
        "store_identity": plan.store_identity,
    }
    wrong = [name for name, value in repeated.items() if head.get(name) != value]
    if wrong or head.get("scope") != plan.scope.to_json():
        raise PlanAlteredError(
            f"the stored head of {plan.plan_id} does not match its document: {', '.join(wrong) or 'scope'}",
            hint="it was altered after planning; plan again",
        )


def load_plan(provider: Provider, plan_id: str) -> RetentionPlan:
    """The stored plan, after its hashes and its event were checked (SPEC §7.3): for reading, and for every way back.

    A store that was moved or came back from a backup still has its plans; only where something new would be
    approved or applied does :func:`check_same_store` bind a plan to the store that it was made on.

    Raises:
        PlanNotFoundError: no such plan here.
        PlanAlteredError: the document is not what was planned.
    """
    plan_id = check_plan_id(plan_id)
    head = _head(provider, plan_id)
    plan = _read_document(provider, head)
    _check_head(head, plan)
    event = provider.fetch(SHARED, [planned_event(plan)["_id"]]).get(planned_event(plan)["_id"])
    if event is None or isinstance(event, Unreadable):
        raise PlanNotFoundError(f"{plan_id} was never completely stored", hint="plan again; nothing was written by it")
    payload = content_of(event).get("payload")
    if not isinstance(payload, Mapping) or payload.get("document_sha256") != plan.document_sha256:
        raise PlanAlteredError(
            f"the planned event of {plan_id} names another document", hint="it was altered after planning; plan again"
        )
    return plan


def check_same_store(provider: Provider, plan: RetentionPlan) -> None:
    """Refuses to approve or apply a plan anywhere but on the store it was made on (SPEC §7.3).

    Raises:
        OtherStoreError: it was made for another store.
    """
    identity = provider.identity()
    if plan.store_identity != identity:
        raise OtherStoreError(
            f"{plan.plan_id} was made for {plan.store_identity}, and this store is {identity}",
            hint="approving and applying bind to the very store a plan was made on: plan again here; "
            "what it hid can be restored here",
        )


def list_plans(provider: Provider, now: int) -> list[StoredPlan]:
    """All stored plans with their states, the latest first."""
    openings = _by_plan(provider.find(SHARED, OPENING))
    decisions = _by_plan(provider.find(SHARED, DECISION))
    heads = [content for row in provider.find(SHARED, HEAD) if (content := content_of(row)).get("plan_id")]
    ends = {event_id(forgotten_key(head["plan_id"])): head["plan_id"] for head in heads}
    ended = {
        ends[name]: content_of(row)
        for name, row in provider.fetch(SHARED, list(ends)).items()
        if not isinstance(row, Unreadable)
    }
    plans = [
        _stored(
            head, openings.get(head["plan_id"], []), decisions.get(head["plan_id"], []), ended.get(head["plan_id"]), now
        )
        for head in heads
    ]
    return sorted(plans, key=lambda plan: (-plan.planned_at, plan.plan_id))


def stored_plan(provider: Provider, plan_id: str, now: int) -> StoredPlan:
    """One stored plan with its state.

    Raises:
        PlanNotFoundError: no such plan here.
    """
    plan_id = check_plan_id(plan_id)
    head, short = _head(provider, plan_id), _short(plan_id)
    name = event_id(forgotten_key(plan_id))
    end = provider.fetch(SHARED, [name]).get(name)
    return _stored(
        head,
        [content_of(row) for row in provider.find(SHARED, f"{OPENING}{short}-")],
        [content_of(row) for row in provider.find(SHARED, f"{DECISION}{short}-")],
        None if end is None or isinstance(end, Unreadable) else content_of(end),
        now,
    )


def _by_plan(rows: Iterable[Row]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        content = content_of(row)
        found.setdefault(str(content.get("plan_id")), []).append(content)
    return found


def _stored(
    head: Mapping[str, Any],
    openings: Sequence[Mapping[str, Any]],
    decisions: Sequence[Mapping[str, Any]],
    end: Mapping[str, Any] | None,
    now: int,
) -> StoredPlan:
    try:
        return _state(head, openings, decisions, end, now)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise PlanAlteredError(
            f"a stored row of {str(head.get('plan_id'))[:60]} is not as it was written",
            hint="its head, an opening or its decision was altered; restore the row, or remove the plan's rows by hand",
        ) from None


def _state(
    head: Mapping[str, Any],
    openings: Sequence[Mapping[str, Any]],
    decisions: Sequence[Mapping[str, Any]],
    end: Mapping[str, Any] | None,
    now: int,
) -> StoredPlan:
    latest = max(openings, key=lambda item: (int(item["generation"]), read_instant(item["opened_at"])), default=None)
    generation = 0 if latest is None else int(latest["generation"])
    decided = next((item for item in decisions if int(item["generation"]) == generation), None)
    decision = None if decided is None else read_decision(decided)
    expires_at = read_instant((latest or head)["expires_at"])
    payload = (end or {}).get("payload")
    state: PlanState
    if isinstance(payload, Mapping):
        outcome = str(payload.get("outcome", "Applied"))
        state = "stale" if outcome == "Stale" else "closed" if outcome == "Closed" else "applied"
    elif decision is not None:
        state = decision.verdict
    elif now >= expires_at:
        state = "expired"
    else:
        state = "open" if latest is not None and latest.get("published") else "planned"
    return StoredPlan(
        plan_id=str(head["plan_id"]),
        document_sha256=str(head["document_sha256"]),
        scope=Scope.from_json(head["scope"]),
        as_of=str(head["as_of"]),
        planned_at=read_instant(head["planned_at"]),
        expires_at=expires_at,
        planned=int(head["planned"]),
        item_set=str(head["item_set"]),
        wide=bool(head["wide"]),
        requested_by=head.get("requested_by")
        if latest is None
        else latest.get("requested_by") or head.get("requested_by"),
        requesters=tuple(
            dict.fromkeys(str(item["requested_by"]) for item in (head, *openings) if item.get("requested_by"))
        ),
        store_identity=str(head["store_identity"]),
        parts=tuple(head["parts"]),
        generation=generation,
        published_at=read_instant(latest["opened_at"]) if latest is not None and latest.get("published") else None,
        flow_run_id=None if latest is None else latest.get("flow_run_id"),
        decision=decision,
        ended={k: v for k, v in payload.items() if k != "candidates"} if isinstance(payload, Mapping) else None,
        state=state,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What publishing did: which plan is waiting now, and which older ones it took over from."""

    waiting: str
    superseded: tuple[str, ...] = ()
    already_open: bool = False


def publish(
    provider: Provider,
    plan: RetentionPlan,
    *,
    now: int,
    expiry_hours: float,
    requested_by: str | None = None,
    flow_run_id: str | None = None,
) -> Publication:
    """Puts a stored plan before its approver: one open plan a scope (SPEC §7.1).

    An older open plan of the same scope with the same set of records stays the one that waits, and nobody is
    asked again; one with another set is superseded, unless it was made for a later instant: nights that were
    missed and are caught up out of order leave the latest question standing. Publishing a plan that expired
    opens it again.

    Raises:
        PlanStateError: the plan was rejected, superseded or has been applied, or its time is not here yet.
    """
    plan.check_time(now)
    mine = stored_plan(provider, plan.plan_id, now)
    if mine.state == "open":
        insert_again(provider, _openings(provider, mine.plan_id))
        return Publication(waiting=mine.plan_id, already_open=mine.flow_run_id != flow_run_id or flow_run_id is None)
    if mine.state not in {"planned", "expired"}:
        raise PlanStateError(f"{plan.plan_id} is {mine.state}", hint="plan again for a new decision")
    others = [
        other
        for other in list_plans(provider, now)
        if other.state == "open" and other.scope == mine.scope and other.plan_id != mine.plan_id
    ]
    for other in others:
        same = other.item_set == mine.item_set and other.store_identity == mine.store_identity
        if same or read_instant(other.as_of) > read_instant(mine.as_of):
            return Publication(waiting=other.plan_id, already_open=True)
    for other in others:
        conclude(provider, other, "superseded", by="fallow", reason=f"superseded by {mine.plan_id}", now=now)
    _open(provider, mine, now=now, expiry_hours=expiry_hours, published=True, who=requested_by, flow_run_id=flow_run_id)
    return Publication(waiting=mine.plan_id, superseded=tuple(other.plan_id for other in others))


def _openings(provider: Provider, plan_id: str) -> list[str]:
    return [str(row["_id"]) for row in provider.find(SHARED, f"{OPENING}{_short(plan_id)}-")]


def take_over(provider: Provider, plan_id: str, *, flow_run_id: str, now: int) -> None:
    """Puts an open plan's question into another run's hands, where the run that asked is gone.

    The opening stays the same: its end, and a decision recorded meanwhile, hold. Idempotent.

    Raises:
        PlanStateError: the plan is not open.
    """
    stored = stored_plan(provider, plan_id, now)
    if stored.state != "open":
        raise PlanStateError(f"{stored.plan_id} is {stored.state}", hint="only an open plan is asked about")
    if stored.flow_run_id == flow_run_id:
        return
    content = {
        "plan_id": stored.plan_id,
        "generation": stored.generation,
        "opened_at": iso(now),
        "expires_at": iso(stored.expires_at),
        "published": True,
        "requested_by": stored.requested_by,
        "flow_run_id": flow_run_id,
    }
    name = f"{OPENING}{_short(stored.plan_id)}-{stored.generation:04d}-{flow_run_id}"
    insert_control_rows(provider, [control_row(name, "fallow_plan", content, now=now, agent_id=stored.scope.agent_id)])


def runs_that_asked(provider: Provider) -> dict[str, str]:
    """Every flow run that ever put a plan before its approver, with that plan's id."""
    contents = [content_of(row) for row in provider.find(SHARED, OPENING)]
    return {str(item["flow_run_id"]): str(item["plan_id"]) for item in contents if item.get("flow_run_id")}


def plan_of_run(provider: Provider, flow_run_id: str, now: int) -> StoredPlan | None:
    """The plan that a run put before its approver, however long ago; None where it has published none.

    Its ``flow_run_id`` is another where another run has taken the question over since.
    """
    plan_id = runs_that_asked(provider).get(flow_run_id)
    return None if plan_id is None else stored_plan(provider, plan_id, now)


def reopen(provider: Provider, plan_id: str, *, now: int, expiry_hours: float, requested_by: str | None = None) -> None:
    """Planning an expired id again reopens it, unpublished (SPEC §6.7)."""
    stored = stored_plan(provider, plan_id, now)
    if stored.state == "expired":
        _open(provider, stored, now=now, expiry_hours=expiry_hours, published=False, who=requested_by, flow_run_id=None)


def _open(
    provider: Provider,
    stored: StoredPlan,
    *,
    now: int,
    expiry_hours: float,
    published: bool,
    who: str | None,
    flow_run_id: str | None,
) -> None:
    first = stored.generation == 0 and stored.published_at is None and stored.state != "expired"
    generation = 0 if first else stored.generation + 1
    content = {
        "plan_id": stored.plan_id,
        "generation": generation,
        "opened_at": iso(now),
        "expires_at": iso(now + round(expiry_hours * MICROSECONDS_PER_HOUR)),
        "published": published,
        "requested_by": who,
        "flow_run_id": flow_run_id,
    }
    name = f"{OPENING}{_short(stored.plan_id)}-{generation:04d}"
    insert_control_rows(provider, [control_row(name, "fallow_plan", content, now=now, agent_id=stored.scope.agent_id)])


def conclude(provider: Provider, stored: StoredPlan, verdict: Verdict, *, by: str, reason: str, now: int) -> Decision:
    """Records an outcome that no approver gave: expired or superseded. The first decision of an opening stands."""
    decision = Decision(
        plan_id=stored.plan_id,
        verdict=verdict,
        by=by,
        reason=reason,
        decided_at=now,
        document_sha256=stored.document_sha256,
        standing="recorded by fallow",
    )
    return record_decision(provider, stored, decision)


def decision_row_id(stored: StoredPlan) -> str:
    return f"{DECISION}{_short(stored.plan_id)}-{stored.generation:04d}"


def record_decision(provider: Provider, stored: StoredPlan, decision: Decision) -> Decision:
    name = decision_row_id(stored)
    content = {**decision.to_json(), "generation": stored.generation, "store_identity": stored.store_identity}
    row = control_row(name, "fallow_decision", content, now=decision.decided_at, agent_id=stored.scope.agent_id)
    if insert_control_rows(provider, [row]) == ["applied"]:
        return decision
    standing = provider.fetch(SHARED, [name]).get(name)
    if standing is None or isinstance(standing, Unreadable):
        raise PlanAlteredError(f"the decision about {stored.plan_id} is not readable", hint="look at the store's row")
    return read_decision(content_of(standing))


def expire_plans(provider: Provider, now: int) -> list[StoredPlan]:
    """Records the expiry of every published plan whose time has passed undecided (SPEC §7.2)."""
    expired = [plan for plan in list_plans(provider, now) if plan.state == "expired" and plan.decision is None]
    for plan in expired:
        conclude(provider, plan, "expired", by="fallow", reason="nobody decided in time", now=now)
    return expired


def standings_of(provider: Provider) -> dict[str, str]:
    """By plan id, how far the name on its approval can be trusted: ``claimed`` or ``signed``."""
    contents = [content_of(row) for row in provider.find(SHARED, DECISION)]
    return {
        str(item.get("plan_id")): str(item.get("standing") or "claimed")
        for item in contents
        if item.get("decision") == "approved"
    }


def recently_left_out(provider: Provider, as_of: int, days: float) -> dict[str, set[str]]:
    """By memory type, the ids that an approver left out less than ``days`` before ``as_of`` (SPEC §6.3)."""
    found: dict[str, set[str]] = {}
    for row in provider.find(SHARED, DECISION):
        content = content_of(row)
        decided = parse_time(content.get("decided_at"))
        if content.get("decision") != "approved" or decided is None:
            continue
        if 0 <= as_of - decided < days * MICROSECONDS_PER_DAY or decided > as_of:
            for memory_type, record_id in content.get("leave_out") or ():
                found.setdefault(memory_type, set()).add(record_id)
    return found
