"""check-drift: every night, whether records, plans, decisions and journal tell the same story (SPEC §9, §10)."""

from __future__ import annotations

from typing import Any

from fallow.flows.this_run import this_run
from fallow.tasks.applying import look_for_drift
from fallow.tasks.steps import stores_named
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from fallow.model.times import iso
from fallow.showing.markdown import escaped, markdown_table

#: Findings that the page lists for a store.
MAX_FINDINGS = 200


@flow(name="check-drift", flow_run_name=lambda: this_run().title("drift"), persist_result=False)
def check_drift(store: str = "") -> State[Any]:
    """Finds what was suppressed or taken back past fallow; changes nothing.

    Args:
        store: Address of the store; empty means every store that the worker is configured with.
    """
    run = this_run()
    reports: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for name in stores_named(store):
        # One store that is away keeps no other from being checked.
        outcome: State[dict[str, Any]] = look_for_drift(name, return_state=True)
        if outcome.is_completed():
            reports[name] = outcome.result()
        else:
            problems.append(f"{name} could not be checked: {outcome.message}")
    parts = ["# Drift", f"As of {iso(run.as_of)}."]
    for name, report in reports.items():
        checked = ", ".join(f"{what} {number}" for what, number in report["checked"].items())
        parts += [f"## {escaped(name)}", f"{report['count']} findings over {checked}."]
        if report["findings"]:
            columns = ("kind", "memory_type", "record_id", "plan_id", "says")
            rows = [[item[column] or "" for column in columns] for item in report["findings"][:MAX_FINDINGS]]
            parts.append(markdown_table(columns, rows))
    create_markdown_artifact("\n\n".join(parts), key="drift", description=f"as of {iso(run.as_of)}")
    found = [f"{name}: {report['count']} ({report['kinds']})" for name, report in reports.items() if report["count"]]
    if found or problems:
        return Failed(name="NeedsAttention", message="; ".join([*found, *problems]))
    return Completed(message="records, plans and journal agree")
