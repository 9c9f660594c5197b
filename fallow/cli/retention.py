"""Commands around a plan: make it, read it, decide it, apply it, take it back, ask why (SPEC §16)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fallow.cli.app import (
    AgentId,
    ApprovedBy,
    AsOf,
    Count,
    Json,
    KeyFile,
    LeaveOut,
    MemoryId,
    Reason,
    Signature,
    SignatureOnly,
    Store,
    ThreadId,
    UserId,
    emit,
    note,
    open_store,
    say,
    scope_of,
    settings_of,
    settings_variable,
    stop_switch,
    table,
)
from fallow.model.arguments import instant, instant_or_none, record_ids
from fallow.model.arguments import memory_type as checked_type
from fallow.model.errors import UsageError
from fallow.model.times import iso, wall_clock
from fallow.showing.tables import counted, printable

if TYPE_CHECKING:
    from fallow.plans.agents import AgentsPlan
    from fallow.plans.plan import RetentionPlan
    from fallow.port.protocol import Provider

PlanId = Annotated[str, typer.Argument(help="forget-plan-…, as fallow plans lists it; its first digits do.")]


def retention_plan(
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    unowned: Annotated[bool, typer.Option("--unowned", help="Records without an owner, too (or only).")] = False,
    as_of: AsOf = None,
    min_retention: Annotated[float | None, typer.Option("--min-retention", help="Eligible below this, 0..1.")] = None,
    grace_days: Annotated[float | None, typer.Option("--grace-days", help="Eligible from this age.")] = None,
    max_candidates: Annotated[int | None, typer.Option("--max-candidates", help="Entries in the plan.")] = None,
    memory_type: Annotated[list[str] | None, typer.Option("--memory-type", help="Only this type; repeatable.")] = None,
    no_snapshot: Annotated[bool, typer.Option("--no-snapshot", help="Read every record afresh.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Put the plan before its approver.")] = False,
    requested_by: Annotated[str | None, typer.Option("--requested-by", help="Who asks, for four eyes.")] = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="0 nothing to do, 10 candidates.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Plan which records to suppress: a dry run, stored for its approval."""
    from fallow.plans.storage import publish as publish_plan
    from fallow.port.protocol import Snapshotting
    from fallow.usecases.planner import plan_scope

    options = {
        "retention.min_retention": min_retention,
        "retention.grace_days": grace_days,
        "retention.max_candidates": max_candidates,
        "retention.memory_types": memory_type or None,
    }
    at, now = instant(as_of, "--as-of"), wall_clock()
    scope = scope_of(agent_id, memory_id, user_id, thread_id, unowned)
    with open_store(store, options) as provider:
        if no_snapshot and isinstance(provider, Snapshotting):
            provider.snapshot = False
        settings = settings_of(provider, agent_id, options)
        plan = plan_scope(provider, settings, scope, as_of=at, now=now, requested_by=requested_by)
        published: dict[str, Any] = {}
        if publish and plan.entries:
            asked = publish_plan(
                provider, plan, now=now, expiry_hours=settings.retention.expiry_hours, requested_by=requested_by
            )
            published = {
                "publication": {
                    "waiting": asked.waiting,
                    "superseded": list(asked.superseded),
                    "already_open": asked.already_open,
                }
            }
        if not settings.approval.approvers:
            note("no approvers are configured (FALLOW_APPROVERS): any name can approve, recorded as claimed")
    if as_json:
        emit({**plan.document, **published})
    else:
        show_plan(plan)
        if published:
            say(f"Waiting for approval: {published['publication']['waiting']}")
    return 10 if detailed_exitcode and plan.entries else 0


