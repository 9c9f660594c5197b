"""Does ``fallow policy compare`` recommend what gold evidence would? (docs/quality.md)

    python -m benchmarks.policies [--data FOLDER] [--json FILE]

Each conversation becomes a store: its turns, rated by the free heuristic, and its questions as cached queries, half
of them while the conversation goes on and half after its end (the protocol of benchmarks.quality). The command sees
turns, times and embeddings, no gold. Gold ranks the same policies by the share of the later questions' evidence that
stays visible, mean over 10, 25 and 50 % hidden. Agreement is Kendall's tau over all pairs of policies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.quality import SHARES, live, survival
from benchmarks.quality_importance import heuristic
from fallow.judgement.protection import RECALLED_DAYS
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.model.times import MICROSECONDS_PER_HOUR, iso, parse_time
from fallow.port.registry import open_provider
from fallow.usecases.comparing import POLICIES, compare


def write_store(root: Path, turns: pl.DataFrame, asked: pl.DataFrame, rated: np.ndarray, seed: int) -> int:
    """A conversation as a store that agents wrote; when it is looked at, microseconds."""
    created = [parse_time(text) or 0 for text in turns["timestamp"].to_list()]
    start, end = min(created), max(created)
    order = np.random.default_rng(seed).permutation(len(asked))
    half = len(order) // 2
    ids = dict(zip(turns["id"].to_list(), created, strict=True))
    rows = {}
    for place, (row, importance) in enumerate(zip(turns.to_dicts(), rated.tolist(), strict=True)):
        name = f"t{place:05}"
        rows[name] = {
            "_id": name,
            "content": row["content"],
            # Who speaks is not asked: every turn may answer, none is a question.
            "role": "assistant",
            "agent_id": "a",
            "memory_id": row["memory_id"],
            "thread_id": row["thread_id"],
            "timestamp": row["timestamp"],
            "importance": round(importance, 6),
            "embedding": [round(float(value), 6) for value in row["embedding"]],
        }
    queries = {}
    for place, index in enumerate(order.tolist()):
        question = asked.row(index, named=True)
        said = max((ids.get(name, start) for name in question["evidence_ids"]), default=start)
        moment = max(start + (end - start) * (place + 1) // (half + 1), said + 1)
        if place >= half:
            moment = end + (1 + place) * MICROSECONDS_PER_HOUR
        name = f"q{place:03}"
        queries[name] = {
            "_id": name,
            "agent_id": "a",
            "query": question["question"],
            "created_at": iso(moment),
            "embedding": [round(float(value), 6) for value in question["embedding"]],
        }
    for folder, items in (("conversation_memory", rows), ("semantic_cache", queries)):
        (root / folder).mkdir(parents=True)
        for name, item in items.items():
            (root / folder / f"{name}.json").write_text(json.dumps(item))
        (root / folder / "index.json").write_text(json.dumps({"version": 1, "items": {n: {"id": n} for n in items}}))
    return end + (2 + len(order)) * MICROSECONDS_PER_HOUR


def gold(turns: pl.DataFrame, asked: pl.DataFrame, rated: np.ndarray, seed: int) -> dict[str, float]:
    """By policy, the share of the later questions' evidence that survives."""
    lived = live(turns, asked, seed, rated)
    recent = (lived.accessed >= 0) & (lived.as_of - lived.accessed < RECALLED_DAYS * 24 * MICROSECONDS_PER_HOUR)
    found = {}
    for name, changes in POLICIES.items():
        settings = resolve({}, environ={})
        for setting, value in changes.items():
            settings = settings.replacing(setting, value)
        config = settings.retention
        worth = lived.retention(rated, config.effective_weights) + recent * (config.formula == "importance_first")
        order = np.lexsort((np.array(lived.ids), worth))
        kept = []
        for share in SHARES:
            hidden = np.zeros(len(order), dtype=bool)
            hidden[order[: round(share * len(order))]] = True
            kept.append(survival(lived, hidden)[0])
        found[name] = float(np.mean(kept))
    return found


def tau(one: dict[str, float], two: dict[str, float]) -> float:
    """Agreement of two rankings, -1..1."""
    pairs = list(itertools.combinations(sorted(one), 2))
    return float(np.mean([np.sign(one[a] - one[b]) * np.sign(two[a] - two[b]) for a, b in pairs]))


def measure(folder: Path, name: str, seeds: int) -> list[dict[str, Any]]:
    """What is recommended and what gold says, a row a conversation and seed."""
    records = pl.read_parquet(folder / f"{name}_records.parquet")
    questions = pl.read_parquet(folder / f"{name}_questions.parquet").filter(pl.col("answerable"))
    results = []
    for (memory_id,), turns in records.group_by(["memory_id"], maintain_order=True):
        asked = questions.filter(pl.col("memory_id") == memory_id)
        rated = np.asarray(heuristic(turns), dtype=np.float64)
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as root:
                as_of = write_store(Path(root) / "s", turns, asked, rated, seed)
                with open_provider(str(Path(root) / "s")) as provider:
                    found = compare(provider, resolve({}, environ={}), Scope(), as_of=as_of)
            said = {item.name: item.mean for item in found.outcomes if item.name in POLICIES}
            best = gold(turns, asked, rated, seed)
            chosen = best.get(found.recommended or "", float("nan"))
            results.append(
                {
                    "conversation": str(memory_id),
                    "seed": seed,
                    "recommended": found.recommended,
                    "gold_best": max(best, key=lambda policy: best[policy]),
                    "gold_of_recommended": chosen,
                    "gold_of_best": max(best.values()),
                    "tau": tau(said, best),
                    **{f"said {policy}": value for policy, value in said.items()},
                    **{f"gold {policy}": value for policy, value in best.items()},
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = measure(options.data, "locomo", options.seeds)
    frame = pl.DataFrame(results)
    with pl.Config(tbl_rows=60, tbl_cols=20, tbl_width_chars=180, tbl_hide_dataframe_shape=True, float_precision=3):
        print(frame.select(pl.exclude("^said .*$", "^gold [^o].*$")))
        means = frame.select(pl.col(pl.Float64).mean())
        print(means.unpivot())
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
