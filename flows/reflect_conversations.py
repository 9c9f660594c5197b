"""reflect-conversations: summarise what has piled up enough importance (SPEC §5, §15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fallow.flows.outcomes import tell
from fallow.flows.this_run import this_run
from fallow.tasks.reflecting import reflect_on
from fallow.tasks.steps import stores_named
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from fallow.model.settings import without_secrets
from fallow.model.times import iso


def run_name() -> str:
    """What the run is called in the UI."""
    return this_run().title("reflect")


@flow(name="reflect-conversations", flow_run_name=run_name, persist_result=False)
def reflect_conversations(
    store: str | None = None,
    agent_id: str | None = None,
    threshold: Annotated[float, Field(gt=0)] | None = None,
    max_calls: Annotated[int, Field(ge=1)] | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> State[Any]:
    """Summarises conversations in which enough importance has piled up since their last reflection.

    Args:
        store: Address of the store; empty means every store that the worker is configured with.
        agent_id: Only this agent's conversations; empty means all.
        threshold: Accumulated importance that starts a pass; empty means the setting reflection.threshold.
        max_calls: Summaries written by one run at most; the rest waits for the next run.
        dry_run: Report what has accumulated and write nothing.
        force: Act although the setting reflection.enabled is off.
    """
    reports = {name: reflect_on(name, agent_id, threshold, max_calls, dry_run, force) for name in stores_named(store)}
    if all(report["state"] == "Off" for report in reports.values()):
        return Completed(
            name="NothingToDo", message="reflection is off: MEMORIZZ_REFLECTION_ENABLED, or run with force"
        )
    reports = {name: report for name, report in reports.items() if report["state"] != "Off"}
    create_markdown_artifact(reflection_page(reports), key="reflections", description=f"as of {iso(this_run().as_of)}")
    reached = [item for report in reports.values() for item in report["reached"]]
    summaries = sum(len(item["summaries"]) for item in reached)
    failed = [item for item in reached if item["failure"]]
    attention = [item for item in failed if item["needs_attention"]]
    message = f"{summaries} summaries over {sum(item['covered'] for item in reached)} rows"
    for name, report in reports.items():
        done = report["reached"]
        numbers = {
            "conversations": report["conversations"],
            "reached": len(done),
            "summaries": sum(len(item["summaries"]) for item in done),
            "failed": sum(1 for item in done if item["failure"]),
        }
        where = without_secrets(name)
        tell("fallow.reflection.finished", f"fallow.store.{where}", where, {"store": where, **numbers})
    if attention:
        return Failed(
            name="NeedsAttention",
            message=f"{message}; {len(attention)} conversations have failed three times or more; nothing is lost",
        )
    if failed:
        message = f"partial: {message}; {len(failed)} conversations failed and are tried again by the next run"
    marked = sum(report["rows_marked"] for report in reports.values())
    return Completed(name="Reflected" if summaries or marked else "NothingToDo", message=message)


def reflection_page(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Every conversation at the threshold with what became of it, and how far the others are; no text."""
    lines = ["# Reflections", ""]
    for name, report in reports.items():
        lines += [
            f"## `{name}`",
            "",
            (
                f"{len(report['reached'])} of {report['conversations']} conversations "
                f"have reached {report['threshold']:g}."
            ),
            "",
            "| Conversation | Accumulated | Rows | Covered | Summaries | Failure |",
            "|---|---|---|---|---|---|",
        ]
        for item in report["reached"]:
            failure = f"{item['failure']} ({item['failures']} times)" if item["failure"] else ""
            lines.append(
                f"| {_label(item)} | {item['accumulated']:.2f} | {item['rows']} | {item['covered']} "
                f"| {len(item['summaries'])} | {failure.replace('|', ' ')} |"
            )
        nearest = report["waiting"][:10]
        if nearest:
            lines += ["", "Nearest to it:", "", "| Conversation | Accumulated | Missing |", "|---|---|---|"]
            lines += [f"| {_label(item)} | {item['accumulated']:.2f} | {item['missing']:.2f} |" for item in nearest]
        lines.append("")
    return "\n".join(lines)


def _label(item: Mapping[str, Any]) -> str:
    named = [item[name] for name in ("agent_id", "memory_id", "user_id", "thread_id") if item.get(name)]
    return " / ".join("`" + str(value).replace("`", "'").replace("|", "/") + "`" for value in named) or "no ids"
