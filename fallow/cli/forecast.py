"""How many records would be eligible when, on the command line (SPEC §16)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

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


def forecast(
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    unowned: Annotated[bool, typer.Option("--unowned", help="Records without an owner, too (or only).")] = False,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="A JSON file of other settings, by name; shows the difference.")
    ] = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Count what would be eligible in 0, 7, 30 and 90 days at a grid of thresholds, if nobody recalled anything."""
    from fallow.port.gate import check_store
    from fallow.port.reading import read_store
    from fallow.usecases.forecast import Forecast
    from fallow.usecases.forecast import forecast as look_ahead

    options = read_policy(policy)
    scope, at = scope_of(agent_id, memory_id, user_id, thread_id, unowned), instant(as_of, "--as-of")
    with open_store(store) as provider:
        view = read_store(provider)
        contracts = check_store(provider, view, at)

        def ahead(chosen: dict[str, Any]) -> Forecast:
            settings = settings_of(provider, agent_id, chosen)
            return look_ahead(provider, settings, scope=scope, as_of=at, view=view, contracts=contracts)

        current = ahead({})
        other = None if policy is None else ahead(options)
    if as_json:
        document = current.to_json()
        if other is not None:
            document["other"] = {"policy": options, **other.to_json()}
            shared = [name for name in current.eligible if name in other.eligible]
            document["difference"] = [
                {
                    "min_retention": name,
                    "records": [b - a for a, b in zip(current.eligible[name], other.eligible[name], strict=True)],
                }
                for name in shared
            ]
        emit(document)
        return
    rows = []
    for threshold in sorted({*current.eligible, *(other.eligible if other else ())}):
        mark = " (in force)" if threshold == current.current else ""
        mark += " (the file's)" if other is not None and threshold == other.current else ""
        now, then = current.eligible.get(threshold), other.eligible.get(threshold) if other else None
        cells = []
        for place in range(len(current.days)):
            cell = "" if now is None else str(now[place])
            if then is not None:
                cell += f" → {then[place]}" if now is None else f" → {then[place]} ({then[place] - now[place]:+d})"
            cells.append(cell)
        rows.append((f"{threshold:g}{mark}", *cells))
    days = [f"in {day} days" if day else "now" for day in current.days]
    table(f"Eligible of {current.scanned} records, if nobody recalls any", ("below", *days), rows, days)
    if current.risk:
        shares = [(f"{share:g}", *map(str, numbers)) for share, numbers in current.risk.items()]
        table("Of these, within a risk budget", ("share", *days), shares, days)
    for name, found in (("current policy", current), ("the file's policy", other)):
        if found is None:
            continue
        say(f"\n{name}, below {found.current:g}:")
        counts = found.eligible[found.current]
        for day, count in zip(found.days, counts, strict=True):
            bar = "█" * round(_WIDE * count / found.scanned) if found.scanned else ""
            say(f"  {day:>3} days {bar} {count}")


def read_policy(path: Path | None) -> dict[str, Any]:
    """The settings in a policy file: an object of values by setting name, such as ``retention.formula``."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the policy file {path.name} cannot be read: {type(error).__name__}",
            hint='write a JSON object such as {"retention.formula": "importance_first"}',
        ) from None
    if not isinstance(found, dict):
        raise UsageError(
            f"the policy file {path.name} holds no JSON object",
            hint='write a JSON object such as {"retention.formula": "importance_first"}',
        )
    return found