def show_plan(plan: RetentionPlan, rows: int = 10) -> None:
    """A plan for people: one sentence, the numbers, what is protected, the lowest records."""
    from fallow.judgement.policy import policy_advice
    from fallow.judgement.words import called, notices, scale_words
    from fallow.showing.risk import risk_lines

    counts = plan.counts
    for line in notices(plan.document):
        say(line)
    say(f"{plan.plan_id}")
    say(
        f"{plan.scope.label} as of {plan.document['as_of']}: "
        f"{len(plan.entries)} of {counts['scanned']} records would be suppressed."
    )
    say(
        f"eligible {counts['eligible']}, planned {counts['planned']}, deferred by the cap {counts['deferred']}"
        + (f", changed while planning {counts['changed_while_planning']}" if counts["changed_while_planning"] else "")
    )
    held = {reason: number for reason, number in counts["protected"].items() if number}
    say("protected: " + (", ".join(f"{called(reason)} {number}" for reason, number in held.items()) or "none"))
    if counts["breaches"]:
        say("breaches: " + ", ".join(f"{name} {number}" for name, number in counts["breaches"].items()))
    for line in scale_words(plan.document):
        say(line)
    if "risk" in plan.document:
        for line in risk_lines(plan.document["risk"], counts["over_risk"]):
            say(line)
    coverage = plan.document["coverage"]
    say(
        f"importance coverage {coverage['rated']:.0%}, recalled ever {coverage['accessed']:.0%}, "
        f"effective importance cut {coverage['effective_importance_cut']:.2f}"
    )
    say(
        "policy: "
        + ", ".join(f"{name}={item['value']} ({item['origin']})" for name, item in plan.document["policy"].items())
    )
    advice = policy_advice(coverage["rated"], plan.policy("formula", "mean"), plan.policy("weights", (1, 1, 1)))
    if advice:
        say(f"advice: {advice}.")
    if plan.wide:
        share = plan.document["blast_radius"]["share"]
        say(f"WIDE: this hides {share:.0%} of its scope; the approval must repeat --count {len(plan.entries)}.")
    if plan.document["agents"]["left_out"]:
        say("agents with retention off, left out: " + ", ".join(plan.document["agents"]["left_out"]))
    if plan.document["agents"]["differing"]:
        say("agents whose own policy differs from this one: " + ", ".join(plan.document["agents"]["differing"]))
    if plan.entries:
        lowest = [
            (f"{entry.retention:.3f}", entry.memory_type, entry.record_id, entry.reason)
            for entry in plan.entries[:rows]
        ]
        table(f"The {len(lowest)} lowest", ("retention", "type", "record", "why"), lowest, right=("retention",))


def _decide(
    provider: Provider,
    plan_id: str,
    verdict: str,
    approved_by: str,
    reason: str,
    leave_out: list[str] | None,
    count: int | None,
    now: int,
    key: Path | None = None,
    signature: str | None = None,
) -> Mapping[str, Any]:
    from fallow.acting.deciding import decide
    from fallow.usecases.planner import settings_for

    if key is not None and signature:
        raise UsageError("--key and --signature are both given", hint="sign here, or paste what was signed")
    if key is not None:
        signature = _signed(provider, plan_id, verdict, approved_by, reason, leave_out, key, now)
    settings = settings_for(provider, None, variable=settings_variable())
    decision = decide(
        provider,
        plan_id,
        verdict="approved" if verdict == "approved" else "rejected",
        approved_by=approved_by,
        reason=reason,
        leave_out=leave_out or (),
        count=count,
        approval=settings.approval,
        now=now,
        signature=signature,
    )
    if decision.standing != "claimed":
        note(f"the approval is recorded as: {decision.standing}")
    return decision.to_json()


def _signed(
    provider: Provider,
    plan_id: str,
    verdict: str,
    approved_by: str,
    reason: str,
    leave_out: list[str] | None,
    key: Path,
    now: int,
) -> str:
    """The decision about the stored plan, signed with the private key in a file."""
    from fallow.acting.deciding import sign_decision
    from fallow.cli.operators import read_key

    return sign_decision(
        provider,
        plan_id,
        verdict="approved" if verdict == "approved" else "rejected",
        approved_by=approved_by,
        reason=reason,
        leave_out=leave_out or (),
        key=read_key(key),
        now=now,
    )


def _print_signature(token: str, plan_id: str, as_json: bool) -> None:
    note("paste the line into the form's field Signature, or hand it to fallow approve --signature")
    if as_json:
        emit({"plan_id": plan_id.strip(), "signature": token})
    else:
        say(token)


def _wake_waiting_run(provider: Provider, plan_id: str) -> None:
    """Resumes the flow run that waits for this decision, where PREFECT_API_URL names its server."""
    from fallow.plans.storage import stored_plan

    run_id = stored_plan(provider, plan_id, wall_clock()).flow_run_id
    if run_id is None:
        return
    address = os.environ.get("PREFECT_API_URL", "").strip()
    if not address:
        note("a flow run waits for this decision; set PREFECT_API_URL to resume it from here")
        return
    from fallow.cli.waiting import wake_run

    note(wake_run(address, os.environ.get("PREFECT_API_AUTH_STRING"), run_id))


