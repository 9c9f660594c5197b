"""What a store's ratings are like, on the command line."""

from __future__ import annotations

from fallow.cli.app import (
    AgentId,
    AsOf,
    Json,
    MemoryId,
    Store,
    emit,
    open_store,
    say,
    scope_of,
    settings_of,
    table,
)
from fallow.model.arguments import instant


def rater_report(
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Look at the ratings: coverage, spread, agreement of model and heuristic, and what each would make eligible."""
    from fallow.usecases.rater_report import report_ratings

    with open_store(store) as provider:
        settings = settings_of(provider, agent_id)
        found = report_ratings(
            provider, settings, scope=scope_of(agent_id, memory_id, None, None, False), as_of=instant(as_of, "--as-of")
        )
    if as_json:
        emit(found.to_json())
        return
    say(f"{found.rated} of {found.records} records are rated.")
    if found.tenths:
        columns = ("source", *(f"{tenth / 10:.1f}" for tenth in range(10)))
        rows = [(source, *map(str, spread)) for source, spread in found.tenths.items()]
        table("Ratings by source, from each value up", columns, rows, columns[1:])
    for line in found.suspicious:
        say(f"suspicious: {line}")
    if found.agreement is not None:
        say(f"On {found.compared} records that a model rated, the heuristic's order agrees by {found.agreement:.2f}.")
    rows = [(label, str(number), str(found.shared[label])) for label, number in found.eligible.items()]
    table("Eligible tonight with each rating", ("rating", "records", "also with the stored"), rows, ("records",))
