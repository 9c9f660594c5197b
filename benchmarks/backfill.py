"""The backfill's own time beside a model's: rows/s, the share of the time that the server does not explain, memory.

    python -m benchmarks.backfill [--rows 5000] [--batch-size 8] [--in-flight 8] [--latency 0.05]
                                  [--folder DIR] [--twice]

A scripted server in a process of its own answers each call after the latency; the store is a temporary
filesystem store. Explained by the server is the time that it held each call, over the calls in flight. With
``--twice`` the run is repeated on four times as many rows, to see that memory does not grow with them. Exit 1
where more than 8 % is unexplained.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
LIMIT = 0.08
TOPICS = ("the invoice of", "a call with", "the dose for", "tickets to", "the roof of", "dinner with", "a plan for")


def write_store(root: Path, rows: int) -> None:
    """Conversation rows as agents lay them out, with an embedding of the usual size."""
    folder = root / "conversation_memory"
    folder.mkdir(parents=True)
    (root / ".index-lock.sqlite3").touch()
    embedding = [round(0.001 * at, 4) for at in range(384)]
    items = {}
    for at in range(rows):
        name = f"row-{at:07}"
        text = f"We talked about {TOPICS[at % 7]} number {at}; it was moved to day {at % 28 + 1} because of the rain."
        row = {
            "_id": name,
            "id": name,
            "role": "user" if at % 2 else "assistant",
            "content": text * 3,
            "agent_id": "bench",
            "memory_id": "bench",
            "timestamp": 1_790_000_000 - at * 60,
            "embedding": embedding,
        }
        (folder / f"{name}.json").write_text(json.dumps(row))
        items[name] = {"id": name, "agent_id": "bench", "timestamp": row["timestamp"]}
    (folder / "index.json").write_text(json.dumps({"version": 1, "items": items}))


def run(store: Path, url: str, cache: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One backfill in this process."""
    from fallow.providers.model_answers import AnswersOnDisk
    from fallow.providers.models import Endpoint, ModelClient

    from fallow.importance.rating_run import RunOptions, rate_by_model
    from fallow.model.times import wall_clock
    from fallow.port.registry import open_provider

    answers = AnswersOnDisk(cache)
    endpoint = Endpoint(model="m", base_url=url, in_flight=options.in_flight)
    with open_provider(str(store)) as provider, ModelClient(endpoint, dialects=answers) as model:
        began, cpu = time.perf_counter(), time.process_time()
        report = rate_by_model(
            provider,
            model,
            RunOptions(batch_size=options.batch_size),
            now=wall_clock(),
            salt="benchmark",
            answers=answers,
        )
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall": wall, "cpu": cpu, "peak_mb": peak, "report": report.to_json()}


def measured(rows: int, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run in a process of its own against a server in another; the run's figures and the server's."""
    command = [sys.executable, str(REPOSITORY / "tests" / "model_server.py"), "--latency", str(options.latency)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = Path(folder) / "store"
        write_store(store, rows)
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
            child = [
                sys.executable,
                "-m",
                "benchmarks.backfill",
                "--child",
                str(store),
                url,
                f"{folder}/answers.sqlite3",
            ]
            child += ["--batch-size", str(options.batch_size), "--in-flight", str(options.in_flight)]
            done = subprocess.run(child, capture_output=True, text=True, check=True, cwd=REPOSITORY)
            with urllib.request.urlopen(url, timeout=10) as answer:
                counts = json.load(answer)
        finally:
            server.stdin.close()
            server.wait(20)
    return json.loads(done.stdout), counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--folder", help="where the store is made; default the system's temporary folder")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        store, url, cache = options.child
        print(json.dumps(run(Path(store), url, Path(cache), options)))
        return 0
    worst = 0.0
    for rows in (options.rows, 4 * options.rows) if options.twice else (options.rows,):
        figures, counts = measured(rows, options)
        report, wall = figures["report"], figures["wall"]
        explained = counts["busy"] / options.in_flight
        ideal = report["calls"] * options.latency / options.in_flight
        unexplained = max(0.0, wall - explained) / wall
        worst = max(worst, unexplained)
        print(f"{report['rated']} of {rows} rows in {report['calls']} calls: {wall:.2f} s, {rows / wall:.0f} rows/s")
        print(f"  the server explains {explained:.2f} s (its latency alone {ideal:.2f} s)")
        print(
            f"  unexplained {unexplained:.1%} of the time; CPU {figures['cpu']:.2f} s; peak {figures['peak_mb']:.0f} MB"
        )
        same = (report["calls"], report["input_tokens"], report["output_tokens"])
        if same != (counts["paid_calls"], counts["input_tokens"], counts["output_tokens"]) or report["rated"] != rows:
            print("  the count is NOT the server's own")
            return 1
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
