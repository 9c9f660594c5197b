"""Planning on MongoDB: CPU and memory of the planner, beside the server's own time and the bytes on the wire.

    python -m benchmarks.mongodb [--rows 100000] [--uri mongodb://…]

Without an address SecantusDB is started as a process, loaded, and stopped; its own speed is part of the wall
time, not of the planner's CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from fallow.providers.mongodb import MongoDBProvider
from pymongo import MongoClient, monitoring

from fallow.model.arguments import instant
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.usecases.planning import make_plan
from tests.servers.mongodb import mongodb_server

NOW = instant("2026-12-01T00:00:00Z")


class Wire(monitoring.CommandListener):
    """What the server took, and how many documents came back."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.documents = 0
        self.fields: set[str] = set()

    def started(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass

    def succeeded(self, event: Any) -> None:
        self.seconds += event.duration_micros / 1e6
        cursor = event.reply.get("cursor", {})
        rows = cursor.get("firstBatch") or cursor.get("nextBatch") or ()
        self.documents += len(rows)
        for row in rows:
            self.fields |= row.keys()


def load(uri: str, name: str, rows: int) -> None:
    """A store of conversation rows with text and embeddings, in batches."""
    chance = np.random.default_rng(7)
    collection = MongoClient(uri)[name]["conversation_memory"]
    for start in range(0, rows, 2000):
        days = chance.uniform(0, 400, 2000)
        collection.insert_many(
            {
                "_id": f"r{start + n:07d}",
                "content": f"turn {start + n}: " + "words " * 30,
                "role": "user",
                "agent_id": f"agent-{n % 3}",
                "memory_id": f"memory-{n % 20}",
                "timestamp": iso(NOW - round(float(days[n]) * MICROSECONDS_PER_DAY)),
                "importance": round(float(chance.uniform(0, 1)), 2),
                "access_count": int(chance.integers(0, 5)),
                "embedding": [0.25] * 64,
            }
            for n in range(min(2000, rows - start))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--uri")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        uri = options.uri or stack.enter_context(mongodb_server(Path(folder)))
        name = "fallow-benchmark"
        MongoClient(uri).drop_database(name)
        load(uri, name, options.rows)
        wire = Wire()
        client: MongoClient[dict[str, Any]] = MongoClient(uri, event_listeners=[wire])
        with MongoDBProvider(client, name) as provider:
            cpu, wall = time.process_time(), time.perf_counter()
            plan = make_plan(provider, resolve(environ={}), scope=Scope(), as_of=NOW, now=NOW)
            result = {
                "rows": options.rows,
                "cpu_s": round(time.process_time() - cpu, 2),
                "wall_s": round(time.perf_counter() - wall, 2),
                "server_s": round(wire.seconds, 2),
                "documents": wire.documents,
                "fields": sorted(wire.fields),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "planned": len(plan.entries),
                "eligible": plan.counts["eligible"],
            }
        MongoClient(uri).drop_database(name)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
