"""The canonical record: one stored memory as fallow understands it (SPEC §1).

:func:`read_record` turns a store's row, however it is shaped, into a :class:`Record`. It never raises on
a row's content: a value that cannot be used counts as absent and is named in ``breaches`` (SPEC §1.2).
Providers hand out frames in :data:`SCHEMA`, whose columns are the record's fields.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Final, Literal

from fallow.model.keys import MISSING, canonical_id, is_unicode
from fallow.model.times import parse_time
from fallow.model.values import plain

if TYPE_CHECKING:
    import polars as pl


#: The memory types that may be planned and suppressed; nothing else ever is.
PRIMARY_TYPES: Final = (
    "conversation_memory",
    "knowledge_base",
    "entity_memory",
    "summaries",
    "workflow_memory",
)
#: Older stores' names of primary types.
TYPE_ALIASES: Final[Mapping[str, str]] = {"long_term_memory": "knowledge_base"}

RetentionState = Literal["active", "suppressed", "sealed"]

_CREATED: Final = ("timestamp", "created_at", "createdAt")
_ACCESSED: Final = ("last_accessed_at", "last_accessed", "last_recalled_at")
_COUNTS: Final = ("access_count", "recall_count", "hit_count")
#: Fields whose values are ids of records that this one is built on (SPEC §1).
CITING_FIELDS: Final = (
    "source_id",
    "source_ids",
    "source_record_ids",
    "parent_id",
    "parent_source_id",
    "supersedes",
    "supersedes_id",
    "derived_from",
    "source_message_ids",
    "covered_message_ids",
    "message_ids",
    "linked_source_ids",
    "duplicate_of",
)
#: Of these, the fields that name what a record takes the place of.
SUPERSEDING_FIELDS: Final = ("supersedes", "supersedes_id")
_SUPPRESSION: Final = (
    "suppressed_by",
    "suppressed_at",
    "suppression_reason",
    "suppression_approver",
    "suppression_note",
    "suppressed_from",
    "unsuppressed_by",
    "unsuppressed_at",
    "unsuppression_note",
)
#: What a record says: any of these changing means that the record was edited (SPEC §6.6).
_CONTENT: Final = (
    "content",
    "text",
    "summary",
    "instruction",
    "instructions",
    "name",
    "description",
    "attributes",
    "relations",
    "steps",
    "outcome",
    "user_query",
    "query_text",
    "query",
)
#: Every top-level field that a decision rests on: the requirements of a conditional write.
DECISION_FIELDS: Final = (
    *_CREATED,
    *_ACCESSED,
    *_COUNTS,
    "importance",
    "importance_source",
    "pinned",
    "verified",
    "tags",
    "retention_state",
    "metadata",
    *CITING_FIELDS,
    *_CONTENT,
    "suppressed_by",
    "suppressed_from",
    "unsuppressed_by",
    "unsuppressed_at",
    "summary_id",
)

_TRUE_WORDS: Final = frozenset({"true", "1", "yes", "on"})
_MAX_COUNT: Final = 2**53
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One stored memory. Times are microseconds since the epoch, UTC; ``None`` means not known.

    Attributes:
        importance: the stored rating in 0..1, or None where there is none that can be used.
        citations: ids of records this one is built on, without its own id, sorted.
        supersedes: of these, the ids that it takes the place of and is not built on by any other field.
        text: what a person would read; empty where there is nothing.
        breaches: names of the fields' breaches, such as ``importance_out_of_range``.
    """

    record_id: str
    memory_type: str
    agent_id: str | None = None
    memory_id: str | None = None
    user_id: str | None = None
    thread_id: str | None = None
    created_at: int | None = None
    last_accessed_at: int | None = None
    access_count: int = 0
    importance: float | None = None
    importance_source: str | None = None
    pinned: bool = False
    verified: bool = False
    retention_state: str = "active"
    suppressed_by: str | None = None
    unsuppressed_at: int | None = None
    summary_id: str | None = None
    citations: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()
    role: str | None = None
    text: str = ""
    breaches: tuple[str, ...] = ()


#: Breaches after which a row's identity, owner or state is not known: it is never planned (SPEC §13, row-level must).
QUARANTINING: Final = frozenset(
    {
        "retention_state_unknown",
        "agent_id_not_text",
        "memory_id_not_text",
        "user_id_not_text",
        "thread_id_not_text",
    }
)


