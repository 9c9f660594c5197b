"""Holds on the command line: place, list, release (SPEC §6.3, §16)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from fallow.cli.app import (
    AgentId,
    Json,
    MemoryId,
    Reason,
    Store,
    ThreadId,
    UserId,
    emit,
    open_store,
    say,
    scope_of,
    settings_variable,
    table,
)
from fallow.model.arguments import instant_or_none, memory_types, typed_id
from fallow.model.errors import UsageError
from fallow.model.times import iso, wall_clock
from fallow.showing.tables import counted


class HoldAction(StrEnum):
    """What to do."""

    add = "add"
    list = "list"
    release = "release"


def hold(
    action: Annotated[HoldAction, typer.Argument(help="add, list or release.")],
    hold_id: Annotated[str | None, typer.Argument(help="release: which hold, as list shows it.")] = None,
    record: Annotated[
        list[str] | None, typer.Option("--record", help="add: TYPE:ID of one record; may be repeated.")
    ] = None,
    memory_type: Annotated[
        list[str] | None, typer.Option("--memory-type", help="add: only this type; may be repeated.")
    ] = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    everything: Annotated[bool, typer.Option("--everything", help="add: every record of the store.")] = False,
    owner: Annotated[str | None, typer.Option("--owner", help="add: who answers for the hold.")] = None,
    released_by: Annotated[str | None, typer.Option("--released-by", help="release: who lets the records go.")] = None,
    reason: Reason = "",
    until: Annotated[str | None, typer.Option("--until", help="add: when it ends by itself, ISO 8601.")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Keep records from being suppressed, whatever their score; list holds, and release them."""
    from fallow.acting.deciding import check_approver
    from fallow.acting.holds import list_holds, place_hold, release_hold
    from fallow.usecases.planner import settings_for

    now = wall_clock()
    if action is HoldAction.add:
        keys = [typed_id(text, "--record") for text in record or ()]
        kinds = memory_types(memory_type or (), "--memory-type")
        with open_store(store) as provider:
            placed = place_hold(
                provider,
                scope=scope_of(agent_id, memory_id, user_id, thread_id),
                memory_types=kinds,
                records=keys,
                everything=everything,
                owner=owner or "",
                reason=reason,
                now=now,
                expires_at=instant_or_none(until, "--until"),
            )
        if as_json:
            emit(placed.to_json(now))
        else:
            say(f"hold {placed.hold_id} keeps {placed.label}")
        return
    with open_store(store) as provider:
        if action is HoldAction.release:
            if not hold_id or not released_by:
                raise UsageError("release needs the hold's id and --released-by", hint="fallow hold list shows the ids")
            settings = settings_for(provider, None, variable=settings_variable())
            name, _ = check_approver(released_by, settings.approval)
            gone = release_hold(provider, hold_id, released_by=name, reason=reason, now=now)
            if as_json:
                emit(gone.to_json(now))
            else:
                say(f"hold {gone.hold_id} was released by {gone.released_by}; its records can be planned again")
            return
        holds = list_holds(provider)
    if as_json:
        emit({"count": len(holds), "holds": [item.to_json(now) for item in holds]})
        return
    rows = [
        (
            item.hold_id,
            "yes" if item.active(now) else "no",
            item.label,
            item.owner,
            item.reason,
            iso(item.placed_at),
            "" if item.expires_at is None else iso(item.expires_at),
            "" if item.released_at is None else f"{iso(item.released_at)} {item.released_by}",
        )
        for item in holds
    ]
    table(
        counted(len(rows), "hold"), ("hold", "active", "keeps", "owner", "reason", "placed", "until", "released"), rows
    )
