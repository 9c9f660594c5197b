"""Everything measured in one run: what fallow costs, as a ratio to the floor of the same run.

    python -m benchmarks [--sizes 10000,100000] [--peer PYTHON --peer-script PATH] [--json FILE]

Each piece runs in a process of its own. ``plan`` runs twice: cold (it builds the snapshot) and warm. The floor
of reading is ``decoding`` (every byte read and its JSON checked), that of a warm plan ``listing``. With
``--peer`` (a Python that has memorizz) its planner runs on the same store; its apply is compared by the record,
durations on the clock. ``python -m benchmarks.page FILE`` writes docs/performance.md from the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.stores import make_store

#: Records that the peer applies: each takes it so long that more would say nothing new.
PEER_RECORDS = 5
PIECES = (
    "listing",
    "reading",
    "decoding",
    "plan",
    "plan",
    "plan_afresh",
    "contracts",
    "rate",
    "apply",
    "suppressed",
    "restore",
)


def run(piece: str, store: Path, environ: dict[str, str]) -> dict[str, Any]:
    """One piece, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.work", piece, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(size: int, folder: Path, peer: list[str]) -> list[dict[str, Any]]:
    """All pieces on one store."""
    store = folder / f"store-{size}"
    make_store(store, size)
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / f"cache-{size}")}
    results: list[dict[str, Any]] = []
    for number, piece in enumerate(PIECES):
        result = run(piece, store, environ)
        if piece == "plan":
            result["piece"] = "plan, cold" if PIECES[:number].count("plan") == 0 else "plan, warm"
        results.append({"records": size, **result})
    if peer:
        done = subprocess.run([*peer, str(store), "plan"], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        numbers = {name: found[name] for name in ("cpu_s", "wall_s", "peak_mb")}
        results.append({"records": size, "piece": "peer's plan", **numbers})
        own = Path(__file__).with_name("peer_apply.py")
        done = subprocess.run([peer[0], str(own), str(store), str(PEER_RECORDS)], capture_output=True, check=True)
        results += [{"records": size, **json.loads(line)} for line in done.stdout.splitlines()]
    cpu = {item["piece"]: item["cpu_s"] for item in results}
    theirs = {item["piece"]: item for item in results}
    for item in results:
        floor = cpu["listing" if item["piece"] in {"plan, warm", "suppressed"} else "decoding"]
        item["to_floor"] = round(item["cpu_s"] / floor, 2)
        if item["piece"] == "apply" and "peer's apply" in theirs:
            each = theirs["peer's apply"]["wall_s"] / PEER_RECORDS
            item["to_peer"] = round(item["apply_wall_s"] / item["applied"] / each, 5)
        elif item["piece"] == "suppressed" and "peer's suppressed" in theirs:
            item["to_peer"] = round(item["cpu_s"] / cpu["peer's suppressed"], 4)
        elif "peer's plan" in cpu:
            item["to_peer"] = round(item["cpu_s"] / cpu["peer's plan"], 4)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--peer", help="a Python with memorizz installed")
    parser.add_argument("--peer-script", type=Path, help="peer_plan.py")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peer = [options.peer, str(options.peer_script)] if options.peer else []
    results: list[dict[str, Any]] = []
    columns = ("records", "piece", "cpu_s", "wall_s", "peak_mb", "to_floor", "to_peer")
    with tempfile.TemporaryDirectory(prefix="fallow-benchmarks-") as folder:
        print("".join(f"{name:>14}" for name in columns), flush=True)
        for size in [int(text) for text in options.sizes.split(",")]:
            for item in measure(size, Path(folder), peer):
                results.append(item)
                print("".join(f"{item.get(name, '')!s:>14}" for name in columns), flush=True)
        wide = {"records": 10_000_000, **run("columns", Path(folder), dict(os.environ))}
        results.append(wide)
        print("".join(f"{wide.get(name, '')!s:>14}" for name in columns))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
