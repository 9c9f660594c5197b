"""check-data-contracts: hold every store against its contracts, the morning it drifts (SPEC §13, §15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fallow.flows.outcomes import announce_breach
from fallow.flows.this_run import this_run
from fallow.tasks.checking import check_store
from fallow.tasks.pages import contracts_page, contracts_rows
from fallow.tasks.steps import stores_named
from prefect import flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from fallow.model.times import iso


@flow(name="check-data-contracts", flow_run_name=lambda: this_run().title("check"), persist_result=False)
def check_data_contracts(store: str = "", second_opinion: bool = True) -> State[Any]:
    """Holds each store against its data contracts and shows what is broken; writes nothing but its own event.

    Args:
        store: Address of the store; empty means every store that the worker is configured with.
        second_opinion: Also ask Great Expectations; where it counts differently or fails, the run fails.
    """
    run = this_run()
    reports: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for name in stores_named(store):
        # One store that is away keeps no other from being checked.
        outcome: State[dict[str, Any]] = check_store(name, run.as_of, second_opinion, return_state=True)
        if outcome.is_completed():
            reports[name] = outcome.result()
        else:
            problems.append(f"{name} could not be checked: {outcome.message}")
    create_markdown_artifact(
        contracts_page(reports, run.as_of), key="data-contracts", description=f"as of {iso(run.as_of)}"
    )
    create_table_artifact(contracts_rows(reports), key="data-contracts-rules", description=f"as of {iso(run.as_of)}")
    for name, report in reports.items():
        new = [f"{item['table']}.{item['rule']}" for item in report["findings"] if is_new(item)]
        if new:
            announce_breach(name, new)
    problems += [
        f"Great Expectations' second opinion on {name} failed or differs"
        for name, report in reports.items()
        if _unsettled(report)
    ]
    refusals = [f"{name}: {says}" for name, report in reports.items() for says in report["refusals"]]
    if refusals:
        return Failed(name="ContractBreach", message="; ".join([*refusals, *problems]))
    if problems:
        return Failed(message="; ".join(problems))
    number = sum(1 for report in reports.values() for item in report["findings"] if item["failures"])
    return Completed(message=f"{number} rules are broken, none that refuses a plan" if number else "all rules hold")


def is_new(finding: Mapping[str, Any]) -> bool:
    """Whether a rule is broken now that was not at the last check."""
    return bool(finding["failures"]) and not finding["before"]


def _unsettled(report: Mapping[str, Any]) -> bool:
    opinion = report["second_opinion"]
    return opinion is not None and bool(opinion["errors"] or opinion["differing"])
