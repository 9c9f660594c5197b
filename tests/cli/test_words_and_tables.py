"""Words and tables (SPEC §16, TRAPS 68): whole ids, a row a line in a pipe, prefixes, plurals, help by purpose."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from fallow.cli.app import run, table
from fallow.cli.commands import GROUPS
from fallow.port.registry import open_provider
from fallow.showing.tables import counted, piped
from fallow.usecases.planner import RetentionPlanner
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, record

LONG = "turn-" + "0123456789" * 6


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rows = [record(LONG, days=300), record("other-1", days=300), record("other-2", days=300)]
    write_as_agent(tmp_path / "store", {CONVERSATION: rows, "shared_memory": []})
    return tmp_path / "store"


def planned(store: Path) -> str:
    with open_provider(store) as provider:
        return RetentionPlanner(provider).plan(as_of=NOW).plan_id


def test_a_table_in_a_pipe_is_whole_and_a_row_a_line_trap_68(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    plan_id = planned(store)
    assert run(["plans", "--store", str(store)]) == 0
    streams = capsys.readouterr()
    head, *rows = streams.out.splitlines()
    assert head.split("\t") == ["plan", "state", "records", "scope", "as of", "expires"]
    assert [row.split("\t")[0] for row in rows] == [plan_id]
    assert "1 plan\n" in streams.err
    run(["retention-apply", plan_id, "--approved-by", "Ada", "--count", "3", "--store", str(store)])
    capsys.readouterr()
    assert run(["suppressed", "--store", str(store)]) == 0
    assert [row.split("\t")[0] for row in capsys.readouterr().out.splitlines()[1:]] == ["other-1", "other-2", LONG]


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_a_terminal_shows_whole_ids_at_any_width_trap_68(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    other = LONG.replace("turn", "plan")
    table("Two", ("record", "plan", "why"), [(LONG, other, "a long reason of many words " * 6)])
    shown = terminal.getvalue()
    assert LONG in shown
    assert other in shown
    wide = max(map(len, shown.splitlines()))
    assert wide <= max(columns, 2 * len(LONG) + 20)
    assert columns < 200 or wide > 150


def test_cells_stay_in_their_line() -> None:
    assert piped(("a", "b"), [("x\ty", "one\ntwo\x1b[31m")]) == "a\tb\nx y\tone two·[31m\n"


def test_one_thing_is_not_called_by_its_plural() -> None:
    assert (counted(1, "plan"), counted(0, "plan"), counted(2, "entry", "entries")) == (
        "1 plan",
        "0 plans",
        "2 entries",
    )


def test_an_id_may_be_shortened_until_it_is_ambiguous(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_id = planned(store)
    for text in (plan_id[:18], plan_id.removeprefix("forget-plan-")[:6], plan_id):
        assert run(["show", text, "--store", str(store)]) == 0
        assert plan_id in capsys.readouterr().out
    assert run(["show", "forget-plan-ffff", "--store", str(store)]) in {0, 1}
    capsys.readouterr()
    assert run(["explain", LONG[:9], "--store", str(store)]) == 0
    assert LONG in capsys.readouterr().out
    assert run(["explain", "other-", "--store", str(store)]) == 2
    assert "other-1, other-2" in capsys.readouterr().err
    assert run(["explain", "oth", "--store", str(store)]) == 1
    assert run(["approve", plan_id[:20], "--approved-by", "Ada", "--count", "3", "--store", str(store)]) == 0
    assert plan_id in capsys.readouterr().out


def test_help_is_grouped_and_complete_and_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for title, names in GROUPS.items():
        section = text.split(f"\n{title}:\n")[1].split("\n\n")[0]
        assert re.findall(r"^  ([a-z-]+)  ", section, flags=re.M) == [name for name, _ in names]
    assert run(["--version"]) == 0
    assert re.fullmatch(r"fallow \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)
