"""The steps that show people what a plan would do and what a run did (DESIGN §6, Artifacts)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fallow.tasks.addresses import restore_form
from fallow.tasks.pages import data_url, report_page, suppressed_rows
from fallow.tasks.steps import open_store, settings_variable, step
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.results import get_default_result_storage
from prefect.runtime import flow_run

from fallow.model.times import iso, wall_clock
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import stored_plan
from fallow.showing.facts import scope_key
from fallow.showing.pictures import plan_picture
from fallow.showing.plan_page import plan_page, plan_rows
from fallow.usecases.desk import MAX_ROWS, desk, landscape
from fallow.usecases.planner import settings_for
from fallow.usecases.suppressed import suppressed_records


@step("show the plan")
def show_plan(store: str | None, plan_id: str) -> dict[str, Any]:
    """The plan's page, its lowest rows, its distribution, and the complete plan as a file.

    Returns:
        The plan's scope and counts, for the event that asks for its approval.
    """
    variable, now = settings_variable(), wall_clock()
    with open_store(store) as provider:
        scope = stored_plan(provider, plan_id, now).scope
        shown = settings_for(provider, scope.agent_id, variable=variable).approval.show_text
        lying = desk(provider, plan_id, now=now, show_text=shown)
        dots = landscape(provider, lying.plan)
    plan, stored = lying.plan, lying.stored
    picture = data_url(plan_picture(plan, dots))
    page = plan_page(lying, picture, _complete_plan(plan), _links())
    key = scope_key(plan.scope, plan.store_identity)
    create_markdown_artifact(page, key=f"retention-plan-{key}", description=f"{plan_id}: {plan.scope.label}")
    create_table_artifact(plan_rows(plan.entries), key=f"retention-rows-{key}", description=plan_id)
    create_image_artifact(picture, key=f"retention-picture-{key}", description=plan_id)
    names = ("scanned", "eligible", "planned", "deferred")
    numbers = {name: plan.counts[name] for name in names}
    share = round(plan.document["blast_radius"]["share"], 4)
    return {"scope": plan.scope.label, **numbers, "share": share, "expires_at": iso(stored.expires_at)}


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
