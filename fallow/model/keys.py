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