def schema() -> dict[str, pl.DataType]:
    """The columns a scan can be asked for, with their Polars types; the whole schema is given at every construction."""
    import polars as pl

    text, integer, flag = pl.String(), pl.Int64(), pl.Boolean()
    return {
        "record_id": text,
        "agent_id": text,
        "memory_id": text,
        "user_id": text,
        "thread_id": text,
        "created_at": integer,
        "last_accessed_at": integer,
        "access_count": integer,
        "importance": pl.Float64(),
        "importance_source": text,
        "pinned": flag,
        "verified": flag,
        "retention_state": text,
        "suppressed_by": text,
        "unsuppressed_at": integer,
        "summary_id": text,
        "citations": pl.List(pl.String()),
        "supersedes": pl.List(pl.String()),
        "breaches": pl.List(pl.String()),
        "role": text,
        "text": text,
        "embedding": pl.List(pl.Float32()),
    }


#: Columns that planning reads: never text, never embeddings.
PLANNING_COLUMNS: Final = (
    "record_id",
    "agent_id",
    "memory_id",
    "user_id",
    "thread_id",
    "created_at",
    "last_accessed_at",
    "access_count",
    "importance",
    "pinned",
    "verified",
    "retention_state",
    "suppressed_by",
    "unsuppressed_at",
    "citations",
    "supersedes",
    "breaches",
)


def _text_or_none(value: Any) -> str | None:
    """Stored text with lone surrogates replaced, which JSON can say and no frame, file or network can hold."""
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def read_flag(value: Any) -> bool:
    """A flag as stores spell it: true, 1, "true", "yes", "on" in any case."""
    if isinstance(value, str):
        return value.strip().lower() in _TRUE_WORDS
    return value is True or _number(value) == 1


def _mapping(value: Any) -> Mapping[str, Any]:
    """A nested object, also where a store keeps it as JSON text."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}
    return {}


def _number(value: Any) -> float | None:
    """A stored number, or None where it is no finite number (booleans are none, numeric text is one)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        value = float(text) if _NUMBER.match(text) else math.nan
    elif type(value).__name__ in {"Decimal", "Decimal128"}:
        return _number(str(value))
    elif type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return _number(value.item())
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _read_importance(candidates: Iterable[Any], breaches: list[str]) -> float | None:
    for value in candidates:
        if _absent(value):
            continue
        number = _number(value)
        if number is None:
            breaches.append("importance_not_a_number")
        elif not 0.0 <= number <= 1.0:
            breaches.append("importance_out_of_range")
        else:
            return number + 0.0
    return None


def _read_count(row: Mapping[str, Any], breaches: list[str]) -> int:
    for name in _COUNTS:
        value = row.get(name)
        if _absent(value):
            continue
        number = _number(value)
        if number is None:
            breaches.append("access_count_not_a_number")
        elif number < 0:
            breaches.append("access_count_negative")
        elif number != int(number) or number > _MAX_COUNT:
            breaches.append("access_count_not_whole")
        else:
            return int(number)
    return 0


def _read_created(row: Mapping[str, Any], content: Mapping[str, Any], zone: tzinfo, breaches: list[str]) -> int | None:
    for name in _CREATED:
        value = row.get(name)
        if value is None or _absent(value):
            continue
        instant = parse_time(value, zone)
        if instant is not None:
            return instant
        breaches.append("created_at_unparsable")
    value = content.get("timestamp") if content else None
    if not _absent(value):
        instant = parse_time(value, zone)
        if instant is not None:
            return instant
        breaches.append("created_at_unparsable")
    return None


def _read_accessed(row: Mapping[str, Any], breaches: list[str]) -> int | None:
    latest: int | None = None
    for name in _ACCESSED:
        value = row.get(name)
        if _absent(value):
            continue
        instant = parse_time(value)
        if instant is None:
            breaches.append("last_accessed_at_unparsable")
        elif latest is None or instant > latest:
            latest = instant
    return latest


def _read_text_field(row: Mapping[str, Any], names: Sequence[str], canonical: str, breaches: list[str]) -> str | None:
    for name in names:
        value = row.get(name)
        if _absent(value):
            continue
        text = canonical_id(value)
        if text is not None and is_unicode(text):
            return text
        breaches.append(f"{canonical}_not_text")
    return None


def _read_state(
    row: Mapping[str, Any], content: Mapping[str, Any], metadata: Mapping[str, Any], breaches: list[str]
) -> str:
    for source in (row, content, metadata):
        value = source.get("retention_state")
        if _absent(value):
            continue
        state = value.strip().lower() if isinstance(value, str) else ""
        if state in {"active", "suppressed", "sealed"}:
            return state
        breaches.append("retention_state_unknown")
        return "active"
    return "active"


def _tagged(word: str, *holders: Mapping[str, Any]) -> bool:
    for holder in holders:
        tags = holder.get("tags")
        if isinstance(tags, str):
            tags = re.split(r"[,;\s\[\]\"']+", tags)
        if isinstance(tags, Mapping):
            tags = [name for name, value in tags.items() if read_flag(value)]
        if isinstance(tags, list | tuple | set) and any(
            isinstance(tag, str) and tag.strip().lower() == word for tag in tags
        ):
            return True
    return False


