"""docs/performance.md and its plot, from the JSON of ``python -m benchmarks --json FILE``.

python -m benchmarks.page FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: What a piece is called on the page.
TITLES = {
    "listing": "floor: list the files and their status",
    "reading": "floor: read every byte",
    "decoding": "floor: read and decode the JSON",
    "plan, cold": "plan, first time (builds the snapshot)",
    "plan, warm": "plan, every other night",
    "plan_afresh": "plan without a snapshot",
    "contracts": "read, and hold against the contracts",
    "rate": "rate by the heuristic, writing nothing",
    "apply": "apply 500, durably",
    "suppressed": "list what is hidden",
    "restore": "restore 500",
    "columns": "score and protect columns, no reading",
    "peer's plan": "MemoRizz: plan",
    "peer's apply": "MemoRizz: apply 5",
    "peer's suppressed": "MemoRizz: list what is hidden",
}
INTRO = """# What it costs

Made by `python -m benchmarks --json FILE` and `python -m benchmarks.page FILE`; the numbers are of one run, on two
slow cores. What carries over to other machines are the ratios: to the floor of the same run (listing for what works
by the snapshot, reading and decoding for what reads the store), and to MemoRizz's own planner on the same store. An
apply is compared by the record, on the clock.

![CPU seconds by records](images/performance.svg)

## A million records

Measured apart, on a million files of 9 KB with embeddings: the first plan 31 CPU seconds (the floor of reading and
decoding is 20), every other night's 4.9 (listing and status alone 3.1), 0.9 GB at most. From 10 000 over 100 000 to a
million files the first plan takes 0.5, 3.1 and 31 CPU seconds, a warm one 0.36, 0.7 and 4.9: linear beyond the 0.3
that starting costs.

What would come next: reading changed files by several processes, which wins wall time and no CPU; a listing that the
file system itself could answer (status of a million files is more than half of a warm plan).

"""


def table(results: list[dict[str, Any]]) -> str:
    """One table a size."""
    parts = []
    for size in dict.fromkeys(item["records"] for item in results):
        rows = [item for item in results if item["records"] == size]
        parts.append(f"## {size:,} records".replace(",", " "))
        parts.append("| | CPU s | wall s | peak MB | to the floor | to MemoRizz |\n|---|---|---|---|---|---|")
        for item in rows:
            cells = [item.get(name, "") for name in ("cpu_s", "wall_s", "peak_mb", "to_floor", "to_peer")]
            parts[-1] += f"\n| {TITLES[item['piece']]} | " + " | ".join(str(cell) for cell in cells) + " |"
    return "\n\n".join(parts) + "\n"


def plot(results: list[dict[str, Any]], target: Path) -> None:
    """CPU seconds over records on logarithmic axes: a straight line of slope one is linear growth."""
    import altair as alt

    shown = ("decoding", "plan, cold", "plan, warm", "peer's plan", "listing")
    rows = [
        {"records": item["records"], "CPU s": item["cpu_s"], "piece": TITLES[item["piece"]]}
        for item in results
        if item["piece"] in shown
    ]
    alt.Chart(alt.Data(values=rows)).mark_line(point=True).encode(
        x=alt.X("records:Q", scale=alt.Scale(type="log")),
        y=alt.Y("CPU s:Q", scale=alt.Scale(type="log")),
        color=alt.Color("piece:N", title=None),
    ).properties(width=520, height=300).save(str(target))


def main() -> None:
    """Writes the page and its plot."""
    results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    plot(results, DOCS / "images" / "performance.svg")
    (DOCS / "performance.md").write_text(INTRO + table(results), encoding="utf-8")


if __name__ == "__main__":
    main()
