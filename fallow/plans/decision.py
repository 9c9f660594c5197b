"""What a named human decided about a plan (SPEC §7.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fallow.model.errors import PlanAlteredError
from fallow.model.keys import RecordKey
from fallow.model.times import iso, parse_time

Verdict = Literal["approved", "rejected", "expired", "superseded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided about a plan, as it was recorded before anything was acted on (SPEC §7.3).

    ``standing`` says how far the name can be trusted: ``claimed``, ``claimed, no approvers configured``,
    or ``signed``; ``signature`` is then the signed approval itself, which applying verifies again.
    """

    plan_id: str
    verdict: Verdict
    by: str
    reason: str
    decided_at: int
    document_sha256: str
    standing: str
    leave_out: tuple[RecordKey, ...] = ()
    count: int | None = None
    signature: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the decision's row carries it."""
        return {
            **({} if self.signature is None else {"signature": self.signature}),
            "plan_id": self.plan_id,
            "decision": self.verdict,
            "by": self.by,
            "reason": self.reason,
            "decided_at": iso(self.decided_at),
            "document_sha256": self.document_sha256,
            "standing": self.standing,
            "leave_out": [list(key) for key in self.leave_out],
            "count": self.count,
        }


def read_decision(content: Mapping[str, Any]) -> Decision:
    return Decision(
        plan_id=str(content["plan_id"]),
        verdict=content["decision"],
        by=str(content["by"]),
        reason=str(content.get("reason") or ""),
        decided_at=read_instant(content["decided_at"]),
        document_sha256=str(content["document_sha256"]),
        standing=str(content.get("standing") or "claimed"),
        leave_out=tuple(RecordKey(*pair) for pair in content.get("leave_out") or ()),
        count=content.get("count"),
        signature=None if content.get("signature") is None else str(content["signature"]),
    )


def read_instant(value: Any) -> int:
    instant = parse_time(value)
    if instant is None:
        raise PlanAlteredError("a stored plan has a time that cannot be read", hint="plan again")
    return instant
