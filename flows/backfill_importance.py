"""backfill-importance: rate what has no rating (SPEC §3.6, §15)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fallow.flows.fanning_out import rate_scopes
from fallow.flows.outcomes import tell
from fallow.flows.this_run import this_run
from fallow.tasks.pages import data_url
from fallow.tasks.rating import RatingOrder, find_scopes
from fallow.tasks.rating_pages import agreement_picture, rating_page, spread_picture
from fallow.tasks.steps import stores_named
from prefect import flow
from prefect.artifacts import create_image_artifact, create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from fallow.model.scope import Scope
from fallow.model.settings import without_secrets
from fallow.model.times import iso


def run_name() -> str:
    """What the run is called in the UI."""
    return this_run().title("rate")


@flow(name="backfill-importance", flow_run_name=run_name, persist_result=False)
def backfill_importance(
    store: str | None = None,
    agent_id: str | None = None,
    memory_ids: Sequence[str] = (),
    mode: Literal["heuristic", "llm"] | None = None,
    model: str | None = None,
    order: Literal["newest", "oldest"] = "newest",
    max_calls: Annotated[int, Field(ge=0)] | None = None,
    max_tokens: Annotated[int, Field(ge=0)] | None = None,
    max_cost: Annotated[float, Field(ge=0)] | None = None,
    upgrade_heuristic: bool = False,
    dry_run: bool = False,
    batch: bool = False,
) -> State[Any]:
    """Rates every record that has no rating, by the free heuristic or by a model. A stored rating stays.

    Args:
        store: Address of the store; empty means every store that the worker is configured with.
        agent_id: Only this agent's records; empty means all, each agent by its own settings.
        memory_ids: Only these memories.
        mode: heuristic (free) or llm; empty means the setting importance.mode.
        model: The model that rates; empty means the setting importance.model.
        order: Which records come first, by creation.
        max_calls: Stop after so many calls to the model.
        max_tokens: Stop at so many tokens.
        max_cost: Stop at so much money; needs the setting model.prices.
        upgrade_heuristic: Also replace ratings that the heuristic gave by the model's, once.
        dry_run: Estimate calls, tokens and cost, or count; pay and write nothing.
        batch: Ask through the endpoint's batch jobs, at half the price; a later run collects what they answered.
    """
    began = time.monotonic()
    asked = RatingOrder(
        options={
            "importance.mode": mode,
            "importance.model": model,
            "importance.max_calls": max_calls,
            "importance.max_tokens": max_tokens,
            "importance.max_cost": max_cost,
        },
        order=order,
        upgrade_heuristic=upgrade_heuristic,
        dry_run=dry_run,
        batch=batch,
    )
    reports: dict[str, list[dict[str, Any]]] = {}
    for name in stores_named(store):
        named = Scope(agent_id=agent_id or None, memory_ids=tuple(memory_ids) or None)
        reports[name] = rate_scopes(name, [(named, ())] if agent_id or memory_ids else find_scopes(name), asked)
    every = [report for scopes in reports.values() for report in scopes]
    if all(report["state"] == "Off" for report in every):
        return Completed(name="NothingToDo", message="rating is off: MEMORIZZ_IMPORTANCE_RATER, or run with a mode")
    seconds = time.monotonic() - began
    show(reports, seconds)
    for name, rated in reports.items():
        where = without_secrets(name)
        tell("fallow.importance.rated", f"fallow.store.{where}", where, counts_of(where, rated, seconds, dry_run))
    return end_state(every, dry_run)


def counts_of(store: str, reports: Sequence[Mapping[str, Any]], seconds: float, dry_run: bool) -> dict[str, Any]:
    """The numbers of a store's backfill, for its event."""
    names = ("rated", "upgraded", "raised", "calls")
    numbers = {name: sum(report.get(name, 0) for report in reports) for name in names}
    return {"store": store, **numbers, "seconds": round(seconds, 1), "dry_run": dry_run}


def show(reports: Mapping[str, Sequence[Mapping[str, Any]]], seconds: float) -> None:
    """The page, and the plots where there is something to plot."""
    as_of = iso(this_run().as_of)
    create_markdown_artifact(rating_page(reports, seconds), key="importance-backfill", description=f"as of {as_of}")
    every = [report for scopes in reports.values() for report in scopes]
    spread = spread_picture(every)
    if spread is not None:
        create_image_artifact(data_url(spread), key="importance-distribution", description=f"as of {as_of}")
    for report in every:
        picture = agreement_picture(report.get("pairs", ()), (report.get("agreement") or {}).get("spearman"))
        if picture is not None:
            create_image_artifact(data_url(picture), key="importance-agreement", description=report["scope"])


def end_state(reports: Sequence[Mapping[str, Any]], dry_run: bool) -> State[Any]:
    """Rated, NothingToDo, or NeedsAttention: what is good is saved in any case."""
    if dry_run:
        rows = sum(report.get("rows", report.get("rated", 0)) for report in reports)
        return Completed(name="NothingToDo", message=f"{rows} records would be rated; nothing was paid or written")
    rated = sum(report.get("rated", 0) + report.get("upgraded", 0) + report.get("raised", 0) for report in reports)
    message = f"{rated} records rated"
    calls = sum(report.get("calls", 0) for report in reports)
    if calls:
        message += f" with {calls} calls"
    handed_in = sum(len(report["submitted"]["jobs"]) for report in reports if "submitted" in report)
    if handed_in:
        message += f"; {handed_in} batch jobs handed in"
    stopped = next((report["stopped"] for report in reports if report.get("stopped")), "")
    problem = next((report["problem"] for report in reports if report.get("problem")), "")
    failed = sum(len(ids) for report in reports for ids in report.get("failed", {}).values())
    if problem or failed:
        why = problem or f"{failed} records failed, the next run tries them again"
        return Failed(name="NeedsAttention", message=f"{why}; {message}")
    if stopped:
        message += f"; {stopped}"
    return Completed(name="Rated" if rated else "NothingToDo", message=message)
