"""Recording what a named human decides, before anything is acted on (SPEC §7)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from fallow.acting.configured_files import registered_operators
from fallow.acting.signatures import Statement, compare, refused, sign, validity, verify_signature
from fallow.model.arguments import Time, count_or_none, instant, left_out, text_or_none
from fallow.model.arguments import text as checked_text
from fallow.model.errors import (
    ApprovalRefusedError,
    PlanExpiredError,
    PlanStateError,
)
from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES
from fallow.model.settings import ApprovalConfig
from fallow.model.times import iso
from fallow.plans.plan import RetentionPlan
from fallow.port.journal_writing import insert_again
from fallow.port.protocol import Provider

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fallow.model.canonical import cut
from fallow.plans.decision import Decision
from fallow.plans.storage import (
    MAX_NOTE,
    StoredPlan,
    check_same_store,
    decision_row_id,
    load_plan,
    record_decision,
    stored_plan,
)

MAX_NAME: Final = 240


def check_approver(name: str, approval: ApprovalConfig, *, requesters: Iterable[str] = ()) -> tuple[str, str]:
    """The approver's name, trimmed, and how far it can be trusted (SPEC §7.4).

    ``requesters`` are all who ever asked for the plan: where four eyes are set, none of them approves it.

    Raises:
        ApprovalRefusedError: blank, too long, not on the list, or the one who asked.
    """
    text = unicodedata.normalize("NFC", checked_text(name, "approved_by")).strip()
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


def resolve_leave_out(plan: RetentionPlan, leave_out: Iterable[str | RecordKey]) -> tuple[RecordKey, ...]:
    """``ID`` or ``TYPE:ID`` as the plan's own keys.

    Raises:
        ApprovalRefusedError: a name is not in the plan, or fits two records of different types.
    """
    by_id: dict[str, list[RecordKey]] = {}
    for entry in plan.entries:
        by_id.setdefault(entry.record_id, []).append(entry.key)
    keys: set[RecordKey] = set()
    for item in left_out(leave_out):
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
    now: Time | None = None,
    signature: str | None = None,
) -> Decision:
    """Records a named human's decision, before anything is acted on (SPEC §7). Nothing else is written.

    The same decision again is the recorded one. ``count`` repeats the number of planned records, before
    leave-outs; a plan over the blast radius demands it (SPEC §6.8). With a ``signature``
    (:func:`sign_decision`) everything must be as it was signed; reason, leave-outs and count that are not
    given are those that were signed.

    Raises:
        UsageError: an argument is none of SPEC §1.5.
        ApprovalRefusedError: approver, count or leave-outs do not fit.
        SignatureRefusedError: the signature does not hold, or is missing where approvals must be signed.
        PlanExpiredError: the plan's time has passed.
        PlanStateError: it is superseded, or decided otherwise, or a what-if whose time is not here yet.
        PlanNotFoundError, PlanAlteredError, OtherStoreError: as :func:`load_plan`.
    """
    now, count = instant(now), count_or_none(count, "count")
    reason, signature = checked_text(reason, "reason"), text_or_none(signature, "signature")
    leave_out, approved_by = left_out(leave_out), checked_text(approved_by, "approved_by")
    plan = load_plan(provider, plan_id)
    if verdict == "approved":
        check_same_store(provider, plan)
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
        plan.check_time(now)
        _check_count(plan, count)
        if signature is None and approval.require_signed:
            raise refused(
                "unsigned",
                "approvals must be signed here, and this one is a name alone",
                "fallow approve --key FILE signs it; nothing was written",
            )
    if stored.decision is not None:
        standing_decision = _same_again(stored, verdict, keys)
        insert_again(provider, [decision_row_id(stored)])
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
    recorded = record_decision(provider, stored, decision)
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
    now: Time | None = None,
) -> str:
    """Signs a decision about the stored plan as it stands here; nothing is written (SPEC §7).

    The text it returns is what :func:`decide` takes as ``signature``, here or through the approval's form. It
    holds for a day at most, and never past its plan.

    Raises:
        UsageError: an argument is none of SPEC §1.5.
        ApprovalRefusedError: nobody is named, or a record to leave out is not in the plan.
        PlanExpiredError: the plan's time has passed.
        PlanNotFoundError, PlanAlteredError, OtherStoreError: as :func:`load_plan`.
    """
    now, reason, leave_out = instant(now), checked_text(reason, "reason"), left_out(leave_out)
    plan = load_plan(provider, plan_id)
    if verdict == "approved":
        check_same_store(provider, plan)
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
