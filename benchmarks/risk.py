"""Does a risk budget keep its promise? Past questions as probes, later ones as the judge (SPEC §6.11, docs/quality.md).

    python -m benchmarks.risk [--data FOLDER] [--splits 200] [--json FILE]

A conversation's questions are split at random into probes and later questions, 200 times; turns are hidden lowest
importance first, as far as the probes allow. Above: share of splits in which the later questions' cost exceeds
``risk.share`` (at most 1 - confidence is promised). Among the later questions of a split chance alone moves the cost;
``above_all`` holds the same prefix against all questions of the conversation. Gold lost: share of the later questions'
gold evidence that is hidden, which the promise says nothing about. Then what is not promised: probes of another
kind than the later questions (those about a few neighbouring sessions; the users' own turns). Nothing is fitted.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.quality_importance import heuristic
from fallow.judgement.risk import answers, first_losses, probes_needed, promise

SHARES = (0.05, 0.10)
CONFIDENCE = 0.9
DROP = 0.1
Array = np.ndarray


@dataclass
class Asked:
    """A conversation, the order in which its turns would be hidden, and where each question first loses."""

    name: str
    turns: int
    place: Array
    first: Array
    answered: list[Array]
    evidence: list[Array]
    sessions: list[set[str]]
    order_of_sessions: list[str]
    first_of_turns: Array

    def gold_lost(self, questions: Array, length: int) -> float:
        """Share of these questions' evidence that is hidden at a length."""
        places = [self.place[self.evidence[index]] for index in questions.tolist() if len(self.evidence[index])]
        return float((np.concatenate(places) < length).mean()) if places else 0.0


def conversations(folder: Path, name: str) -> list[Asked]:
    """Every conversation of a data set: turns in the order of their importance, older first."""
    records = pl.read_parquet(folder / f"{name}_records.parquet")
    questions = pl.read_parquet(folder / f"{name}_questions.parquet").filter(pl.col("answerable"))
    found = []
    for (memory_id,), turns in records.group_by(["memory_id"], maintain_order=True):
        asked = questions.filter(pl.col("memory_id") == memory_id)
        ids, threads = turns["id"].to_list(), turns["thread_id"].to_list()
        at = {item: index for index, item in enumerate(ids)}
        rated = np.asarray(heuristic(turns), dtype=np.float64)
        order = np.lexsort((np.array(ids), turns["timestamp"].to_numpy(), rated))
        place = np.empty(len(ids), dtype=np.int64)
        place[order] = np.arange(len(ids))
        vectors = turns["embedding"].to_numpy().astype(np.float32)
        evidence = [
            np.array([at[item] for item in items if item in at], dtype=np.int64) for items in asked["evidence_ids"]
        ]
        users = np.flatnonzero((turns["role"] == "user").to_numpy())
        answered = answers(asked["embedding"].to_numpy().astype(np.float32), vectors, drop=DROP)
        found.append(
            Asked(
                name=str(memory_id),
                turns=len(ids),
                place=place,
                first=first_losses(answered, place),
                answered=answered,
                evidence=evidence,
                sessions=[{threads[index] for index in part.tolist()} for part in evidence],
                order_of_sessions=list(dict.fromkeys(threads)),
                first_of_turns=first_losses(answers(vectors[users], vectors, drop=DROP, own=users), place),
            )
        )
    return found


def random_splits(asked: Asked, share: float, splits: int, probes: int | None = None) -> dict[str, Any]:
    """Half of the questions (or so many) are probes, the others come later; means over the splits."""
    rng = np.random.default_rng(2026)
    number = len(asked.first) // 2 if probes is None else probes
    rows = []
    missing = 0
    for _ in range(splits):
        mixed = rng.permutation(len(asked.first))
        drawn, later = mixed[:number], mixed[number:]
        made = promise(asked.first[drawn], asked.turns, share=share, confidence=CONFIDENCE)
        missing = made.missing
        cost = float((asked.first[later] <= made.length).mean())
        whole = float((asked.first <= made.length).mean())
        rows.append((made.length / asked.turns, asked.gold_lost(later, made.length), cost, cost > share, whole > share))
    hidden, gold, cost, above, above_all = np.mean(np.array(rows, dtype=np.float64), axis=0).tolist()
    return {
        "conversation": asked.name,
        "share": share,
        "probes": number,
        "missing": missing,
        "hidden": hidden,
        "gold_lost": gold,
        "cost": cost,
        "above": above,
        "above_all": above_all,
    }


