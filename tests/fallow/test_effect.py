"""What retrieval loses by a plan, and what comes back (SPEC §7.1, TRAPS row 32)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fallow.cli.app import run
from fallow.usecases.effect import effect_lines, preview
from tests.fallow.small_stores import ids, planned, record, store, tree

SIZE = 24


def near(vector: np.ndarray, seed: int, noise: float = 0.05) -> list[float]:
    return (vector + noise * np.random.default_rng(seed).standard_normal(len(vector))).tolist()


def axis(number: int) -> np.ndarray:
    return np.eye(SIZE)[number]


def filler(number: int = 30) -> list[dict]:
    rng = np.random.default_rng(3)
    return [
        record(f"f{n:02}", importance=0.9, role="assistant", days=200, embedding=rng.standard_normal(SIZE).tolist())
        for n in range(number)
    ]


def test_the_only_answer_of_a_probe_is_named_7_1(tmp_path: Path) -> None:
    rows = [
        record("question", days=1, importance=0.9, embedding=near(axis(0), 1)),
        record("answer", days=90, role="assistant", embedding=near(axis(0), 2)),
        record("idle", days=90, role="assistant", embedding=(-axis(5)).tolist()),
        record("other question", days=2, importance=0.9, embedding=near(axis(1), 3)),
        record("one answer", days=90, role="assistant", embedding=near(axis(1), 4)),
        record("another answer", importance=0.9, role="assistant", embedding=near(axis(1), 5, 0.04)),
        *filler(),
    ]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider)
        assert sorted(ids(plan)) == ["answer", "idle", "one answer"]
        before = tree(tmp_path / "s")
        effect = preview(provider, plan)
        assert tree(tmp_path / "s") == before, "a preview reads only (SPEC §1.3)"
        assert plan.plan_id == planned(provider).plan_id
    assert effect.nothing_left == ["conversation_memory:question"]
    first = effect.losses[0]
    assert first.key.record_id == "answer"
    assert first.only_answer_of == ("conversation_memory:question",)
    assert all(not item.only_answer_of for item in effect.losses[1:])
    assert effect.probes_changed == 2
    assert effect.probes == {"user turns": 2, "cached queries": 0, "summaries": 0}
    assert "1 lose their answer" in effect_lines(effect.to_json())[0]


def test_another_agents_records_answer_nothing(tmp_path: Path) -> None:
    rows = [
        record("question", days=1, importance=0.9, embedding=near(axis(0), 1)),
        record("answer", days=90, role="assistant", embedding=near(axis(0), 2)),
        record("theirs", importance=0.9, agent_id="smith", role="assistant", embedding=near(axis(0), 6)),
        *filler(),
    ]
    with store(tmp_path / "s", *rows) as provider:
        assert preview(provider, planned(provider)).nothing_left == ["conversation_memory:question"]


def test_cached_queries_and_summaries_ask_too(tmp_path: Path) -> None:
    summary = {"_id": "s1", "content": "about it", "memory_id": "orchard", "agent_id": "gardener", "importance": 0.9}
    cached = {"_id": "c1", "query": "where?", "agent_id": "gardener", "embedding": near(axis(0), 7)}
    answer = record("answer", days=90, role="assistant", embedding=near(axis(0), 2))
    with store(
        tmp_path / "s",
        answer,
        *filler(),
        summaries=[{**summary, "created_at": 1774509333, "embedding": near(axis(2), 8)}],
        semantic_cache=[cached],
    ) as provider:
        effect = preview(provider, planned(provider))
    assert effect.probes == {"user turns": 0, "cached queries": 1, "summaries": 1}
    assert effect.nothing_left == ["semantic_cache:c1"]


def test_absent_embeddings_are_said_and_not_guessed(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("a"), record("b", embedding=[0.0] * 4), record("c", importance=0.9)) as provider:
        effect = preview(provider, planned(provider))
    assert (effect.planned, effect.planned_without_embedding, effect.visible_without_embedding) == (2, 2, 3)
    assert effect.places_changed == 0
    assert any("nothing could be asked" in note for note in effect.notes)


def test_a_live_copy_and_a_summary_that_quotes_come_back_trap_32(tmp_path: Path) -> None:
    said = "The pruning shears are in the red shed behind the pears."
    summary = {"_id": "s1", "memory_id": "orchard", "agent_id": "gardener", "importance": 0.9, "created_at": 1774509333}
    with store(
        tmp_path / "s",
        record("r1", content=said),
        record("r9", content=said.upper(), days=1),
        record("lone", content="Nobody repeats this one, it is gone."),
        summaries=[{**summary, "content": f"It was said: {said} And more."}],
    ) as provider:
        effect = preview(provider, planned(provider))
    (found,) = effect.comes_back
    assert (found.key.record_id, found.copies, found.summaries) == (
        "r1",
        ("conversation_memory:r9",),
        ("summaries:s1",),
    )
    assert "1 live copy, 1 summary quotes what is planned." in effect_lines(effect.to_json())


def test_near_duplicates_by_embedding_come_back_trap_32(tmp_path: Path) -> None:
    rows = [
        record("r1", role="assistant", embedding=axis(0).tolist()),
        record("near", importance=0.9, role="assistant", embedding=near(axis(0), 1, 0.01)),
        record("far", importance=0.9, role="assistant", embedding=near(axis(0), 2, 0.4)),
    ]
    with store(tmp_path / "s", *rows) as provider:
        (found,) = preview(provider, planned(provider)).comes_back
    assert found.copies == ("conversation_memory:near",)


def test_the_cost_is_bounded_and_what_was_not_read_is_said(tmp_path: Path) -> None:
    rows = [record("low", role="assistant", embedding=axis(0).tolist()), *filler(12)]
    with store(tmp_path / "s", *rows) as provider:
        effect = preview(provider, planned(provider), max_records=5)
    assert (effect.visible, effect.unread) == (6, 7)
    assert "7 visible records were not looked at" in effect.notes


def test_the_command_names_the_only_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        record("question", days=1, importance=0.9, embedding=near(axis(0), 1)),
        record("answer", days=90, role="assistant", embedding=near(axis(0), 2)),
        *filler(),
    ]
    with store(tmp_path / "s", *rows) as provider:
        plan_id = planned(provider).plan_id
    assert run(["effect", plan_id, "--store", str(tmp_path / "s"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plan_id"] == plan_id
    assert document["losses"][0]["record_id"] == "answer"
    assert document["nothing_left"] == ["conversation_memory:question"]
    assert run(["effect", plan_id, "--store", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr().out
    assert "conversation_memory:answer" in shown
    assert "what answer says" not in shown, "no memory text (SPEC §14)"


def test_the_plans_page_says_what_retrieval_loses_7_1(tmp_path: Path) -> None:
    from fallow.plans.storage import stored_plan
    from fallow.showing.plan_page import plan_page
    from fallow.usecases.desk import Desk

    rows = [
        record("question", days=1, importance=0.9, embedding=near(axis(0), 1)),
        record("answer", days=90, role="assistant", embedding=near(axis(0), 2)),
        *filler(),
    ]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider)
        effect = preview(provider, plan).to_json()
        stored = stored_plan(provider, plan.plan_id, plan.expires_at)
    page = plan_page(Desk(plan=plan, stored=stored, difference=None, effect=effect, texts=None))
    assert "1 lose their answer" in page
    assert "only answer of" in page
    assert "lose their answer" not in plan_page(
        Desk(plan=plan, stored=stored, difference=None, effect=None, texts=None)
    )
