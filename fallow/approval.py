"""Stored plans, who was asked, and what a named human decided (SPEC §6.7, §7).

Everything lives in the store itself, as rows that are inserted once and never changed: a plan's document
in parts and its head, openings (a plan is published, or reopened after it expired), one decision an
opening. Of two decisions at once the first inserted stands and the other reads it back. The state of a
plan follows from its rows and the clock; nothing else remembers it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fallow.configured_files import registered_operators
from fallow.errors import (
    ApprovalRefusedError,
    OtherStoreError,
    PlanAlteredError,
    PlanExpiredError,
    PlanNotFoundError,
    PlanStateError,
)
from fallow.history import insert_again, insert_control_rows
from fallow.journal import SHARED, content_of, control_row, event_id, forgotten_key, planned_event
from fallow.plan import PLAN_ID_PREFIX, RetentionPlan, Scope
from fallow.provider import Provider, RecordKey, Row, Unreadable
from fallow.record import PRIMARY_TYPES
from fallow.settings import ApprovalConfig
from fallow.signatures import Statement, compare, refused, sign, validity, verify_signature
from fallow.times import MICROSECONDS_PER_DAY, MICROSECONDS_PER_HOUR, iso, parse_time

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HEAD: Final = "fallow-plan-"
PART: Final = "fallow-planpart-"
OPENING: Final = "fallow-open-"
DECISION: Final = "fallow-decision-"

MAX_NAME: Final = 240
MAX_NOTE: Final = 2000

#: planned     stored, nobody was asked
#: open        published and waiting
#: approved    decided, not yet at its end
#: applied, stale, closed    at its end: its memory_forgotten event says which
PlanState = Literal["planned", "open", "approved", "rejected", "expired", "superseded", "applied", "stale", "closed"]
Verdict = Literal["approved", "rejected", "expired", "superseded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about a plan, as it was recorded before anything was acted on (SPEC §7.3).

    ``standing`` says how far the name can be trusted: ``claimed``, ``claimed, no approvers configured``,
    or ``signed``; ``signature`` is then the signed approval itself, which applying verifies again.
    """

    plan_id: str
    verdict: Verdict
    by: str
    reason: str
    decided_at: int
    document_sha256: str
    standing: str
    leave_out: tuple[RecordKey, ...] = ()
    count: int | None = None
    signature: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the decision's row carries it."""
        return {
            **({} if self.signature is None else {"signature": self.signature}),
            "plan_id": self.plan_id,
            "decision": self.verdict,
            "by": self.by,
            "reason": self.reason,
            "decided_at": iso(self.decided_at),
            "document_sha256": self.document_sha256,
            "standing": self.standing,
            "leave_out": [list(key) for key in self.leave_out],
            "count": self.count,
        }


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
        PlanNotFoundError: the text cannot be a plan id.
    """
    text = plan_id.strip()
    digits = text.removeprefix(PLAN_ID_PREFIX)
    if digits == text or len(digits) != 28 or set(digits) - set("0123456789abcdef"):
        raise PlanNotFoundError(
            f"'{text[:60]}' is not a plan id", hint="it reads forget-plan- and 28 hex digits; fallow plans lists them"
        )
    return text


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
    """The stored plan, after its hashes, its event and its store were checked (SPEC §7.3).

    Raises:
        PlanNotFoundError: no such plan here.
        PlanAlteredError: the document is not what was planned.
        OtherStoreError: it was made for another store.
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
    identity = provider.identity()
    if plan.store_identity != identity:
        raise OtherStoreError(
            f"{plan_id} was made for {plan.store_identity}, and this store is {identity}",
            hint="plans are valid for the very store they were made on: plan again here",
        )
    return plan


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


def _instant(value: Any) -> int:
    instant = parse_time(value)
    if instant is None:
        raise PlanAlteredError("a stored plan has a time that cannot be read", hint="plan again")
    return instant


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
    latest = max(openings, key=lambda item: (int(item["generation"]), _instant(item["opened_at"])), default=None)
    generation = 0 if latest is None else int(latest["generation"])
    decided = next((item for item in decisions if int(item["generation"]) == generation), None)
    decision = None if decided is None else _decision(decided)
    expires_at = _instant((latest or head)["expires_at"])
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
        planned_at=_instant(head["planned_at"]),
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
        published_at=_instant(latest["opened_at"]) if latest is not None and latest.get("published") else None,
        flow_run_id=None if latest is None else latest.get("flow_run_id"),
        decision=decision,
        ended={k: v for k, v in payload.items() if k != "candidates"} if isinstance(payload, Mapping) else None,
        state=state,
    )


