"""What a scope's records say about each other (SPEC §3.1): questions, repetition, what was told before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fallow.importance import company
from fallow.importance.backfill import backfill_importance
from fallow.importance.company import ENOUGH_FOR_RANKS, Company, Settled
from fallow.importance.heuristic import ANSWER_LENGTH, RECITAL, Rarity, Surroundings, heuristic_rating, signals
from fallow.model.record import schema
from tests.fallow.small_stores import CONVERSATION, NOW, record, store
from tests.fallow.test_applying import read


def fed(rows: Sequence[dict[str, Any]], pieces: int = 1, memory_type: str = "conversation_memory") -> Settled:
    found = Company()
    names = ("record_id", "agent_id", "memory_id", "thread_id", "created_at", "text", "embedding")
    for start in range(pieces):
        part = [{name: row.get(name) for name in names} for row in rows[start::pieces]]
        found.add(memory_type, pl.DataFrame(part, schema={name: schema()[name] for name in names}))
    return found.settled()


def vectors(count: int, size: int = 16, seed: int = 1) -> list[list[float]]:
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32).tolist()


def told(count: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"record_id": f"r{at:04d}", "memory_id": "m", "created_at": at, "embedding": vector, **more}
        for at, vector in enumerate(vectors(count))
    ]


def ids(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["record_id"] for row in rows]


def test_nearness_to_what_was_told_before_is_that_of_comparing_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(company, "_BLOCK", 32)
    monkeypatch.setattr(company, "_LOOK_BACK", 70)
    rows = told(150)
    units = np.array([row["embedding"] for row in rows], dtype=np.float64)
    units = (units / np.linalg.norm(units, axis=1)[:, None]).astype(np.float16).astype(np.float64)
    found = company._told_before(units.astype(np.float16))
    for at in range(150):
        first = max(0, at // 32 * 32 - 70)
        near = sorted((float(units[at] @ units[other]) for other in range(first, at)), reverse=True)[:5]
        assert found[at] == pytest.approx(np.mean(near) if near else -1.0, abs=1e-4)
    around = fed(rows).around("conversation_memory", ids(rows))
    assert around[0].told_before == 0.0
    assert sorted(item.told_before for item in around) == pytest.approx([at / 149 for at in range(150)], abs=0.01)


def test_the_order_in_which_a_scope_is_read_changes_nothing() -> None:
    rows = told(60, text="The lathe stands in Porto.", thread_id="t")
    assert fed(rows).around("conversation_memory", ids(rows)) == fed(rows[::-1], pieces=7).around(
        "conversation_memory", ids(rows)
    )


def test_what_is_told_again_is_worth_less_and_the_first_telling_keeps_its_worth() -> None:
    rows = told(40)
    rows[30]["embedding"] = rows[10]["embedding"]
    for at in range(5):
        rows[31 + at]["embedding"] = rows[10]["embedding"]
    around = fed(rows).around("conversation_memory", ids(rows))
    assert around[35].told_before > 0.9 > around[10].told_before
    text = "Ines moved to Porto on 3 May."
    first, again = (heuristic_rating(text, around=around[at]).importance for at in (10, 35))
    assert first > again


@pytest.mark.parametrize(
    "embedding", [None, [], [0.0] * 16, [math.nan] * 16, [1.0] * 3], ids=["none", "empty", "zero", "nan", "other size"]
)
def test_where_an_embedding_cannot_be_used_the_rating_does_without(embedding: Any) -> None:
    rows = told(40)
    rows[7]["embedding"] = embedding
    around = fed(rows).around("conversation_memory", ids(rows))
    assert (around[7].told_before, around[7].usual_topic) == (None, None)
    assert all(item.told_before is not None for at, item in enumerate(around) if at != 7)
    text = "Ines moved to Porto on 3 May."
    assert heuristic_rating(text, around=around[7]) == heuristic_rating(text)


def test_few_records_have_no_usual_topic_and_memories_are_not_mixed() -> None:
    few = told(ENOUGH_FOR_RANKS - 1)
    assert {item.usual_topic for item in fed(few).around("conversation_memory", ids(few))} == {None}
    rows = told(60)
    for row in rows[1::2]:
        row["memory_id"] = "other"
    mine = ids(rows[::2])
    assert fed(rows).around("conversation_memory", mine) == fed(rows[::2]).around("conversation_memory", mine)


def test_questions_and_repetition_are_seen_within_a_thread() -> None:
    said = ["Which lathe broke in Porto?", "The lathe in Porto broke: its blue belt.", "Who mended it?", "Ines."]
    rows = [
        {"record_id": f"r{at}", "memory_id": "m", "thread_id": "t", "created_at": at, "text": text}
        for at, text in enumerate(said)
    ]
    rows.append({"record_id": "else", "memory_id": "m", "thread_id": "u", "created_at": 2, "text": "The lathe."})
    around = fed(rows).around("conversation_memory", ids(rows))
    assert [item.answers for item in around] == [False, True, False, True, False]
    assert [item.asked_about for item in around] == [False, True, False, False, False]
    assert [round(item.repeats, 2) for item in around] == [0.0, 1.0, 0.0, 0.0, 0.0]
    facts = fed(rows, memory_type="knowledge_base").around("knowledge_base", ids(rows))
    assert {(item.answers, item.asked_about, item.repeats) for item in facts} == {(False, False, 0.0)}


def test_every_part_of_a_rating_is_named_and_they_sum_to_it() -> None:
    around = Surroundings(answers=True, asked_about=True, repeats=0.5, told_before=0.9, usual_topic=0.2)
    found = heuristic_rating("The blue lathe broke last week.", around=around)
    assert {"answer", "asked about", "repeats", "told before", "usual topic", "dated"} <= set(found.signals)
    assert math.fsum(found.signals.values()) == pytest.approx(found.importance, abs=1e-9)
    assert found.signals["told before"] < 0 < found.signals["usual topic"]
    # What has no words has no company either.
    assert heuristic_rating("!!", around=around).importance == heuristic_rating("!!").importance


def test_a_long_answer_of_an_assistant_is_not_important_because_it_is_long() -> None:
    fact = "We moved the Okafor workshop to Porto last week. "
    short, recital = fact * 2, fact * 200
    assert heuristic_rating(short, role="assistant").importance == heuristic_rating(short, role="user").importance
    long = heuristic_rating(recital, role="assistant")
    assert abs(long.importance - RECITAL) < 0.05 < heuristic_rating(recital, role="user").importance - long.importance
    assert math.fsum(long.signals.values()) == pytest.approx(long.importance, abs=1e-9)
    poor = "well so then and but " * 100
    assert heuristic_rating(poor, role="assistant").importance > heuristic_rating(poor, role="user").importance
    assert heuristic_rating(recital, role="assistant", host_asserted=True).importance >= 0.8
    assert len(short) < ANSWER_LENGTH < len(recital)


@pytest.mark.parametrize(
    ("text", "dated"),
    [
        ("I sold it yesterday", 1.0),
        ("we met last Friday", 1.0),
        ("la semana pasada", 1.0),
        ("two years ago", 1.0),
        ("letzte Woche", 1.0),
        ("last but not least", 0.0),
        ("many years", 0.0),
        ("this lathe. Week by week", 0.0),
    ],
)
def test_a_time_that_is_told_from_the_telling_dates_an_event(text: str, dated: float) -> None:
    assert signals(text, Rarity())["dated"] == dated


def test_a_backfill_rates_by_the_embeddings_of_the_store(tmp_path: Path) -> None:
    def said(at: int, vector: list[float] | None) -> dict[str, Any]:
        when = f"2026-01-01T10:{at:02d}:00Z"
        return record(f"r{at:02d}", importance=None, content=f"The lathe {at} broke.", timestamp=when, embedding=vector)

    made = vectors(40)
    made[35:] = [made[20]] * 5
    with store(tmp_path / "s", *(said(at, vector) for at, vector in enumerate(made))) as provider:
        backfill_importance(provider, now=NOW)
    with store(tmp_path / "plain", *(said(at, None) for at in range(40))) as provider:
        backfill_importance(provider, now=NOW)
    rated = [read(tmp_path / "s", f"r{at:02d}")["importance"] for at in range(40)]
    plain = [read(tmp_path / "plain", f"r{at:02d}")["importance"] for at in range(40)]
    assert len(set(plain)) == 1
    assert rated[39] < plain[39] < max(rated)


def test_a_run_without_work_reads_no_text(tmp_path: Path) -> None:
    with store(tmp_path / "s", *(record(f"r{at}", importance=0.4) for at in range(3))) as provider:
        asked: list[tuple[str, ...]] = []
        scan = provider.scan
        provider.scan = lambda memory_type, columns: (asked.append(tuple(columns)), scan(memory_type, columns))[1]
        backfill_importance(provider, now=NOW, memory_types=[CONVERSATION])
    assert "embedding" not in {name for columns in asked for name in columns}
