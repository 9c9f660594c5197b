"""Does forgetting hurt? Every policy on the same conversations, with gold evidence (docs/quality.md).

    python -m benchmarks.quality [--data FOLDER] [--seeds 5] [--json FILE]

Protocol of the data's README: half of a conversation's questions are asked over its time and touch the ten turns
nearest by cosine (count and time of access); the other half is asked after the end. Then the lowest X % by each
policy is hidden. Survival: share of held-out gold evidence still visible. Whole: share of held-out questions all of
whose evidence is. Recall@k: share of gold evidence among the k nearest visible turns, by cosine and by the combined
score. Default rule: what the defaults of a plan would list as of the end, without its grace period, and the evidence
in it. Nothing is fitted here; no weight of a policy comes from this data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.quality_importance import heuristic
from fallow.judgement.protection import RECALLED_DAYS
from fallow.judgement.score import score
from fallow.model.scoring import RetrievalScoring
from fallow.model.times import MICROSECONDS_PER_HOUR, parse_time

SHARES = (0.10, 0.25, 0.50)
KS = (5, 10, 20)
TOUCHED = 10
Array = np.ndarray


@dataclass
class Lived:
    """A conversation at its end: every array has one value a turn."""

    ids: list[str]
    created: Array
    accessed: Array
    counts: Array
    vectors: Array
    heuristic: Array
    asked: Array
    evidence: list[Array]
    as_of: int
    seed: int

    def retention(self, importance: Array, weights: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Array:
        """Retention as a plan computes it (SPEC §6.2)."""
        frame = pl.DataFrame(
            {
                "record_id": self.ids,
                "created_at": self.created,
                "last_accessed_at": pl.Series(self.accessed).replace(-1, None),
                "access_count": self.counts,
                "importance": importance.astype(np.float64),
            }
        )
        return score(frame, self.as_of, 0.995, 0.5, weights).get_column("retention").to_numpy()

    @property
    def gold(self) -> Array:
        """Which turns are evidence of a held-out question."""
        flags = np.zeros(len(self.ids), dtype=bool)
        for turns in self.evidence:
            flags[turns] = True
        return flags


def _recommended(lived: Lived) -> Array:
    """Importance first: a turn recalled within a week comes after all others."""
    recent = (lived.accessed >= 0) & (lived.as_of - lived.accessed < RECALLED_DAYS * 24 * MICROSECONDS_PER_HOUR)
    return lived.retention(lived.heuristic, (1.0, 0.0, 0.0)) + recent


Policy = Callable[[Lived], Array]
POLICIES: Mapping[str, Policy] = {
    "random": lambda lived: np.random.default_rng(lived.seed).random(len(lived.ids)),
    "oldest": lambda lived: lived.created.astype(np.float64),
    "lowest access count": lambda lived: lived.counts.astype(np.float64),
    "retention, constant importance": lambda lived: lived.retention(np.full(len(lived.ids), 0.5)),
    "retention, heuristic (default)": lambda lived: lived.retention(lived.heuristic),
    "importance alone": lambda lived: lived.heuristic,
    "importance first (recommended)": _recommended,
    "oracle": lambda lived: lived.gold.astype(np.float64),
}


def live(turns: pl.DataFrame, questions: pl.DataFrame, seed: int, rated: Array) -> Lived:
    """Plays the conversation: half of its questions are asked while it goes on."""
    rng = np.random.default_rng(seed)
    ids = turns["id"].to_list()
    at = {name: index for index, name in enumerate(ids)}
    created = np.array([parse_time(text) for text in turns["timestamp"].to_list()], dtype=np.int64)
    vectors = turns["embedding"].to_numpy().astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = questions["embedding"].to_numpy().astype(np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    evidence = [
        np.array(sorted(at[name] for name in names if name in at), dtype=np.int64)
        for names in questions["evidence_ids"].to_list()
    ]
    order = rng.permutation(len(asked))
    during, after = order[: len(order) // 2], order[len(order) // 2 :]
    counts, accessed = np.zeros(len(ids), dtype=np.int64), np.full(len(ids), -1, dtype=np.int64)
    start, end = int(created.min()), int(created.max())
    for place, question in enumerate(during):
        # Asked once its evidence has been said, at an even pace over what is left of the conversation.
        pace = start + (end - start) * (place + 1) // (len(during) + 1)
        moment = max(pace, int(created[evidence[question]].max(initial=start)) + 1)
        there = np.flatnonzero(created < moment)
        nearest = there[np.argsort(-(vectors[there] @ asked[question]), kind="stable")[:TOUCHED]]
        counts[nearest] += 1
        accessed[nearest] = np.maximum(accessed[nearest], moment)
    held_out = [index for index in after if len(evidence[index])]
    as_of = end + 24 * MICROSECONDS_PER_HOUR
    gold = [evidence[index] for index in held_out]
    return Lived(ids, created, accessed, counts, vectors, rated, asked[held_out], gold, as_of, seed)


def survival(lived: Lived, hidden: Array) -> tuple[float, float]:
    """Shares of evidence that is visible, and of questions with all of it."""
    kept = [~hidden[turns] for turns in lived.evidence]
    return float(np.concatenate(kept).mean()), float(np.mean([part.all() for part in kept]))


def recall(lived: Lived, hidden: Array, scoring: RetrievalScoring | None = None) -> list[float]:
    """Recall at each of :data:`KS` over the visible turns, by cosine or by the combined score."""
    relevance = lived.asked @ lived.vectors.T
    if scoring is not None:
        anchor = np.where(lived.accessed >= 0, lived.accessed, lived.created)
        hours = np.maximum(0, lived.as_of - anchor) / MICROSECONDS_PER_HOUR
        recency = scoring.recency_decay_per_hour**hours
        parts = [_normal(recency), _normal(lived.heuristic)]
        fixed = scoring.alpha_recency * parts[0] + scoring.alpha_importance * parts[1]
        low, high = relevance.min(axis=1, keepdims=True), relevance.max(axis=1, keepdims=True)
        relevance = fixed + scoring.alpha_relevance * (relevance - low) / (high - low)
    relevance[:, hidden] = -np.inf
    order = np.argsort(-relevance, axis=1, kind="stable")
    found = []
    for k in KS:
        hits = [np.isin(turns, row[:k]).mean() for turns, row in zip(lived.evidence, order, strict=True)]
        found.append(float(np.mean(hits)))
    return found


def _normal(values: Array) -> Array:
    spread = float(values.max() - values.min())
    return (values - values.min()) / spread if spread else np.full(len(values), 0.5)


def judge(lived: Lived, policy: Policy) -> dict[str, float]:
    """One policy on one conversation."""
    order = np.lexsort((np.array(lived.ids), policy(lived)))
    result: dict[str, float] = {}
    for share in SHARES:
        hidden = np.zeros(len(lived.ids), dtype=bool)
        hidden[order[: round(share * len(lived.ids))]] = True
        percent = round(100 * share)
        result[f"survival_{percent}"], result[f"whole_{percent}"] = survival(lived, hidden)
        for k, value in zip(KS, recall(lived, hidden), strict=True):
            result[f"recall@{k}_{percent}"] = value
    return result


def default_rule(lived: Lived) -> dict[str, float]:
    """What a plan's default cut would list, and the evidence in it."""
    listed = lived.retention(lived.heuristic) < 0.15
    kept, _ = survival(lived, listed)
    return {"listed": float(listed.mean()), "evidence_lost": 1 - kept}


