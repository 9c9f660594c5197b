"""apply-retention: suppress what an approved plan names (SPEC §8, §15)."""

from __future__ import annotations

from typing import Annotated, Any

from fallow.flows.outcomes import announce_breach, applied_state, decided_state
from fallow.tasks.applying import apply_stored
from fallow.tasks.asking import look
from fallow.tasks.runs import settle_waiting_runs
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Failed
from pydantic import Field

from fallow.model.errors import ContractBreachError, OtherStoreError, PlanAlteredError, PlanStateError


@flow(name="apply-retention", flow_run_name="apply {plan_id}", persist_result=False)
def apply_retention(
    plan_id: Annotated[str, Field(min_length=1, pattern=r"^\s*forget-plan-[0-9a-f]{28}\s*$")],
    store: str = "",
) -> State[Any]:
    """Suppresses exactly the records of a plan whose approval is recorded; again, it changes nothing more.

    Args:
        plan_id: The approved plan, as fallow plans lists it.
        store: Address of the store; empty means the one that the worker is configured with.
    """
    where = store.strip() or None
    plan_id = plan_id.strip()
    standing = look(where, plan_id)
    if standing.state in {"rejected", "expired", "superseded"}:
        return decided_state(plan_id, standing)
    if standing.state in {"open", "planned"}:
        raise PlanStateError(f"{plan_id} waits for its approval", hint="fallow approve records a decision")
    try:
        state = applied_state(where, apply_stored(where, plan_id))
    except (PlanAlteredError, OtherStoreError) as error:
        return Failed(name="PlanChanged", message=f"{error}; nothing was applied")
    except ContractBreachError as error:
        announce_breach(where, [str(error)])
        return Failed(name="ContractBreach", message=f"{error}; {plan_id} stays approved and was not applied")
    settle_waiting_runs(where)
    return state
