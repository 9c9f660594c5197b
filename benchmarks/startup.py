"""What a command costs before it does anything: CPU seconds of a process, beside importing polars and numpy.

    python -m benchmarks.startup [--store PATH]

Rounds are paired: floor and command in turn; medians and their difference are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def cpu(command: list[str], environ: dict[str, str]) -> float:
    """CPU seconds (user and system) of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="a store to plan on; default: a sample store")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    fallow = [sys.executable, "-m", "fallow"]
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or Path(folder) / "store"
        environ = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        if not options.store:
            subprocess.run([*fallow, "demo", "--directory", str(store)], stdout=subprocess.DEVNULL, check=True)
        measured = {
            "python": [sys.executable, "-c", "pass"],
            "import polars, numpy": [sys.executable, "-c", "import polars, numpy"],
            "fallow --help": [*fallow, "--help"],
            "fallow retention-plan --json": [*fallow, "retention-plan", "--json", "--store", str(store)],
        }
        seconds: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(options.rounds):
            for name, command in measured.items():
                seconds[name].append(cpu(command, environ))
    floor = statistics.median(seconds["import polars, numpy"])
    bare = statistics.median(seconds["python"])
    for name, values in seconds.items():
        middle = statistics.median(values)
        line = {"command": name, "cpu_s": round(middle, 3), "over_python": round(middle - bare, 3)}
        print(json.dumps({**line, "over_polars_and_numpy": round(middle - floor, 3)}))


if __name__ == "__main__":
    main()
