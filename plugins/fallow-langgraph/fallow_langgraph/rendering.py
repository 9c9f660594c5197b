"""A row of LangGraph's store as a row of fallow's: the agent's value, what fallow keeps beside it, and its scope."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fallow.model.keys import RecordKey, Row, canonical_id, is_unicode
from fallow.model.record import CITING_FIELDS, display_text
from fallow.model.times import from_microseconds
from fallow.port.protocol import Unreadable

from fallow_langgraph.mapping import Rule, StoreMapping, record_id

_ACCESS = ("last_accessed_at", "last_accessed", "last_recalled_at", "access_count", "recall_count", "hit_count")
_CITING = frozenset(CITING_FIELDS)
_CREATION = ("timestamp", "created_at", "createdAt")


class Stored(NamedTuple):
    """A row as :func:`fallow_langgraph.statements.rows` reads it."""

    prefix: str
    key: str
    suffix: str
    value: str
    created_at: int | None
    updated_at: int | None
    fields: str | None
    suppressed: bool
    embedding: str | None


class Found(NamedTuple):
    """A stored row and what it is to fallow."""

    stored: Stored
    record_id: str
    row: Row | str


def rendered(stored: Stored, mapping: StoreMapping, memory_type: str) -> Found | None:
    """The row, or in words why it is none; None where its namespace belongs to another type or to none."""
    known = mapping.scoped(stored.prefix)
    if known is None or known[0].memory_type != memory_type:
        return None
    rule, scope = known
    name = record_id(rule, stored.prefix, stored.key, stored.suffix)
    try:
        value = json.loads(stored.value)
    except (ValueError, RecursionError):
        return Found(stored, name, "its value cannot be read")
    if not isinstance(value, dict):
        return Found(stored, name, "its value is no object")
    return Found(stored, name, _row(stored, rule, scope, value, name))


def _row(stored: Stored, rule: Rule, scope: Mapping[str, str], value: dict[str, Any], name: str) -> Row:
    row: Row = {**value, "_id": name, **scope}
    if "memory_id" in value and "{memory_id}" not in rule.namespace and "memory_id" not in rule.scope:
        row["memory_id"] = value["memory_id"]
    if stored.fields is not None:
        row |= json.loads(stored.fields)
    _set_text(row, value, rule)
    if rule.ids == "namespace:key":
        cited = _cited_keys(row)
        if cited and "linked_source_ids" not in row:
            row["linked_source_ids"] = [record_id(rule, stored.prefix, key) for key in cited]
    _set_times(row, stored)
    return row


def _set_text(row: Row, value: Mapping[str, Any], rule: Rule) -> None:
    """Where the rule names the text it is the content; a value without any text is its own, as JSON."""
    if rule.text:
        found: Any = value
        for step in rule.text.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        if isinstance(found, str) and found:
            row["content"] = found
            return
    if not display_text(row):
        row["text"] = json.dumps(value, ensure_ascii=False, sort_keys=True)


def _set_times(row: Row, stored: Stored) -> None:
    """The columns' times where the value has none. A row that was put again counts as used then, if nothing counts."""
    if stored.created_at is not None and not any(row.get(name) is not None for name in _CREATION):
        row["created_at"] = _iso(stored.created_at)
    if stored.updated_at is None:
        return
    row.setdefault("updated_at", _iso(stored.updated_at))
    moved = stored.created_at is not None and stored.updated_at > stored.created_at
    if moved and not any(row.get(name) is not None for name in _ACCESS):
        row["last_accessed_at"] = _iso(stored.updated_at)


def _iso(instant: int) -> str:
    return from_microseconds(instant).isoformat()


def _cited_keys(row: Mapping[str, Any]) -> list[str]:
    """Keys of the same namespace that the row cites by the key alone, as agents do."""
    metadata = row.get("metadata")
    holders = (row, metadata) if isinstance(metadata, Mapping) else (row,)
    cited: set[str] = set()
    for holder in holders:
        for name in _CITING.intersection(holder):
            value = holder[name]
            for item in value if isinstance(value, list) else (value,):
                text = canonical_id(item)
                if text is not None and is_unicode(text):
                    cited.add(text)
    return sorted(cited)


def by_id(found: list[Found], memory_type: str) -> dict[str, Found | Unreadable]:
    """Rows by record id; two rows of one id are none (keys that the mapping says are unique and are not)."""
    answer: dict[str, Found | Unreadable] = {}
    for item in found:
        key = RecordKey(memory_type, item.record_id)
        if item.record_id in answer:
            answer[item.record_id] = Unreadable(key, "duplicate id: the key is in two namespaces")
        elif isinstance(item.row, str):
            answer[item.record_id] = Unreadable(key, item.row)
        else:
            answer[item.record_id] = item
    return answer


def encoded(row: Mapping[str, Any]) -> str:
    """Fields as JSON text that PostgreSQL can hold.

    Raises:
        ValueError: a value that JSON or jsonb cannot say; without its text.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        raise ValueError("a value that JSON cannot say") from None
    if "\\u0000" in text:
        raise ValueError("a NUL, which PostgreSQL's text cannot hold")
    return text
