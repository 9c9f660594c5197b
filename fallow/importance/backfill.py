"""Rating what a store holds unrated (SPEC §3.4-3.6), free and in place.

The rows themselves are the checkpoint: a row that has a rating is left alone, so a run that died is
continued by starting it again. Every write is conditional on the row still having no rating.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from fallow.importance.company import COMPANY_COLUMNS, Company, Settled
from fallow.importance.config import ImportanceConfig
from fallow.importance.heuristic import ALONE, Rarity, Rating
from fallow.importance.rater import ImportanceRater
from fallow.judgement.score import in_scope
from fallow.model.arguments import Time, instant, switch
from fallow.model.arguments import memory_types as checked_types
from fallow.model.keys import MISSING, RecordKey, Row
from fallow.model.record import PRIMARY_TYPES, Record, read_record
from fallow.model.scope import Scope, scope_or_all
from fallow.port.journal import control_event, ids_digest
from fallow.port.journal_writing import insert_control_rows
from fallow.port.protocol import Patch, Provider, Unreadable

#: What a scan for rating reads.
COLUMNS: Final = (
    "record_id",
    "agent_id",
    "memory_id",
    "user_id",
    "thread_id",
    "created_at",
    "importance",
    "importance_source",
    "verified",
    "retention_state",
    "breaches",
    "role",
    "text",
)
_COMPANY: Final = tuple(dict.fromkeys(("record_id", "agent_id", "memory_id", "user_id", "thread_id", *COMPANY_COLUMNS)))
#: How often a row that changed under a write is read and decided anew.
_ROUNDS: Final = 4
#: Fields that hold a rating; a rating is written only where they are as they were.
_RATING_FIELDS: Final = ("importance", "importance_source", "metadata", "verified")

#: Suspect ratings that a report names; it counts all.
MAX_SUSPECT_IDS: Final = 1_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Seen:
    """A row's :func:`rating_fields` as they were read; ``rated``: it had a rating that can be used."""

    fields: Mapping[str, Any]
    rated: bool


