"""Selection for a turn: CPU seconds by number of candidates, and beside MemoRizz where it is installed.

    python -m benchmarks.selection [--peer PYTHON [--store PATH]]

Candidates are made up: 384 numbers each, in clusters with near duplicates. With ``--peer`` (a Python that has
memorizz) they come from a store in the agents' layout, the same are given to both, and the chosen ids must be
the same, at the CPU ratios that are asked for. Exit 1 where something is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fallow.ranking.selection import dedupe_and_select

REPOSITORY = Path(__file__).resolve().parent.parent
#: Candidates and items chosen of them, with the largest share of the peer's CPU time that is allowed.
CASES: dict[tuple[int, int], float | None] = {(50, 5): 0.1, (500, 5): None, (500, 50): None, (2000, 5): 0.01}
MANY, MANY_SECONDS = 20_000, 2.0
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


def made_store(folder: Path, script: Path) -> Path:
    """A store in the agents' layout, large enough for every case, by the shared generator."""
    store = folder / "store"
    subprocess.run([sys.executable, script, store, "3000"], stdout=subprocess.DEVNULL, check=True)
    return store


def beside_peer(options: argparse.Namespace, store: Path) -> bool:
    """Every case given to both; prints the ratios and whether all chose the same and stayed within bounds."""
    fine = True
    for (count, items), bound in CASES.items():
        rows = rows_of(store, count)
        seconds, ids = cpu(rows, items)
        command = [options.peer, options.shared / "bench" / "peer_plan.py", store, "select", count, items]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        peer = json.loads(done.stdout)
        ratio = seconds / max(peer["cpu_s"], 1e-3)
        fine &= ids == peer["ids"] and (bound is None or ratio <= bound)
        result = {"candidates": len(rows), "items": items, "cpu_s": round(seconds, 5), "peer_cpu_s": peer["cpu_s"]}
        print(json.dumps({**result, "ratio": round(ratio, 5), "at_most": bound, "same_ids": ids == peer["ids"]}))
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="with --peer: a store to take candidates from; default: generated")
    parser.add_argument("--peer", help="a Python with memorizz installed")
    parser.add_argument("--shared", type=Path, help="the folder of specifications and fixtures")
    options = parser.parse_args()
    options.shared = options.shared or Path(os.environ.get("FALLOW_SHARED") or REPOSITORY.parent / "shared")
    fine = True
    if options.peer:
        with tempfile.TemporaryDirectory() as folder:
            generator = options.shared / "bench" / "generate_store.py"
            fine = beside_peer(options, options.store or made_store(Path(folder), generator))
    else:
        for count, items in CASES:
            seconds, _ = cpu(made_up(count), items)
            print(json.dumps({"candidates": count, "items": items, "cpu_s": round(seconds, 5)}))
    seconds, _ = cpu(made_up(MANY), 20, rounds=1)
    print(json.dumps({"candidates": MANY, "items": 20, "cpu_s": round(seconds, 3), "at_most_s": MANY_SECONDS}))
    fine &= seconds <= MANY_SECONDS
    print(json.dumps({"ok": bool(fine)}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
