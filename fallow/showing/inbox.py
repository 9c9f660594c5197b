"""The inbox of open plans as Markdown: what waits, for whom, until when."""

from __future__ import annotations

from collections.abc import Callable

from fallow.model.times import iso
from fallow.showing.facts import counted, whose
from fallow.showing.markdown import escaped, markdown_table
from fallow.usecases.inbox import Inbox, Waiting


def until(instant: int) -> str:
    """A time as one says it: ``2026-12-07 09:30 UTC``."""
    return f"{iso(instant)[:16].replace('T', ' ')} UTC"


def inbox_page(inbox: Inbox, run_of: Callable[[Waiting], str]) -> str:
    """The newest plan on top.

    Args:
        inbox: what waits.
        run_of: the address of the run that asks, or "".
    """
    said = "plan waits for its approver" if len(inbox.waiting) == 1 else "plans wait for their approvers"
    parts = [f"# {len(inbox.waiting):,} {said}" if inbox.waiting else "# No plan waits"]
    if inbox.waiting:
        parts.append(
            markdown_table(
                ("asked", "whose", "hides", "wide", "answer until", "store", "plan"),
                [
                    (
                        until(item.plan.published_at or item.plan.planned_at),
                        whose(item.plan.scope),
                        counted(item.plan.planned, "record"),
                        "wide: look twice" if item.plan.wide else "",
                        until(item.plan.expires_at),
                        item.store,
                        item.plan.plan_id,
                    )
                    for item in inbox.waiting
                ],
            )
        )
        links = [
            f"- [{escaped(whose(item.plan.scope))}, {counted(item.plan.planned, 'record')}: open its run]({address})"
            for item in inbox.waiting
            if (address := run_of(item))
        ]
        parts += ["\n".join(links)] if links else []
        parts.append("In a terminal: `fallow review`.")
    parts += [f"**{escaped(store)} could not be asked:** {escaped(why)}" for store, why in inbox.unasked]
    return "\n\n".join(parts)
