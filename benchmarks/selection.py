"""Selection for a turn: CPU seconds by number of candidates, and beside MemoRizz where it is installed.

    python -m benchmarks.selection [--store PATH] [--peer PYTHON --peer-script PATH]

Without a store, candidates are made up: 384 numbers each, in clusters with near duplicates. With ``--peer``
(a Python that has memorizz) and a store, the same candidates are given to both, and the chosen ids are
compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from fallow.selection import dedupe_and_select

CASES = [(50, 5), (500, 5), (500, 50), (2000, 5)]
NOW = 1_796_000_000_000_000


def rows_of(store: Path, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The first rows of a store, in the order of its indexes."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for memory_type in ("conversation_memory", "knowledge_base"):
        names = json.loads((store / memory_type / "index.json").read_text())["items"]
        for name in names:
            rows.append((memory_type, json.loads((store / memory_type / f"{name}.json").read_text())))
            if len(rows) == count:
                return rows
    return rows


def made_up(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Candidates in 512 clusters, about the shape of real sentence embeddings."""
    chance = np.random.default_rng(7)
    vectors = chance.normal(size=(512, 384))[np.arange(count) % 512] + 0.22 * chance.normal(size=(count, 384))
    return [
        ("conversation_memory", {"_id": f"r{n}", "content": f"text {n}", "timestamp": NOW / 1e6 - n, "embedding": v})
        for n, v in enumerate(vectors.tolist())
    ]


def cpu(rows: list[tuple[str, dict[str, Any]]], items: int, rounds: int = 5) -> tuple[float, list[str]]:
    """The least CPU seconds of several rounds, and the chosen ids."""
    query = rows[0][1]["embedding"]
    best, ids = float("inf"), []
    for _ in range(rounds):
        began = time.process_time()
        chosen = dedupe_and_select(rows, query_embedding=query, max_items=items)
        best = min(best, time.process_time() - began)
        ids = [item["origin"]["record_id"] for item in chosen]
    return best, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--peer", help="a Python with memorizz installed")
    parser.add_argument("--peer-script", type=Path, help="peer_plan.py")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for count, items in CASES:
        rows = rows_of(options.store, count) if options.store else made_up(count)
        seconds, ids = cpu(rows, items)
        result: dict[str, Any] = {"candidates": len(rows), "items": items, "cpu_s": round(seconds, 5)}
        if options.peer and options.store:
            command = [options.peer, options.peer_script, options.store, "select", count, items]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
            peer = json.loads(done.stdout)
            shared = len(set(ids) & set(peer["ids"]))
            result |= {"peer_cpu_s": peer["cpu_s"], "ratio": round(seconds / peer["cpu_s"], 5), "same_ids": shared}
        results.append(result)
        print(json.dumps(result))
    seconds, _ = cpu(made_up(20_000), 20, rounds=1)
    results.append({"candidates": 20_000, "items": 20, "cpu_s": round(seconds, 3)})
    print(json.dumps(results[-1]))


if __name__ == "__main__":
    main()
