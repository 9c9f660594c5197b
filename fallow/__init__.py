"""fallow: a governed, reversible forgetting pipeline for agent memory.

The public names (SPEC §17) load on first use, so that importing fallow costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fallow.acting.apply import ApplyReport as ApplyReport
    from fallow.acting.apply import apply_plan as apply_plan
    from fallow.acting.deciding import sign_decision as sign_decision
    from fallow.acting.holds import list_holds as list_holds
    from fallow.acting.holds import place_hold as place_hold
    from fallow.acting.holds import release_hold as release_hold
    from fallow.acting.purge import cache_answer as cache_answer
    from fallow.acting.restore import RestoreReport as RestoreReport
    from fallow.acting.touch import TouchReport as TouchReport
    from fallow.acting.touch import touch_many as touch_many
    from fallow.importance import ImportanceConfig as ImportanceConfig
    from fallow.importance import ImportanceRater as ImportanceRater
    from fallow.judgement.holds import Hold as Hold
    from fallow.model.errors import FallowError as FallowError
    from fallow.model.keys import RecordKey as RecordKey
    from fallow.model.record import Record as Record
    from fallow.model.record import read_record as read_record
    from fallow.model.scope import Scope as Scope
    from fallow.model.scoring import RetrievalScoring as RetrievalScoring
    from fallow.model.scoring import scoring_for as scoring_for
    from fallow.model.settings import RetentionConfig as RetentionConfig
    from fallow.model.settings import RiskConfig as RiskConfig
    from fallow.plans.decision import Decision as Decision
    from fallow.plans.plan import PlanEntry as PlanEntry
    from fallow.plans.plan import RetentionPlan as RetentionPlan
    from fallow.port.registry import open_provider as open_provider
    from fallow.ranking.scoring import score_candidates as score_candidates
    from fallow.ranking.selection import dedupe_and_select as dedupe_and_select
    from fallow.usecases.certificate import certify as certify
    from fallow.usecases.drift import find_drift as find_drift
    from fallow.usecases.planner import RetentionPlanner as RetentionPlanner

_HOMES = {
    "ApplyReport": "fallow.acting.apply",
    "Decision": "fallow.plans.decision",
    "FallowError": "fallow.model.errors",
    "Hold": "fallow.judgement.holds",
    "ImportanceConfig": "fallow.importance",
    "ImportanceRater": "fallow.importance",
    "PlanEntry": "fallow.plans.plan",
    "Record": "fallow.model.record",
    "RecordKey": "fallow.model.keys",
    "RestoreReport": "fallow.acting.restore",
    "RetentionConfig": "fallow.model.settings",
    "RetentionPlan": "fallow.plans.plan",
    "RetentionPlanner": "fallow.usecases.planner",
    "RiskConfig": "fallow.model.settings",
    "RetrievalScoring": "fallow.model.scoring",
    "Scope": "fallow.model.scope",
    "TouchReport": "fallow.acting.touch",
    "apply_plan": "fallow.acting.apply",
    "cache_answer": "fallow.acting.purge",
    "certify": "fallow.usecases.certificate",
    "dedupe_and_select": "fallow.ranking.selection",
    "find_drift": "fallow.usecases.drift",
    "list_holds": "fallow.acting.holds",
    "open_provider": "fallow.port.registry",
    "place_hold": "fallow.acting.holds",
    "read_record": "fallow.model.record",
    "release_hold": "fallow.acting.holds",
    "score_candidates": "fallow.ranking.scoring",
    "scoring_for": "fallow.model.scoring",
    "sign_decision": "fallow.acting.deciding",
    "touch_many": "fallow.acting.touch",
}

__all__ = [  # the table above is the one list
    *sorted(_HOMES)
]


if not TYPE_CHECKING:  # a name that does not exist is an error to a type checker

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'fallow' has no attribute '{name}'")
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
