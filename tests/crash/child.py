"""One piece of work on a store, in a process of its own that dies where it is told to.

    python -m tests.crash.child WORK STORE [--die-at N]

Prints ``ready`` once everything is imported and the store is open, then works. With ``--die-at N`` it kills
itself (SIGKILL) at the Nth point at which it touches the world outside: before and after every call on the
provider, and at every file opened for writing, renamed, linked or removed. Without, it works to the end and
prints how many points it passed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fallow.acting.apply import apply_plan
from fallow.acting.purge import purge_semantic_cache
from fallow.acting.restore import plan_keys, restore_records
from fallow.importance.backfill import backfill_importance
from fallow.model.arguments import instant
from fallow.plans.storage import list_plans
from fallow.port.protocol import Capabilities, Provider
from fallow.port.registry import open_provider
from fallow.reflection.reflecting import ReflectionConfig, reflect

NOW = instant("2026-12-01T06:00:00Z")
#: Small, so that work on a small store has many boundaries to die at.
CHUNK = 4


class Points:
    """Counts the points at which the process touches the world, and ends it at one of them."""

    def __init__(self, die_at: int | None) -> None:
        self.passed, self._die_at, self.counting = 0, die_at, False

    def reached(self) -> None:
        if not self.counting:
            return
        self.passed += 1
        if self.passed == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writing or event in {"os.rename", "os.remove", "os.link", "os.mkdir", "sqlite3.connect"}:
            self.reached()


class Watched:
    """A provider in small batches, each of whose calls is a point before and a point after."""

    def __init__(self, provider: Provider, points: Points) -> None:
        self._provider, self._points = provider, points

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._provider.capabilities, batch_size=CHUNK)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        if name not in {"patch", "insert", "fetch", "find", "scan", "touch_many", "purge_cache"}:
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            self._points.reached()
            result = value(*arguments, **named)
            self._points.reached()
            return result

        return call


def the_plan(provider: Any) -> str:
    """The one plan of the store that somebody approved."""
    (plan,) = [plan for plan in list_plans(provider, NOW) if plan.decision is not None]
    return plan.plan_id


def apply(provider: Any, now: int) -> None:
    apply_plan(provider, the_plan(provider), now=now)


def restore(provider: Any, now: int) -> None:
    plan_id = the_plan(provider)
    restore_records(
        provider, plan_keys(provider, plan_id), approved_by="Bob", reason="needed after all", now=now, plan_id=plan_id
    )


def rate(provider: Any, now: int) -> None:
    backfill_importance(provider, now=now)


def summarise(provider: Any, now: int) -> None:
    reflect(provider, ReflectionConfig(threshold=1.5, extractive=True), now=now)


def purge(provider: Any, now: int) -> None:
    purge_semantic_cache(provider, now=now)


#: The pieces of work that may die anywhere; each is run again to its end afterwards.
WORK: dict[str, Callable[[Any, int], None]] = {
    "apply": apply,
    "restore": restore,
    "rate": rate,
    "summarise": summarise,
    "purge": purge,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=sorted(WORK))
    parser.add_argument("store")
    parser.add_argument("--die-at", type=int)
    arguments = parser.parse_args()
    points = Points(arguments.die_at)
    sys.addaudithook(points.audit)
    with open_provider(arguments.store) as provider:
        print("ready", flush=True)
        points.counting = True
        WORK[arguments.work](Watched(provider, points), NOW)
        points.counting = False
    print(points.passed, flush=True)


if __name__ == "__main__":
    main()
