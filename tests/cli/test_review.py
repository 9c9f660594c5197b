"""The approver's desk in the terminal, on a real pseudo terminal of 80 x 24 and without one (SPEC §16 ``review``)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path

import pytest

from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.model.times import iso, wall_clock
from fallow.plans.storage import list_plans, publish
from fallow.port.registry import open_provider
from fallow.usecases.planner import plan_scope

PATIENCE = 60.0


@pytest.fixture
def waiting(make_sample_store):
    """A store with one published plan over one agent."""
    now = wall_clock()
    store = make_sample_store(now=iso(now))
    with open_provider(str(store)) as provider:
        settings = resolve({"retention.min_retention": 0.3}, environ={})
        plan = plan_scope(provider, settings, Scope(agent_id="agent-orchard"), as_of=now, now=now)
        publish(provider, plan, now=now, expiry_hours=72)
    return store, plan


def environment(store: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FALLOW_", "PREFECT_"))}
    return {**kept, "FALLOW_STORES": str(store), "TERM": "dumb", "COLUMNS": "80", "LINES": "24", **more}


class Terminal:
    """``fallow`` on a pseudo terminal: what it writes is waited for, keys are pressed one by one."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fallow", *arguments], stdin=slave, stdout=slave, stderr=slave, env=env
        )
        os.close(slave)
        self.screen = self.all = ""

    def until(self, text: str) -> str:
        """What was written up to and with ``text``."""
        end = time.monotonic() + PATIENCE
        while text not in self.screen:
            assert time.monotonic() < end, f"{text!r} never came; the screen: {self.screen[-2000:]}"
            if select.select([self.master], [], [], 1.0)[0]:
                try:
                    piece = os.read(self.master, 65536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:
                    assert text in self.screen, f"ended without {text!r}: {self.screen[-2000:]}"
                    break
                self.screen += piece
                self.all += piece
        before, found, self.screen = self.screen.partition(text)
        return before + found

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.master)


def _approve_but_the_third(terminal, plan, ranked):
    first = terminal.until("[q] quit")
    assert "agent-orchard" in first
    assert f"hide {len(plan.entries)} of " in first
    assert "What could be lost:" in first
    assert "The first plan of this scope." in first
    terminal.press("r")
    for number, entry in enumerate(ranked[:3], 1):
        shown = terminal.until("[q] quit")
        assert f"Record {number} of {len(ranked)}" in shown
        assert entry.record_id in shown
        assert "  > " in shown
        terminal.press("n" if number < 3 else "x")
    assert "LEFT OUT" in terminal.until("[q] quit")
    terminal.press("a")
    terminal.until("Your name: ")
    terminal.press("Ada\n")
    terminal.until("Why, for the journal")
    terminal.press("The year is over.\n")
    terminal.until("Repeat the number of records planned")
    terminal.press(f"{len(plan.entries)}\n")
    terminal.until("approved by Ada (signed).")
    assert terminal.process.wait(PATIENCE) == 0


def test_three_rows_are_read_one_is_left_out_and_the_approval_is_signed(waiting, tmp_path):
    store, plan = waiting
    env = environment(
        store,
        FALLOW_APPROVAL_SHOW_TEXT="true",
        FALLOW_APPROVERS="Ada",
        FALLOW_OPERATORS_FILE=str(tmp_path / "operators.json"),
        FALLOW_KEY_PASSPHRASE="a passphrase of the test",
    )
    key = tmp_path / "ada.key"
    made = subprocess.run(
        [sys.executable, "-m", "fallow", "operator", "keygen", "--name", "Ada", "--key", str(key), "--json"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    public = json.loads(made.stdout)["public_key"]
    add = [sys.executable, "-m", "fallow", "operator", "add", "--name", "Ada", "--public-key", public]
    subprocess.run(add, env=env, capture_output=True, check=True)
    ranked = sorted(plan.entries, key=lambda entry: (-entry.importance, entry.key))
    with closing(Terminal(["review", "--key", str(key)], env)) as terminal:
        _approve_but_the_third(terminal, plan, ranked)
    assert "\x1b" not in terminal.all
    screens = terminal.all.split("[q] quit")
    assert max(len(line) for line in terminal.all.splitlines()) <= 80
    assert all(screen.count("\n") <= 24 for screen in screens[1:5])
    with open_provider(str(store)) as provider:
        decision = list_plans(provider, wall_clock())[0].decision
    assert (decision.by, decision.reason, decision.standing) == ("Ada", "The year is over.", "signed")
    assert decision.leave_out == (ranked[2].key,)
    assert decision.signature


def test_without_a_terminal_it_asks_by_lines_and_shows_no_text_unless_allowed(waiting):
    store, plan = waiting
    lines = ["r", "n", "x", "j", "Mallory", "no", "r", "j", "Ada", "Ratings are missing."]
    done = subprocess.run(
        [sys.executable, "-m", "fallow", "review", plan.plan_id[:20]],
        input="\n".join(lines) + "\n",
        env=environment(store, FALLOW_APPROVERS="Ada"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "NOT TAKEN: 'Mallory' is not an approver here" in done.stdout
    assert "Text is not shown here: approval.show_text is off." in done.stdout
    assert "  > " not in done.stdout
    assert "rejected by Ada (claimed)." in done.stdout
    with open_provider(str(store)) as provider:
        decision = list_plans(provider, wall_clock())[0].decision
    assert (decision.verdict, decision.by, decision.reason) == ("rejected", "Ada", "Ratings are missing.")


def test_the_end_of_the_input_decides_nothing_and_an_empty_inbox_says_so(waiting, tmp_path):
    store, _ = waiting
    for text in ("", "r\n", "a\nAda\n", "q\n"):
        done = subprocess.run(
            [sys.executable, "-m", "fallow", "review"],
            input=text,
            env=environment(store),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, "Nothing was decided." in done.stdout) == (0, True), done.stderr
    with open_provider(str(store)) as provider:
        assert list_plans(provider, wall_clock())[0].state == "open"
    done = subprocess.run(
        [sys.executable, "-m", "fallow", "review", "forget-plan-0000"],
        env=environment(store),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert re.search("no open plan has an id that begins like", done.stderr)


def test_plans_are_filtered_and_show_says_what_changed_and_why_it_was_decided(waiting, capsys):
    from fallow.cli import main

    store, plan = waiting
    named = ["--store", str(store)]
    for options, number in (
        (["--state", "open"], 1),
        (["--state", "applied"], 0),
        (["--agent-id", "agent-orchard"], 1),
        (["--agent-id", "nobody"], 0),
        (["--since", "2020-01-01"], 1),
        (["--since", "2199-01-01"], 0),
    ):
        assert main(["plans", *named, *options, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["count"] == number, options
    more = resolve({"retention.min_retention": 0.2}, environ={})
    with open_provider(str(store)) as provider:
        later = plan_scope(provider, more, plan.scope, as_of=plan.as_of, now=plan.planned_at + 1)
    gone = {entry.key for entry in plan.entries} - {entry.key for entry in later.entries}
    assert main(["reject", plan.plan_id, *named, "--approved-by", "Ada", "--reason", "too many"]) == 0
    assert main(["show", plan.plan_id, *named]) == 0
    assert "why: too many" in capsys.readouterr().out
    assert main(["show", later.plan_id, "--diff", *named]) == 0
    shown = capsys.readouterr().out
    assert f"{plan.plan_id}, rejected): 0 new, {len(gone)} no longer planned" in shown
    assert sum(line.startswith("- ") for line in shown.splitlines()) == len(gone) > 0
