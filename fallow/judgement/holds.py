"""Which records a hold keeps (SPEC §6.3): pure, over a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from fallow.judgement.score import in_scope
from fallow.model.keys import RecordKey
from fallow.model.scope import Scope
from fallow.model.times import iso


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One hold and what became of it. Times are microseconds; ``expires_at`` None: until it is released.

    Attributes:
        scope: whose records; nothing named means everybody's.
        memory_types: only of these types; empty means all.
        records: only these; empty means all of the scope and types.
    """

    hold_id: str
    scope: Scope
    memory_types: tuple[str, ...]
    records: tuple[RecordKey, ...]
    owner: str
    reason: str
    placed_at: int
    expires_at: int | None
    released_at: int | None = None
    released_by: str | None = None
    release_reason: str | None = None

    def active(self, at: int) -> bool:
        """Whether it holds at an instant; one placed after that instant holds too."""
        return self.released_at is None and (self.expires_at is None or at < self.expires_at)

    @property
    def label(self) -> str:
        """What it holds, in a few words."""
        if self.records:
            names = ", ".join(f"{key.memory_type}:{key.record_id}" for key in self.records[:3])
            return names + (f" and {len(self.records) - 3} more" if len(self.records) > 3 else "")
        return ", ".join([self.scope.label, *self.memory_types])

    def to_json(self, at: int) -> dict[str, Any]:
        """For listings."""
        return {
            "hold_id": self.hold_id,
            "active": self.active(at),
            "scope": self.scope.to_json(),
            "memory_types": list(self.memory_types),
            "records": [list(key) for key in self.records],
            "owner": self.owner,
            "reason": self.reason,
            "placed_at": iso(self.placed_at),
            "expires_at": None if self.expires_at is None else iso(self.expires_at),
            "released_at": None if self.released_at is None else iso(self.released_at),
            "released_by": self.released_by,
            "release_reason": self.release_reason,
        }


def held_by(hold: Hold, memory_type: str) -> pl.Expr | None:
    """Which records of a type a hold keeps, as an expression over id and scope; None: none of them.

    Its scope is read as a plan's (SPEC §6.10): what a plan of it would take, the hold keeps.
    """
    if hold.memory_types and memory_type not in hold.memory_types:
        return None
    rule = pl.lit(True)
    if hold.records:
        ids = [key.record_id for key in hold.records if key.memory_type == memory_type]
        if not ids:
            return None
        rule = pl.col("record_id").is_in(ids)
    return rule & in_scope(hold.scope)


def held_ids(frames: Mapping[str, pl.DataFrame], holds: Iterable[Hold]) -> dict[str, frozenset[str]]:
    """By memory type, the ids that any of these holds keeps, over a store as planning reads it."""
    found: dict[str, frozenset[str]] = {}
    holds = tuple(holds)
    for memory_type, frame in frames.items():
        rules = [rule for hold in holds if (rule := held_by(hold, memory_type)) is not None]
        if rules:
            found[memory_type] = frozenset(frame.filter(pl.any_horizontal(rules)).get_column("record_id").to_list())
    return found