def read_superseded(record_id: str, *holders: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of the records that this one takes the place of, by its fields alone, sorted (SPEC §6.3).

    Args:
        record_id: the record's own, which it never supersedes.
        holders: the row, and its ``metadata``.
    """
    return _read_ids(SUPERSEDING_FIELDS, record_id, *holders)


def _read_only_superseded(record_id: str, *holders: Mapping[str, Any]) -> tuple[str, ...]:
    named = read_superseded(record_id, *holders)
    if not named:
        return named
    others = _read_ids([name for name in CITING_FIELDS if name not in SUPERSEDING_FIELDS], record_id, *holders)
    return tuple(name for name in named if name not in others)


def _read_ids(fields: Sequence[str], record_id: str, *holders: Mapping[str, Any]) -> tuple[str, ...]:
    cited: set[str] = set()
    for holder in holders:
        for name in fields:
            value = holder.get(name)
            if isinstance(value, str) and value.lstrip().startswith("["):
                try:
                    parsed = json.loads(value)
                except (ValueError, RecursionError):
                    parsed = None
                if isinstance(parsed, list):
                    value = parsed
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, Mapping):
                    item = next((item[key] for key in ("record_id", "_id", "id") if item.get(key) is not None), None)
                text = canonical_id(item)
                if text is not None and is_unicode(text):
                    cited.add(text)
    cited.discard(record_id)
    return tuple(sorted(cited))


def _attribute_pinned(row: Mapping[str, Any]) -> bool:
    """An entity with a pinned attribute is pinned (STORES.md, entity)."""
    attributes = row.get("attributes")
    if isinstance(attributes, str) and '"pinned"' in attributes:
        try:
            attributes = json.loads(attributes)
        except (ValueError, RecursionError):
            return False
    if isinstance(attributes, Mapping):
        attributes = list(attributes.values())
    return isinstance(attributes, list | tuple) and any(
        isinstance(item, Mapping) and read_flag(item.get("pinned")) for item in attributes
    )


def read_record(row: Mapping[str, Any], memory_type: str, record_id: str, naive_zone: tzinfo = UTC) -> Record:
    """A store's row as a record (SPEC §1).

    Args:
        row: the row as the provider decoded it; never changed.
        memory_type: where it was stored.
        record_id: its canonical id, as the provider renders the key.
        naive_zone: the zone of naive creation times of this memory type (SPEC §1.1).

    Never raises on content: what cannot be used is absent and named in ``breaches``.
    """
    breaches: list[str] = []
    content = _mapping(row.get("content"))
    metadata = _mapping(row.get("metadata"))
    return Record(
        record_id=record_id,
        memory_type=memory_type,
        agent_id=_read_text_field(row, ("agent_id", "owner_agent_id"), "agent_id", breaches),
        memory_id=_read_text_field(row, ("memory_id",), "memory_id", breaches),
        user_id=_read_text_field(row, ("user_id",), "user_id", breaches),
        thread_id=_read_text_field(row, ("thread_id", "conversation_id"), "thread_id", breaches),
        created_at=_read_created(row, content, naive_zone, breaches),
        last_accessed_at=_read_accessed(row, breaches),
        access_count=_read_count(row, breaches),
        importance=_read_importance((row.get("importance"), metadata.get("importance")), breaches),
        importance_source=_text_or_none(row.get("importance_source")),
        pinned=read_flag(row.get("pinned"))
        or read_flag(metadata.get("pinned"))
        or _tagged("pinned", row, metadata)
        or (memory_type == "entity_memory" and _attribute_pinned(row)),
        verified=read_flag(row.get("verified"))
        or read_flag(metadata.get("verified"))
        or _tagged("verified", row, metadata),
        retention_state=_read_state(row, content, metadata, breaches),
        suppressed_by=_text_or_none(row.get("suppressed_by")),
        unsuppressed_at=parse_time(row.get("unsuppressed_at")),
        summary_id=_read_text_field(row, ("summary_id",), "summary_id", breaches),
        citations=_read_ids(CITING_FIELDS, record_id, row, metadata),
        supersedes=_read_only_superseded(record_id, row, metadata),
        role=_text_or_none(row.get("role")),
        text=read_text(row),
        breaches=tuple(dict.fromkeys(breaches)),
    )


def display_text(row: Mapping[str, Any]) -> str:
    """What a person would read in a row: its content, else the first of its other text fields (STORES.md)."""
    content = row.get("content")
    if type(content) is str and content and content[0] not in "{ \t\r\n":
        return content
    nested = _mapping(content)
    for holder in (nested, row):
        for name in (
            "content",
            "text",
            "summary",
            "instruction",
            "instructions",
            "description",
            "user_query",
            "query_text",
            "query",
        ):
            value = holder.get(name)
            if isinstance(value, str) and value.strip():
                return value
            if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
                return "\n".join(value)
    parts = [row["name"]] if isinstance(row.get("name"), str) else []
    attributes = row.get("attributes")
    if isinstance(attributes, list | tuple):
        parts += [
            f"{item.get('name')}: {item.get('value')}"
            for item in attributes
            if isinstance(item, Mapping) and item.get("value") is not None
        ]
    return "\n".join(parts)


def read_text(row: Mapping[str, Any]) -> str:
    """A row's text as a :class:`Record` has it: :func:`display_text` without lone surrogates."""
    return _text_or_none(display_text(row)) or ""


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def basis(row: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """What a decision about this record rests on, part by part (SPEC §6.6).

    The parts are kept beside the fingerprint in a plan's entry so that a later difference can be named:
    ``content`` and ``citations`` are digests, the others plain values; last_accessed_at in milliseconds.
    Fields unknown to fallow never enter.
    """
    content = {name: plain(row[name]) for name in _CONTENT if not _absent(row.get(name))}
    if isinstance(content.get("content"), dict):
        content["content"] = {k: v for k, v in content["content"].items() if k in {*_CONTENT, "role"}}
    accessed = record.last_accessed_at
    return {
        "content": _digest(content)[:32],
        "citations": _digest(list(record.citations))[:32],
        "importance": record.importance,
        "access_count": record.access_count,
        "last_accessed_at": None if accessed is None else accessed // 1000,
        "pinned": record.pinned,
        "verified": record.verified,
        "retention_state": record.retention_state,
        "unsuppressed_at": None if record.unsuppressed_at is None else record.unsuppressed_at // 1000,
    }


def fingerprint(parts: Mapping[str, Any]) -> str:
    """The SHA-256 of a record's :func:`basis`, 64 hex digits."""
    return _digest(dict(parts))


def requirements(row: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a write that must land on exactly this row's decision fields (DESIGN §5)."""
    return {name: row.get(name, MISSING) for name in DECISION_FIELDS}


def frame_of(records: Iterable[Record], columns: Sequence[str], embeddings: Sequence[Any] = ()) -> pl.DataFrame:
    """Records as a frame with exactly ``columns`` of :func:`schema`, in that order."""
    import polars as pl

    types = schema()
    rows = list(records)
    data: dict[str, Any] = {
        name: (list(embeddings) if name == "embedding" else [getattr(record, name) for record in rows])
        for name in columns
    }
    return pl.DataFrame(data, schema={name: types[name] for name in columns})


@dataclass(slots=True)
class BreachCounts:
    """Breaches by name, with the first ids of each (SPEC §1.2)."""

    counts: dict[str, int] = field(default_factory=dict)
    first_ids: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, record_id: str) -> None:
        """Counts one breach; the first ten ids of each name are kept."""
        self.counts[name] = self.counts.get(name, 0) + 1
        ids = self.first_ids.setdefault(name, [])
        if len(ids) < 10:
            ids.append(record_id)


@dataclass(frozen=True, slots=True)
class RankingSignals:
    """The few fields of a row that ranking reads (SPEC §2); as in :class:`Record`, read without the rest."""

    thread_id: str | None
    created_at: int | None
    last_accessed_at: int | None
    importance: float | None
    retention_state: str
    breaches: tuple[str, ...]


def read_ranking_signals(row: Mapping[str, Any], naive_zone: tzinfo = UTC) -> RankingSignals:
    """What ranking needs of a row, by the same rules as :func:`read_record`; never raises on content."""
    breaches: list[str] = []
    content = _mapping(row.get("content"))
    metadata = _mapping(row.get("metadata"))
    return RankingSignals(
        thread_id=_read_text_field(row, ("thread_id", "conversation_id"), "thread_id", breaches),
        created_at=_read_created(row, content, naive_zone, breaches),
        last_accessed_at=_read_accessed(row, breaches),
        importance=_read_importance((row.get("importance"), metadata.get("importance")), breaches),
        retention_state=_read_state(row, content, metadata, breaches),
        breaches=tuple(dict.fromkeys(breaches)),
    )


def read_mapping(value: Any) -> Mapping[str, Any]:
    """A nested object, also where a store keeps it as JSON text; empty where it is none."""
    return _mapping(value)


def read_number(value: Any) -> float | None:
    """A finite number as a store holds it, numeric text and decimals included; booleans are none."""
    return _number(value)
