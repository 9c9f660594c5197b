"""Addresses in Prefect's interface. The server leads each to the interface, V1 or V2, that its reader has chosen."""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_UI_URL
from prefect.utilities.urls import url_for

from fallow.plans.plan import RetentionPlan
from fallow.showing.facts import scope_key

#: The page of every plan that waits, over all agents and stores.
OPEN_PLANS = "open-plans"


def artifact_address(key: str) -> str:
    """The address of the latest artifact under a key, or "" where the interface has none."""
    base = PREFECT_UI_URL.value()
    return f"{base.rstrip('/')}/artifacts/key/{key}" if base else ""


def plan_page_address(plan: RetentionPlan) -> str:
    """The address of a plan's page."""
    return artifact_address(f"retention-plan-{scope_key(plan.scope, plan.store_identity)}")


def run_address(flow_run_id: str) -> str:
    """The address of a flow run's page, or ""."""
    return url_for("flow-run", obj_id=flow_run_id) or ""


def restore_form() -> str:
    """The address of the restore deployment's form, or "" where it is not deployed."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name("restore-memories/restore")
        except ObjectNotFound:
            return ""
    address = url_for("deployment", obj_id=found.id)
    return f"{address}/run" if address else ""
