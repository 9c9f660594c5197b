"""The ranking option by which an outdated row never stands before its correction (SPEC §2.1, §6.3)."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.model.errors import SettingError
from fallow.model.scoring import RetrievalScoring
from fallow.ranking.scoring import score_candidates
from fallow.ranking.selection import dedupe_and_select

BEHIND = RetrievalScoring(alpha_recency=0, alpha_importance=0, superseded="behind")
AS_SCORED = RetrievalScoring(alpha_recency=0, alpha_importance=0)


def row(name: str, score: float, **more) -> dict:
    return {"_id": name, "content": f"fact {name}", "score": score, "created_at": "2026-01-01", **more}


PAIR = (row("old", 0.9), row("new", 0.2, supersedes="old"), row("other", 0.5))


def order(rows, scoring: RetrievalScoring) -> list[str]:
    return [item["_id"] for item in score_candidates(rows, scoring=scoring)]


def test_the_correction_takes_the_outdated_rows_place() -> None:
    assert order(PAIR, AS_SCORED) == ["old", "other", "new"]
    assert order(PAIR, BEHIND) == ["new", "other", "old"]
    outdated = score_candidates(PAIR, scoring=BEHIND)[2]
    assert outdated["scoring"]["superseded_by"] == "new"


@pytest.mark.parametrize(
    "successor",
    [
        row("new", 0.2, supersedes=["old"]),
        row("new", 0.2, supersedes_id="old"),
        row("new", 0.2, metadata={"supersedes": "old"}),
        row("new", 0.2, metadata='{"supersedes": ["old"]}'),
    ],
)
def test_every_field_that_names_what_is_superseded_counts(successor: dict) -> None:
    assert order((row("old", 0.9), successor), BEHIND) == ["new", "old"]


def test_an_outdated_row_may_name_its_successor() -> None:
    assert order((row("old", 0.9, superseded_by="new"), row("new", 0.2)), BEHIND) == ["new", "old"]


def test_a_successor_that_is_not_there_or_suppressed_changes_nothing() -> None:
    assert order((row("old", 0.9, superseded_by="gone"), row("new", 0.2)), BEHIND) == ["old", "new"]
    hidden = row("new", 0.2, supersedes="old", retention_state="suppressed")
    assert order((row("old", 0.9), hidden), BEHIND) == ["old", "new"]


def test_rows_that_supersede_each_other_or_themselves_stand_as_scored() -> None:
    ring = (row("a", 0.9, supersedes="b"), row("b", 0.2, supersedes="a"), row("c", 0.5, supersedes="c"))
    assert order(ring, BEHIND) == order(ring, AS_SCORED) == ["a", "c", "b"]


def test_equal_scores_are_no_tie_between_a_fact_and_its_correction() -> None:
    assert order((row("a", 0.5), row("z", 0.5, supersedes="a")), BEHIND) == ["z", "a"]


@given(st.permutations([0.1, 0.3, 0.5, 0.7, 0.9]), st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_whatever_supersedes_what_no_row_stands_before_its_successor(scores, edges) -> None:
    olds = {new: [f"r{old}" for old in range(5) if (new, old) in edges and old < new] for new in range(5)}
    rows = [row(f"r{n}", scores[n], supersedes=olds[n]) for n in range(5)]
    at = {name: place for place, name in enumerate(order(rows, BEHIND))}
    assert sorted(at) == [f"r{n}" for n in range(5)]
    for new, names in olds.items():
        assert all(at[f"r{new}"] < at[name] for name in names)


def kept(rows, **options) -> list[str]:
    ledger: list[dict] = []
    dedupe_and_select(rows, ledger=ledger, **options)
    chosen = sorted((entry["rank"], entry["record_id"]) for entry in ledger if entry["kept"])
    return [name for _, name in chosen]


def test_what_is_selected_first_is_the_correction_however_few_are() -> None:
    for rows in permutations(PAIR):
        assert kept(rows, scoring=AS_SCORED, max_items=1) == ["old"]
        assert kept(rows, scoring=BEHIND, max_items=1) == ["new"]
        assert kept(rows, scoring=BEHIND, max_items=3) == ["new", "other", "old"]


def test_among_near_duplicates_the_correction_is_kept() -> None:
    vector = np.eye(4)[0]
    rows = [
        row("old", 0.9, embedding=vector.tolist()),
        row("new", 0.2, embedding=(vector + 0.01).tolist(), supersedes="old"),
    ]
    assert kept(rows, scoring=AS_SCORED) == ["old"]
    assert kept(rows, scoring=BEHIND) == ["new"]


def test_what_stands_for_a_dropped_correction_comes_first_too() -> None:
    vector = np.eye(4)[0]
    rows = [
        row("old", 0.9),
        row("new", 0.2, embedding=vector.tolist(), supersedes="old"),
        row("twin", 0.3, embedding=(vector + 0.01).tolist()),
    ]
    assert kept(rows, scoring=AS_SCORED)[0] == "old"
    assert kept(rows, scoring=BEHIND) == ["twin", "old"]


def test_a_reranker_does_not_bring_the_outdated_row_back() -> None:
    scores = {"old": 9.0, "new": 1.0, "other": 5.0}
    again = kept(PAIR, scoring=BEHIND, rerank=lambda rows: [scores[item["_id"]] for item in rows])
    assert again == ["new", "other", "old"]


def test_without_room_for_the_correction_the_outdated_row_does_not_stand_for_it() -> None:
    ledger: list[dict] = []
    long = row("new", 0.2, supersedes="old", content="x" * 300)
    dedupe_and_select([row("old", 0.9), long], scoring=BEHIND, max_total_chars=100, ledger=ledger)
    assert {entry["record_id"]: entry["reason"] for entry in ledger} == {"old": "superseded", "new": "budget"}


def test_the_option_is_checked_and_set_by_environment_and_agent() -> None:
    with pytest.raises(SettingError, match="as_scored or behind"):
        RetrievalScoring(superseded="never")  # type: ignore[arg-type]
    scoring, problems = RetrievalScoring.from_environ({"FALLOW_SCORE_SUPERSEDED": " Behind "})
    assert (scoring.superseded, problems) == ("behind", ())
