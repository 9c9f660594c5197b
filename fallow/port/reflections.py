"""Reflections as a store holds them: which summaries are ours to read as such, and which rows they cover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fallow.model.keys import Row, canonical_id
from fallow.port.protocol import Provider

SUMMARIES: Final = "summaries"
REFLECTION: Final = "reflection"
#: In place of a plan's id: what suppresses a reflection whose model found nothing worth keeping (SPEC §5.3).
NOTHING_KEPT: Final = "reflection:nothing-worth-keeping"


def read_reflections(provider: Provider) -> dict[str, Row]:
    """The store's reflections by record id, active or suppressed: a suppressed one still covers its rows (SPEC §5.1).

    Raises:
        StoreUnreadableError: the listing failed or was cut short.
    """
    return {
        str(row["_id"]): row
        for row in provider.find(SUMMARIES)
        if str(row.get("summary_type") or "").strip().lower() == REFLECTION
    }


def covered_ids(reflection: Mapping[str, Any]) -> tuple[str, ...]:
    """The rows that a reflection covers, in their one form."""
    for name in ("source_message_ids", "covered_message_ids"):
        value = reflection.get(name)
        if isinstance(value, list | tuple):
            return tuple(text for item in value if (text := canonical_id(item)) is not None)
    return ()