def approve(
    plan_id: PlanId,
    approved_by: ApprovedBy,
    reason: Reason = "",
    leave_out: LeaveOut = None,
    count: Count = None,
    key: KeyFile = None,
    signature: Signature = None,
    signature_only: SignatureOnly = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Record an approval; retention-apply or the waiting run then applies it."""
    from fallow.plans.storage import full_plan_id

    now = wall_clock()
    with open_store(store) as provider:
        plan_id = full_plan_id(provider, plan_id)
        if signature_only:
            token = _signed(provider, plan_id, "approved", approved_by, reason, leave_out, _needed(key), now)
            _print_signature(token, plan_id, as_json)
            return
        decision = _decide(provider, plan_id, "approved", approved_by, reason, leave_out, count, now, key, signature)
        _wake_waiting_run(provider, decision["plan_id"])
    if as_json:
        emit(decision)
    else:
        say(
            f"{decision['plan_id']} approved by {decision['by']} ({decision['standing']}); "
            f"{len(decision['leave_out'])} records left out."
        )


def _needed(key: Path | None) -> Path:
    if key is None:
        raise UsageError("--signature-only needs --key", hint="fallow operator keygen makes one")
    return key


def reject(
    plan_id: PlanId,
    approved_by: ApprovedBy,
    reason: Reason = "",
    key: KeyFile = None,
    signature: Signature = None,
    signature_only: SignatureOnly = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Record a rejection; nothing of the plan will be applied."""
    from fallow.plans.storage import full_plan_id

    now = wall_clock()
    with open_store(store) as provider:
        plan_id = full_plan_id(provider, plan_id)
        if signature_only:
            token = _signed(provider, plan_id, "rejected", approved_by, reason, None, _needed(key), now)
            _print_signature(token, plan_id, as_json)
            return
        decision = _decide(provider, plan_id, "rejected", approved_by, reason, None, None, now, key, signature)
        _wake_waiting_run(provider, decision["plan_id"])
    if as_json:
        emit(decision)
    else:
        say(f"{decision['plan_id']} rejected by {decision['by']} ({decision['standing']}).")


def retention_apply(
    plan_id: PlanId,
    approved_by: ApprovedBy,
    reason: Reason = "",
    leave_out: LeaveOut = None,
    count: Count = None,
    key: KeyFile = None,
    signature: Signature = None,
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Approve a plan and suppress exactly what it names, in one step."""
    from fallow.acting.apply import apply_plan
    from fallow.plans.storage import full_plan_id
    from fallow.usecases.planner import settings_for

    now = wall_clock()
    with open_store(store) as provider:
        plan_id = full_plan_id(provider, plan_id)
        _decide(provider, plan_id, "approved", approved_by, reason, leave_out, count, now, key, signature)
        settings = settings_for(provider, None, variable=settings_variable())
        report = apply_plan(
            provider,
            plan_id,
            now=now,
            approval=settings.approval,
            stop=stop_switch(settings),
        )
        _wake_waiting_run(provider, report.plan_id)
    if as_json:
        emit(report.to_json())
    else:
        say(
            f"{report.plan_id}: {report.state}. {report.applied} suppressed now, {report.already} before; "
            f"approved by {report.approved_by} ({report.standing})."
        )
        if not report.applied and report.already:
            say("This plan had been applied already; nothing was changed.")
        for title, groups in (("skipped", report.skipped), ("failed", report.failed)):
            for why, ids in sorted(groups.items()):
                say(f"  {title}, {why}: {len(ids)} ({', '.join(sorted(ids)[:3])}{', …' if len(ids) > 3 else ''})")
        if report.unknown:
            say(f"  unknown: {len(report.unknown)}; run it again to settle them")
    return {"Stale": 3, "PartiallyApplied": 5}.get(report.state, 0)


def plans(
    store: Store = None,
    state: Annotated[str | None, typer.Option("--state", help="Only plans in this state, such as open.")] = None,
    agent_id: Annotated[str | None, typer.Option("--agent-id", help="Only this agent's plans.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only plans made since then, ISO 8601.")] = None,
    as_json: Json = False,
) -> None:
    """List the stored plans and their states, those that agents' own control planes applied among them."""
    from fallow.plans.agents import APPLIED_BY, agents_plans
    from fallow.plans.storage import list_plans

    after = instant_or_none(since, "--since")
    with open_store(store) as provider:
        found = [
            plan
            for plan in list_plans(provider, wall_clock())
            if (state is None or plan.state == state)
            and (agent_id is None or plan.scope.agent_id == agent_id)
            and (after is None or plan.planned_at >= after)
        ]
        theirs = [
            other
            for other in agents_plans(provider).values()
            if (state is None or state == "applied")
            and (agent_id is None or other.agent_id == agent_id)
            and (after is None or (other.approved_at is not None and other.approved_at >= after))
        ]
    if as_json:
        emit(
            {
                "count": len(found) + len(theirs),
                "plans": [plan.to_json() for plan in found] + [plan.to_json() for plan in theirs],
            }
        )
        return
    rows: list[tuple[str, ...]] = [
        (plan.plan_id, plan.state, str(plan.planned), plan.scope.label, plan.as_of, iso(plan.expires_at))
        for plan in found
    ]
    for other in theirs:
        at = "" if other.approved_at is None else iso(other.approved_at)
        rows.append((other.plan_id, f"applied by {APPLIED_BY}", str(len(other.keys)), str(other.agent_id), at, ""))
    table(
        counted(len(rows), "plan"), ("plan", "state", "records", "scope", "as of", "expires"), rows, right=("records",)
    )


def show(
    plan_id: PlanId,
    diff: Annotated[bool, typer.Option("--diff", help="What changed since that scope's plan before.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show a stored plan: its document, its state and what was decided."""
    from fallow.model.errors import PlanNotFoundError
    from fallow.plans.agents import agents_plans
    from fallow.plans.difference import since_last_plan
    from fallow.plans.storage import full_plan_id, load_plan, stored_plan
    from fallow.showing.facts import difference_lines

    with open_store(store) as provider:
        try:
            plan = load_plan(provider, full_plan_id(provider, plan_id))
        except PlanNotFoundError:
            theirs = agents_plans(provider).get(plan_id)
            if theirs is None:
                raise
            _show_agents_plan(theirs, as_json)
            return
        state = stored_plan(provider, plan.plan_id, wall_clock())
        here = provider.identity()
        difference = since_last_plan(provider, plan, wall_clock()) if diff else None
    if as_json:
        more = state.to_json()
        changed = {"difference": None if difference is None else difference.to_json()} if diff else {}
        decided = {"state": more["state"], "decision": more["decision"], "outcome": more["outcome"]}
        emit({**plan.document, **decided, **changed})
        return
    if diff:
        for line in difference_lines(difference):
            say(line)
    show_plan(plan, rows=len(plan.entries))
    say(f"state: {state.state}")
    if here != plan.store_identity:
        say(f"made on the store {plan.store_identity}; this one is {here}, where it can be read and taken back alone")
    if state.decision is not None:
        decision = state.decision
        say(f"{decision.verdict} by {decision.by} ({decision.standing}) at {iso(decision.decided_at)}")
        say(f"why: {printable(decision.reason, 2000) or 'no reason was given'}")


def _show_agents_plan(plan: AgentsPlan, as_json: bool) -> None:
    """A plan that agents' own control plane applied: what its rows say; there is no document of it."""
    if as_json:
        entries = [{"record_id": key.record_id, "memory_type": key.memory_type} for key in plan.keys]
        emit({**plan.to_json(), "entries": entries})
        return
    at = "" if plan.approved_at is None else f" at {iso(plan.approved_at)}"
    say(f"{plan.plan_id}: applied by MemoRizz, approved by {plan.approved_by or 'nobody named'}{at}; read-only here")
    say("what it suppressed can be taken back: fallow restore --plan")
    rows = [(key.memory_type, key.record_id) for key in plan.keys]
    table("records", ("type", "record"), rows)


def suppressed(
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    as_json: Json = False,
) -> None:
    """List what is hidden: record, plan, when, why, by whom."""
    from fallow.usecases.suppressed import suppressed_records

    with open_store(store) as provider:
        found = suppressed_records(provider, scope_of(agent_id, memory_id, user_id, thread_id))
    if as_json:
        emit({"count": len(found), "records": [item.to_json() for item in found]})
        return
    rows = [
        (
            i.record_id,
            i.memory_type,
            i.suppressed_by or "",
            i.suppressed_at or "",
            i.reason or "",
            f"{i.approver or ''} ({i.standing or 'no decision recorded'})".strip(),
        )
        for i in found
    ]
    table(counted(len(found), "suppressed record"), ("record", "type", "plan", "when", "why", "approver"), rows)


def _restored(document: Mapping[str, Any], as_json: bool) -> int:
    if as_json:
        emit(document)
    else:
        say(f"{document['applied']} restored.")
        if document["already"]:
            say(f"{document['already']} had been restored already; nothing was changed for them.")
        for title in ("skipped", "failed"):
            for why, ids in document[title].items():
                say(f"  {title}, {why}: {len(ids)}")
        if document["unknown"]:
            say(f"  unknown: {len(document['unknown'])}; run it again to settle them")
    return 5 if document["failed"] or document["unknown"] else 0


def unsuppress(
    record_id: Annotated[list[str], typer.Argument(help="One record or several of the same type.")],
    memory_type: Annotated[str, typer.Option("--memory-type", help="The records' memory type.")],
    approved_by: ApprovedBy,
    reason: Reason = "",
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Restore suppressed records by id."""
    from fallow.acting.deciding import check_approver
    from fallow.acting.restore import restore_records
    from fallow.model.errors import RecordNotFoundError
    from fallow.model.keys import RecordKey
    from fallow.usecases.planner import settings_for

    kind = checked_type(memory_type, "--memory-type")
    keys = [RecordKey(kind, name) for name in record_ids(record_id, "RECORD_ID")]
    with open_store(store) as provider:
        name, _ = check_approver(approved_by, settings_for(provider, None, variable=settings_variable()).approval)
        report = restore_records(provider, keys, approved_by=name, reason=reason, now=wall_clock())
    if report.skipped.get("gone") and not report.restored and not report.already and len(keys) == 1:
        raise RecordNotFoundError(
            f"there is no {memory_type} record '{record_id[0][:80]}' in this store",
            hint="fallow suppressed lists what is hidden",
        )
    return _restored(report.to_json(), as_json)


def restore(
    plan_id: Annotated[str, typer.Option("--plan", help="Restore everything that this plan suppressed.")],
    approved_by: ApprovedBy,
    reason: Reason = "",
    store: Store = None,
    as_json: Json = False,
) -> int:
    """Restore a whole plan; what another plan suppressed since is left alone."""
    from fallow.acting.deciding import check_approver
    from fallow.acting.restore import plan_keys, restore_records
    from fallow.plans.storage import full_plan_id
    from fallow.usecases.planner import settings_for

    with open_store(store) as provider:
        name, _ = check_approver(approved_by, settings_for(provider, None, variable=settings_variable()).approval)
        plan_id = full_plan_id(provider, plan_id)
        report = restore_records(
            provider,
            plan_keys(provider, plan_id),
            approved_by=name,
            reason=reason,
            now=wall_clock(),
            plan_id=plan_id,
        )
    return _restored(report.to_json(), as_json)


def explain(
    record_id: Annotated[str, typer.Argument(help="The record's id.")],
    memory_type: Annotated[str | None, typer.Option("--memory-type", help="Where two types share the id.")] = None,
    store: Store = None,
    agent_id: AgentId = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Explain a record: its score, what protects it, when it becomes eligible, what touched it."""
    from fallow.usecases.explain import explain_record

    if not record_id:
        raise UsageError("the record id is empty", hint="fallow show lists a plan's records")
    with open_store(store) as provider:
        document = explain_record(
            provider,
            record_id,
            memory_type=memory_type,
            settings_of=lambda owner: settings_of(provider, agent_id or owner),
            as_of=instant(as_of, "--as-of"),
        )
    if as_json:
        emit(document)
        return
    say(f"{document['memory_type']} {document['record_id']} ({document['retention_state']})")
    if document["agent_switched_off"]:
        say(f"retention is switched off for agent {document['agent_id']}")
    say(document["formula"])
    say(document["verdict"])
    if document["breaches"]:
        say("breaches: " + ", ".join(document["breaches"]))
    for hold in document["holds"]:
        say(f"held by {hold['owner']} ({hold['hold_id']}) until {hold['expires_at'] or 'released'}: {hold['reason']}")
    if document["cited_by"]:
        say("cited by: " + ", ".join(document["cited_by"]))
    for item in document["plans"]:
        say(f"  plan {item['plan_id']}: {item['state']}")
    for item in document["journal"]:
        standing = f", {item['standing']}" if item["standing"] else ""
        say(f"  {item['at']}: {item['action']} by {item['actor']}{standing} ({item['source']})")
