"""Driving a deployed flow's runs in this process, as a worker would: pending, run, suspended, resumed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.states import Pending

FLOWS = {
    "plan-retention/nightly": "plan_retention",
    "apply-retention/apply": "apply_retention",
    "restore-memories/restore": "restore_memories",
    "expire-plans/expire": "expire_plans",
}


def create(client: Any, deployment: str, **parameters: Any) -> UUID:
    """A scheduled run of a deployment."""
    found = client.read_deployment_by_name(deployment)
    return client.create_flow_run_from_deployment(found.id, parameters=parameters).id


def drive(client: Any, run_id: UUID) -> Any:
    """Runs until the run ends or is suspended; the state as the server has it."""
    client.set_flow_run_state(run_id, Pending())
    run = client.read_flow_run(run_id)
    name = next(
        flow
        for path, flow in FLOWS.items()
        if client.read_deployment_by_name(path).id == run.deployment_id
    )
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    try:
        run_flow(flow, flow_run=run, return_type="state")
    except Pause:
        pass
    return client.read_flow_run(run_id).state


def start(client: Any, deployment: str, **parameters: Any) -> tuple[UUID, Any]:
    """A run of a deployment, driven until it ends or waits."""
    run_id = create(client, deployment, **parameters)
    return run_id, drive(client, run_id)


def answer(plan_id: str, count: int, **more: Any) -> dict[str, Any]:
    """A filled form."""
    return {"decision": "approve", "approved_by": "Ada", "count": count, "plan_id": plan_id, **more}


def resume(client: Any, run_id: UUID, form: Mapping[str, Any]) -> Any:
    """The server's answer to a filled form."""
    return client.resume_flow_run(run_id, run_input=dict(form))


def shown(client: Any, run_id: UUID, attempt: int = 1) -> tuple[dict[str, Any], str]:
    """A form as the server has it: its schema and what stands above it."""
    schema = client.read_flow_run_input(run_id, f"suspended-approval-{attempt}-schema")
    return schema, client.read_flow_run_input(run_id, f"suspended-approval-{attempt}-description")
