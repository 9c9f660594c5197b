"""fallow: a governed, reversible forgetting pipeline for agent memory.

The public names (SPEC §17) load on first use, so that importing fallow costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fallow.apply import ApplyReport as ApplyReport
    from fallow.apply import apply_plan as apply_plan
    from fallow.approval import Decision as Decision
    from fallow.approval import sign_decision as sign_decision
    from fallow.certificate import certify as certify
    from fallow.drift import find_drift as find_drift
    from fallow.errors import FallowError as FallowError
    from fallow.holds import Hold as Hold
    from fallow.holds import list_holds as list_holds
    from fallow.holds import place_hold as place_hold
    from fallow.holds import release_hold as release_hold
    from fallow.importance import ImportanceConfig as ImportanceConfig
    from fallow.importance import ImportanceRater as ImportanceRater
    from fallow.plan import PlanEntry as PlanEntry
    from fallow.plan import RetentionPlan as RetentionPlan
    from fallow.plan import Scope as Scope
    from fallow.planner import RetentionPlanner as RetentionPlanner
    from fallow.provider import RecordKey as RecordKey
    from fallow.provider import open_provider as open_provider
    from fallow.record import Record as Record
    from fallow.record import read_record as read_record
    from fallow.reinforcement import TouchReport as TouchReport
    from fallow.reinforcement import touch_many as touch_many
    from fallow.restore import RestoreReport as RestoreReport
    from fallow.scoring import RetrievalScoring as RetrievalScoring
    from fallow.scoring import score_candidates as score_candidates
    from fallow.scoring import scoring_for as scoring_for
    from fallow.selection import dedupe_and_select as dedupe_and_select
    from fallow.semantic_cache import cache_answer as cache_answer
    from fallow.settings import RetentionConfig as RetentionConfig

_HOMES = {
    "ApplyReport": "fallow.apply",
    "Decision": "fallow.approval",
    "FallowError": "fallow.errors",
    "Hold": "fallow.holds",
    "ImportanceConfig": "fallow.importance",
    "ImportanceRater": "fallow.importance",
    "PlanEntry": "fallow.plan",
    "RecordKey": "fallow.provider",
    "Record": "fallow.record",
    "RestoreReport": "fallow.restore",
    "RetentionConfig": "fallow.settings",
    "RetentionPlan": "fallow.plan",
    "RetentionPlanner": "fallow.planner",
    "RetrievalScoring": "fallow.scoring",
    "Scope": "fallow.plan",
    "TouchReport": "fallow.reinforcement",
    "apply_plan": "fallow.apply",
    "cache_answer": "fallow.semantic_cache",
    "certify": "fallow.certificate",
    "dedupe_and_select": "fallow.selection",
    "find_drift": "fallow.drift",
    "list_holds": "fallow.holds",
    "open_provider": "fallow.provider",
    "place_hold": "fallow.holds",
    "read_record": "fallow.record",
    "release_hold": "fallow.holds",
    "score_candidates": "fallow.scoring",
    "scoring_for": "fallow.scoring",
    "sign_decision": "fallow.approval",
    "touch_many": "fallow.reinforcement",
}

__all__ = [  # the table above is the one list
    *sorted(_HOMES)
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fallow' has no attribute '{name}'")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