def measure(folder: Path, name: str, seeds: int, shuffle: bool = False) -> list[dict[str, Any]]:
    """Every policy on every conversation of a data set, one row a seed.

    ``shuffle`` gives each question another's evidence: what is measured then is chance.
    """
    records = pl.read_parquet(folder / f"{name}_records.parquet")
    questions = pl.read_parquet(folder / f"{name}_questions.parquet").filter(pl.col("answerable"))
    results: list[dict[str, Any]] = []
    for (memory_id,), turns in records.group_by(["memory_id"], maintain_order=True):
        asked = questions.filter(pl.col("memory_id") == memory_id)
        rated = np.asarray(heuristic(turns), dtype=np.float64)
        for seed in range(seeds):
            lived = live(turns, asked, seed, rated)
            if shuffle:
                rng = np.random.default_rng(1000 + seed)
                lived.evidence = [rng.integers(0, len(lived.ids), len(part)) for part in lived.evidence]
            place = {"data": name, "conversation": str(memory_id), "seed": seed}
            nothing = np.zeros(len(lived.ids), dtype=bool)
            before = {f"recall@{k}": value for k, value in zip(KS, recall(lived, nothing), strict=True)}
            for label, scoring in SCORINGS.items():
                values = recall(lived, nothing, scoring)
                results.append({**place, "policy": f"nothing hidden, ranked by {label}", "recall@10": values[1]})
            results.append({**place, "policy": "nothing hidden", **before, **default_rule(lived)})
            results += [{**place, "policy": label, **judge(lived, policy)} for label, policy in POLICIES.items()]
    return results


SCORINGS = {
    "cosine": None,
    "the paper's weights (1, 1, 1)": RetrievalScoring(),
    "weights (0, 0.5, 1)": RetrievalScoring(alpha_recency=0.0, alpha_importance=0.5, alpha_relevance=1.0),
}


def means(results: list[dict[str, Any]]) -> pl.DataFrame:
    """By data set and policy, over conversations and seeds; each conversation counts alike."""
    return (
        pl.DataFrame(results, infer_schema_length=None)
        .group_by("data", "policy", maintain_order=True)
        .agg(pl.col(pl.Float64).mean().round(3))
    )


def plot(frame: pl.DataFrame, target: Path) -> None:
    """Survival over the share that is hidden, a line a policy."""
    import altair as alt

    rows = [
        {"hidden %": percent, "survival": row[f"survival_{percent}"], "policy": row["policy"]}
        for row in frame.filter(pl.col("data") == "locomo", pl.col("survival_10").is_not_null()).to_dicts()
        for percent in (10, 25, 50)
    ]
    alt.Chart(pl.DataFrame(rows)).mark_line(point=True).encode(
        x="hidden %:Q", y=alt.Y("survival:Q", scale=alt.Scale(domain=[0.4, 1])), color=alt.Color("policy:N", title=None)
    ).properties(width=460, height=300).save(str(target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    results = [item for name in ("locomo", "longmemeval_mini") for item in measure(options.data, name, options.seeds)]
    frame = means(results)
    with pl.Config(tbl_rows=60, tbl_cols=20, tbl_width_chars=200, fmt_str_lengths=50, tbl_hide_dataframe_shape=True):
        print(
            frame.filter(pl.col("survival_10").is_not_null()).select(
                "data", "policy", pl.col("^survival.*$"), pl.col("^whole.*$")
            )
        )
        print(frame.filter(pl.col("survival_10").is_not_null()).select("data", "policy", pl.col("^recall@.*_..$")))
        print(
            frame.filter(pl.col("survival_10").is_null()).select(
                "data", "policy", pl.col("^recall@[0-9]+$"), "listed", "evidence_lost"
            )
        )
    if options.json:
        options.json.write_text(json.dumps({"results": results, "means": frame.to_dicts()}, indent=1))
    if options.plot:
        plot(frame, options.plot)


if __name__ == "__main__":
    main()
