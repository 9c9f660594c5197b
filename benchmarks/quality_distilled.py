"""What a model that reads a sample is worth, with a simulated model that knows the gold (docs/importance.md).

    python -m benchmarks.quality_distilled [--data FOLDER] [--seeds 3] [--json FILE]

The shared conversations stand in one filesystem store, and ``rate_by_sample`` runs over it as it does for everybody.
The simulated model says 7 to 10 of a turn that a question needs and 1 to 5 of another, and mistakes one for the
other in a share of the texts (10 %); the useless one answers by chance. Beside it, measured alike: the free rating,
and the same model reading everything. AUC and survival (importance alone) are means over the conversations.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.quality_importance import auc, heuristic, survival
from fallow.importance.asking import Answer
from fallow.importance.distilled import DistilledReport, rate_by_sample
from fallow.importance.prompt import shortened
from fallow.importance.rating_run import RatedRecords, RunOptions
from fallow.model.scope import Scope
from fallow.port.registry import open_provider

TYPE = "conversation_memory"
SHARES = (0.05, 0.10, 0.20)


class Simulated:
    """A model in this process that rates a text by what is known of it."""

    name, in_flight, unsettled = "simulated", 2, 0

    def __init__(self, ratings: Mapping[str, int]) -> None:
        self._ratings = ratings

    def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,  # noqa: ARG002
        schema: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> Answer:
        """The ratings of the rows that the prompt shows."""
        block = re.search(r"\[.*\]", messages[1]["content"], re.DOTALL)
        rows = json.loads(block[0]) if block else []
        return Answer(
            json.dumps({"ratings": [{"id": row["id"], "rating": self._ratings[row["text"]]} for row in rows]})
        )


def write_store(root: Path, turns: pl.DataFrame) -> None:
    """The turns as a filesystem store of one agent."""
    folder = root / TYPE
    folder.mkdir(parents=True)
    (root / ".index-lock.sqlite3").touch()
    items = {}
    for row in turns.iter_rows(named=True):
        name = row["id"].replace(":", "-")
        told = {key: row[key] for key in ("memory_id", "thread_id", "role", "content", "timestamp")}
        record = {"_id": name, "id": name, "agent_id": "a", **told, "embedding": [float(x) for x in row["embedding"]]}
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
        items[name] = {"id": name, "agent_id": "a", "memory_id": row["memory_id"], "has_embedding": True}
    (folder / "index.json").write_text(json.dumps({"version": 1, "items": items}), encoding="utf-8")


def opinions(gold: np.ndarray, noise: float, seed: int) -> list[int]:
    """The simulated model's rating of each turn, 1 to 10; a noise of 1 is chance."""
    dice = np.random.default_rng(seed)
    high, low = dice.integers(7, 11, len(gold)), dice.integers(1, 6, len(gold))
    if noise >= 1.0:
        return dice.integers(1, 11, len(gold)).tolist()
    return np.where(gold != (dice.random(len(gold)) < noise), high, low).tolist()


def distil(turns: pl.DataFrame, ratings: Sequence[int], sample: int) -> tuple[DistilledReport, list[float]]:
    """One run over a fresh store; the stored importance of each turn (0.5 where nothing was written)."""
    by_text = {shortened(text): rating for text, rating in zip(turns["content"].to_list(), ratings, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        write_store(root, turns)
        with open_provider(str(root)) as provider:
            report = rate_by_sample(
                provider,
                Simulated(by_text),
                RunOptions(batch_size=20),
                sample,
                now=1_800_000_000_000_000,
                salt="salt",
                where=RatedRecords(Scope(), (TYPE,)),
            )
        stored = [json.loads((root / TYPE / f"{name.replace(':', '-')}.json").read_text()) for name in turns["id"]]
    return report, [row.get("importance", 0.5) for row in stored]


def judged(turns: pl.DataFrame, questions: pl.DataFrame, score: Sequence[float]) -> list[float]:
    """AUC and survival, each the mean over the conversations."""
    rows = []
    scored = turns.select("id", "memory_id").with_columns(pl.Series("score", score, dtype=pl.Float64))
    for (memory_id,), part in scored.group_by(["memory_id"], maintain_order=True):
        asked = questions.filter(pl.col("memory_id") == memory_id)
        evidence = [item for items in asked["evidence_ids"].to_list() for item in items]
        ids, values = part["id"].to_list(), part["score"].to_numpy()
        rows.append([auc(np.isin(np.array(ids), np.array(evidence)), values), *survival(ids, values, evidence)])
    return np.mean(rows, axis=0).round(4).tolist()


def measure(folder: Path, seeds: int) -> list[dict[str, Any]]:
    """The free rating, samples of each share, everything read, and a useless model."""
    turns = pl.read_parquet(folder / "locomo_records.parquet")
    questions = pl.read_parquet(folder / "locomo_questions.parquet").filter(pl.col("answerable"))
    gold = np.isin(turns["id"].to_numpy(), [item for items in questions["evidence_ids"].to_list() for item in items])
    parts = [part for _, part in turns.group_by(["memory_id"], maintain_order=True)]
    free = [value for part in parts for value in heuristic(part)]
    found = [_row("free rating", judged(turns, questions, free))]
    for seed in range(seeds):
        ratings = opinions(gold, 0.1, seed)
        found.append(_row("model reads everything", judged(turns, questions, [rating / 10 for rating in ratings])))
        for share in SHARES:
            report, stored = distil(turns, ratings, round(share * len(turns)))
            label = f"model reads {share:.0%}"
            said = {"agreement": report.cross_validated, "floor": report.floor, "refused": bool(report.problem)}
            found.append(_row(label, judged(turns, questions, stored), **said))
        report, _ = distil(turns, opinions(gold, 1.0, seed), round(0.1 * len(turns)))
        found.append(
            {"rating": "useless model reads 10%", "agreement": report.cross_validated, "refused": bool(report.problem)}
        )
    return found


def _row(label: str, values: Sequence[float], **more: Any) -> dict[str, Any]:
    return {
        "rating": label,
        **dict(zip(("auc", "survival_10", "survival_25", "survival_50"), values, strict=True)),
        **more,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = measure(options.data, options.seeds)
    frame = pl.DataFrame(results, infer_schema_length=None)
    means = frame.group_by("rating", maintain_order=True).agg(pl.all().mean().round(3))
    with pl.Config(tbl_rows=20, tbl_cols=12, tbl_width_chars=160, tbl_hide_dataframe_shape=True):
        print(means)
    if options.json:
        options.json.write_text(json.dumps({"results": results, "means": means.to_dicts()}, indent=1))


if __name__ == "__main__":
    main()
