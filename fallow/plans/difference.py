"""What one plan asks beyond the one before it (SPEC §7.1, §16 ``show --diff``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fallow.model.errors import FallowError
from fallow.model.keys import RecordKey
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import list_plans, load_plan
from fallow.port.protocol import Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two plans of one scope, record by record.

    Attributes:
        before: the earlier plan's id, and ``state`` what became of it.
        new: planned now and not before.
        gone: planned before and not now.
        still: planned in both.
    """

    before: str
    state: str
    new: tuple[RecordKey, ...]
    gone: tuple[RecordKey, ...]
    still: tuple[RecordKey, ...]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``; records as TYPE:ID."""
        lists = {"new": self.new, "gone": self.gone, "still": self.still}
        named = {name: [f"{key.memory_type}:{key.record_id}" for key in keys] for name, keys in lists.items()}
        return {"before": self.before, "state": self.state, **named}


def between(before: RetentionPlan, after: RetentionPlan, state: str = "planned") -> Difference:
    """How two plans differ; each list in the order of the plan that has it."""
    earlier, later = [entry.key for entry in before.entries], [entry.key for entry in after.entries]
    had, has = set(earlier), set(later)
    return Difference(
        before=before.plan_id,
        state=state,
        new=tuple(key for key in later if key not in had),
        gone=tuple(key for key in earlier if key not in has),
        still=tuple(key for key in later if key in had),
    )


def since_last_plan(provider: Provider, plan: RetentionPlan, now: int) -> Difference | None:
    """The difference to the last plan of the same scope that was made before; None where there was none.

    A plan before it whose document cannot be read any more counts as none: what is asked stands without it.
    """
    earlier = [
        other
        for other in list_plans(provider, now)
        if other.scope == plan.scope and other.plan_id != plan.plan_id and other.planned_at <= plan.planned_at
    ]
    for other in earlier[:1]:
        try:
            return between(load_plan(provider, other.plan_id), plan, other.state)
        except FallowError:
            return None
    return None
