"""restore-memories: put suppressed records back (SPEC §9, §15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fallow.flows.outcomes import announce, counts_of
from fallow.tasks.applying import restore_stored
from fallow.tasks.showing import show_report
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from fallow.model.errors import UsageError


@flow(name="restore-memories", flow_run_name="restore for {approved_by}", persist_result=False)
def restore_memories(
    approved_by: Annotated[str, Field(min_length=1, max_length=240, pattern=r"\S")],
    plan_id: str = "",
    records: Sequence[str] = (),
    reason: Annotated[str, Field(max_length=2000)] = "",
    store: str = "",
) -> State[Any]:
    """Restores what a plan suppressed, or the named records, to the state they had.

    Args:
        approved_by: Who asks for it; FALLOW_APPROVERS says who may.
        plan_id: Restore everything that this plan suppressed, but what another has suppressed since.
        records: Restore these records, each written TYPE:ID such as knowledge_base:kb-17.
        reason: Why, for the journal.
        store: Address of the store; empty means the one that the worker is configured with.
    """
    plan_id = plan_id.strip()
    if bool(plan_id) == bool(records):
        raise UsageError("name either a plan or records", hint="plan_id, or records as TYPE:ID")
    report = restore_stored(store, plan_id or None, records, approved_by, reason)
    show_report(store, f"Restored from {plan_id}" if plan_id else "Restored", "restore-report", report)
    message = f"{report['applied']} restored, {report['already']} before"
    if report["failed"] or report["unknown"]:
        return Failed(name="PartiallyApplied", message=message)
    if not report["applied"]:
        return Completed(name="NothingToDo", message=message)
    announce("restored", plan_id or "records", store, counts_of(report))
    return Completed(name="Applied", message=message)
