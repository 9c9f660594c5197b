"""A review of one plan: the row that is looked at, what is left out, the decision (SPEC §7, §16 ``review``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import polars as pl

from fallow.acting.deciding import decide, sign_decision
from fallow.model.keys import RecordKey
from fallow.model.record import display_text
from fallow.model.settings import ApprovalConfig
from fallow.plans.decision import Decision
from fallow.plans.plan import PlanEntry
from fallow.port.protocol import Provider
from fallow.port.reading import fetch_keys
from fallow.usecases.desk import MAX_EXCERPT, Desk

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_CONVERSATION = "conversation_memory"


@dataclass(slots=True)
class Review:
    """One approver's way through a plan. Nothing of it is stored before :meth:`decide`.

    Attributes:
        desk: the plan with all that is known of it.
        rows: every planned record, the most important first: what would be missed stands on top.
        at: the row that is looked at.
        left_out: what the approver spares.
    """

    desk: Desk
    rows: tuple[PlanEntry, ...] = ()
    at: int = 0
    left_out: set[RecordKey] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rows = tuple(sorted(self.desk.plan.entries, key=lambda entry: (-entry.importance, entry.key)))

    @property
    def row(self) -> PlanEntry:
        """The row that is looked at."""
        return self.rows[self.at]

    def move(self, by: int) -> None:
        """Goes on or back; stays at the ends."""
        self.at = min(max(0, self.at + by), len(self.rows) - 1)

    def toggle(self) -> bool:
        """Leaves the row out, or takes that back; whether it is left out now."""
        self.left_out ^= {self.row.key}
        return self.row.key in self.left_out

    def decide(
        self,
        provider: Provider,
        verdict: Literal["approved", "rejected"],
        *,
        by: str,
        reason: str,
        count: int | None,
        approval: ApprovalConfig,
        key: Ed25519PrivateKey | None,
        now: int,
    ) -> Decision:
        """Records the decision, signed where a key is given. Raises as :func:`fallow.acting.deciding.decide`."""
        plan_id = self.desk.plan.plan_id
        leave_out = sorted(self.left_out) if verdict == "approved" else []
        signature = None
        if key is not None:
            signature = sign_decision(
                provider,
                plan_id,
                verdict=verdict,
                approved_by=by,
                reason=reason,
                leave_out=leave_out,
                key=key,
                now=now,
            )
        return decide(
            provider,
            plan_id,
            verdict=verdict,
            approved_by=by,
            reason=reason,
            leave_out=leave_out,
            count=count,
            approval=approval,
            now=now,
            signature=signature,
        )


@dataclass(frozen=True, slots=True)
class Around:
    """Excerpts of a planned record and of the turns before and after it; "" where there is none."""

    before: str
    text: str
    after: str


class Texts:
    """Excerpts of planned records and their neighbours; the listing is read once, when first asked.

    Only where texts may be shown (SPEC §14).
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._turns: Mapping[tuple[str | None, str], list[str]] | None = None

    def around(self, entry: PlanEntry) -> Around:
        """The record, and what stands beside it in its conversation."""
        before, after = self._beside(entry)
        named = {key for key in (before, entry.key, after) if key is not None}
        rows = fetch_keys(self._provider, sorted(named))

        def excerpt(key: RecordKey | None) -> str:
            row = None if key is None else rows.get(key)
            flat = " ".join(display_text(row).split()) if isinstance(row, dict) else ""
            return flat if len(flat) <= MAX_EXCERPT else flat[: MAX_EXCERPT - 1] + "…"

        return Around(excerpt(before), excerpt(entry.key), excerpt(after))

    def _beside(self, entry: PlanEntry) -> tuple[RecordKey | None, RecordKey | None]:
        if entry.memory_type != _CONVERSATION or entry.thread_id is None:
            return None, None
        if self._turns is None:
            self._turns = self._read()
        turns = self._turns.get((entry.agent_id, entry.thread_id), [])
        if entry.record_id not in turns:
            return None, None
        at = turns.index(entry.record_id)
        before = RecordKey(_CONVERSATION, turns[at - 1]) if at else None
        return before, RecordKey(_CONVERSATION, turns[at + 1]) if at + 1 < len(turns) else None

    def _read(self) -> dict[tuple[str | None, str], list[str]]:
        columns = ("record_id", "agent_id", "thread_id", "created_at")
        found: dict[tuple[str | None, str], list[tuple[int, str]]] = {}
        for batch in self._provider.scan(_CONVERSATION, columns):
            listed = batch.frame.select(columns).filter(pl.col("thread_id").is_not_null())
            for name, agent, thread, created in listed.iter_rows():
                found.setdefault((agent, thread), []).append((created or 0, name))
        return {where: [name for _, name in sorted(turns)] for where, turns in found.items()}
