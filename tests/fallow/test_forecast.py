"""How many records would be eligible when, at which threshold (SPEC §16, forecast)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fallow.data_contracts.checking import gate

from fallow.cli.app import run
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.port.gate import ContractResult
from fallow.port.reading import read_store
from fallow.usecases.forecast import forecast
from tests.fallow.small_stores import NOW, days_ago, planned, record, store, tree


def rows() -> list[dict]:
    return [
        record("old and low", importance=0.1, days=90),
        record("low, in its grace", importance=0.1, days=10),
        record("low, pinned", importance=0.1, days=90, pinned=True),
        record("middling", importance=0.5, days=90),
        record("good", importance=0.9, days=90),
        record("low, fresh", importance=0.1, days=300, access_count=0, last_accessed_at=days_ago(1)),
    ]


def test_day_zero_is_what_a_plan_finds_and_time_only_adds(tmp_path: Path) -> None:
    with store(tmp_path / "s", *rows()) as provider:
        before = tree(tmp_path / "s")
        found = forecast(provider, resolve({}, environ={}), scope=Scope(), as_of=NOW)
        assert tree(tmp_path / "s") == before
        for threshold, counts in found.eligible.items():
            assert counts[0] == planned(provider, min_retention=threshold).counts["eligible"]
            assert list(counts) == sorted(counts)
        later = planned(provider, as_of=NOW + 90 * 86_400_000_000)
        assert found.eligible[0.15][3] == later.counts["eligible"] == 3
    assert (found.scanned, found.current, found.eligible[0.15][0]) == (6, 0.15, 1)


def test_an_empty_store_has_nothing_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with store(tmp_path / "s"):
        pass
    assert run(["forecast", "--store", str(tmp_path / "s"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["scanned"] == 0
    assert {number for row in document["eligible"] for number in row["records"]} == {0}
    assert run(["forecast", "--store", str(tmp_path / "s")]) == 0
    assert "Eligible of 0 records" in capsys.readouterr().err


def test_another_policy_from_a_file_and_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with store(tmp_path / "s", *rows()):
        pass
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"retention.weights": [1, 0, 0], "retention.min_retention": 0.6}))
    common = ["forecast", "--store", str(tmp_path / "s"), "--as-of", "2026-12-01T00:00:00Z", "--policy", str(policy)]
    assert run([*common, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["other"]["min_retention"] == 0.6
    now = {row["min_retention"]: row["records"] for row in document["eligible"]}
    other = {row["min_retention"]: row["records"] for row in document["other"]["eligible"]}
    for row in document["difference"]:
        both = zip(other[row["min_retention"]], now[row["min_retention"]], strict=True)
        assert row["records"] == [a - b for a, b in both]
    assert other[0.6][0] == 3
    assert run(common) == 0
    shown = capsys.readouterr().out
    assert "(in force)" in shown
    assert "█" in shown


@pytest.mark.parametrize("text", ["[1]", "{", '{"retention.nothing": 1}', '{"retention.weights": "a"}'])
def test_a_policy_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    with store(tmp_path / "s", *rows()):
        pass
    (tmp_path / "p.json").write_text(text)
    assert run(["forecast", "--store", str(tmp_path / "s"), "--policy", str(tmp_path / "p.json")]) in (1, 2)
    assert capsys.readouterr().err.strip()


def test_what_a_plan_would_leave_out_is_not_counted_either(tmp_path: Path) -> None:
    talk = [record(f"t{n}", importance=0.1, days=90 + n, thread_id="t", conversation_id="t") for n in range(6)]
    odd = record("odd", importance=0.1, days=90, suppressed_by="forget-plan-of-somebody")
    with store(tmp_path / "s", *talk, odd) as provider:
        view = read_store(provider)
        contracts = gate(provider, view, as_of=NOW)
        options = {"retention.keep_per_conversation": 4}
        found = forecast(
            provider, resolve(options, environ={}), scope=Scope(), as_of=NOW, view=view, contracts=contracts
        )
        for threshold in (0.15, 0.5):
            plan = planned(provider, view=view, contracts=contracts, min_retention=threshold, keep_per_conversation=4)
            assert found.eligible[threshold][0] == plan.counts["eligible"] == 2
        assert planned(provider, contracts=ContractResult(), min_retention=0.5).counts["eligible"] == 7
