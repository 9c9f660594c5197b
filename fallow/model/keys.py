"""What names a stored record, and what stands for a field that is not there (SPEC §1)."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

#: A stored row: the store's own fields and values, the key under ``_id``. Never written back whole.
Row = dict[str, Any]


class RecordKey(NamedTuple):
    """What names a record in a store: its memory type and its canonical record id (SPEC §1)."""

    memory_type: str
    record_id: str


class _Missing(Enum):
    MISSING = "missing"


#: In :attr:`Patch.expected`: the field must not be present at all (present with null is something else).
MISSING: Final = _Missing.MISSING


def canonical_id(value: Any) -> str | None:
    """The one text form of an id as a store or a citation gives it (SPEC §1), or None where it is none.

    ObjectIds become 24 lower-case hex digits, UUIDs and RAW(16) UUID text, whole numbers their digits,
    text stays byte for byte as it is.
    """
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        if len(value) == 16:
            digits = value.hex()
            return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return value.hex() if len(value) == 12 else None
    if type(value).__name__ in {"ObjectId", "UUID"}:
        return str(value).lower()
    return None


def is_unicode(text: str) -> bool:
    """Whether the text can be stored and compared everywhere: no lone surrogates, no NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
