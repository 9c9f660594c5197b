"""The approver's desk as screens of plain text: 80 columns, 24 lines, no colour needed (SPEC §16 ``review``)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from fallow.plans.plan import PlanEntry
from fallow.showing.facts import asked, at_stake, counted, since_last, whose
from fallow.showing.inbox import until
from fallow.showing.plan_page import plain_reason
from fallow.usecases.desk import Desk
from fallow.usecases.inbox import Inbox
from fallow.usecases.reviewing import Around, Review

WIDTH: Final = 80
#: Said wherever a text would stand and may not.
NO_TEXT: Final = "Text is not shown here: approval.show_text is off."


def plain(text: str) -> str:
    """A stored text as a terminal may show it: one line, no control characters."""
    return "".join(char if char.isprintable() else "·" for char in " ".join(text.split()))


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        plain(text), WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    ) or [""]


def inbox_lines(inbox: Inbox) -> list[str]:
    """The inbox, numbered, the newest first."""
    number = len(inbox.waiting)
    lines = [f"{counted(number, 'plan')} {'waits' if number == 1 else 'wait'} for a decision." if number else ""]
    lines[0] = lines[0] or "No plan waits."
    for index, item in enumerate(inbox.waiting, 1):
        wide = ", WIDE" if item.plan.wide else ""
        lines += _wrapped(
            f"{index:>3}. {whose(item.plan.scope)}: {counted(item.plan.planned, 'record')}{wide}, "
            f"until {until(item.plan.expires_at)}"
        )
        lines += [f"     {item.plan.plan_id}", f"     {plain(item.store)}"]
    for store, why in inbox.unasked:
        lines += _wrapped(f"{store} could not be asked: {why}")
    return lines


def desk_lines(lying: Desk) -> list[str]:
    """A plan, risk first."""
    plan = lying.plan
    lines = [plan.plan_id, *_wrapped(asked(plan)), "", "What could be lost:"]
    for said in at_stake(plan, lying.effect):
        lines += _wrapped(f"- {said}")
    lines += ["", *_wrapped(since_last(lying.difference))]
    differing = [name for name, item in plan.document["policy"].items() if item["origin"] != "default"]
    lines += _wrapped("Settings not at their default: " + (", ".join(differing) or "none") + ".")
    lines += _wrapped(f"It waits until {until(lying.stored.expires_at)}; unanswered, it hides nothing.")
    if lying.texts is None:
        lines += [NO_TEXT]
    return lines


def row_lines(review: Review, around: Around | None) -> list[str]:
    """One planned record. ``around`` is what it says and what stands beside it; None where texts may not be shown."""
    entry = review.row
    mark = "  LEFT OUT" if entry.key in review.left_out else ""
    lines = [f"Record {review.at + 1:,} of {len(review.rows):,}{mark}", f"{entry.memory_type}:{plain(entry.record_id)}"]
    lines += _wrapped(plain_reason(entry))
    lines += _wrapped(_where(entry))
    if around is None:
        return [*lines, "", NO_TEXT]
    lines += ["", *_wrapped(around.text or "(no text)", "  > ")]
    lines += ["", "Before it:", *_wrapped(around.before, "    ")] if around.before else []
    lines += ["After it:", *_wrapped(around.after, "    ")] if around.after else []
    return lines


def _where(entry: PlanEntry) -> str:
    parts = [f"conversation {entry.thread_id}"] if entry.thread_id else []
    parts += [f"memory {entry.memory_id}"] if entry.memory_id else []
    parts += [f"user {entry.user_id}"] if entry.user_id else []
    return ", ".join(parts) or "no conversation"


def left_out_line(review: Review) -> str:
    """What an approval would hide now."""
    spared = len(review.left_out)
    return (
        f"{len(review.rows) - spared:,} of {counted(len(review.rows), 'record')} would be hidden, {spared:,} left out."
    )


def screen(lines: Sequence[str], keys: str) -> str:
    """A screen: its lines, a rule, and what can be pressed."""
    return "\n".join([*lines, "-" * WIDTH, keys])
