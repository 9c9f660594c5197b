"""Is an importance rating worth having? Measured on real long conversations with gold evidence.

    python -m benchmarks.quality_importance [--data FOLDER] [--rows 200000] [--json FILE]

For every conversation: the AUC of the rating for "a later question needs this turn", and the share of gold
evidence that survives when the lowest-rated 10, 25 and 50 % are hidden, by importance alone. Beside it, in
the same run: a constant rating (ties by id), the text's length, and random order over 20 seeds. Then the
speed of rating, in CPU seconds a million rows. The data is not part of the repository (see its README), and no
weight of the rater was fitted to it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fallow.importance import ImportanceConfig, ImportanceRater, Rarity
from fallow.importance.company import Company
from fallow.model.times import parse_time

SHARES = (0.10, 0.25, 0.50)
Score = Callable[[pl.DataFrame], Sequence[float]]


def auc(gold: np.ndarray, score: np.ndarray) -> float:
    """The chance that a gold turn is rated above another; ties count half."""
    order = np.argsort(score, kind="stable")
    ranks = np.empty(len(score))
    ranks[order] = np.arange(1, len(score) + 1)
    for value in np.unique(score):
        same = score == value
        ranks[same] = ranks[same].mean()
    positive = int(gold.sum())
    return float((ranks[gold].sum() - positive * (positive + 1) / 2) / (positive * (len(gold) - positive)))


def survival(ids: Sequence[str], score: np.ndarray, evidence: Sequence[str]) -> list[float]:
    """The share of evidence still visible when the lowest-rated shares are hidden; ties hide the smaller id."""
    order = np.lexsort((np.array(ids), score))
    there = [name for name in evidence if name in set(ids)]
    kept = []
    for share in SHARES:
        hidden = {ids[index] for index in order[: round(share * len(ids))].tolist()}
        kept.append(sum(name not in hidden for name in there) / len(there))
    return kept


def heuristic(turns: pl.DataFrame, embeddings: bool = True) -> list[float]:
    """The rater as a backfill uses it on a conversation: with what its turns say about each other."""
    frame = turns.select(
        pl.col("id").alias("record_id"),
        pl.lit(None, dtype=pl.String).alias("agent_id"),
        "memory_id",
        "thread_id",
        pl.Series("created_at", [parse_time(text) for text in turns["timestamp"].to_list()], dtype=pl.Int64),
        pl.col("content").alias("text"),
        *([pl.col("embedding").cast(pl.List(pl.Float32))] if embeddings else []),
    )
    company = Company()
    company.add("conversation_memory", frame)
    settled = company.settled()
    rater = ImportanceRater(ImportanceConfig(mode="heuristic"), rarity=settled.rarity)
    around = settled.around("conversation_memory", turns["id"].to_list())
    rows = turns.select("id", pl.col("content").alias("text"), "role").to_dicts()
    rated = rater.rate_many([{**row, "around": item} for row, item in zip(rows, around, strict=True)])
    return [importance or 0.0 for importance, _ in rated]


def single_turns(turns: pl.DataFrame) -> list[float]:
    """The rater as a host uses it on one turn, without the company of the others."""
    rater = ImportanceRater(ImportanceConfig(mode="heuristic"), rarity=Rarity())
    rows = turns.select("id", pl.col("content").alias("text"), "role").to_dicts()
    return [importance or 0.0 for importance, _ in rater.rate_many(rows)]


SCORES: dict[str, Score] = {
    "heuristic": heuristic,
    "heuristic, no embeddings": lambda turns: heuristic(turns, embeddings=False),
    "heuristic, single turns": single_turns,
    "length": lambda turns: turns["content"].str.len_chars().to_list(),
    "constant": lambda turns: [0.5] * len(turns),
}


def measure(folder: Path, name: str) -> list[dict[str, Any]]:
    """Every rating on every conversation of a data set."""
    records = pl.read_parquet(folder / f"{name}_records.parquet")
    questions = pl.read_parquet(folder / f"{name}_questions.parquet").filter(pl.col("answerable"))
    results = []
    for (memory_id,), turns in records.group_by(["memory_id"], maintain_order=True):
        asked = questions.filter(pl.col("memory_id") == memory_id)
        evidence = [item for items in asked["evidence_ids"].to_list() for item in items]
        ids = turns["id"].to_list()
        gold = np.isin(np.array(ids), np.array(evidence))
        scores = {label: np.asarray(score(turns), dtype=np.float64) for label, score in SCORES.items()}
        for label, score in scores.items():
            values = [auc(gold, score), *survival(ids, score, evidence)]
            results.append(_result(name, str(memory_id), label, values))
        chance = [survival(ids, np.random.default_rng(seed).random(len(ids)), evidence) for seed in range(20)]
        results.append(_result(name, str(memory_id), "random", [0.5, *np.mean(chance, axis=0).tolist()]))
    return results


def _result(data: str, conversation: str, rating: str, values: Sequence[float]) -> dict[str, Any]:
    names = ("auc", *(f"survival_{round(100 * share)}" for share in SHARES))
    numbers = {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}
    return {"data": data, "conversation": conversation, "rating": rating, **numbers}


def speed(folder: Path, rows: int) -> dict[str, Any]:
    """CPU seconds a million rows, rarity and rating together, on the real turns repeated."""
    texts = pl.read_parquet(folder / "locomo_records.parquet")["content"].to_list()
    texts = (texts * (rows // len(texts) + 1))[:rows]
    began = time.process_time()
    rater = ImportanceRater(ImportanceConfig(mode="heuristic"), rarity=Rarity.of(texts))
    rater.rate_many([{"text": text} for text in texts])
    spent = time.process_time() - began
    return {"rows": rows, "cpu_s_per_million": round(spent / rows * 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = [item for name in ("locomo", "longmemeval_mini") for item in measure(options.data, name)]
    for item in results:
        if item["rating"] == "heuristic":
            print(json.dumps(item))
    frame = pl.DataFrame(results)
    means = frame.group_by("data", "rating", maintain_order=True).agg(pl.col(pl.Float64).mean().round(4))
    with pl.Config(tbl_rows=20, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
        print(means)
    pace = speed(options.data, options.rows)
    print(json.dumps(pace))
    if options.json:
        options.json.write_text(json.dumps({"results": results, "means": means.to_dicts(), "speed": pace}, indent=1))


if __name__ == "__main__":
    main()
