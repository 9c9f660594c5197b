"""The step that summarises conversations (SPEC §5)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from fallow.tasks.rating import endpoint_key
from fallow.tasks.steps import open_store, settings_variable, step
from prefect.events import emit_event

from fallow.model.scope import Scope
from fallow.model.settings import without_secrets
from fallow.model.times import wall_clock
from fallow.reflection.reflecting import reflect, reflecting_model, reflection_config
from fallow.usecases.planner import settings_for


@step("reflect")
def reflect_on(
    store: str | None, agent_id: str | None, threshold: float | None, max_calls: int | None, dry_run: bool, force: bool
) -> dict[str, Any]:
    """One pass over the conversations of a store that have reached the threshold; its report.

    Tried again it continues: what is covered is found by its summaries, what failed by its events.
    """
    variable = settings_variable()
    with open_store(store) as provider:
        settings = settings_for(provider, agent_id, {"reflection.threshold": threshold}, variable=variable)
        if not (force or dry_run or settings.get("reflection.enabled")):
            return {"state": "Off"}
        with nullcontext() if dry_run else reflecting_model(settings, key=endpoint_key()) as generate:
            report = reflect(
                provider,
                reflection_config(settings),
                now=wall_clock(),
                generate=generate,
                scope=Scope(agent_id=agent_id),
                max_calls=max_calls,
                dry_run=dry_run,
            )
    for item in report.reached if not dry_run else ():
        emit_event(
            "fallow.reflection.scheduled",
            resource={
                "prefect.resource.id": f"fallow.conversation.{'.'.join(part or '-' for part in item.conversation)}",
                "prefect.resource.name": item.conversation.label,
            },
            payload={
                "accumulated": item.total,
                "threshold": report.threshold,
                "rows": item.rows,
                "summaries": item.summaries,
                "store": without_secrets(store or ""),
            },
        )
    return report.to_json()