def few_sessions(asked: Asked, share: float) -> dict[str, Any]:
    """Probes about neighbouring sessions only, just as many as are needed; one row a first session."""
    needed = probes_needed(share, CONFIDENCE)
    rows = []
    for start in range(len(asked.order_of_sessions)):
        wanted: set[str] = set()
        drawn: list[int] = []
        for session in asked.order_of_sessions[start:]:
            wanted.add(session)
            drawn = [index for index, about in enumerate(asked.sessions) if about and about <= wanted]
            if len(drawn) >= needed:
                break
        if len(drawn) < needed:
            break
        later = np.setdiff1d(np.arange(len(asked.first)), drawn)
        made = promise(asked.first[drawn], asked.turns, share=share, confidence=CONFIDENCE)
        cost = float((asked.first[later] <= made.length).mean())
        rows.append((made.length / asked.turns, asked.gold_lost(later, made.length), cost, cost > share))
    if not rows:
        return {"conversation": asked.name, "share": share, "starts": 0}  # not enough questions
    hidden, gold, cost, above = np.mean(np.array(rows, dtype=np.float64), axis=0).tolist()
    worst = max(row[2] for row in rows)
    return {
        "conversation": asked.name,
        "share": share,
        "starts": len(rows),
        "hidden": hidden,
        "gold_lost": gold,
        "cost": cost,
        "worst_cost": worst,
        "above": above,
    }


def users_turns(asked: Asked, share: float) -> dict[str, Any]:
    """Probes made of the users' own turns: what a store has that kept no questions."""
    made = promise(asked.first_of_turns, asked.turns, share=share, confidence=CONFIDENCE)
    every = np.arange(len(asked.first))
    cost = float((asked.first <= made.length).mean())
    return {
        "conversation": asked.name,
        "share": share,
        "probes": made.probes,
        "hidden": made.length / asked.turns,
        "gold_lost": asked.gold_lost(every, made.length),
        "cost": cost,
        "above": float(cost > share),
    }


def preview(found: list[Asked], order: str, seeds: int = 5) -> list[dict[str, Any]]:
    """The preview's "this question loses its answer" against gold: all of its evidence hidden."""
    rows = []
    for share in (0.10, 0.25, 0.50):
        said, gold = [], []
        for asked in found:
            for seed in range(1 if order == "importance" else seeds):
                mixed = np.random.default_rng(seed).permutation(asked.turns)
                place = asked.place if order == "importance" else mixed
                hidden = round(share * asked.turns)
                lost = first_losses(asked.answered, place) <= hidden
                for index, turns in enumerate(asked.evidence):
                    if len(turns):
                        said.append(bool(lost[index]))
                        gold.append(bool((place[turns] < hidden).all()))
        right = int(np.sum(np.array(said) & np.array(gold)))
        rows.append(
            {
                "order": order,
                "hidden": share,
                "questions": len(gold),
                "said": sum(said),
                "lost": sum(gold),
                "precision": right / max(1, sum(said)),
                "recall": right / max(1, sum(gold)),
            }
        )
    return rows


def speed(records: int = 100_000, numbers: int = 384, probes: int = 200) -> dict[str, Any]:
    """CPU seconds of one budget over random vectors."""
    rng = np.random.default_rng(1)
    memories = rng.standard_normal((records, numbers)).astype(np.float32)
    asked = rng.standard_normal((probes, numbers)).astype(np.float32)
    began = time.process_time()
    first = first_losses(answers(asked, memories, drop=DROP), np.arange(records, dtype=np.int64))
    promise(first, records, share=0.05, confidence=CONFIDENCE)
    return {"records": records, "probes": probes, "cpu_s": round(time.process_time() - began, 2)}


def measure(folder: Path, name: str, splits: int) -> dict[str, list[dict[str, Any]]]:
    """Every question of this benchmark over one data set."""
    found = conversations(folder, name)
    return {
        "random splits": [random_splits(asked, share, splits) for share in SHARES for asked in found],
        "ten probes": [random_splits(asked, share, splits, 10) for share in SHARES for asked in found],
        "a few sessions only": [few_sessions(asked, share) for share in SHARES for asked in found],
        "users' turns": [users_turns(asked, share) for share in SHARES for asked in found],
        "the preview's lost answers": [row for order in ("random", "importance") for row in preview(found, order)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = measure(options.data, "locomo", options.splits)
    with pl.Config(tbl_rows=60, tbl_cols=20, tbl_width_chars=160, tbl_hide_dataframe_shape=True, float_precision=3):
        for label, rows in results.items():
            frame = pl.DataFrame(rows, infer_schema_length=None)
            print(label, frame, sep="\n")
            if "share" in frame.columns:
                print(frame.group_by("share", maintain_order=True).agg(pl.col(pl.Float64).mean()))
    pace = speed()
    print(json.dumps(pace))
    if options.json:
        options.json.write_text(json.dumps({**results, "speed": pace}, indent=1))


if __name__ == "__main__":
    main()
