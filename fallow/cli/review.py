"""``fallow review``: the approver's desk in the terminal (SPEC §16).

One key a step on a terminal, one line a step where there is none (a pipe, a screen reader, a script): the same screens,
the same words. Plain text without colour or cursor movement, so that it works over any ssh line at 80 x 24.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fallow.cli.app import KeyFile, Store, open_store, say, settings_variable
from fallow.model.errors import ApprovalRefusedError, PlanNotFoundError
from fallow.model.times import wall_clock

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fallow.port.protocol import Provider
    from fallow.usecases.inbox import Inbox, Waiting
    from fallow.usecases.reviewing import Review

#: So many refused answers end a review; nothing was written by any of them.
MAX_ANSWERS = 3


class EndedError(Exception):
    """The approver left, or the input ended."""


def _line(question: str) -> str:
    sys.stdout.write(question)
    sys.stdout.flush()
    text = sys.stdin.readline()
    if not text:
        raise EndedError
    return text.strip()


def _pressed(keys: Mapping[str, str]) -> str:
    """One of the keys: pressed on a terminal, typed as a line elsewhere. The end of the input is ``q``."""
    shown = "  ".join(f"[{key}] {what}" for key, what in keys.items())
    say("-" * 80)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        try:
            answer = _one_key(shown) if on_terminal else _line(shown + ": ").lower()[:1]
        except EndedError:
            return "q"
        if answer in keys:
            return answer


def _one_key(shown: str) -> str:
    """The next key, without Enter. What is typed before the question stands is kept, not thrown away."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle, termios.TCSADRAIN)
        say(shown)
        sys.stdout.flush()
        pressed = os.read(handle, 1)
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
    if pressed in {b"", b"\x04"}:
        raise EndedError
    return pressed.decode(errors="replace").lower()


def _screen(lines: list[str]) -> None:
    say("")
    for line in lines:
        say(line)


def review(
    plan_id: Annotated[str | None, typer.Argument(help="One plan, instead of the inbox.")] = None,
    approved_by: Annotated[str | None, typer.Option("--approved-by", help="The human who decides.")] = None,
    key: KeyFile = None,
    store: Store = None,
) -> int:
    """Look at open plans, leave records out, approve or reject: the approver's desk in the terminal."""
    from fallow.model.settings import configured_stores
    from fallow.showing.review import inbox_lines
    from fallow.usecases.inbox import open_plans

    addresses = configured_stores() if os.environ.get("FALLOW_STORES", "").strip() or not store else (store.strip(),)
    inbox = open_plans(addresses, open_store, wall_clock())
    try:
        if plan_id is not None:
            waiting = _named(inbox, plan_id)
        else:
            _screen(inbox_lines(inbox))
            if not inbox.waiting:
                return 0
            waiting = _chosen(inbox)
        with open_store(waiting.address) as provider:
            return _at_desk(provider, waiting, approved_by, key)
    except EndedError:
        say("Nothing was decided.")
        return 0


def _named(inbox: Inbox, plan_id: str) -> Waiting:
    text = plan_id.strip().removeprefix("forget-plan-")
    fits = [item for item in inbox.waiting if text and item.plan.plan_id.removeprefix("forget-plan-").startswith(text)]
    if len(fits) != 1:
        what = "no open plan has" if not fits else f"{len(fits)} open plans have"
        raise PlanNotFoundError(
            f"{what} an id that begins like '{plan_id[:60]}'",
            hint="fallow review lists what waits, fallow show says what became of a plan",
        )
    return fits[0]


def _chosen(inbox: Inbox) -> Waiting:
    if len(inbox.waiting) == 1:
        return inbox.waiting[0]
    while True:
        answer = _line(f"Which one, 1 to {len(inbox.waiting)}, or q: ").lower()
        if answer in {"q", "quit"}:
            raise EndedError
        if answer.isdecimal() and 1 <= int(answer) <= len(inbox.waiting):
            return inbox.waiting[int(answer) - 1]


def _at_desk(provider: Provider, waiting: Waiting, approved_by: str | None, key: Path | None) -> int:
    from fallow.showing.review import desk_lines, left_out_line
    from fallow.usecases.desk import desk
    from fallow.usecases.planner import settings_for
    from fallow.usecases.reviewing import Review

    settings = settings_for(provider, waiting.plan.scope.agent_id, variable=settings_variable())
    lying = desk(provider, waiting.plan.plan_id, now=wall_clock(), show_text=settings.approval.show_text)
    state = Review(lying)
    refused = 0
    while True:
        _screen([*desk_lines(lying), "", left_out_line(state)])
        pressed = _pressed({"r": "rows", "a": "approve", "j": "reject", "q": "quit"})
        if pressed == "r":
            pressed = _rows(provider, state, shown=settings.approval.show_text)
        if pressed == "q":
            raise EndedError
        if pressed in {"a", "j"}:
            try:
                return _decide(provider, state, "approved" if pressed == "a" else "rejected", approved_by, key)
            except ApprovalRefusedError as error:
                refused += 1
                say(f"NOT TAKEN: {error.message}{f' ({error.hint})' if error.hint else ''}. Nothing was written.")
                if refused == MAX_ANSWERS:
                    raise


def _rows(provider: Provider, state: Review, *, shown: bool) -> str:
    """Row by row, the most important first, until a key leads elsewhere."""
    from fallow.showing.review import row_lines
    from fallow.usecases.reviewing import Texts

    texts = Texts(provider) if shown else None
    while True:
        _screen(row_lines(state, None if texts is None else texts.around(state.row)))
        keys = {"n": "next", "p": "back", "x": "leave out", "s": "plan", "a": "approve", "j": "reject"}
        pressed = _pressed({**keys, "q": "quit"})
        if pressed == "x":
            state.toggle()
        elif pressed in {"n", "p"}:
            state.move(1 if pressed == "n" else -1)
        else:
            return pressed


def _decide(
    provider: Provider,
    state: Review,
    verdict: Literal["approved", "rejected"],
    approved_by: str | None,
    key: Path | None,
) -> int:
    from fallow.cli.retention import _wake_waiting_run
    from fallow.showing.review import left_out_line
    from fallow.usecases.planner import settings_for

    plan = state.desk.plan
    if verdict == "approved":
        say(left_out_line(state))
    by = approved_by or _line("Your name: ")
    reason = _line("Why, for the journal (may stay empty): ")
    count = _count(len(plan.entries)) if verdict == "approved" else None
    settings = settings_for(provider, None, variable=settings_variable())
    decision = state.decide(
        provider,
        verdict,
        by=by,
        reason=reason,
        count=count,
        approval=settings.approval,
        key=_read(key),
        now=wall_clock(),
    )
    say(f"{decision.plan_id} {decision.verdict} by {decision.by} ({decision.standing}).")
    if decision.verdict == "approved" and state.desk.stored.flow_run_id is None:
        say("It is recorded, and nothing is hidden yet. This hides it:")
        say(f"fallow retention-apply {decision.plan_id}")
    _wake_waiting_run(provider, decision.plan_id)
    return 0


def _count(planned: int) -> int:
    answer = _line(f"Repeat the number of records planned, before leaving any out ({planned}): ")
    if not answer.isdecimal():
        raise ApprovalRefusedError(f"'{answer[:20]}' is not a number", hint=f"this plan plans {planned}")
    return int(answer)


def _read(key: Path | None) -> Ed25519PrivateKey | None:
    from fallow.cli.operators import read_key

    return None if key is None else read_key(key)
