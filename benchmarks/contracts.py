"""What contracts cost: the gate's rules on Polars, and the second opinion by Great Expectations with its import.

    python -m benchmarks.contracts [--rows 1000000]

Prints CPU seconds beside a floor of the same run: counting the distinct ids of the same frame, which the rule that
ids are unique cannot do without. The frame is generated; one row in fifty breaks a rule.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
import polars as pl
from fallow.data_contracts.checking import ContractReport, evaluate
from fallow.data_contracts.compiler import tables
from fallow.data_contracts.second_opinion import ask_great_expectations

from fallow.model.record import PLANNING_COLUMNS, schema

AS_OF = 1_764_547_200_000_000
DAY = 86_400 * 1_000_000


def frame(rows: int, seed: int = 1) -> pl.DataFrame:
    """A conversation of ``rows`` records with every column of its contract, one in fifty of them faulty."""
    rng = np.random.default_rng(seed)
    created = AS_OF - rng.integers(0, 900 * DAY, rows)
    accessed = np.where(rng.random(rows) < 0.4, created + rng.integers(0, 30 * DAY, rows), -1)
    faulty = rng.random(rows) < 0.02
    number = pl.Series(np.arange(rows))
    return pl.DataFrame(
        {
            "record_id": "msg-" + number.cast(pl.String).str.zfill(9),
            "agent_id": "agent-" + (number % 7).cast(pl.String),
            "memory_id": "memory-" + (number % 31).cast(pl.String),
            "user_id": "user-" + (number % 11).cast(pl.String),
            "thread_id": "thread-" + (number % 4999).cast(pl.String),
            "created_at": np.where(faulty & (rng.random(rows) < 0.3), AS_OF + DAY, created),
            "last_accessed_at": pl.Series(accessed).replace(-1, None),
            "access_count": np.where(accessed > 0, rng.integers(1, 40, rows), 0),
            "importance": rng.random(rows).round(2),
            "importance_source": pl.Series(np.where(faulty, "guess", "heuristic")),
            "pinned": rng.random(rows) < 0.01,
            "verified": rng.random(rows) < 0.01,
            "retention_state": pl.Series(np.where(rng.random(rows) < 0.1, "sealed", "active")),
            "suppressed_by": pl.Series([None] * rows, dtype=pl.String),
            "suppressed_at": pl.Series([None] * rows, dtype=pl.Int64),
            "suppression_reason": pl.Series([None] * rows, dtype=pl.String),
            "suppression_approver": pl.Series([None] * rows, dtype=pl.String),
            "unsuppressed_at": pl.Series([None] * rows, dtype=pl.Int64),
            "summary_id": pl.Series([None] * rows, dtype=pl.String),
            "role": pl.Series(np.where(rng.random(rows) < 0.5, "user", "assistant")),
            "citations": pl.Series([[]] * rows, dtype=pl.List(pl.String)),
            "unresolved_citations": pl.Series(np.zeros(rows, dtype=np.int64)),
            "text_length": rng.integers(1, 400, rows),
            "breaches": pl.Series([["importance_out_of_range"] if bad else [] for bad in faulty.tolist()]),
        }
    )


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measures and prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    data = frame(rows)
    table = tables()["conversation_memory"]
    planning = data.select(name for name in PLANNING_COLUMNS if name in schema())

    start = _cpu(resource.RUSAGE_SELF)
    data.get_column("record_id").n_unique()
    floor = _cpu(resource.RUSAGE_SELF) - start

    start, wall = _cpu(resource.RUSAGE_SELF), time.perf_counter()
    found = evaluate(table, planning, store_kind="filesystem", as_of=AS_OF)
    gate, gate_wall = _cpu(resource.RUSAGE_SELF) - start, time.perf_counter() - wall

    start = _cpu(resource.RUSAGE_SELF)
    report = ContractReport("filesystem", evaluate(table, data, store_kind="filesystem", as_of=AS_OF))
    every = _cpu(resource.RUSAGE_SELF) - start
    report.frames = {"conversation_memory": data}

    start, wall = _cpu(resource.RUSAGE_CHILDREN), time.perf_counter()
    opinion = ask_great_expectations(report, as_of=AS_OF)
    gx, gx_wall = _cpu(resource.RUSAGE_CHILDREN) - start, time.perf_counter() - wall
    print(
        json.dumps(
            {
                "rows": rows,
                "floor_cpu_s": round(floor, 3),
                "gate": {"rules": len(found), "cpu_s": round(gate, 3), "wall_s": round(gate_wall, 3)},
                "every_rule": {"rules": len(report.findings), "cpu_s": round(every, 3)},
                "great_expectations": {
                    "cpu_s": round(gx, 2),
                    "wall_s": round(gx_wall, 2),
                    "agreeing": opinion.agreeing,
                    "differing": len(opinion.differing),
                    "errors": opinion.errors,
                },
                "gate_to_floor": round(gate / max(floor, 0.001), 1),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
