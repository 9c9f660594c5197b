"""Plans that the agents' own control plane made and applied, as far as their rows say (SPEC §9, §10; STORES.md).

MemoRizz writes a ``learning_tombstone`` row for every record that a plan of its own suppressed. Such a plan has no
document here and nothing of it can be approved or applied; it is listed, and what it hid can be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES, TYPE_ALIASES
from fallow.model.times import iso, parse_time
from fallow.port.journal import SHARED, content_of
from fallow.port.protocol import Provider

TOMBSTONE: Final = "learn-tomb-"
#: How such a plan is marked wherever it is listed.
APPLIED_BY: Final = "MemoRizz"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsPlan:
    """What one plan of the agents' own control plane suppressed; ``approved_at`` microseconds, None if not known."""

    plan_id: str
    agent_id: str | None
    approved_by: str | None
    approved_at: int | None
    reason: str | None
    keys: tuple[RecordKey, ...]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``: beside stored plans, marked by ``applied_by``."""
        return {
            "plan_id": self.plan_id,
            "state": "applied",
            "applied_by": APPLIED_BY,
            "agent_id": self.agent_id,
            "approved_by": self.approved_by,
            "approved_at": None if self.approved_at is None else iso(self.approved_at),
            "reason": self.reason,
            "records": len(self.keys),
        }


def agents_plans(provider: Provider) -> dict[str, AgentsPlan]:
    """Every plan that tombstones name, by id, the latest first.

    Raises:
        StoreUnreadableError: the listing failed.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in provider.find(SHARED, TOMBSTONE):
        content = content_of(row)
        if isinstance(content.get("plan_id"), str) and content.get("target_id") is not None:
            rows.setdefault(content["plan_id"], []).append(content)
    plans = [_read(plan_id, contents) for plan_id, contents in rows.items()]
    plans.sort(key=lambda plan: (-(plan.approved_at or 0), plan.plan_id))
    return {plan.plan_id: plan for plan in plans}


def _read(plan_id: str, contents: list[dict[str, Any]]) -> AgentsPlan:
    first = contents[0]
    keys = {_key(content) for content in contents}
    return AgentsPlan(
        plan_id=plan_id,
        agent_id=_text(first.get("agent_id")),
        approved_by=_text(first.get("approved_by")),
        approved_at=parse_time(first.get("approved_at")),
        reason=_text(first.get("operator_reason")),
        keys=tuple(sorted(keys)),
    )


def _key(content: dict[str, Any]) -> RecordKey:
    kind = str(content.get("target_type"))
    return RecordKey(TYPE_ALIASES.get(kind, kind), str(content["target_id"]))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def keys_suppressed_by(provider: Provider, plan_id: str) -> list[RecordKey]:
    """The records that name this plan in ``suppressed_by``, and those that its tombstones name (SPEC §9)."""
    plan = agents_plans(provider).get(plan_id)
    keys = dict.fromkeys(plan.keys if plan is not None else ())
    for memory_type in PRIMARY_TYPES:
        for batch in provider.scan(memory_type, ("record_id", "retention_state", "suppressed_by")):
            named = pl.col("suppressed_by") == plan_id
            found = batch.frame.filter(named, pl.col("retention_state") == "suppressed").get_column("record_id")
            keys.update((RecordKey(memory_type, name), None) for name in found.to_list())
    return [key for key in keys if key.memory_type in PRIMARY_TYPES]
