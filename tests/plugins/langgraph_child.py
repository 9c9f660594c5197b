"""One piece of work on a store of LangGraph's, in a process of its own that dies where it is told to.

    python -m tests.plugins.langgraph_child WORK ADDRESS [--die-at N]

As :mod:`tests.crash.child`; a point is also before and after every statement that the work sends to PostgreSQL.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "plugins" / "fallow-langgraph"))

from fallow_langgraph.provider import LangGraphProvider

from tests.crash.child import NOW, WORK, Points, Watched


class Pointed:
    """A connection each of whose statements is a point before and a point after."""

    def __init__(self, connection: Any, points: Points) -> None:
        self._connection, self._points = connection, points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, *arguments: Any, **named: Any) -> Any:
        self._points.reached()
        result = self._connection.execute(*arguments, **named)
        self._points.reached()
        return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["apply", "restore"])
    parser.add_argument("address")
    parser.add_argument("--die-at", type=int)
    arguments = parser.parse_args()
    points = Points(arguments.die_at)
    with LangGraphProvider(arguments.address) as provider:
        provider._connection = Pointed(provider._open(), points)  # type: ignore[assignment]
        print("ready", flush=True)
        points.counting = True
        WORK[arguments.work](Watched(provider, points), NOW)
        points.counting = False
    print(points.passed, flush=True)


if __name__ == "__main__":
    main()
