"""Policies side by side on the store's own past, on the command line (SPEC §16)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fallow.cli.app import (
    AgentId,
    AsOf,
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
from fallow.model.arguments import instant
from fallow.model.errors import UsageError

#: Characters of the longest bar.
_WIDE = 40


class PolicyAction(StrEnum):
    """What to do."""

    compare = "compare"


def policy(
    action: Annotated[  # noqa: ARG001  # compare is the one there is
        PolicyAction, typer.Argument(help="compare: ask the store's later questions after each.")
    ],
    policy_file: Annotated[
        list[Path] | None,
        typer.Option("--policy", help="A JSON file of other settings, by name; may be repeated. Default: six known."),
    ] = None,
    questions: Annotated[int, typer.Option("--questions", min=40, help="Past questions asked at most.")] = 400,
    plot: Annotated[Path | None, typer.Option("--plot", help="A new file for the plot, .svg or .png.")] = None,
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Compare policies on the store's own past questions, and recommend one. Nothing changes by itself."""
    from fallow.cli.forecast import read_policy
    from fallow.showing.comparison import picture
    from fallow.usecases.comparing import HIDDEN, POLICIES, compare

    if plot is not None and (plot.exists() or plot.suffix not in {".svg", ".png"}):
        raise UsageError(f"{plot} cannot be the plot's file", hint="name a new file that ends in .svg or .png")
    others = {path.stem: read_policy(path) for path in policy_file or ()}
    with open_store(store) as provider:
        scope = scope_of(agent_id, memory_id, user_id, thread_id, False)
        found = compare(
            provider,
            settings_of(provider, agent_id),
            scope,
            as_of=instant(as_of, "--as-of"),
            others={**POLICIES, **others},
            questions=questions,
        )
    document = found.to_json()
    if plot is not None:
        plot.write_bytes(picture(document, plot.suffix))
    if as_json:
        emit(document)
        return
    columns = [f"{share:.0%} hidden" for share in HIDDEN]
    rows = [
        (
            item.name,
            *(f"{value:.1%}" for value in item.kept),
            f"{item.mean:.1%} ± {item.error:.1%}",
            "" if item.budget is None else f"{item.budget:.1%}",
        )
        for item in found.outcomes
    ]
    table(
        f"Later questions that keep their answer ({found.later} of them, {found.records} records)",
        ("policy", *columns, "mean", f"hidden at risk {found.share:g}"),
        rows,
        (*columns, "mean", f"hidden at risk {found.share:g}"),
    )
    for item in found.outcomes:
        say(f"  {item.name:<20} {'█' * round(_WIDE * item.mean)} {item.mean:.1%}")
    if found.recommended is None:
        say(f"No recommendation: {found.because}.")
    else:
        changes = next(item for item in found.outcomes if item.name == found.recommended).settings
        words = ", ".join(f"{name} = {_value(value)}" for name, value in changes.items())
        say(f"Recommended: {found.recommended} ({words}): {found.because}.")
        say(f"With a risk budget beside it: risk.share = {found.share:g}. Nothing changes by itself.")
    for note in found.notes:
        say(f"{note}.")


def _value(value: object) -> str:
    return ", ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
