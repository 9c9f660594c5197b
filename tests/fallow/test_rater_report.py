"""What a store's ratings are like, and what each rating would make eligible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fallow.cli.app import run
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.usecases.rater_report import report_ratings
from tests.fallow.small_stores import NOW, planned, record, store, tree

TEXTS = [
    "Ines moved to Porto on 3 May and bought a boat.",
    "ok thanks",
    "haha",
    "We decided to sell the house in June.",
]


def rows(count: int, **more) -> list[dict]:
    return [record(f"r{n:02d}", content=TEXTS[n % 4], days=200 + n, **more) for n in range(count)]


def test_it_counts_what_is_there_and_changes_nothing(tmp_path: Path) -> None:
    unrated = [record("u", importance=None, content="Hm.")]
    with store(tmp_path / "s", *rows(8, importance=0.2, importance_source="host"), *unrated) as provider:
        before = tree(tmp_path / "s")
        settings = resolve({}, environ={})
        found = report_ratings(provider, settings, scope=Scope(), as_of=NOW)
        assert tree(tmp_path / "s") == before
        assert (found.records, found.rated) == (9, 8)
        assert found.tenths == {"host": [0, 0, 8, 0, 0, 0, 0, 0, 0, 0]}
        assert (found.compared, found.agreement, found.suspicious) == (0, None, [])
        assert found.eligible["stored"] == found.shared["stored"] == planned(provider).counts["eligible"] == 8
        assert found.eligible["constant"] == 0
        assert found.shared["heuristic"] <= found.eligible["heuristic"]


def test_a_model_that_agrees_and_one_that_says_the_same_of_all(tmp_path: Path) -> None:
    judged = [
        {**row, "importance": [0.8, 0.1, 0.1, 0.7][n % 4], "importance_source": "llm"} for n, row in enumerate(rows(24))
    ]
    with store(tmp_path / "good", *judged) as provider:
        found = report_ratings(provider, resolve({}, environ={}), scope=Scope(), as_of=NOW)
        assert found.compared == 24
        assert found.agreement > 0.7
        assert found.suspicious == []
    with store(tmp_path / "bad", *rows(24, importance=1.0, importance_source="llm")) as provider:
        found = report_ratings(provider, resolve({}, environ={}), scope=Scope(), as_of=NOW)
        assert len(found.suspicious) == 2
        assert "tell nothing apart" in found.suspicious[0]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with store(tmp_path / "s", *rows(24, importance=1.0, importance_source="llm")):
        pass
    assert run(["rater-report", "--store", str(tmp_path / "s"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["eligible"].keys() == {"stored", "heuristic", "constant"}
    assert "Porto" not in json.dumps(told)
    assert run(["rater-report", "--store", str(tmp_path / "s")]) == 0
    assert "24 of 24 records are rated" in capsys.readouterr().out
