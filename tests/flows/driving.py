"""Driving a deployed flow's runs in this process, as a worker would: pending, run, suspended, resumed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.states import Pending, Scheduled

from fallow.model.times import wall_clock
from fallow.plans.storage import StoredPlan, list_plans
from fallow.port.registry import open_provider
from fallow.showing.facts import scope_key
from fallow.usecases.suppressed import suppressed_records

PLAN = "plan-retention/nightly"
APPLY = "apply-retention/apply"
RESTORE = "restore-memories/restore"
EXPIRE = "expire-plans/expire"
#: A whole-store plan of a sample store that has something in it.
ASK = {"whole_store": True, "min_retention": 0.3, "force": True}


def create(client: Any, deployment: str, *, at: Any = None, **parameters: Any) -> UUID:
    """A scheduled run of a deployment."""
    found = client.read_deployment_by_name(deployment)
    state = None if at is None else Scheduled(scheduled_time=at)
    return client.create_flow_run_from_deployment(found.id, parameters=parameters, state=state).id


def drive(client: Any, run_id: UUID) -> Any:
    """Runs until the run ends or is suspended; the state as the server has it."""
    client.set_flow_run_state(run_id, Pending())
    run = client.read_flow_run(run_id)
    module, _, name = client.read_deployment(run.deployment_id).entrypoint.partition(":")
    with suppress(Pause):
        run_flow(getattr(importlib.import_module(module), name), flow_run=run, return_type="state")
    return client.read_flow_run(run_id).state


def start(client: Any, deployment: str, **parameters: Any) -> tuple[UUID, Any]:
    """A run of a deployment, driven until it ends or waits."""
    run_id = create(client, deployment, **parameters)
    return run_id, drive(client, run_id)


def state_of(client: Any, run_id: UUID) -> str:
    """The name of a run's state, read back from the API."""
    return str(client.read_flow_run(run_id).state.name)


def answer(plan: StoredPlan, **more: Any) -> dict[str, Any]:
    """A filled form."""
    return {"decision": "approve", "approved_by": "Ada", "count": plan.planned, "plan_id": plan.plan_id, **more}


def resume(client: Any, run_id: UUID, form: Mapping[str, Any]) -> str:
    """The server's answer to a filled form: ACCEPT, REJECT or ABORT."""
    return str(client.resume_flow_run(run_id, run_input=dict(form)).status.value)


def shown(client: Any, run_id: UUID, attempt: int = 1) -> tuple[dict[str, Any], str]:
    """A form as the server has it: its schema and what stands above it."""
    base = f"suspended-approval-{attempt}"
    return tuple(json.loads(client.read_flow_run_input(run_id, f"{base}-{part}")) for part in ("schema", "description"))


def plans_of(store: Path | str) -> list[StoredPlan]:
    with open_provider(str(store)) as provider:
        return list_plans(provider, wall_clock())


def hidden(store: Path | str) -> set[str]:
    """The ids of all records that a stored plan of this store suppressed."""
    ours = {plan.plan_id for plan in plans_of(store)}
    with open_provider(str(store)) as provider:
        return {item.record_id for item in suppressed_records(provider) if item.suppressed_by in ours}


def records(store: Path) -> dict[str, bytes]:
    """Every primary record's bytes."""
    found = {}
    for path in sorted(store.rglob("*.json")):
        if path.name != "index.json" and path.parent.name not in {"shared_memory", "agents"}:
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return found


def page_of(client: Any, plan: StoredPlan, what: str = "plan") -> str:
    """The latest artifact about a plan's scope: its page (``plan``), its ``rows``, its ``picture``."""
    return artifact(client, f"retention-{what}-{scope_key(plan.scope, plan.store_identity)}")


def artifact(client: Any, key: str) -> str:
    """The latest artifact under a key."""
    return str(client.request("GET", "/artifacts/{key}/latest", path_params={"key": key}).json()["data"])


@contextmanager
def settings(client: Any, value: Any) -> Iterator[None]:
    """The Prefect variable ``fallow_settings`` with this value, for a while."""
    client.request("POST", "/variables/", json={"name": "fallow_settings", "value": value})
    try:
        yield
    finally:
        client.delete_variable_by_name("fallow_settings")
