"""What the ratings of a store are like, and how a plan would differ under others (docs/importance.md).

Reads only. The heuristic rates every record anew, with the rarity of the scope's own words; nothing is sent to a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from fallow.acting.evidence import gather_evidence
from fallow.importance.backfill import COLUMNS, company_of, read_scope
from fallow.importance.config import ImportanceConfig
from fallow.importance.quality import spearman
from fallow.importance.rater import ImportanceRater
from fallow.judgement.policy import Policy
from fallow.judgement.verdicts import ELIGIBLE, judge
from fallow.model.scope import Scope
from fallow.model.settings import Settings
from fallow.model.times import iso
from fallow.port.gate import check_store
from fallow.port.protocol import Provider
from fallow.port.reading import read_store
from fallow.usecases.planner import opted_out

#: Model ratings that are compared with the heuristic's.
MAX_COMPARED: Final = 2000
#: From so many ratings of one source on, its patterns are judged.
_ENOUGH: Final = 20


@dataclass(slots=True)
class RaterReport:
    """Ratings as they are.

    Attributes:
        records, rated: in scope.
        tenths: by source, how its ratings spread over ten equal parts of 0..1.
        suspicious: patterns that ratings of a judging rater do not have, in words.
        compared, agreement: records that a model and the heuristic rated, and their rank correlation (None: too few).
        eligible: by rating (stored, heuristic, constant): records below the cut, old enough and unprotected.
        shared: by rating, how many of those are eligible with the stored ratings as well.
    """

    as_of: int
    records: int = 0
    rated: int = 0
    tenths: dict[str, list[int]] = field(default_factory=dict)
    suspicious: list[str] = field(default_factory=list)
    compared: int = 0
    agreement: float | None = None
    eligible: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "as_of": iso(self.as_of),
            "records": self.records,
            "rated": self.rated,
            "distribution_by_source": self.tenths,
            "suspicious": self.suspicious,
            "agreement": {"spearman": self.agreement, "records": self.compared},
            "eligible": self.eligible,
            "shared_with_stored": self.shared,
        }


def report_ratings(provider: Provider, settings: Settings, *, scope: Scope, as_of: int) -> RaterReport:
    """Looks at every rating of a scope (SPEC §3).

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    config = settings.retention
    report = RaterReport(as_of)
    excluded = opted_out(provider, scope)
    company = company_of(provider, config.memory_types, scope, excluded)
    rater = ImportanceRater(ImportanceConfig(mode="heuristic"), rarity=company.rarity)
    anew: dict[str, dict[str, float]] = {name: {} for name in config.memory_types}
    pairs: list[tuple[float, float]] = []
    values: dict[str, list[float]] = {}
    for memory_type in config.memory_types:
        for frame in read_scope(provider, memory_type, scope, COLUMNS, excluded_agents=excluded):
            rows = frame.select("record_id", "text", "role", "verified", "importance", "importance_source").rows()
            around = company.around(memory_type, [row[0] for row in rows])
            turns = [
                {"id": row[0], "text": row[1], "role": row[2], "verified": row[3], "around": surroundings}
                for row, surroundings in zip(rows, around, strict=True)
            ]
            for row, rating in zip(rows, rater.rate_all(turns), strict=True):
                stored, source = row[4], row[5] or "unnamed"
                if rating.importance is not None:
                    anew[memory_type][row[0]] = rating.importance
                report.records += 1
                if stored is None:
                    continue
                report.rated += 1
                values.setdefault(source, []).append(stored)
                if source == "llm" and rating.importance is not None and len(pairs) < MAX_COMPARED:
                    pairs.append((rating.importance, stored))
    for source, numbers in sorted(values.items()):
        spread = [0] * 10
        for number in numbers:
            spread[min(9, int(number * 10 + 1e-9))] += 1
        report.tenths[source] = spread
        report.suspicious += _suspicious(source, numbers)
    report.compared, report.agreement = len(pairs), spearman(pairs)
    _plans(provider, settings, scope, as_of, anew, excluded, report)
    return report


def _suspicious(source: str, numbers: list[float]) -> list[str]:
    if len(numbers) < _ENOUGH:
        return []
    said = []
    counts = pl.Series(numbers).value_counts(sort=True)
    common, times = counts.row(0)
    if times > 0.7 * len(numbers):
        said.append(f"{source}: {times} of {len(numbers)} ratings are {common:g}: they tell nothing apart")
    top = sum(1 for number in numbers if number == 1.0)
    if source == "llm" and top > 0.3 * len(numbers) and common == 1.0:
        said.append(f"{source}: {top} of {len(numbers)} ratings are exactly 1, as where a 1 of 10 was stored as 1.0")
    return said


def _plans(
    provider: Provider,
    settings: Settings,
    scope: Scope,
    as_of: int,
    anew: Mapping[str, Mapping[str, float]],
    excluded: tuple[str, ...],
    report: RaterReport,
) -> None:
    """How many records each rating would make eligible, and how many of them the stored one does as well."""
    policy, view = Policy.of(settings), read_store(provider)
    evidence = gather_evidence(
        provider,
        view,
        policy,
        as_of=as_of,
        contracts=check_store(provider, view, as_of),
        excluded_agents=excluded,
    )
    found: dict[str, set[tuple[str, str]]] = {}
    for label in ("stored", "heuristic", "constant"):
        frames = {name: _rated(frame, label, anew.get(name, {})) for name, frame in view.frames.items()}
        judged = judge(frames, policy, evidence, scope=scope, as_of=as_of).filter(pl.col("verdict").is_in(ELIGIBLE))
        found[label] = set(judged.select("memory_type", "record_id").iter_rows())
    for label, keys in found.items():
        report.eligible[label] = len(keys)
        report.shared[label] = len(keys & found["stored"])


def _rated(frame: pl.DataFrame, label: str, anew: Mapping[str, float]) -> pl.DataFrame:
    """Records as they would be with other ratings: the heuristic's, or one and the same for all."""
    if label == "stored":
        return frame
    ids = frame.get_column("record_id").to_list()
    values = [0.5] * len(ids) if label == "constant" else [anew.get(name) for name in ids]
    return frame.with_columns(pl.Series("importance", values, dtype=pl.Float64))
