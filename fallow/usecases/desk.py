"""The approver's desk: one plan with everything that a decision about it needs (SPEC §7.1).

The form, the page and ``fallow review`` show the same desk; none of them reads more of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from fallow.judgement.score import in_scope
from fallow.model.errors import StoreUnreadableError
from fallow.model.keys import RecordKey
from fallow.model.record import display_text
from fallow.model.times import MICROSECONDS_PER_DAY
from fallow.plans.difference import Difference, since_last_plan
from fallow.plans.plan import PlanEntry, RetentionPlan
from fallow.plans.storage import StoredPlan, load_plan, stored_plan
from fallow.port.protocol import Provider
from fallow.port.reading import fetch_keys, read_store
from fallow.usecases.effect import preview

#: An excerpt is at most this long.
MAX_EXCERPT: Final = 120
#: So many of a plan's records are shown one by one; the complete plan stands in the store. A table artifact of more
#: rows is dropped by Prefect's event log and shown empty by its UI.
MAX_ROWS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What lies before an approver.

    Attributes:
        plan: the plan, its hashes checked.
        stored: where it stands.
        difference: against the last plan of its scope; None where there was none.
        effect: what retrieval loses, as a document; None where looking costs too much or is not possible.
        texts: excerpts of the shown records; None where ``approval.show_text`` is off.
    """

    plan: RetentionPlan
    stored: StoredPlan
    difference: Difference | None
    effect: Mapping[str, Any] | None
    texts: Mapping[RecordKey, str] | None

    @property
    def shown(self) -> tuple[PlanEntry, ...]:
        """The records that are shown one by one."""
        return self.plan.entries[:MAX_ROWS]


def desk(provider: Provider, plan_id: str, *, now: int, show_text: bool) -> Desk:
    """Reads a stored plan with all that an approver is shown. Nothing is written.

    Raises:
        PlanNotFoundError, PlanAlteredError, OtherStoreError: as :func:`fallow.plans.storage.load_plan`.
    """
    plan = load_plan(provider, plan_id)
    return Desk(
        plan=plan,
        stored=stored_plan(provider, plan.plan_id, now),
        difference=since_last_plan(provider, plan, now),
        effect=_effect(provider, plan),
        texts=excerpts(provider, plan.entries[:MAX_ROWS]) if show_text else None,
    )


@dataclass(frozen=True, slots=True)
class Dot:
    """A visible record of a plan's scope, as a picture has it: age in days, importance in 0..1, planned or not."""

    age_days: float
    importance: float
    planned: bool


def landscape(provider: Provider, plan: RetentionPlan) -> list[Dot]:
    """Every visible record of a plan's scope whose age is known, as of the plan, in the order of type and id.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    planned = {entry.key for entry in plan.entries}
    default = float(plan.policy("default_importance", 0.5))
    excluded = [str(name) for name in plan.document["agents"]["left_out"]]
    dots: list[Dot] = []
    for memory_type, frame in read_store(provider).frames.items():
        if memory_type not in plan.policy("memory_types"):
            continue
        visible = (
            frame.filter(
                in_scope(plan.scope, excluded),
                pl.col("retention_state").fill_null("active") != "suppressed",
                pl.col("created_at").is_not_null(),
            )
            .select("record_id", "created_at", pl.col("importance").fill_null(default))
            .sort("record_id")
        )
        dots += [
            Dot(
                age_days=max(0, plan.as_of - created) / MICROSECONDS_PER_DAY,
                importance=importance,
                planned=RecordKey(memory_type, name) in planned,
            )
            for name, created, importance in visible.iter_rows()
        ]
    return dots


def excerpts(provider: Provider, entries: Sequence[PlanEntry]) -> dict[RecordKey, str]:
    """The beginning of each record's text, one line; only where ``approval.show_text`` allows it (SPEC §14)."""
    texts: dict[RecordKey, str] = {}
    for key, row in fetch_keys(provider, [entry.key for entry in entries]).items():
        if isinstance(row, dict):
            flat = " ".join(display_text(row).split())
            texts[key] = flat if len(flat) <= MAX_EXCERPT else flat[: MAX_EXCERPT - 1] + "…"
    return texts


def _effect(provider: Provider, plan: RetentionPlan) -> dict[str, Any] | None:
    """What the plan costs retrieval; None where looking would cost too much or is not possible.

    A store with a limit on requests would need minutes to hand out all its vectors: there `fallow effect` says it.
    """
    if provider.capabilities.requests_per_second is not None:
        return None
    try:
        return preview(provider, plan).to_json()
    except StoreUnreadableError:
        return None