@dataclass(slots=True)
class BackfillReport:
    """What a backfill did.

    ``by_source`` counts ratings written; ``raised`` verified records lifted to 1.0; ``upgraded`` heuristic
    ratings replaced by a model's (SPEC §3.4). ``suspect`` counts stored model ratings of exactly 1.0, which
    other tools wrote where the model had said 1; the first thousand are named.
    """

    mode: str
    scanned: int = 0
    rated: int = 0
    raised: int = 0
    upgraded: int = 0
    already: int = 0
    suspect: int = 0
    suspect_ids: list[str] = field(default_factory=list)
    by_source: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, list[str]] = field(default_factory=dict)
    distribution: list[int] = field(default_factory=lambda: [0] * 10)
    distribution_by_source: dict[str, list[int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts."""
        return {
            "schema_version": 1,
            "mode": self.mode,
            "scanned": self.scanned,
            "rated": self.rated,
            "raised": self.raised,
            "upgraded": self.upgraded,
            "already_rated": self.already,
            "suspect": self.suspect,
            "suspect_ids": self.suspect_ids,
            "by_source": dict(sorted(self.by_source.items())),
            "skipped": {reason: sorted(ids) for reason, ids in sorted(self.skipped.items())},
            "failed": {reason: sorted(ids) for reason, ids in sorted(self.failed.items())},
            "distribution": self.distribution,
            "distribution_by_source": dict(sorted(self.distribution_by_source.items())),
            "state": "Rated" if self.rated or self.raised or self.upgraded else "NothingToDo",
        }


def read_scope(
    provider: Provider,
    memory_type: str,
    scope: Scope,
    columns: Sequence[str] = COLUMNS,
    *,
    excluded_agents: Collection[str] = (),
) -> Iterator[pl.DataFrame]:
    """The records of a scope, by default with their text, piece by piece.

    Raises:
        StoreUnreadableError: the listing failed or was cut short.
    """
    for batch in provider.scan(memory_type, columns):
        yield batch.frame.filter(in_scope(scope, excluded_agents))


def company_of(
    provider: Provider, memory_types: Sequence[str], scope: Scope, excluded_agents: Collection[str] = ()
) -> Settled:
    """What the heuristic needs to know of a scope, in one reading of all its records, rated or not."""
    company = Company()
    for memory_type in memory_types:
        for frame in read_scope(provider, memory_type, scope, _COMPANY, excluded_agents=excluded_agents):
            company.add(memory_type, frame)
    return company.settled()


def anything_to_rate(
    provider: Provider, memory_types: Sequence[str], scope: Scope, excluded_agents: Collection[str] = ()
) -> bool:
    """Whether any record of a scope is to be rated: told without reading a text."""
    columns = [name for name in COLUMNS if name not in {"role", "text"}]
    return any(
        len(to_rate(frame, BackfillReport(mode="heuristic")))
        for memory_type in memory_types
        for frame in read_scope(provider, memory_type, scope, columns, excluded_agents=excluded_agents)
    )


def backfill_importance(
    provider: Provider,
    *,
    now: Time | None = None,
    rater: ImportanceRater | None = None,
    scope: Scope | None = None,
    excluded_agents: Collection[str] = (),
    memory_types: Sequence[str] = PRIMARY_TYPES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BackfillReport:
    """Gives every record of a scope that has no rating one by the heuristic (SPEC §3.1, §3.6). Idempotent.

    A verified record is raised to 1.0, the only change that a stored rating ever sees (SPEC §3.4). A stored
    value that cannot be used (SPEC §1.2) stays as it is.

    Args:
        provider: the open store.
        now: the wall clock, a time of SPEC §1.5, for the run's event.
        rater: rates the rows; by default the heuristic with the scope's own rarity.
        scope: which records; by default the whole store.
        excluded_agents: in the whole store, not these agents' records.
        memory_types: of which types.
        dry_run: rate and count, write nothing.
        progress: called with (records settled, records found) after each chunk.

    Raises:
        StoreUnreadableError: a listing failed; what was rated before stays rated.
    """
    now, dry_run = instant(now), switch(dry_run, "dry_run")
    scope, memory_types = scope_or_all(scope), checked_types(memory_types)
    company: Settled | None = None
    if rater is None:
        if anything_to_rate(provider, memory_types, scope, excluded_agents):
            company = company_of(provider, memory_types, scope, excluded_agents)
        rarity = Rarity() if company is None else company.rarity
        rater = ImportanceRater(ImportanceConfig(mode="heuristic"), rarity=rarity)
    report = BackfillReport(mode=rater.config.mode)
    written: list[RecordKey] = []
    size = max(1, provider.capabilities.batch_size)
    for memory_type in memory_types:
        for frame in read_scope(provider, memory_type, scope, excluded_agents=excluded_agents):
            report.scanned += len(frame)
            todo = to_rate(frame, report)
            for start in range(0, len(todo), size):
                piece = todo.slice(start, size)
                ratings = _ratings(memory_type, piece, rater, company)
                if dry_run:
                    for rating in ratings.values():
                        _count(report, rating)
                else:
                    written += write_ratings(provider, memory_type, ratings, report)
                if progress is not None:
                    progress(start + len(piece), len(todo))
    if written:
        payload = {
            "mode": report.mode,
            "rated": report.rated,
            "raised": report.raised,
            "ids_digest": ids_digest(written),
        }
        key = f"importance-backfill:{payload['ids_digest']}"
        insert_control_rows(
            provider, [control_event("importance_rated", key, payload, now=now, agent_id=scope.agent_id)]
        )
    return report


def replaced_by(source: str) -> frozenset[str]:
    """Whose stored ratings one of this source may replace, once and where asked for by name (SPEC §3.4).

    A model's own rating replaces the heuristic's and one learned from a sample; a learned one the heuristic's.
    """
    return {"llm": frozenset({"heuristic", "distilled"}), "distilled": frozenset({"heuristic"})}.get(
        source, frozenset()
    )


def to_rate(frame: pl.DataFrame, report: BackfillReport, *, upgrade: str = "") -> pl.DataFrame:
    """Rows without a rating, and verified rows below 1.0; counts the others.

    With ``upgrade`` also rows whose rating one of that source may replace (:func:`replaced_by`).
    """
    bad = pl.col("breaches").list.eval(pl.element().str.starts_with("importance")).list.any()
    rated = pl.col("importance").is_not_null()
    below = pl.col("verified") & (pl.col("importance") < 1.0)
    if upgrade:
        below = below | (rated & pl.col("importance_source").is_in(replaced_by(upgrade)).fill_null(False))
    report.already += frame.filter(rated & ~below).height
    suspect = frame.filter((pl.col("importance_source") == "llm") & (pl.col("importance") == 1.0))
    report.suspect += suspect.height
    room = MAX_SUSPECT_IDS - len(report.suspect_ids)
    report.suspect_ids += suspect.get_column("record_id").head(room).to_list()
    stored = frame.filter(~rated & bad).get_column("record_id").to_list()
    if stored:
        report.skipped.setdefault("a stored value that cannot be used", []).extend(stored)
    return frame.filter((~rated & ~bad) | below)


def _ratings(
    memory_type: str, frame: pl.DataFrame, rater: ImportanceRater, company: Settled | None
) -> dict[str, Rating]:
    rows = frame.select("record_id", "text", "role", "verified").rows()
    around = [ALONE] * len(rows) if company is None else company.around(memory_type, [row[0] for row in rows])
    turns = [
        {"id": name, "text": text, "role": role, "verified": sure, "around": surroundings}
        for (name, text, role, sure), surroundings in zip(rows, around, strict=True)
    ]
    ratings = zip((row[0] for row in rows), rater.rate_all(turns), strict=True)
    return {name: rating for name, rating in ratings if rating.importance is not None}


def _count(report: BackfillReport, rating: Rating, *, had: bool = False) -> None:
    if had and replaced_by(rating.source):
        report.upgraded += 1
    elif had:
        report.raised += 1
    else:
        report.rated += 1
    report.by_source[rating.source] = report.by_source.get(rating.source, 0) + 1
    tenth = min(9, int((rating.importance or 0.0) * 10 + 1e-9))
    report.distribution[tenth] += 1
    report.distribution_by_source.setdefault(rating.source, [0] * 10)[tenth] += 1


def write_ratings(
    provider: Provider,
    memory_type: str,
    ratings: Mapping[str, Rating],
    report: BackfillReport,
    *,
    stamp: Mapping[str, Any] | None = None,
    seen: Mapping[str, Seen] | None = None,
) -> list[RecordKey]:
    """Writes a chunk's ratings where the rows still have none; what changed meanwhile is decided again.

    Args:
        provider: the open store.
        memory_type: the rows' type.
        ratings: by record id. A model's may also replace the heuristic's, where the caller asked for such rows.
        report: counts what became of each.
        stamp: fields stored beside a model's rating (SPEC §3.5); None where no rating is a model's.
        seen: what the rows' fields of a rating were when they were read for it: spares reading them again.
    """
    done: list[RecordKey] = []
    pending = list(ratings)
    unknown: set[str] = set()
    had: set[str] = set()
    seen = seen or {}
    had |= {name for name, read in seen.items() if read.rated}
    for turn in range(_ROUNDS):
        patches = [
            _patch(RecordKey(memory_type, name), seen[name].fields, ratings[name], stamp)
            for name in pending
            if turn == 0 and name in seen
        ]
        fetched = [name for name in pending if turn or name not in seen]
        rows = provider.fetch(memory_type, fetched) if fetched else {}
        for name in fetched:
            row = rows.get(name)
            if row is None or isinstance(row, Unreadable):
                report.skipped.setdefault("gone" if row is None else "unreadable", []).append(name)
                continue
            record = read_record(row, memory_type, name)
            if name in unknown and record.importance == ratings[name].importance:
                _count(report, ratings[name], had=name in had)
                done.append(RecordKey(memory_type, name))
            elif not _wants(record, ratings[name]):
                report.skipped.setdefault("rated meanwhile", []).append(name)
            else:
                had |= {name} if record.importance is not None else set()
                patches.append(_patch(RecordKey(memory_type, name), rating_fields(row), ratings[name], stamp))
        pending = []
        if not patches:
            return done
        for patch, outcome in zip(patches, provider.patch(patches), strict=True):
            name = patch.key.record_id
            if outcome.status == "applied":
                _count(report, ratings[name], had=name in had)
                done.append(patch.key)
            elif outcome.status == "gone":
                report.skipped.setdefault("gone", []).append(name)
            elif outcome.status == "failed":
                report.failed.setdefault(outcome.detail or "refused by the store", []).append(name)
            else:
                pending.append(name)
                unknown |= {name} if outcome.status == "unknown" else set()
    for name in pending:
        report.failed.setdefault("kept changing while it was written", []).append(name)
    return done


def _wants(record: Record, rating: Rating) -> bool:
    if record.importance is None:
        return to_be_rated(record)
    if record.verified and record.importance < 1.0:
        return rating.source == "verified"
    return record.importance_source in replaced_by(rating.source)


def to_be_rated(record: Record, upgrade: str = "") -> bool:
    """Whether a record is to be rated: it has no rating, or one that SPEC §3.4 lets be replaced."""
    if record.importance is None:
        return not any(name.startswith("importance") for name in record.breaches)
    return (record.verified and record.importance < 1.0) or record.importance_source in replaced_by(upgrade)


def rating_fields(row: Row) -> dict[str, Any]:
    """The fields that must be as they were for a rating to land."""
    return {name: row.get(name, MISSING) for name in _RATING_FIELDS}


def _patch(key: RecordKey, expected: Mapping[str, Any], rating: Rating, stamp: Mapping[str, Any] | None) -> Patch:
    changes = {"importance": rating.importance, "importance_source": rating.source}
    if rating.source in {"llm", "distilled"}:
        changes.update(stamp or {})
    return Patch(key, expected, changes)
