"""One piece of work on a store, measured in a process of its own: CPU, wall time and peak memory.

    python -m benchmarks.work PIECE STORE

The floors do only what cannot be avoided: list and stat, read every byte, decode every record.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.stores import MIX, NOW

HOUR = 3_600_000_000


def listing(store: Path) -> dict[str, Any]:
    """Floor: every directory entry with its status."""
    number = 0
    for name in MIX:
        with os.scandir(store / name) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                number += 1
    return {"files": number}


def reading(store: Path) -> dict[str, Any]:
    """Floor: every byte of every record."""
    size = 0
    for name in MIX:
        with os.scandir(store / name) as entries:
            for entry in entries:
                with Path(entry.path).open("rb", buffering=0) as file:
                    size += len(file.read())
    return {"bytes": size}


def decoding(store: Path) -> dict[str, Any]:
    """Floor: every byte, and its JSON checked with all values left raw."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    fields = 0
    for name in MIX:
        with os.scandir(store / name) as entries:
            for entry in entries:
                with Path(entry.path).open("rb", buffering=0) as file:
                    fields += len(decoder.decode(file.read()))
    return {"fields": fields}


def _planned(store: Path, *, snapshot: bool, maximum: int = 500) -> tuple[Any, Any]:
    from fallow.model.scope import Scope
    from fallow.model.settings import resolve
    from fallow.port.registry import open_provider
    from fallow.usecases.planning import make_plan

    provider = open_provider(str(store))
    provider.snapshot = snapshot  # type: ignore[attr-defined]
    settings = resolve({"retention.max_candidates": maximum}, environ={})
    return provider, make_plan(provider, settings, scope=Scope(), as_of=NOW, now=NOW)


def plan(store: Path) -> dict[str, Any]:
    """A plan with the snapshot: cold the first time, warm afterwards."""
    _, made = _planned(store, snapshot=True)
    return {"planned": len(made.entries), "eligible": made.counts["eligible"]}


def plan_afresh(store: Path) -> dict[str, Any]:
    """A plan that reads every record."""
    _, made = _planned(store, snapshot=False)
    return {"planned": len(made.entries)}


def apply(store: Path) -> dict[str, Any]:
    """Stores a plan of 500, approves and applies it, durably."""
    from fallow.acting.apply import apply_plan
    from fallow.acting.deciding import decide
    from fallow.model.settings import ApprovalConfig
    from fallow.plans.storage import store_plan

    provider, made = _planned(store, snapshot=True)
    made = store_plan(provider, made)
    count = len(made.entries)
    decide(
        provider,
        made.plan_id,
        verdict="approved",
        approved_by="Ada",
        count=count,
        approval=ApprovalConfig(),
        now=NOW,
    )
    began = time.perf_counter(), time.process_time()
    report = apply_plan(provider, made.plan_id, now=NOW + HOUR)
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"applied": report.applied, "apply_wall_s": round(wall, 3), "apply_cpu_s": round(cpu, 3)}


def contracts(store: Path) -> dict[str, Any]:
    """Reads the store by its snapshot and holds it against its contracts: what a plan does before it decides."""
    from fallow.data_contracts.checking import gate

    from fallow.port.reading import read_store
    from fallow.port.registry import open_provider

    with open_provider(str(store)) as provider:
        view = read_store(provider)
        began = time.process_time()
        result = gate(provider, view, as_of=NOW)
        return {"rules": result.summary["rules"], "gate_cpu_s": round(time.process_time() - began, 3)}


def rate(store: Path) -> dict[str, Any]:
    """Rates what has no rating by the heuristic, and writes nothing."""
    from fallow.importance.backfill import backfill_importance
    from fallow.port.registry import open_provider

    with open_provider(str(store)) as provider:
        report = backfill_importance(provider, now=NOW, dry_run=True)
    return {"rated": report.rated}


def suppressed(store: Path) -> dict[str, Any]:
    """The view of what is hidden."""
    from fallow.port.registry import open_provider
    from fallow.usecases.suppressed import suppressed_records

    with open_provider(str(store)) as provider:
        return {"suppressed": len(suppressed_records(provider))}


def restore(store: Path) -> dict[str, Any]:
    """Takes the applied plan back."""
    from fallow.acting.restore import plan_keys, restore_records
    from fallow.plans.storage import list_plans
    from fallow.port.registry import open_provider

    with open_provider(str(store)) as provider:
        (done,) = [item for item in list_plans(provider, NOW + HOUR) if item.state == "applied"]
        keys = plan_keys(provider, done.plan_id)
        report = restore_records(provider, keys, approved_by="Ada", reason="", now=NOW + 2 * HOUR, plan_id=done.plan_id)
    return {"restored": len(report.restored)}


def columns(store: Path) -> dict[str, Any]:
    """Scores and protects ten million records that are columns already: planning without reading."""
    import numpy as np
    import polars as pl

    from fallow.judgement.protection import protection
    from fallow.judgement.score import score
    from fallow.model.settings import RetentionConfig

    del store
    chance = np.random.default_rng(3)
    rows, config, eligible = 1_000_000, RetentionConfig(), 0
    for part in range(10):
        frame = pl.DataFrame(
            {
                "record_id": pl.int_range(part * rows, (part + 1) * rows, eager=True).cast(pl.String),
                "created_at": NOW - (chance.uniform(0, 400, rows) * 86_400_000_000).astype(np.int64),
                "last_accessed_at": pl.Series([None] * rows, dtype=pl.Int64),
                "access_count": chance.integers(0, 5, rows),
                "importance": np.round(chance.uniform(0, 1, rows), 2),
                "retention_state": pl.repeat("active", rows, eager=True),
                "pinned": chance.uniform(0, 1, rows) < 0.01,
                "verified": chance.uniform(0, 1, rows) < 0.01,
                "unsuppressed_at": pl.Series([None] * rows, dtype=pl.Int64),
                "breaches": pl.repeat([], rows, dtype=pl.List(pl.String), eager=True),
            }
        )
        cited = pl.Series("citations", [str(part * rows + n) for n in range(0, rows, 100)], dtype=pl.String)
        scored = score(frame, NOW, 0.995, 0.5).with_columns(protection(config, NOW, cited=cited))
        low = pl.col("protection").is_null() & (pl.col("age") >= 30 * 86_400_000_000) & (pl.col("retention") < 0.15)
        eligible += scored.select(low.sum()).item()
    return {"rows": 10 * rows, "eligible": int(eligible)}


PIECES: dict[str, Callable[[Path], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        listing,
        reading,
        decoding,
        plan,
        plan_afresh,
        contracts,
        rate,
        apply,
        suppressed,
        restore,
        columns,
    )
}


def main() -> None:
    piece, store = sys.argv[1], Path(sys.argv[2])
    cpu, wall = time.process_time(), time.perf_counter()
    found = PIECES[piece](store)
    result = {
        "piece": piece,
        "cpu_s": round(time.process_time() - cpu, 3),
        "wall_s": round(time.perf_counter() - wall, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        **found,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
