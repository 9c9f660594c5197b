"""What reflection does to real long conversations: coverage, and what retrieval finds afterwards.

    python -m benchmarks.reflection [--data FOLDER] [--threshold 15]

The data (LoCoMo, see its README) is not part of the repository. Ratings are the heuristic's, summaries the
extractive fallback's: they quote rows. Embedding summaries is the host's part; here a summary's vector is the
mean of the rows that it quotes, which no host would use and which is all that can be had without a model.
A summary among the ten nearest counts for the gold turns that it quotes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fallow.importance import Rarity
from fallow.importance.heuristic import heuristic_rating
from fallow.model.arguments import instant
from fallow.port.reflections import covered_ids, read_reflections
from fallow.port.registry import open_provider
from fallow.reflection.reflecting import ReflectionConfig, reflect

TOP = 10


def write_store(root: Path, turns: pl.DataFrame) -> dict[str, float]:
    """A filesystem store of one conversation's turns, rated; the ratings by id."""
    folder = root / "conversation_memory"
    folder.mkdir(parents=True)
    (root / "summaries").mkdir()
    (root / "shared_memory").mkdir()
    rarity = Rarity.of(turns["content"].to_list())
    ratings: dict[str, float] = {}
    for turn in turns.drop("embedding").iter_rows(named=True):
        name = turn["id"].replace(":", "-")
        ratings[name] = heuristic_rating(turn["content"], role=turn["role"], rarity=rarity).importance or 0.0
        row = {
            "_id": name,
            "content": turn["content"],
            "role": turn["role"],
            "timestamp": str(turn["timestamp"]),
            "memory_id": turn["memory_id"],
            "agent_id": turn["agent_id"],
            "importance": ratings[name],
        }
        (folder / f"{name}.json").write_text(json.dumps(row), encoding="utf-8")
    return ratings


def recall(questions: pl.DataFrame, vectors: np.ndarray, stands_for: list[set[str]]) -> float:
    """The share of gold turns among what the ten nearest vectors stand for."""
    hits = total = 0
    for question in questions.iter_rows(named=True):
        gold = {name.replace(":", "-") for name in question["evidence_ids"]}
        near = np.argsort(-(vectors @ np.asarray(question["embedding"], dtype=np.float64)), kind="stable")[:TOP]
        found: set[str] = set().union(*(stands_for[index] for index in near.tolist()))
        hits += len(gold & found)
        total += len(gold)
    return hits / total


def measure(turns: pl.DataFrame, questions: pl.DataFrame, threshold: float) -> dict[str, Any]:
    """One conversation."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        ratings = write_store(root, turns)
        with open_provider(str(root)) as provider:
            now = instant("2026-12-01T00:00:00Z")
            report = reflect(provider, ReflectionConfig(threshold=threshold, extractive=True), now=now)
            reflections = list(read_reflections(provider).values())
    names = [name.replace(":", "-") for name in turns["id"].to_list()]
    vectors = np.array(turns["embedding"].to_list(), dtype=np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    where = {name: index for index, name in enumerate(names)}
    quoted = [
        {name for claim in row["metadata"]["claims"] for name in claim["rows"] if name in where} for row in reflections
    ]
    means = np.array([vectors[[where[name] for name in sorted(rows)]].mean(axis=0) for rows in quoted])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    covered = {name for row in reflections for name in covered_ids(row)}
    lowest = sorted(covered, key=lambda name: (ratings[name], name))
    result: dict[str, Any] = {
        "turns": len(names),
        "accumulated": report.reached[0].total if report.reached else None,
        "reflections": len(reflections),
        "covered": round(len(covered) / len(names), 3),
        "recall": round(recall(questions, vectors, [{name} for name in names]), 3),
    }
    everything = np.vstack([vectors, means])
    result["with_summaries"] = round(recall(questions, everything, [{name} for name in names] + quoted), 3)
    for share in (0.25, 0.5, 1.0):
        hidden = set(lowest[: round(share * len(lowest))])
        left = [index for index, name in enumerate(names) if name not in hidden]
        some = np.vstack([vectors[left], means])
        stands = [{names[index]} for index in left] + quoted
        result[f"released_{round(100 * share)}"] = round(recall(questions, some, stands), 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--threshold", type=float, default=15.0)
    options = parser.parse_args()
    records = pl.read_parquet(options.data / "locomo_records.parquet")
    questions = pl.read_parquet(options.data / "locomo_questions.parquet").filter(pl.col("answerable"))
    results = []
    for (memory_id,), turns in records.group_by(["memory_id"], maintain_order=True):
        found = measure(turns, questions.filter(pl.col("memory_id") == memory_id), options.threshold)
        results.append({"conversation": memory_id, **found})
        print(json.dumps(results[-1]))
    numbers = [name for name, value in results[0].items() if isinstance(value, float)]
    print(json.dumps({"mean": {name: round(float(np.mean([item[name] for item in results])), 3) for name in numbers}}))


if __name__ == "__main__":
    main()
