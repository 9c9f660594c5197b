"""Small stores with chosen records, and plans over them, for tests that each state one rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fallow.model.arguments import instant
from fallow.model.keys import RecordKey
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.plans.plan import RetentionPlan
from fallow.port.gate import ContractResult
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView
from fallow.port.registry import open_provider
from fallow.usecases.planner import plan_scope
from tests.conftest import write_as_agent

CONVERSATION = "conversation_memory"
#: TRAPS.md's now.
NOW = instant("2026-12-01T00:00:00Z")


def days_ago(days: float) -> str:
    """An instant before NOW as agents write it."""
    return iso(NOW - round(days * MICROSECONDS_PER_DAY))


def record(record_id: str, *, days: float = 90.0, importance: Any = 0.1, **fields: Any) -> dict[str, Any]:
    """A conversation row that the defaults find eligible, unless ``fields`` say otherwise; None leaves a field out."""
    row = {
        "_id": record_id,
        "content": f"what {record_id} says",
        "role": "user",
        "agent_id": "gardener",
        "memory_id": "orchard",
        "timestamp": days_ago(days),
        "importance": importance,
        "access_count": 0,
    }
    return {name: value for name, value in {**row, **fields}.items() if value is not None}


def key(record_id: str, memory_type: str = CONVERSATION) -> RecordKey:
    return RecordKey(memory_type, record_id)


@contextmanager
def store(
    root: Path, *rows: dict[str, Any], naive_timezone: dict[str, str] | None = None, **by_type: Any
) -> Iterator[Provider]:
    """A filesystem store of conversation ``rows`` and rows of other types, written as agents write it, open."""
    write_as_agent(root, {CONVERSATION: list(rows), "shared_memory": [], **by_type})
    with open_provider(str(root), naive_timezone) as provider:
        yield provider


def planned(
    provider: Provider,
    *,
    as_of: int = NOW,
    scope: Scope | None = None,
    view: StoreView | None = None,
    contracts: ContractResult | None = None,
    **options: Any,
) -> RetentionPlan:
    """A stored plan over the store; options by their last name, such as ``grace_days``."""
    named = {f"{'scoring' if n in {'default_importance'} else 'retention'}.{n}": v for n, v in options.items()}
    settings = resolve(named, environ={}).replacing("store.naive_timezone", dict(provider.naive_timezone))
    return plan_scope(provider, settings, scope or Scope(), as_of=as_of, now=as_of, view=view, contracts=contracts)


def ids(plan: RetentionPlan) -> list[str]:
    return [entry.record_id for entry in plan.entries]


def tree(root: Path) -> dict[str, bytes]:
    """Every record file of a store, by its path: to see that nothing changed."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.json"))}


def protected(plan: RetentionPlan) -> dict[str, int]:
    """What the plan says protects records that are otherwise eligible, without the zeros."""
    return {reason: number for reason, number in plan.counts["protected"].items() if number}
