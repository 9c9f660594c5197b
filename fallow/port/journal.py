"""Rows that fallow adds to ``shared_memory``: journal, heads, events, plans, decisions (SPEC §10, STORES.md).

Pure: values in, rows out. Ids are deterministic, so that a second try of the same write finds its row
taken and changes nothing. A journal row carries names and hashes of fields, never their content.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from fallow.model.keys import RecordKey, Row
from fallow.model.record import Record
from fallow.model.times import from_microseconds
from fallow.model.values import plain_native

SHARED: Final = "shared_memory"
#: Who owns control rows that belong to no agent.
NOBODY: Final = "fallow"
CHANGE_PREFIX: Final = "mem-change-"
HEAD_PREFIX: Final = "mem-head-"

_UNHASHED: Final = frozenset({"embedding", "vector", "_id", "id", "updated_at", "timestamp"})
_NAMESPACE: Final = uuid.UUID("5f3c1c7e-6f0e-5d58-9a0b-2d1a7c1f4a10")


def text_time(instant: int) -> str:
    """An instant as rows of agents spell it: ISO 8601 with ``+00:00``."""
    return from_microseconds(instant).isoformat()


def version_hash(row: Mapping[str, Any]) -> str:
    """The hash of a row's version as agents' own history has it: what embeddings, ids and clocks say is left out.

    What JSON has no word for enters as :func:`fallow.model.values.plain_native` renders it, on every store alike.
    """
    kept = {name: value for name, value in row.items() if name not in _UNHASHED}
    return hashlib.sha256(
        json.dumps(kept, sort_keys=True, ensure_ascii=False, default=plain_native).encode("utf-8", "replace")
    ).hexdigest()


def content_text(content: Mapping[str, Any]) -> str:
    """The content of a control row as the JSON text it is stored as."""
    return json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False)


def control_row(
    row_id: str,
    record_type: str,
    content: Mapping[str, Any],
    *,
    now: int,
    agent_id: str | None = None,
    memory_id: str | None = None,
    thread_id: str | None = None,
    user_id: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Row:
    """A row of ``shared_memory`` in the shape that agents' readers know; ``content`` becomes JSON text."""
    row: Row = {
        "_id": row_id,
        "id": row_id,
        "memory_id": row_id,
        "content": content_text(content),
        "memory_type": SHARED,
        "scope": "private",
        "owner_agent_id": agent_id or NOBODY,
        "record_type": record_type,
        "timestamp": text_time(now),
        **(extra or {}),
    }
    scope = {"agent_id": agent_id, "trace_memory_id": memory_id, "thread_id": thread_id, "user_id": user_id}
    row.update({name: value for name, value in scope.items() if value is not None})
    return row


def content_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a control row; empty where it is not readable."""
    content = row.get("content")
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            return {}
    return dict(content) if isinstance(content, Mapping) else {}


def event_id(idempotency_key: str) -> str:
    """The id of a control-plane event: the hash of its idempotency key."""
    return "learn-evt-" + hashlib.sha256(idempotency_key.encode()).hexdigest()[:32]


def stream_id(agent_id: str | None, memory_id: str | None, user_id: str | None, thread_id: str | None) -> str:
    """The stream that a scope's events belong to: from the scope alone, so that all of them are in one."""
    text = json.dumps([agent_id or NOBODY, memory_id, user_id, thread_id], separators=(",", ":"))
    return "learn-stream-" + hashlib.sha256(text.encode()).hexdigest()[:28]


def control_event(
    event_type: str,
    idempotency_key: str,
    payload: Mapping[str, Any],
    *,
    now: int,
    agent_id: str | None = None,
    memory_id: str | None = None,
    thread_id: str | None = None,
    user_id: str | None = None,
    run_id: str | None = None,
) -> Row:
    """A durable, immutable control-plane event (SPEC §10): one row by key, whoever writes it first."""
    row_id = event_id(idempotency_key)
    body = json.dumps(payload, sort_keys=True, ensure_ascii=False, allow_nan=False)
    content = {
        "record_id": row_id,
        "record_type": "learning_event",
        "event_id": row_id,
        "event_type": event_type,
        "stream_id": stream_id(agent_id, memory_id, user_id, thread_id),
        "idempotency_key": idempotency_key,
        "payload": dict(payload),
        "event_hash": hashlib.sha256(f"{event_type}\n{idempotency_key}\n{body}".encode()).hexdigest(),
        "parent_event_id": None,
        "provenance": {"writer": "fallow"},
        "agent_id": agent_id or NOBODY,
        "memory_id": memory_id,
        "thread_id": thread_id,
        "user_id": user_id,
        "run_id": run_id,
        "schema_version": 1,
        "created_at": text_time(now),
        "updated_at": text_time(now),
        "timestamp": text_time(now),
    }
    return control_row(
        row_id,
        "learning_event",
        content,
        now=now,
        agent_id=agent_id,
        memory_id=memory_id,
        thread_id=thread_id,
        user_id=user_id,
    )


