"""Every command's example in docs/cli.md does what it says, on a store where its plan waits."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from fallow.cli.app import run
from fallow.model.times import MICROSECONDS_PER_DAY, iso, wall_clock
from fallow.usecases.sample import sample_rows
from tests.conftest import REPOSITORY, write_as_agent
from tests.fallow.small_stores import CONVERSATION, record

PAGE = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## fallow ([a-z-]+)\n.*?^```sh\n(.*?)^```", PAGE, re.M | re.S))
#: These run until Ctrl-C; tests of their own start them.
RUNNING = {"serve"}
#: The documents' records: 120 that the defaults find eligible, among them 42 and 43.
PLANNED = 120


@pytest.fixture
def orchard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """A store named by FALLOW_STORE, in the current folder; its plan's id."""
    who = {"agent_id": "agent-orchard", "memory_id": "orchard-main"}
    angle = [[math.cos(part * n) for part in (1, 2.3, 3.7, 5.1, 7.9)] for n in range(PLANNED + 1)]
    rows = [record(str(n), days=200 + n, role="assistant", embedding=angle[n], **who) for n in range(1, PLANNED + 1)]
    asked = [
        {"_id": f"q{n}", "created_at": iso(wall_clock() - n * MICROSECONDS_PER_DAY), "embedding": angle[2 * n], **who}
        for n in range(1, 60)
    ]
    agents = sample_rows(now=wall_clock(), conversations=1)["agents"]
    write_as_agent(
        tmp_path / "memory", {CONVERSATION: rows, "agents": agents, "shared_memory": [], "semantic_cache": asked}
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FALLOW_STORE", str(tmp_path / "memory"))
    monkeypatch.setenv("FALLOW_KEY_PASSPHRASE", "correct horse battery")
    assert run(["retention-plan", "--json"]) == 0
    return {"plan_id": json.loads(capsys.readouterr().out)["plan_id"]}


def test_every_command_has_an_example() -> None:
    assert len(EXAMPLES) == PAGE.count("\n## fallow ")
    for name, example in EXAMPLES.items():
        assert example.startswith(f"fallow {name}")


def test_the_example_of_review_asks_and_decides_nothing_where_nobody_answers_16(
    orchard: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(["retention-plan", "--agent-id", "agent-orchard", "--publish"]) == 0
    capsys.readouterr()
    assert run(shlex.split(EXAMPLES["review"])[1:]) == 0
    assert "decided" in capsys.readouterr().out
    assert run(["plans", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["state"] in {"planned", "open"}


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - RUNNING - {"review"}))
def test_the_example_of_a_command_works_16(
    orchard: dict[str, str], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    plan_id = orchard["plan_id"]
    if name in {"suppressed", "unsuppress", "restore", "certificate", "verify"}:
        assert run(["retention-apply", plan_id, "--approved-by", "Ada", "--count", str(PLANNED)]) == 0
        capsys.readouterr()
    if name == "verify":
        assert run(["certificate", plan_id, "--out", "certificate.json"]) == 0
    words = shlex.split(EXAMPLES[name].replace("forget-plan-…", plan_id), comments=True)
    assert words[0] == "fallow"
    arguments = words[1:] if "--json" in words or name == "serve" else [*words[1:], "--json"]
    assert run(arguments) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    expected = {
        "retention-plan": lambda: len(told["entries"]) == PLANNED,
        "approve": lambda: told["leave_out"] and told["decision"] == "approved",
        "reject": lambda: told["decision"] == "rejected",
        "retention-apply": lambda: told["applied"] == PLANNED,
        "plans": lambda: told["plans"][0]["plan_id"] == plan_id,
        "show": lambda: told["plan_id"] == plan_id,
        "suppressed": lambda: told["count"] == PLANNED,
        "unsuppress": lambda: told["restored"] == ["42"],
        "restore": lambda: told["applied"] == PLANNED,
        "explain": lambda: told["record_id"] == "42",
        "certificate": lambda: told["totals"] == {"suppressed": PLANNED},
        "verify": lambda: told["ok"],
        "operator": lambda: len(told["public_key"]) == 43,
        "hold": lambda: told["active"],
        "drift": lambda: told["count"] == 0,
        "touch": lambda: told["touched"] == ["42", "43"],
    }
    assert expected.get(name, lambda: True)()
    # For people, too: something on stdout, and the same exit code where a second run is meant to say so.
    if name in {"plans", "show", "suppressed", "explain", "settings", "retention-plan"}:
        assert run([word for word in arguments if word != "--json"]) == 0
        assert capsys.readouterr().out.strip()
