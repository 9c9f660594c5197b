"""Waiting flow runs, as the Prefect server knows them.

Nothing here decides about a plan: the store does. These functions only bring a run's state after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from fallow.tasks.steps import open_store, step
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Scheduled

from fallow.model.times import wall_clock
from fallow.plans.storage import list_plans, runs_that_asked

_PAGE: Final = 200

#: What a plan's state makes of the run that still waits for an answer about it.
_ENDS: Final[Mapping[str, str]] = {
    "rejected": "Rejected",
    "expired": "Expired",
    "superseded": "Superseded",
    "applied": "Applied",
    "stale": "Stale",
    "closed": "Expired",
}


def is_waiting(flow_run_id: str) -> bool:
    """Whether a run exists and has not ended."""
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(UUID(flow_run_id)).state
        except ObjectNotFound:
            return False
    return state is not None and not state.is_final()


@step("name the run")
def name_run(flow_run_id: str, name: str) -> None:
    """Calls a run after the plan that it asks about, so that a list of waiting runs says whose they are."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run_id), name=name)


def forms_shown(flow_run_id: str, key: str) -> int:
    """How many forms this run has shown so far, counted by their schemas under ``key``-1, ``key``-2, …"""
    with get_client(sync_client=True) as client:
        found = client.filter_flow_run_input(
            flow_run_id=UUID(flow_run_id), key_prefix=f"suspended-{key}-", limit=_PAGE, exclude_keys=set()
        )
    return sum(item.key.endswith("-schema") for item in found)


@step("ask about the other plans")
def ask_in_own_runs(
    deployment_id: UUID | None, run_id: str, asked: Sequence[tuple[str, str]], requested_by: str
) -> list[str]:
    """Starts a run of the same deployment for every (store, plan id): a run can wait for one answer only.

    Idempotent: a planning run that is started again after a crash finds the runs that it had started.

    Returns:
        The flow run ids.
    """
    if deployment_id is None:
        return []
    with get_client(sync_client=True) as client:
        return [
            str(
                client.create_flow_run_from_deployment(
                    deployment_id,
                    parameters={"store": store, "plan_id": plan_id, "requested_by": requested_by},
                    idempotency_key=f"ask-{plan_id}-{run_id}",
                ).id
            )
            for store, plan_id in asked
        ]


def _paused(client: SyncPrefectClient) -> list[str]:
    found: list[str] = []
    paused = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED])))
    while True:
        page = client.read_flow_runs(flow_run_filter=paused, limit=_PAGE, offset=len(found))
        found += [str(run.id) for run in page]
        if len(page) < _PAGE:
            return found


@step("settle waiting runs")
def settle_waiting_runs(store: str | None) -> dict[str, list[str]]:
    """Ends every suspended run whose plan was settled without it, and wakes those whose plan was approved.

    Returns:
        Flow run ids by what became of them: a named end state, or ``Resuming``.
    """
    settled: dict[str, list[str]] = {}
    with get_client(sync_client=True) as client:
        paused = _paused(client)
        if not paused:
            return {}
        with open_store(store) as provider:
            asked = runs_that_asked(provider)
            plans = {plan.plan_id: plan for plan in list_plans(provider, wall_clock())}
        for run_id in paused:
            plan = plans.get(asked.get(run_id, ""))
            if plan is None:
                continue
            taken_over = plan.state == "open" and plan.flow_run_id != run_id
            name = "Superseded" if taken_over else _ENDS.get(plan.state)
            if name is not None:
                by = "" if plan.decision is None else f" by {plan.decision.by}"
                message = f"{plan.plan_id} is {plan.state}{by}; it no longer waits here"
                client.set_flow_run_state(UUID(run_id), Completed(name=name, message=message), force=True)
            elif plan.state == "approved":
                name = "Resuming"
                client.set_flow_run_state(UUID(run_id), Scheduled(name=name, message="approved"), force=True)
            else:
                continue
            settled.setdefault(name, []).append(run_id)
    return settled
