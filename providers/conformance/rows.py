"""The rows that checks work with: plain ones that every store can hold, and the spellings of the untidy."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from fallow.providers.conformance.kit import ConformanceError, expect, expect_equal

from fallow.model.arguments import instant
from fallow.model.keys import MISSING, Row
from fallow.port.protocol import Outcome, Provider, Unreadable

CONVERSATION: Final = "conversation_memory"
KNOWLEDGE: Final = "knowledge_base"
SHARED: Final = "shared_memory"
NOW: Final = instant("2026-12-01T00:00:00Z")
MINUTE: Final = 60_000_000

_NAMESPACE: Final = uuid.UUID("6a1d6c5a-7e0a-5c57-8e1c-3f0d3e5b9f21")


def record_id(name: object) -> str:
    """The record id of a name: UUID text, a form that every store has."""
    return str(uuid.uuid5(_NAMESPACE, str(name)))


def message(name: object, **fields: Any) -> Row:
    """A conversation row, old and worth little; ``_id`` may be given, fields set to MISSING are left out."""
    row: Row = {
        "_id": record_id(name),
        "role": "user",
        "content": f"what was said as {name}",
        "timestamp": "2026-06-01T08:00:00+00:00",
        "memory_id": "conformance-memory",
        "thread_id": "conformance-thread",
        "agent_id": "conformance-agent",
        "user_id": "conformance-user",
        "importance": 0.1,
        "access_count": 1,
        "last_accessed_at": "2026-06-02T08:00:00+00:00",
        **fields,
    }
    return {field: value for field, value in row.items() if value is not MISSING}


def note(name: object, **fields: Any) -> Row:
    """A knowledge base row, the type whose metadata takes what has no place of its own."""
    row: Row = {
        "_id": record_id(name),
        "content": f"what is known as {name}",
        "created_at": "2026-06-01T08:00:00+00:00",
        "updated_at": "2026-06-01T08:00:00+00:00",
        "memory_id": "conformance-memory",
        "user_id": "conformance-user",
        "agent_id": "conformance-agent",
        "importance": 0.1,
        "metadata": {"language": "en", "pages": [1, 2], "deep": {"er": True}},
        **fields,
    }
    return {field: value for field, value in row.items() if value is not MISSING}


def fetched(provider: Provider, memory_type: str, name: str) -> Row:
    """One whole row by record id; it must be there and be readable."""
    row = provider.fetch(memory_type, [name]).get(name)
    if row is None or isinstance(row, Unreadable):
        raise ConformanceError(f"the record is {'missing' if row is None else 'unreadable'} where it was stored")
    return row


def scanned(provider: Provider, memory_type: str, *columns: str) -> dict[str, dict[str, Any]]:
    """All records of a scan by id; an id that comes twice or anything unreadable is an error."""
    found: dict[str, dict[str, Any]] = {}
    for batch in provider.scan(memory_type, ("record_id", *columns)):
        expect(not batch.unreadable, f"{len(batch.unreadable)} records are unreadable, the first: {batch.unreadable}")
        for row in batch.frame.iter_rows(named=True):
            expect(row["record_id"] not in found, "a record is listed twice")
            found[row["record_id"]] = row
    return found


def statuses(outcomes: list[Outcome]) -> list[str]:
    """The statuses of outcomes, in order."""
    return [outcome.status for outcome in outcomes]


def expect_unchanged(
    before: Mapping[str, Mapping[str, bytes]], after: Mapping[str, Mapping[str, bytes]], but: Mapping[str, set[str]]
) -> None:
    """Nothing stored has changed except the named fields of the named records."""
    expect_equal(set(after), set(before), "the records that are stored")
    for name, fields in before.items():
        spared = but.get(name, set())
        left = [(field, value) for field, value in fields.items() if field not in spared]
        right = [(field, value) for field, value in after[name].items() if field not in spared]
        changed = [field for field, value in left if dict(right).get(field) != value]
        expect(not changed, f"fields that nobody named have changed: {changed}")
        expect_equal([field for field, _ in right], [field for field, _ in left], "the fields beside the named ones")