def _decision(content: Mapping[str, Any]) -> Decision:
    return Decision(
        plan_id=str(content["plan_id"]),
        verdict=content["decision"],
        by=str(content["by"]),
        reason=str(content.get("reason") or ""),
        decided_at=_instant(content["decided_at"]),
        document_sha256=str(content["document_sha256"]),
        standing=str(content.get("standing") or "claimed"),
        leave_out=tuple(RecordKey(*pair) for pair in content.get("leave_out") or ()),
        count=content.get("count"),
        signature=None if content.get("signature") is None else str(content["signature"]),
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
        PlanStateError: the plan was rejected, superseded or has been applied.
    """
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
        if same or _instant(other.as_of) > _instant(mine.as_of):
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
    return _record(provider, stored, decision)


def _decision_id(stored: StoredPlan) -> str:
    return f"{DECISION}{_short(stored.plan_id)}-{stored.generation:04d}"


def _record(provider: Provider, stored: StoredPlan, decision: Decision) -> Decision:
    name = _decision_id(stored)
    content = {**decision.to_json(), "generation": stored.generation, "store_identity": stored.store_identity}
    row = control_row(name, "fallow_decision", content, now=decision.decided_at, agent_id=stored.scope.agent_id)
    if insert_control_rows(provider, [row]) == ["applied"]:
        return decision
    standing = provider.fetch(SHARED, [name]).get(name)
    if standing is None or isinstance(standing, Unreadable):
        raise PlanAlteredError(f"the decision about {stored.plan_id} is not readable", hint="look at the store's row")
    return _decision(content_of(standing))


def expire_plans(provider: Provider, now: int) -> list[StoredPlan]:
    """Records the expiry of every published plan whose time has passed undecided (SPEC §7.2)."""
    expired = [plan for plan in list_plans(provider, now) if plan.state == "expired" and plan.decision is None]
    for plan in expired:
        conclude(provider, plan, "expired", by="fallow", reason="nobody decided in time", now=now)
    return expired


def check_approver(name: str, approval: ApprovalConfig, *, requesters: Iterable[str] = ()) -> tuple[str, str]:
    """The approver's name, trimmed, and how far it can be trusted (SPEC §7.4).

    ``requesters`` are all who ever asked for the plan: where four eyes are set, none of them approves it.

    Raises:
        ApprovalRefusedError: blank, too long, not on the list, or the one who asked.
    """
    text = unicodedata.normalize("NFC", name).strip()
    if not text or any(unicodedata.category(char).startswith("C") for char in text):
        raise ApprovalRefusedError("no approver is named", hint="give a name with --approved-by")
    if len(text) > MAX_NAME:
        raise ApprovalRefusedError(f"the approver's name is longer than {MAX_NAME} characters", hint="shorten it")
    known = {unicodedata.normalize("NFC", item).strip() for item in approval.approvers}
    if known and text not in known:
        raise ApprovalRefusedError(
            f"'{text[:60]}' is not an approver here", hint="FALLOW_APPROVERS names who may approve; nothing was written"
        )
    asked = {unicodedata.normalize("NFC", item).strip().casefold() for item in requesters}
    if approval.four_eyes and text.casefold() in asked:
        raise ApprovalRefusedError(
            f"'{text[:60]}' requested this plan and may not approve it",
            hint="FALLOW_FOUR_EYES asks for a second person",
        )
    return text, "claimed" if known else "claimed, no approvers configured"


def cut(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters; what was cut is marked."""
    return text if len(text) <= limit else text[: limit - 2].rstrip() + " …"


def resolve_leave_out(plan: RetentionPlan, leave_out: Iterable[str | RecordKey]) -> tuple[RecordKey, ...]:
    """``ID`` or ``TYPE:ID`` as the plan's own keys.

    Raises:
        ApprovalRefusedError: a name is not in the plan, or fits two records of different types.
    """
    by_id: dict[str, list[RecordKey]] = {}
    for entry in plan.entries:
        by_id.setdefault(entry.record_id, []).append(entry.key)
    keys: set[RecordKey] = set()
    for item in leave_out:
        if isinstance(item, RecordKey):
            fits = [key for key in by_id.get(item.record_id, []) if key == item]
        else:
            fits = by_id.get(item) or by_id.get(item.strip()) or []
            memory_type, _, record_id = item.strip().partition(":")
            if memory_type in PRIMARY_TYPES and not fits:
                fits = [key for key in by_id.get(record_id, []) if key.memory_type == memory_type]
        name = item.record_id if isinstance(item, RecordKey) else item
        if not fits:
            raise ApprovalRefusedError(
                f"'{name[:80]}' is to be left out but is not in the plan", hint="fallow show lists the plan's records"
            )
        if len(fits) > 1:
            raise ApprovalRefusedError(
                f"'{name[:80]}' names records of several types",
                hint=f"write TYPE:ID, such as {fits[0].memory_type}:…",
            )
        keys.add(fits[0])
    return tuple(sorted(keys))


def decide(
    provider: Provider,
    plan_id: str,
    *,
    verdict: Literal["approved", "rejected"],
    approved_by: str,
    reason: str = "",
    leave_out: Iterable[str | RecordKey] = (),
    count: int | None = None,
    approval: ApprovalConfig,
    now: int,
    signature: str | None = None,
) -> Decision:
    """Records a named human's decision, before anything is acted on (SPEC §7). Nothing else is written.

    The same decision again is the recorded one. ``count`` repeats the number of planned records, before
    leave-outs; a plan over the blast radius demands it (SPEC §6.8). With a ``signature``
    (:func:`sign_decision`) everything must be as it was signed; reason, leave-outs and count that are not
    given are those that were signed.

    Raises:
        ApprovalRefusedError: approver, count or leave-outs do not fit.
        SignatureRefusedError: the signature does not hold, or is missing where approvals must be signed.
        PlanExpiredError: the plan's time has passed.
        PlanStateError: it is superseded, or decided otherwise.
        PlanNotFoundError, PlanAlteredError, OtherStoreError: as :func:`load_plan`.
    """
    plan = load_plan(provider, plan_id)
    stored = stored_plan(provider, plan.plan_id, now)
    name, standing = check_approver(approved_by, approval, requesters=stored.requesters)
    keys = resolve_leave_out(plan, leave_out) if verdict == "approved" else ()
    reason = cut(reason.strip(), MAX_NOTE)
    if signature is not None and signature.strip():
        signature = signature.strip()
        statement = _verified(signature, approval, now)
        reason, standing = reason or statement.reason, "signed"
        if not keys:
            keys = resolve_leave_out(plan, [RecordKey(*pair) for pair in statement.leave_out])
        compare(statement, _signed_about(stored, plan, verdict, name, reason, keys, count))
        count = statement.count
    else:
        signature = None
    if verdict == "approved":
        _check_count(plan, count)
        if signature is None and approval.require_signed:
            raise refused(
                "unsigned",
                "approvals must be signed here, and this one is a name alone",
                "fallow approve --key FILE signs it; nothing was written",
            )
    if stored.decision is not None:
        standing_decision = _same_again(stored, verdict, keys)
        insert_again(provider, [_decision_id(stored)])
        return standing_decision
    if stored.state == "expired":
        raise PlanExpiredError(
            f"{plan.plan_id} expired at {iso(stored.expires_at)}", hint="plan again; nothing was written"
        )
    decision = Decision(
        plan_id=plan.plan_id,
        verdict=verdict,
        by=name,
        reason=reason,
        decided_at=now,
        document_sha256=plan.document_sha256,
        standing=standing,
        leave_out=keys,
        count=count,
        signature=signature,
    )
    recorded = _record(provider, stored, decision)
    if recorded != decision:
        return _same_again(stored_plan(provider, plan.plan_id, now), verdict, keys)
    return recorded


def _verified(signature: str, approval: ApprovalConfig, at: int) -> Statement:
    return verify_signature(signature, registered_operators(approval), at=at)[0]


def _signed_about(
    stored: StoredPlan,
    plan: RetentionPlan,
    verdict: str,
    by: str,
    reason: str,
    leave_out: Sequence[RecordKey],
    count: int | None,
) -> dict[str, Any]:
    """What a signature about this decision must say."""
    return {
        "plan_id": plan.plan_id,
        "document_sha256": plan.document_sha256,
        "store_identity": plan.store_identity,
        "generation": stored.generation,
        "decision": verdict,
        "leave_out": tuple((key.memory_type, key.record_id) for key in leave_out),
        "count": len(plan.entries) if count is None else count,
        "by": by,
        "reason": reason,
    }


def sign_decision(
    provider: Provider,
    plan_id: str,
    *,
    verdict: Literal["approved", "rejected"],
    approved_by: str,
    reason: str = "",
    leave_out: Iterable[str | RecordKey] = (),
    key: Ed25519PrivateKey,
    now: int,
) -> str:
    """Signs a decision about the stored plan as it stands here; nothing is written (SPEC §7).

    The text it returns is what :func:`decide` takes as ``signature``, here or through the approval's form. It
    holds for a day at most, and never past its plan.

    Raises:
        ApprovalRefusedError: nobody is named, or a record to leave out is not in the plan.
        PlanExpiredError: the plan's time has passed.
        PlanNotFoundError, PlanAlteredError, OtherStoreError: as :func:`load_plan`.
    """
    plan = load_plan(provider, plan_id)
    stored = stored_plan(provider, plan.plan_id, now)
    name, _ = check_approver(approved_by, ApprovalConfig())
    keys = resolve_leave_out(plan, leave_out) if verdict == "approved" else ()
    if stored.decision is None and stored.state == "expired":
        raise PlanExpiredError(f"{plan.plan_id} expired at {iso(stored.expires_at)}", hint="plan again")
    wanted = _signed_about(stored, plan, verdict, name, cut(reason.strip(), MAX_NOTE), keys, None)
    until = validity(now, None if stored.decision is not None else stored.expires_at)
    return sign(Statement(**wanted, signed_at=now, expires_at=until), key)


def check_recorded(plan: RetentionPlan, stored: StoredPlan, approval: ApprovalConfig) -> None:
    """Verifies a recorded approval once more before anything is written by it (SPEC §7.3).

    A row of the store is not proof: where it says that it was signed, or must have been, the signature is
    held against the registered operators and against every field of the row.

    Raises:
        SignatureRefusedError: it does not hold, or there is none where approvals must be signed.
        ApprovalRefusedError: the one who approved is one who asked, where four eyes are set.
    """
    decision = stored.decision
    if decision is None:
        return
    if decision.signature is None and decision.standing != "signed":
        if approval.require_signed:
            raise refused(
                "unsigned",
                f"the approval of {plan.plan_id} is a name alone, and approvals must be signed here",
                "plan again and sign the approval; nothing was written",
            )
        return
    statement = _verified(decision.signature or "", approval, decision.decided_at)
    compare(
        statement,
        _signed_about(stored, plan, decision.verdict, decision.by, decision.reason, decision.leave_out, decision.count),
    )
    check_approver(
        decision.by, ApprovalConfig(four_eyes=approval.four_eyes, approvers=()), requesters=stored.requesters
    )


def _check_count(plan: RetentionPlan, count: int | None) -> None:
    planned = len(plan.entries)
    if not planned:
        raise ApprovalRefusedError(f"{plan.plan_id} plans no records", hint="there is nothing to approve")
    if count is None and plan.wide:
        share = plan.document["blast_radius"]["share"]
        raise ApprovalRefusedError(
            f"{plan.plan_id} would hide {share:.0%} of its scope, so the approval must repeat how many it plans",
            hint="add --count with the number of records planned, before leave-outs",
        )
    if count is not None and count != planned:
        raise ApprovalRefusedError(
            f"the count {count} is not the number of records planned", hint=f"{plan.plan_id} plans {planned}"
        )


def _same_again(stored: StoredPlan, verdict: str, leave_out: tuple[RecordKey, ...]) -> Decision:
    decision = stored.decision
    if (
        decision is not None
        and decision.verdict == verdict
        and (verdict != "approved" or decision.leave_out == leave_out)
    ):
        return decision
    if decision is None or decision.verdict == "expired":
        raise PlanExpiredError(f"{stored.plan_id} has expired", hint="plan again; nothing was written")
    raise PlanStateError(
        f"{stored.plan_id} was already {decision.verdict} by {decision.by} at {iso(decision.decided_at)}",
        hint="the recorded decision stands; plan again for a new one",
    )


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
