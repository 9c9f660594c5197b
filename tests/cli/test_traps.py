"""TRAPS.md on the command line: bad values, nothing at all, long reasons, late answers, ids that are no ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fallow.cli.app import run
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, record, tree

Told = tuple[int, str, str]


class Line:
    """The command line in this process: exit code, stdout, stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: Any) -> Told:
        code = run([str(item) for item in arguments])
        streams = self._capsys.readouterr()
        return code, streams.out, streams.err

    def document(self, *arguments: Any, code: int = 0) -> dict[str, Any]:
        found, out, err = self(*arguments, "--json")
        assert found == code, (out, err)
        return json.loads(out)


@pytest.fixture
def line(capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(capsys)


def strict(text: str) -> Any:
    """JSON as every reader takes it: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_bad_values_of_every_kind_make_a_plan_of_plain_json_trap_42(line: Line, tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    fields = [{"importance": value} for value in (nan, inf, -inf, True, 1.2, -0.1, "many", [], {})]
    fields += [{"access_count": value} for value in (inf, nan, -1, 1.5, "12x", True)]
    good = [{"importance": "0.7"}, {"access_count": "12"}, {"access_count": 3.0}]
    rows = [record(f"r{n}", days=200, **item) for n, item in enumerate([*fields, *good])]
    write_as_agent(tmp_path / "store", {CONVERSATION: rows, "shared_memory": []})
    before = tree(tmp_path / "store" / CONVERSATION)
    code, out, err = line("retention-plan", "--json", "--store", tmp_path / "store")
    assert code == 0, err
    plan = strict(out)
    assert plan["counts"]["scanned"] == len(rows)
    assert sum(plan["counts"]["breaches"].values()) == len(fields)
    for entry in plan["entries"]:
        assert all(0 <= entry[part] <= 1 for part in ("retention", "importance", "usage", "recency"))
    told = strict(line("explain", f"r{len(fields)}", "--json", "--store", tmp_path / "store")[1])
    assert told["score"]["importance"] == 0.7
    assert tree(tmp_path / "store" / CONVERSATION) == before


@pytest.mark.parametrize("text", ["", "   ", None])
def test_a_store_with_nothing_in_it_plans_nothing_and_says_so_trap_44(line: Line, tmp_path: Path, text: Any) -> None:
    root = tmp_path / "store"
    write_as_agent(root, {CONVERSATION: [], "shared_memory": []})
    assert line.document("retention-plan", "--detailed-exitcode", "--store", root)["counts"]["scanned"] == 0
    write_as_agent(root, {CONVERSATION: [record("r1", days=200, content=text, importance=None)]})
    plan = line.document("retention-plan", "--store", root)
    assert (plan["counts"]["scanned"], plan["coverage"]["rated"]) == (1, 0)


def test_a_reason_of_any_length_is_cut_and_marked_trap_45(line: Line, tmp_path: Path) -> None:
    root = tmp_path / "store"
    embedding = [0.25] * 8
    rows = [record(f"r{n}", days=200, embedding=embedding) for n in range(3)]
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})
    plan_id = line.document("retention-plan", "--store", root)["plan_id"]
    who = ("--approved-by", "Ada", "--count", 3, "--reason", "x" * 5000 + "\x1b[31m")
    assert line.document("retention-apply", plan_id, *who, "--store", root)["applied"] == 3
    row = json.loads((root / CONVERSATION / "r1.json").read_text(encoding="utf-8"))
    assert len(row["suppression_note"]) <= 2000
    assert not row["suppression_note"].endswith("x")
    assert row["embedding"] == embedding
    out = line("suppressed", "--store", root)[1] + line("show", plan_id, "--store", root)[1]
    assert "\x1b" not in out


@pytest.mark.parametrize("record_id", ["../../etc/x", "a/b", "x" * 300, "a\\b", ".hidden"])
@pytest.mark.parametrize("command", ["unsuppress", "touch", "explain"])
def test_an_id_that_no_store_can_hold_is_refused_trap_48(
    line: Line, tmp_path: Path, command: str, record_id: str
) -> None:
    root = tmp_path / "store"
    write_as_agent(root, {CONVERSATION: [record("r1", days=200)], "shared_memory": []})
    before = tree(tmp_path)
    more = ["--approved-by", "Ada"] if command == "unsuppress" else []
    code, _, err = line(command, record_id, "--memory-type", CONVERSATION, *more, "--store", root)
    assert code == (5 if command == "touch" else 1)  # touch reports each id by itself
    assert len(err.splitlines()) <= 1
    assert tree(tmp_path) == before


def test_an_answer_that_comes_too_late_exits_with_3_and_a_new_plan_reopens_7_2(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    rows = [record(f"r{n}", days=200) for n in range(2)]
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})
    monkeypatch.setenv("FALLOW_RETENTION_EXPIRY_HOURS", "0.00000001")
    at = ("--as-of", "2026-12-01T00:00:00Z", "--store", root)
    plan_id = line.document("retention-plan", *at)["plan_id"]
    before = tree(root)
    who = ("--approved-by", "Ada", "--count", 2, "--store", root)
    refused = line.document("retention-apply", plan_id, *who, code=3)
    assert "expired" in refused["error"]["message"]
    assert tree(root) == before
    monkeypatch.delenv("FALLOW_RETENTION_EXPIRY_HOURS")
    assert line.document("retention-plan", *at)["plan_id"] == plan_id
    assert line.document("retention-apply", plan_id, *who)["applied"] == 2


def test_a_plan_on_records_that_all_changed_exits_with_3_15(line: Line, tmp_path: Path) -> None:
    root = tmp_path / "store"
    rows = [record(f"r{n}", days=200) for n in range(8)]
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})
    plan_id = line.document("retention-plan", "--store", root)["plan_id"]
    write_as_agent(root, {CONVERSATION: [{**row, "access_count": 9} for row in rows]})
    before = tree(root / CONVERSATION)
    told = line.document("retention-apply", plan_id, "--approved-by", "Ada", "--count", 8, "--store", root, code=3)
    assert (told["state"], told["applied"], len(told["skipped"]["recalled"])) == ("Stale", 0, 8)
    assert tree(root / CONVERSATION) == before


def test_a_damaged_plan_is_refused_in_one_line_6_7(line: Line, tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_as_agent(root, {CONVERSATION: [record("r1", days=200)], "shared_memory": []})
    plan_id = line.document("retention-plan", "--store", root)["plan_id"]
    (part,) = (root / "shared_memory").glob("fallow-planpart-*.json")
    part.write_text(part.read_text(encoding="utf-8").replace("r1", "r2"), encoding="utf-8")
    before = tree(root)
    for command in (["show", plan_id], ["retention-apply", plan_id, "--approved-by", "Ada", "--count", "1"]):
        code, out, err = line(*command, "--store", root)
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1
    assert tree(root) == before