def ids_digest(keys: Sequence[RecordKey]) -> str:
    """A digest of record keys for a run's event: what was done can be checked later without listing it."""
    text = json.dumps(sorted([key.memory_type, key.record_id] for key in keys), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def change_id(kind: Literal["suppress", "restore", "reflect"], origin: str, key: RecordKey) -> str:
    """The id of a journal row: from what was done, by what, to which record."""
    return CHANGE_PREFIX + str(uuid.uuid5(_NAMESPACE, "\0".join((kind, origin, key.memory_type, key.record_id))))


def head_id(key: RecordKey) -> str:
    """The id of the head row of a record that has none yet."""
    return HEAD_PREFIX + hashlib.sha256(f"{key.memory_type}\0{key.record_id}".encode()).hexdigest()[:32]


_LABELS: Final[Mapping[str, str]] = {
    "conversation_memory": "conversation",
    "knowledge_base": "knowledge",
    "entity_memory": "entity",
    "summaries": "summary",
    "workflow_memory": "workflow",
}


def change_row(
    row_id: str,
    record: Record,
    *,
    actor: str,
    source: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any],
    changed: Sequence[str],
    now: int,
    previous_event_id: str | None = None,
    action: Literal["created", "updated"] = "updated",
    parents: Sequence[Mapping[str, str]] = (),
) -> Row:
    """One journal entry (SPEC §10): who changed which fields of which record, with the hashes of both versions.

    ``before`` None says that the earlier version can no longer be known (``history_gap``).
    """
    fields = {name: "added" if before is None or name not in before else "modified" for name in sorted(changed)}
    content = {
        "record_id": row_id,
        "record_type": "memory_history_change",
        "target_record_id": record.record_id,
        "memory_type": record.memory_type,
        "action": action,
        "operation": "insert" if action == "created" else "update_by_id",
        "actor": actor,
        "initiator": actor,
        "source": source,
        "source_ref": None,
        "attribution": "host_asserted",
        "before_hash": None if before is None else version_hash(before),
        "after_hash": version_hash(after),
        "changed_fields": sorted(changed),
        "field_changes": fields,
        "parents": [dict(parent) for parent in parents],
        "previous_event_id": previous_event_id,
        "history_gap": previous_event_id is None and action != "created",
        "label": _LABELS.get(record.memory_type, record.memory_type),
        "content_stored": False,
        "agent_id": record.agent_id,
        "memory_id": record.memory_id,
        "user_id": record.user_id,
        "thread_id": record.thread_id,
        "application_id": None,
        "run_id": None,
        "turn_id": None,
        "root_trace_id": None,
        "schema_version": 1,
        "created_at": text_time(now),
        "updated_at": text_time(now),
        "timestamp": text_time(now),
    }
    return control_row(
        row_id,
        "memory_history_change",
        content,
        now=now,
        agent_id=record.agent_id,
        memory_id=record.memory_id,
        thread_id=record.thread_id,
        user_id=record.user_id,
        extra={"history_memory_type": record.memory_type, "history_action": action, "history_actor": actor},
    )


def head_row(record: Record, row_id: str, change: str, after: Mapping[str, Any], *, now: int) -> Row:
    """The head of a record's history: its latest journal entry and the hash of its version."""
    content = {
        "record_id": row_id,
        "record_type": "memory_history_head",
        "target_record_id": record.record_id,
        "memory_type": record.memory_type,
        "event_id": change,
        "version_hash": version_hash(after),
        "agent_id": record.agent_id,
        "memory_id": record.memory_id,
        "user_id": record.user_id,
        "thread_id": record.thread_id,
        "application_id": None,
        "run_id": None,
        "turn_id": None,
        "root_trace_id": None,
        "schema_version": 1,
        "created_at": text_time(now),
        "updated_at": text_time(now),
    }
    return control_row(
        row_id,
        "memory_history_head",
        content,
        now=now,
        agent_id=record.agent_id,
        memory_id=record.memory_id,
        thread_id=record.thread_id,
        user_id=record.user_id,
    )
