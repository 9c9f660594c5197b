"""The two events of a plan that agents' own control planes show: planned, and forgotten (SPEC §10)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fallow.model.keys import RecordKey, Row
from fallow.plans.plan import PlanEntry, RetentionPlan
from fallow.port.journal import control_event, ids_digest, text_time

_MAX_PAYLOAD_CANDIDATES: Final = 500
#: Bytes of JSON that an event's candidates take at most: a row of it must fit in every store (STORES.md, Notion).
_MAX_PAYLOAD_BYTES: Final = 140_000


def _candidate(entry: PlanEntry) -> dict[str, Any]:
    return {
        "target_id": entry.record_id,
        "target_type": entry.memory_type,
        "action": "tombstone",
        "reason": entry.reason,
        "utility": round(entry.retention, 6),
        "age_days": entry.age_days,
        "content_hash": None,
        "superseded_by": None,
        "verified": bool(entry.basis.get("verified")),
    }


def _candidates(entries: Sequence[PlanEntry]) -> list[dict[str, Any]]:
    """The first entries as an event lists them, as many as fit; ``candidate_count`` beside them is exact."""
    listed: list[dict[str, Any]] = []
    size = 0
    for entry in entries[:_MAX_PAYLOAD_CANDIDATES]:
        candidate = _candidate(entry)
        size += len(json.dumps(candidate, ensure_ascii=False).encode("utf-8", "replace")) + 2
        if size > _MAX_PAYLOAD_BYTES:
            break
        listed.append(candidate)
    return listed


def planned_event(plan: RetentionPlan) -> Row:
    """``forgetting_planned``: that this plan exists, and the hash its document must have (SPEC §6.7)."""
    counts, scope = plan.counts, plan.scope
    payload = {
        "plan_id": plan.plan_id,
        "plan_kind": "retention",
        "dry_run": True,
        "candidate_count": len(plan.entries),
        "candidates": _candidates(plan.entries),
        "tombstoned": 0,
        "deleted": 0,
        "retained": counts["scanned"] - len(plan.entries),
        "errors": [],
        "ok": True,
        "created_at": text_time(plan.planned_at),
        "document_sha256": plan.document_sha256,
        "requested_by": plan.document.get("requested_by"),
    }
    return control_event(
        "forgetting_planned",
        f"retention-planned:{plan.plan_id}",
        payload,
        now=plan.planned_at,
        agent_id=scope.agent_id,
        memory_id=scope.memory_ids[0] if scope.memory_ids and len(scope.memory_ids) == 1 else None,
    )


def forgotten_key(plan_id: str) -> str:
    """The idempotency key of a plan's ``memory_forgotten`` event."""
    return f"retention-applied:{plan_id}"


def forgotten_event(plan: RetentionPlan, outcome: Mapping[str, Any], applied: Sequence[RecordKey], *, now: int) -> Row:
    """``memory_forgotten``: the plan has reached its end; written once (SPEC §8.2)."""
    done = set(applied)
    payload = {
        "plan_id": plan.plan_id,
        "plan_kind": "retention",
        "dry_run": False,
        "candidate_count": len(plan.entries),
        "candidates": _candidates([entry for entry in plan.entries if entry.key in done]),
        "tombstoned": len(done),
        "deleted": 0,
        "retained": len(plan.entries) - len(done),
        "errors": [],
        "ok": True,
        "created_at": text_time(now),
        "document_sha256": plan.document_sha256,
        "suppressed_digest": ids_digest(list(done)),
        **outcome,
    }
    return control_event(
        "memory_forgotten", forgotten_key(plan.plan_id), payload, now=now, agent_id=plan.scope.agent_id
    )
