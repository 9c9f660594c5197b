"""What is hidden (SPEC §9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from fallow.judgement.score import in_scope
from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from fallow.plans.storage import standings_of
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import chunks, fetch_keys


@dataclass(frozen=True, slots=True)
class Suppressed:
    """One suppressed record, for listings (SPEC §9). Times are as the store holds them.

    ``standing`` says how far the approver's name can be trusted, as its plan's decision was recorded.
    """

    record_id: str
    memory_type: str
    agent_id: str | None
    memory_id: str | None
    suppressed_by: str | None
    suppressed_at: str | None
    reason: str | None
    approver: str | None
    standing: str | None = None

    def to_json(self) -> dict[str, Any]:
        """SPEC §16.1's row."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def suppressed_records(
    provider: Provider, scope: Scope | None = None, memory_types: Iterable[str] = PRIMARY_TYPES
) -> list[Suppressed]:
    """What is hidden in a scope, the latest suppression first (SPEC §9).

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    columns = ("record_id", "agent_id", "memory_id", "user_id", "thread_id", "retention_state")
    keys: list[RecordKey] = []
    for memory_type in memory_types:
        for batch in provider.scan(memory_type, columns):
            hidden = batch.frame.filter(in_scope(scope or Scope()), pl.col("retention_state") == "suppressed")
            keys += [RecordKey(memory_type, name) for name in hidden.get_column("record_id").to_list()]
    found: list[Suppressed] = []
    standings = standings_of(provider) if keys else {}
    for chunk in chunks(keys, provider.capabilities.batch_size):
        for key, row in fetch_keys(provider, chunk).items():
            if isinstance(row, Unreadable):
                continue

            def text(name: str, row: Mapping[str, Any] = row) -> str | None:
                value = row.get(name)
                return None if value is None else str(value)

            found.append(
                Suppressed(
                    record_id=key.record_id,
                    memory_type=key.memory_type,
                    agent_id=text("agent_id"),
                    memory_id=text("memory_id"),
                    suppressed_by=text("suppressed_by"),
                    suppressed_at=text("suppressed_at"),
                    reason=text("suppression_reason"),
                    approver=text("suppression_approver"),
                    standing=standings.get(text("suppressed_by") or ""),
                )
            )
    found.sort(key=lambda item: (item.memory_type, item.record_id))
    found.sort(key=lambda item: item.suppressed_at or "", reverse=True)
    return found
