"""Names in a scope that no record has, and the nearest that some record has: a slip of the pen is told, not obeyed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from fallow.model.scope import Scope

#: Names that are suggested, and how many of a store's names are looked through for them.
_SUGGESTED: Final = 3
_LOOKED_THROUGH: Final = 20_000


def names_without_records(frames: Mapping[str, pl.DataFrame], scope: Scope) -> list[dict[str, Any]]:
    """Each name of a scope that no record of the store has, as {"field", "value", "nearest"}."""
    named = [("agent_id", scope.agent_id), ("user_id", scope.user_id), ("thread_id", scope.thread_id)]
    named += [("memory_id", name) for name in scope.memory_ids or ()]
    missing: list[dict[str, Any]] = []
    for column, value in named:
        if value is None or any((frame[column] == value).any() for frame in frames.values()):
            continue
        known = pl.concat([frame[column] for frame in frames.values()]).drop_nulls().unique().sort()
        names = known.head(_LOOKED_THROUGH).to_list()
        nearest = difflib.get_close_matches(value, names, n=_SUGGESTED, cutoff=0.0)
        missing.append({"field": column, "value": value, "nearest": nearest})
    return missing
