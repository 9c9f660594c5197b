"""Reading what people are shown: excerpts of planned records (SPEC §14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fallow.model.keys import RecordKey
from fallow.model.record import display_text
from fallow.plans.plan import PlanEntry
from fallow.port.protocol import Provider
from fallow.port.reading import fetch_keys

#: An excerpt is at most this long.
MAX_EXCERPT: Final = 120


def excerpts(provider: Provider, entries: Sequence[PlanEntry]) -> dict[RecordKey, str]:
    """The beginning of each record's text, one line; only where ``approval.show_text`` allows it."""
    texts: dict[RecordKey, str] = {}
    for key, row in fetch_keys(provider, [entry.key for entry in entries]).items():
        if isinstance(row, dict):
            flat = " ".join(display_text(row).split())
            texts[key] = flat if len(flat) <= MAX_EXCERPT else flat[: MAX_EXCERPT - 1] + "…"
    return texts
