"""The steps that show people what a plan would do and what a run did (DESIGN §6, Artifacts)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fallow.tasks.pages import (
    MAX_ROWS,
    data_url,
    distribution_picture,
    plan_page,
    plan_rows,
    report_page,
    suppressed_rows,
)
from fallow.tasks.reading import excerpts
from fallow.tasks.steps import open_store, settings_variable, step
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.results import get_default_result_storage
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from fallow.model.errors import StoreUnreadableError
from fallow.model.times import iso, wall_clock
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import load_plan, stored_plan
from fallow.port.protocol import Provider
from fallow.usecases.effect import preview
from fallow.usecases.planner import settings_for
from fallow.usecases.suppressed import suppressed_records


@step("show the plan")
def show_plan(store: str | None, plan_id: str) -> dict[str, Any]:
    """The plan's page, its lowest rows, its distribution, and the complete plan as a file.

    Returns:
        The plan's scope and counts, for the event that asks for its approval.
    """
    variable = settings_variable()
    with open_store(store) as provider:
        plan = load_plan(provider, plan_id)
        shown = settings_for(provider, plan.scope.agent_id, variable=variable).approval.show_text
        texts = excerpts(provider, plan.entries[:10]) if shown else None
        stored = stored_plan(provider, plan_id, wall_clock())
        effect = _effect(provider, plan)
    picture = distribution_picture(plan)
    page = plan_page(plan, texts, stored.expires_at, picture, _complete_plan(plan), _links(), effect)
    create_markdown_artifact(page, key="retention-plan", description=f"{plan_id}: {plan.scope.label}")
    create_table_artifact(plan_rows(plan.entries), key="retention-plan-records", description=plan_id)
    create_image_artifact(data_url(picture), key="retention-distribution", description=plan_id)
    names = ("scanned", "eligible", "planned", "deferred")
    numbers = {name: plan.counts[name] for name in names}
    share = round(plan.document["blast_radius"]["share"], 4)
    return {"scope": plan.scope.label, **numbers, "share": share, "expires_at": iso(stored.expires_at)}


def _effect(provider: Provider, plan: RetentionPlan) -> dict[str, Any] | None:
    """What the plan costs retrieval; None where looking would cost too much or is not possible: the page goes without.

    A store with a limit on requests would need minutes to hand out all its vectors: there `fallow effect` says it.
    """
    if provider.capabilities.requests_per_second is not None:
        return None
    try:
        return preview(provider, plan).to_json()
    except StoreUnreadableError:
        return None


def _complete_plan(plan: RetentionPlan) -> str:
    """Writes the complete plan where Prefect keeps results; the file's address, or "" where it cannot be written.

    It is a copy to read. What is applied is the plan in the store.
    """
    return write_file(f"{plan.plan_id}.json", json.dumps(plan.document, ensure_ascii=False, indent=1, sort_keys=True))


def write_file(name: str, text: str) -> str:
    """Writes a file where Prefect keeps results; its address, or "" where it cannot be written."""
    storage: Any = get_default_result_storage()
    try:
        storage.write_path(name, text.encode())
    except OSError:
        return ""
    return f"{str(storage.basepath).rstrip('/')}/{name}" if getattr(storage, "basepath", None) else name


@step("report")
def show_report(store: str | None, title: str, key: str, report: Mapping[str, Any]) -> None:
    """What became of every record, and the standing table of what is hidden now."""
    create_markdown_artifact(report_page(title, report), key=key, description=title)
    with open_store(store) as provider:
        found = suppressed_records(provider)
    form = restore_form()
    how = f"To take one back: Deployments, restore, Run, with the `records` of its row ({form})." if form else ""
    cut = f" The latest {MAX_ROWS} are listed." if len(found) > MAX_ROWS else ""
    create_table_artifact(
        suppressed_rows(found), key="suppressed-memories", description=f"{len(found)} records are hidden.{cut} {how}"
    )


def _links() -> dict[str, str]:
    """Where the page leads in the UI: the run that waits, and the way back."""
    found = {"The run that waits": flow_run.ui_url or "", "The way back: restore": restore_form()}
    return {name: address for name, address in found.items() if address}


def restore_form() -> str:
    """The address of the restore deployment's form in the UI, or "" where it is not deployed."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name("restore-memories/restore")
        except ObjectNotFound:
            return ""
    address = url_for("deployment", obj_id=found.id)
    return f"{address}/run" if address else ""
