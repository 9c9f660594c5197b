"""Reinforcement: a memory that was used becomes fresh again (SPEC §4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fallow.model.arguments import Id, Time, instant, switch
from fallow.model.arguments import memory_type as checked_type
from fallow.model.arguments import record_ids as checked_ids
from fallow.model.errors import UsageError
from fallow.model.keys import RecordKey
from fallow.port.journal import control_event, ids_digest
from fallow.port.journal_writing import insert_control_rows
from fallow.port.protocol import Provider, Touching


@dataclass(slots=True)
class TouchReport:
    """What became of every id: each stands in exactly one place, and none was created."""

    touched: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    suppressed: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "schema_version": 1,
            "touched": sorted(self.touched),
            "gone": sorted(self.gone),
            "suppressed": sorted(self.suppressed),
            "failed": {reason: sorted(ids) for reason, ids in sorted(self.failed.items())},
            "unknown": sorted(self.unknown),
        }


def touch_many(
    provider: Provider, memory_type: str, record_ids: Iterable[Id], *, now: Time | None = None, event: bool = False
) -> TouchReport:
    """Marks records as used now: last_accessed_at never moves back, access_count rises by one, atomically each.

    An id named twice is touched once. Ids that are gone or suppressed are reported, never created.

    Args:
        provider: the open store.
        memory_type: the records' type.
        record_ids: which records.
        now: a time of SPEC §1.5; None means the system's clock.
        event: also record the run as one control-plane event (SPEC §10); a host that touches on every turn
            leaves it out.

    Raises:
        UsageError: an argument is none of SPEC §1.5, or this kind of store cannot touch.
    """
    memory_type, event = checked_type(memory_type), switch(event, "event")
    names, at = checked_ids(record_ids), instant(now)
    if not isinstance(provider, Touching):
        raise UsageError(
            f"a {provider.capabilities.kind} store cannot be touched", hint="docs/support-matrix.md lists what can"
        )
    report = TouchReport()
    size = max(1, provider.capabilities.batch_size)
    for start in range(0, len(names), size):
        for outcome in provider.touch_many(memory_type, names[start : start + size], at):
            name = outcome.key.record_id
            if outcome.status == "applied":
                report.touched.append(name)
            elif outcome.status == "gone":
                report.gone.append(name)
            elif outcome.detail == "suppressed":
                report.suppressed.append(name)
            elif outcome.status == "unknown":
                report.unknown.append(name)
            else:
                report.failed.setdefault(outcome.detail or outcome.status, []).append(name)
    if event and report.touched:
        digest = ids_digest([RecordKey(memory_type, name) for name in report.touched])
        payload = {"memory_type": memory_type, "touched": len(report.touched), "ids_digest": digest}
        insert_control_rows(
            provider, [control_event("memories_touched", f"touch:{memory_type}:{at}:{digest}", payload, now=at)]
        )
    return report
