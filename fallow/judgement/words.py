"""The reason of a planned record in words: said here once (SPEC §6.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def retention_reason(entry: Mapping[str, Any], min_retention: float) -> str:
    """Why a record is proposed, in words (SPEC §6.6)."""
    recalled = entry["access_count"]
    times = "never recalled" if recalled == 0 else ("recalled once" if recalled == 1 else f"recalled {recalled} times")
    return (
        f"retention {entry['retention']:.3f} is below {min_retention:g}: importance {entry['importance']:.2f}, "
        f"{times}, recency {entry['recency']:.3f}, {entry['age_days']:.0f} days old"
    )
