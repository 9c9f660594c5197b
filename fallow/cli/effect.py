"""What a stored plan would cost retrieval, on the command line (SPEC §7.1)."""

from __future__ import annotations

from typing import Annotated

import typer

from fallow.cli.app import Json, Store, emit, open_store, say, table


def effect(
    plan_id: Annotated[str, typer.Argument(help="forget-plan-…, as fallow plans lists it.")],
    probes: Annotated[int, typer.Option("--probes", min=1, max=5000, help="Questions asked of the store.")] = 200,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="Answers looked at for each.")] = 10,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Ask the store its own questions with and without a plan's records; say what changes and what comes back."""
    from fallow.plans.storage import load_plan
    from fallow.usecases.effect import effect_lines, preview

    with open_store(store) as provider:
        found = preview(provider, load_plan(provider, plan_id), probes=probes, k=top).to_json()
    if as_json:
        emit({"plan_id": plan_id, **found})
        return
    for line in effect_lines(found):
        say(line)
    losses = [
        (f"{item['memory_type']}:{item['record_id']}", str(item["probes"]), ", ".join(item["only_answer_of"]))
        for item in found["losses"][:20]
    ]
    if losses:
        table("Records whose loss changes most", ("record", "questions", "only answer of"), losses, ("questions",))
    returns = [
        (
            f"{item['memory_type']}:{item['record_id']}",
            ", ".join(item["live_copies"][:5]),
            ", ".join(item["summaries"][:5]),
        )
        for item in found["comes_back"][:20]
    ]
    if returns:
        table("Comes back", ("record", "live copies", "summaries that quote it"), returns)
