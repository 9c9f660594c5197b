"""fallow policy compare: the later half of a store's own questions, asked after hiding by each policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fallow.cli.app import run
from fallow.model.errors import UsageError
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.usecases.comparing import CHANCE, POLICIES, Comparison, compare
from tests.fallow.small_stores import NOW, days_ago, record, store, tree

SIZE = 24


def a_year(rated: bool) -> tuple[list[dict], list[dict]]:
    """300 turns over a year and 120 questions; only every fifth turn is ever asked for, and rated high if at all."""
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((300, SIZE))
    turns = [
        record(
            f"t{n:03}",
            days=360 - n,
            role="assistant",
            importance=(0.9 if n % 5 == 0 else 0.2) if rated else 0.5,
            embedding=vectors[n].tolist(),
        )
        for n in range(300)
    ]
    asked = []
    for n in range(120):
        about = 5 * int(rng.integers(60))
        days = 360 - about - 1 - float(rng.random()) * (360 - about - 2) if n < 60 else 50 - n / 3
        near = vectors[about] + 0.4 * rng.standard_normal(SIZE)
        asked.append({"_id": f"q{n}", "agent_id": "gardener", "created_at": days_ago(days), "embedding": near.tolist()})
    return turns, asked


def compared(root: Path, rated: bool) -> Comparison:
    turns, asked = a_year(rated)
    with store(root, *turns, semantic_cache=asked) as provider:
        before = tree(root)
        found = compare(provider, resolve({}, environ={}), Scope(), as_of=NOW)
        assert tree(root) == before
    return found


def test_with_ratings_that_know_importance_is_recommended_and_chance_is_last(tmp_path: Path) -> None:
    found = compared(tmp_path / "s", rated=True)
    names = [item.name for item in found.outcomes]
    kept = {item.name: item.mean for item in found.outcomes}
    assert found.recommended == "importance first"
    assert kept["importance first"] > 0.9
    assert kept["mean of three"] == kept["in force"]
    assert kept["importance first"] >= kept["mean of three"] > kept["recency alone"]
    assert abs(kept[CHANCE] - (1 - np.mean([0.1, 0.25, 0.5]))) < 0.05
    assert names.index("importance first") < names.index(CHANCE)
    assert set(names) == {*POLICIES, "in force", CHANCE}


def test_what_later_questions_recalled_is_not_known_at_the_cut(tmp_path: Path) -> None:
    """Counts that only the later questions made would let use win by looking ahead."""
    turns, asked = a_year(rated=False)
    for n, turn in enumerate(turns):
        turn["access_count"] = 1000 if n % 5 == 0 else 0
        turn["last_accessed_at"] = days_ago(1)
    with store(tmp_path / "ahead", *turns, semantic_cache=asked) as provider:
        ahead = compare(provider, resolve({}, environ={}), Scope(), as_of=NOW).to_json()
    plain = compared(tmp_path / "s", rated=False).to_json()
    assert ahead["policies"] == plain["policies"]


def test_where_nothing_beats_chance_nothing_is_recommended(tmp_path: Path) -> None:
    turns, asked = a_year(rated=True)
    rng = np.random.default_rng(9)
    for turn in turns:
        turn["importance"] = float(rng.random())
        turn["timestamp"] = days_ago(200 + 100 * float(rng.random()))
    for query in asked:
        query["embedding"] = rng.standard_normal(SIZE).tolist()
    with store(tmp_path / "s", *turns, semantic_cache=asked) as provider:
        found = compare(
            provider,
            resolve({}, environ={}),
            Scope(),
            as_of=NOW,
            others={"importance alone": POLICIES["importance alone"]},
        )
    assert found.recommended is None
    assert "chance" in found.because


def test_too_few_questions_are_refused(tmp_path: Path) -> None:
    turns, asked = a_year(rated=True)
    with (
        store(tmp_path / "s", *turns, semantic_cache=asked[:30]) as provider,
        pytest.raises(UsageError, match="30 past questions with embeddings and times are too few: 40 are needed"),
    ):
        compare(provider, resolve({}, environ={}), Scope(), as_of=NOW)


def test_the_command_prints_a_table_a_plot_and_a_recommendation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, asked = a_year(rated=True)
    with store(tmp_path / "s", *turns, semantic_cache=asked):
        pass
    other = tmp_path / "heavy.json"
    other.write_text('{"retention.weights": [5, 1, 1]}')
    at = ["--store", str(tmp_path / "s"), "--as-of", "2026-12-01T00:00:00Z"]
    plot = tmp_path / "plot.svg"
    assert run(["policy", "compare", *at, "--policy", str(other), "--plot", str(plot)]) == 0
    said = capsys.readouterr().out
    assert "Recommended: importance first (retention.formula = importance_first)" in said
    assert "heavy" in said
    assert "█" in said
    assert plot.read_text().startswith("<svg")
    assert run(["policy", "compare", *at, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recommended"] == "importance first"
    assert [len(item["kept"]) for item in document["policies"]] == [3] * 8
    assert run(["policy", "compare", *at, "--plot", str(plot)]) == 2
    assert "name a new file" in capsys.readouterr().err
