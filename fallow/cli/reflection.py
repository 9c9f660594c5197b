"""The command that summarises conversations once enough has happened in them (SPEC §5)."""

from __future__ import annotations

from typing import Annotated

import typer

from fallow.cli.app import (
    AgentId,
    Json,
    MemoryId,
    Store,
    ThreadId,
    UserId,
    emit,
    open_store,
    say,
    scope_of,
    settings_of,
    table,
)
from fallow.model.times import wall_clock


def reflect(
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    threshold: Annotated[float | None, typer.Option("--threshold", help="Accumulated importance, 0..1 a row.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model that reflects.")] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", help="Any OpenAI-compatible endpoint.")] = None,
    max_calls: Annotated[int | None, typer.Option("--max-calls", help="Summaries written by this run at most.")] = None,
    extractive: Annotated[
        bool | None, typer.Option("--extractive/--no-extractive", help="Without a model: extracts for a summary.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what has accumulated, write nothing.")] = False,
    as_json: Json = False,
) -> int:
    """Summarise the conversations in which enough importance has piled up."""
    from contextlib import nullcontext

    from fallow.reflection.reflecting import reflect as run
    from fallow.reflection.reflecting import reflecting_model, reflection_config

    options = {
        "reflection.threshold": threshold,
        "reflection.extractive": extractive,
        "reflection.model": model,
        "model.base_url": base_url,
    }
    with open_store(store) as provider:
        settings = settings_of(provider, agent_id, options)
        with nullcontext() if dry_run else reflecting_model(settings) as generate:
            report = run(
                provider,
                reflection_config(settings),
                now=wall_clock(),
                generate=generate,
                scope=scope_of(agent_id, memory_id, user_id, thread_id),
                dry_run=dry_run,
                max_calls=max_calls,
            )
    if as_json:
        emit(report.to_json())
    else:
        rows = [
            (item.conversation.label, f"{item.total:.2f}", str(item.rows), str(len(item.summaries)), item.failure)
            for item in report.reached
        ]
        rows += [(key.label, f"{total:.2f}", "", "", "") for key, total in report.waiting[: max(0, 20 - len(rows))]]
        title = f"{len(report.reached)} of {report.conversations} conversations have reached {report.threshold:g}"
        table(
            title, ("conversation", "accumulated", "rows", "summaries", "failure"), rows, right=("accumulated", "rows")
        )
        say(f"{report.state}; {report.marked} rows marked as covered.")
    return {"NeedsAttention": 1, "Partial": 5}.get(report.state, 0)
