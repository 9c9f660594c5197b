"""What the effect preview of a plan costs: 100 000 records with 384 numbers each, 200 probes (SPEC §7.1).

    python -m benchmarks.effect [--records 100000] [--folder DIR] [--json FILE]

The store is written first, as an agent writes one; only the preview is measured, in CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from fallow.model.arguments import instant
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.port.registry import open_provider
from fallow.usecases.effect import preview
from fallow.usecases.planner import plan_scope

AS_OF = instant("2026-12-01T00:00:00Z")
NUMBERS = 384


def write_store(root: Path, records: int) -> None:
    """Conversation rows of one agent; one in ten is rated low enough to be planned."""
    folder = root / "conversation_memory"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(11)
    items = {}
    for number in range(records):
        vector = ", ".join(f"{value:.6f}" for value in rng.standard_normal(NUMBERS).tolist())
        name = f"r{number:06}"
        row = {
            "_id": name,
            "id": name,
            "content": f"turn {number} of a long conversation about thing {number % 977}",
            "role": "user" if number % 2 else "assistant",
            "agent_id": "gardener",
            "memory_id": f"m{number % 50}",
            "timestamp": iso(AS_OF - (40 + number % 300) * MICROSECONDS_PER_DAY),
            "importance": 0.1 if number % 10 == 0 else 0.8,
        }
        text = json.dumps(row)
        (folder / f"{name}.json").write_text(f'{text[:-1]}, "embedding": [{vector}]}}')
        items[name] = {"id": name, "agent_id": "gardener", "memory_id": row["memory_id"], "has_embedding": True}
    (folder / "index.json").write_text(json.dumps({"version": 1, "items": items}))


def measure(root: Path) -> dict[str, object]:
    """CPU seconds of one preview over a written store."""
    with open_provider(str(root)) as provider:
        plan = plan_scope(provider, resolve({}, environ={}), Scope(), as_of=AS_OF, now=AS_OF)
        began = time.process_time()
        effect = preview(provider, plan, probes=200)
        spent = time.process_time() - began
    return {
        "records": effect.visible,
        "planned": effect.planned,
        "probes": sum(effect.probes.values()),
        "places_changed": round(effect.places_changed, 4),
        "cpu_s": round(spent, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the store is written; default a temporary folder")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder) / "store"
        write_store(root, options.records)
        result = measure(root)
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
