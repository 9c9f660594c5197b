"""Rating what a store holds unrated, free and in place (SPEC §3.1, §3.4-3.6)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fallow.importance.backfill import backfill_importance, company_of
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from tests.fallow.small_stores import CONVERSATION, NOW, record, store, tree
from tests.fallow.test_applying import Behind, Killed, control, dies_after, edit, read

TEXTS = ["Ines moved to Porto on 3 May.", "ok thanks", "We decided to sell the boat.", "How are you?", "haha cool"]


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [record(f"r{n:03d}", importance=None, content=TEXTS[n % 5], **more) for n in range(count)]


def test_every_unrated_record_gets_a_rating_and_its_source_3_5(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *rows(10), record("rated", importance=0.3), summaries=[record("s1", importance=None)]) as provider:
        report = backfill_importance(provider, now=NOW)
        assert (report.rated, report.already, report.by_source) == (11, 1, {"heuristic": 11})
        assert sum(report.distribution) == 11
        assert read(root, "r000")["importance"] > read(root, "r001")["importance"]
        assert read(root, "r000")["importance_source"] == "heuristic"
        assert "importance_source" not in read(root, "rated")
        before = tree(root)
        again = backfill_importance(provider, now=NOW + 1)
        assert (again.rated, again.already, again.to_json()["state"]) == (0, 12, "NothingToDo")
        assert tree(root) == before
    (event,) = [row for row in control(root, "learning_event") if row["event_type"] == "importance_rated"]
    assert event["payload"]["rated"] == 11
    assert "Porto" not in json.dumps(event)


@pytest.mark.parametrize("value", [math.nan, math.inf, "high", True, 1.2, -0.1, [0.5]])
def test_a_stored_value_good_or_bad_is_never_replaced_1_2_3_4(tmp_path: Path, value: Any) -> None:
    root = tmp_path / "s"
    with store(root, record("bad", importance=value), record("text", importance="0.7")) as provider:
        before = tree(root / CONVERSATION)
        report = backfill_importance(provider, now=NOW)
        assert (report.rated, report.already) == (0, 1)
        assert report.skipped == {"a stored value that cannot be used": ["bad"]}
        assert tree(root / CONVERSATION) == before


def test_only_a_verified_outcome_raises_a_rating_to_one_3_4(tmp_path: Path) -> None:
    root = tmp_path / "s"
    sure = [record("v1", importance=0.3, verified=True), record("v2", importance=None, metadata={"verified": "yes"})]
    with store(root, *sure, record("v3", importance=1.0, verified=True), record("plain", importance=0.3)) as provider:
        report = backfill_importance(provider, now=NOW)
        assert (report.raised, report.rated, report.already) == (1, 1, 2)
        assert [read(root, name)["importance"] for name in ("v1", "v2", "v3", "plain")] == [1.0, 1.0, 1.0, 0.3]
        assert read(root, "v1")["importance_source"] == "verified"


def test_a_row_rated_or_deleted_meanwhile_is_left_alone_3_5(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *rows(5)) as provider:
        done: list[int] = []

        def meanwhile(_: Sequence[Any]) -> None:
            if not done:
                done.append(1)
                edit(root, "r000", importance=0.9, importance_source="host")
                (root / CONVERSATION / "r001.json").unlink()
                edit(root, "r002", x_custom=1)

        report = backfill_importance(Behind(provider, before={"patch": meanwhile}), now=NOW)
        assert (report.rated, report.skipped) == (3, {"rated meanwhile": ["r000"], "gone": ["r001"]})
        assert read(root, "r000")["importance"] == 0.9
        assert not (root / CONVERSATION / "r001.json").exists()
        assert (read(root, "r002")["x_custom"], read(root, "r002")["importance_source"]) == (1, "heuristic")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_run_that_died_is_continued_by_starting_it_again_3_6(tmp_path: Path, monkeypatch, after: int) -> None:
    root = tmp_path / "s"
    with store(root, *rows(6), knowledge_base=rows(3), summaries=rows(3)) as provider:
        with pytest.raises(Killed):
            backfill_importance(Behind(provider, before={"patch": dies_after(after)}), now=NOW)
        first = sum("importance" in json.loads(path.read_text()) for path in root.rglob("r*.json"))
        report = backfill_importance(provider, now=NOW + 1)
        assert report.rated == 12 - first
        assert backfill_importance(provider, now=NOW + 2).rated == 0


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with store(root, *rows(10)) as provider:
        before = tree(root)
        assert backfill_importance(provider, now=NOW, dry_run=True).rated == 10
        assert tree(root) == before


def test_only_the_scope_is_rated_and_its_own_words_say_what_is_rare(tmp_path: Path) -> None:
    root = tmp_path / "s"
    other = [record(f"o{n}", importance=None, agent_id="other", content="zither zither") for n in range(30)]
    with store(root, *rows(5), *other, record("mine", importance=None, content="the zither")) as provider:
        scope = Scope(agent_id="gardener")
        assert company_of(provider, PRIMARY_TYPES, scope).rarity.documents == 6
        report = backfill_importance(provider, now=NOW, scope=scope)
        assert report.rated == 6
        assert "importance" not in read(root, "o1")


def test_model_ratings_of_exactly_one_are_reported_as_suspect(tmp_path: Path) -> None:
    more = {"importance": 1.0, "importance_source": "llm"}
    sure = record("b", importance=1.0, importance_source="host")
    with store(
        tmp_path / "s", record("a", **more), sure, record("c", importance=0.9, importance_source="llm")
    ) as provider:
        assert backfill_importance(provider, now=NOW).suspect == 1


def test_a_message_that_answers_a_question_of_its_thread_rates_higher_3_1(tmp_path: Path) -> None:
    def said(name: str, minute: int, text: str, thread: str) -> dict[str, Any]:
        at = f"2026-01-01T10:{minute:02d}:00Z"
        return record(name, importance=None, content=text, thread_id=thread, timestamp=at)

    told = "The blue one with the dent."
    # Stored in another order than it was said in; "w" follows a question of another thread only.
    talk = [said("b", 2, told, "t1"), said("a", 1, "Which car is it?", "t1"), said("w", 2, told, "t2")]
    talk += [said("c", 3, told, "t1"), said("v", 1, "Hm.", "t2")]
    root = tmp_path / "s"
    with store(root, *talk) as provider:
        backfill_importance(provider, now=NOW)
    rated = {name: read(root, name)["importance"] for name in "bcw"}
    # "c" only says again what stands before it.
    assert rated["b"] > rated["w"] > rated["c"]
