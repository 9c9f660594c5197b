"""Completing events of fallow's own that agents' control planes pass over (SPEC §10; STORES.md, journal).

MemoRizz's reader drops, silently, an event whose content lacks one of five fields; earlier releases wrote no
``stream_id``. Repairing adds what is missing and nothing else: ids, keys, payloads and hashes stay what they were,
so every reference to the event and every digest of it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fallow.model.keys import RecordKey, Row
from fallow.port.journal import NOBODY, SHARED, content_of, content_text, stream_id
from fallow.port.protocol import Patch, Provider

EVENT: Final = "learn-evt-"
#: What agents' readers ask of an event's content.
REQUIRED: Final[tuple[str, ...]] = ("event_id", "event_type", "timestamp", "agent_id", "stream_id")


@dataclass(frozen=True, slots=True)
class Incomplete:
    """One event row that agents do not list: what would be added to its content."""

    row: Row
    event_type: str
    plan_id: str | None
    added: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "event_id": self.row["_id"],
            "event_type": self.event_type,
            "plan_id": self.plan_id,
            "added": dict(self.added),
        }


@dataclass(slots=True)
class RepairReport:
    """What was found, and, where it was written, what became of each row."""

    found: list[Incomplete] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    failed: dict[str, list[str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "count": len(self.found),
            "events": [item.to_json() for item in self.found],
            "written": len(self.written),
            "failed": {reason: sorted(ids) for reason, ids in sorted(self.failed.items())},
        }


def incomplete_events(provider: Provider) -> Iterator[Incomplete]:
    """Events that fallow wrote and agents' readers drop; those of others are never touched."""
    for row in provider.find(SHARED, EVENT):
        content = content_of(row)
        writer = content.get("provenance")
        if not isinstance(writer, dict) or writer.get("writer") != "fallow":
            continue
        scope = {name: content.get(name) for name in ("agent_id", "memory_id", "user_id", "thread_id")}
        right = {
            "event_id": row["_id"],
            "timestamp": content.get("created_at") or row.get("timestamp"),
            "agent_id": NOBODY,
            "stream_id": stream_id(**scope),
        }
        added: dict[str, Any] = {name: right[name] for name in REQUIRED if name in right and not content.get(name)}
        if added:
            payload = content.get("payload")
            plan_id = payload.get("plan_id") if isinstance(payload, dict) else None
            yield Incomplete(row, str(content.get("event_type")), plan_id, added)


def repair_events(provider: Provider, *, write: bool = False) -> RepairReport:
    """Finds our incomplete events; with ``write`` completes them, each only while its content is what was read.

    Idempotent: a second run finds nothing.

    Raises:
        StoreUnreadableError: the listing failed; nothing was written.
    """
    report = RepairReport(found=list(incomplete_events(provider)))
    size = max(1, provider.capabilities.batch_size)
    for start in range(0, len(report.found) if write else 0, size):
        patches = [
            Patch(
                RecordKey(SHARED, item.row["_id"]),
                {"content": item.row["content"]},
                {"content": content_text({**content_of(item.row), **item.added})},
            )
            for item in report.found[start : start + size]
        ]
        for outcome in provider.patch(patches):
            if outcome.status == "applied":
                report.written.append(outcome.key.record_id)
            else:
                report.failed.setdefault(outcome.detail or outcome.status, []).append(outcome.key.record_id)
    return report
