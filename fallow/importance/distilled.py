"""Rating history by a model that reads a sample of it (SPEC §3.6): the rest is rated by what the sample teaches.

Four readings of the scope, none of which holds a text: what its records say of each other
(:mod:`fallow.importance.company`), the free rating of each, the sample with its features, and the rest, rated and
written piece by piece. The sample has its share of every tenth of the free rating, and which records it holds
follows from their ids, so a run that died goes on with the same one: what it had asked is paid, what it had written
counts. Before anything is written the model's ratings of the sample are held against what the regression
says of records that it did not see; where that agrees too little, the run writes nothing and says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from fallow.importance.asking import AnswersInMemory, Model, PaidAnswers
from fallow.importance.backfill import (
    COLUMNS,
    BackfillReport,
    company_of,
    read_scope,
    to_rate,
    write_ratings,
)
from fallow.importance.company import Settled
from fallow.importance.heuristic import FLOOR, WEIGHTS, Rating, Surroundings, heuristic_rating, signals
from fallow.importance.prompt import has_words
from fallow.importance.rating_run import ModelReport, Progress, RatedRecords, RunOptions, rate_sample
from fallow.model.errors import SettingError
from fallow.model.keys import RecordKey, Row
from fallow.model.times import iso
from fallow.port.journal import control_event, ids_digest
from fallow.port.journal_writing import insert_control_rows
from fallow.port.protocol import Provider

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from fallow.importance.regression import Regression, Rows

#: The source of a rating that a regression made.
DISTILLED: Final = "distilled"
#: Fewer rated records than this teach nothing.
MIN_SAMPLE: Final = 50
#: The least agreement (Spearman) of the model with the regression on records that it did not see; and how many
#: standard errors of a correlation of nothing it must be above zero, which for small samples is more.
MIN_AGREEMENT: Final = 0.15
MIN_ERRORS: Final = 2.5
_TENTHS: Final = 10


@dataclass(slots=True)
class DistilledReport(ModelReport):
    """What a run by a sample did, beyond what one by a model does.

    Attributes:
        sample: records that the model was to read.
        taught: of these, how many it rated, in this run or before: what the regression learned from.
        cross_validated: Spearman's correlation of its ratings with the regression's, for records left out.
        floor: what that must reach.
        heuristic_agreement: the same of its ratings with the free ones.
    """

    sample: int = 0
    taught: int = 0
    cross_validated: float | None = None
    floor: float = 0.0
    heuristic_agreement: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts."""
        return {
            **ModelReport.to_json(self),
            "sample": self.sample,
            "taught": self.taught,
            "cross_validated": self.cross_validated,
            "floor": round(self.floor, 4),
            "heuristic_agreement": self.heuristic_agreement,
        }


def least_agreement(count: int) -> float:
    """The agreement that a sample of so many must show."""
    return max(MIN_AGREEMENT, MIN_ERRORS / math.sqrt(max(1, count - 1)))


@dataclass(frozen=True, slots=True)
class _Read:
    """A record of the scope as the choice of a sample sees it."""

    key: RecordKey
    free: float
    wanted: bool
    source: str | None
    stored: float | None


@dataclass(slots=True)
class _Distillation:
    provider: Provider
    model: Model
    options: RunOptions
    where: RatedRecords
    now: int
    report: DistilledReport
    company: Settled = field(init=False)

    @property
    def upgrades(self) -> str:
        """The source whose ratings this run may put in place of others, or empty."""
        return DISTILLED if self.options.upgrade_heuristic else ""

    def frames(self, *more: str) -> Iterator[tuple[str, pl.DataFrame]]:
        """The scope piece by piece, with its types."""
        for memory_type in self.where.memory_types:
            columns = (*COLUMNS, *more)
            for frame in read_scope(
                self.provider, memory_type, self.where.scope, columns, excluded_agents=self.where.excluded_agents
            ):
                yield memory_type, frame

    def turns(self, memory_type: str, frame: pl.DataFrame) -> Iterator[tuple[str, str, str | None, Surroundings]]:
        """Id, text, role and surroundings of each row."""
        rows = frame.select("record_id", "text", "role").rows()
        around = self.company.around(memory_type, [row[0] for row in rows])
        for (name, text, role), surroundings in zip(rows, around, strict=True):
            yield name, text or "", role, surroundings

    def free(self, text: str, role: str | None, around: Surroundings) -> float:
        """The heuristic's rating."""
        rating = heuristic_rating(text, role=role, around=around, rarity=self.company.rarity)
        return rating.importance or FLOOR

    def read(self) -> list[_Read]:
        """Every record with words that the model could be asked about or has rated."""
        found: list[_Read] = []
        for memory_type, frame in self.frames():
            self.report.scanned += len(frame)
            wanted = set(to_rate(frame, self.report, upgrade=self.upgrades).get_column("record_id").to_list())
            stored = frame.select("importance", "importance_source", "verified").rows()
            told = self.turns(memory_type, frame)
            for (name, text, role, around), (value, source, verified) in zip(told, stored, strict=True):
                taught = source in {"llm", DISTILLED} and value is not None
                if not verified and has_words(text) and (name in wanted or taught):
                    key = RecordKey(memory_type, name)
                    found.append(_Read(key, self.free(text, role, around), name in wanted, source, value))
        return found

    def by_this_model(self, rows: Sequence[_Read]) -> dict[RecordKey, float]:
        """The ratings among these that this model gave before."""
        by_type: dict[str, list[_Read]] = {}
        for row in rows:
            if row.source == "llm" and not row.wanted:
                by_type.setdefault(row.key.memory_type, []).append(row)
        found: dict[RecordKey, float] = {}
        size = max(1, self.provider.capabilities.batch_size)
        for memory_type, some in by_type.items():
            for start in range(0, len(some), size):
                piece = some[start : start + size]
                stored = self.provider.fetch(memory_type, [row.key.record_id for row in piece])
                for row in piece:
                    now = stored.get(row.key.record_id)
                    if isinstance(now, dict) and _model_of(now) == self.model.name and row.stored is not None:
                        found[row.key] = row.stored
        return found

    def rows_of(self, memory_type: str, frame: pl.DataFrame, size: int) -> Rows:
        """A frame's rows as the regression sees them."""
        import numpy as np

        from fallow.importance.regression import Rows

        free, features = [], []
        for _, text, role, around in self.turns(memory_type, frame):
            free.append(self.free(text, role, around))
            features.append(_features(text, role, around, self.company))
        return Rows(
            np.array(free, dtype=np.float64),
            np.array(features, dtype=np.float64).reshape(len(free), -1),
            _embeddings(frame, size),
        )

    def taught_rows(self, ratings: Mapping[RecordKey, float]) -> tuple[Rows, np.ndarray, int]:
        """The sample's rows in an order that says nothing, the model's rating of each, and the embeddings' size."""
        import numpy as np
        import polars as pl

        from fallow.importance.regression import Rows

        pieces: list[tuple[str, pl.DataFrame]] = []
        names: dict[str, list[str]] = {}
        for key in ratings:
            names.setdefault(key.memory_type, []).append(key.record_id)
        for memory_type, frame in self.frames("embedding"):
            piece = frame.filter(pl.col("record_id").is_in(names.get(memory_type, [])))
            if len(piece):
                pieces.append((memory_type, piece))
        sizes = [size for _, piece in pieces for size in piece.get_column("embedding").list.len().to_list() if size]
        size = max(sorted(set(sizes)), key=sizes.count, default=0)
        keys = [RecordKey(memory_type, name) for memory_type, piece in pieces for name in piece["record_id"].to_list()]
        parts = [self.rows_of(memory_type, piece, size) for memory_type, piece in pieces]
        order = np.array(sorted(range(len(keys)), key=lambda at: _drawn(keys[at])), dtype=np.intp)
        rows = Rows(
            np.concatenate([part.heuristic for part in parts])[order],
            np.concatenate([part.features for part in parts])[order],
            np.concatenate([part.embeddings for part in parts])[order],
        )
        return rows, np.array([ratings[keys[at]] for at in order.tolist()], dtype=np.float64), size

    def write(self, asked: Mapping[RecordKey, float], regression: Regression | None, size: int) -> list[RecordKey]:
        """The model's own ratings first, then the rest, piece by piece."""
        written: list[RecordKey] = []
        stamp: dict[str, Any] = {"importance_model": self.model.name, "importance_rated_at": iso(self.now)}
        batch = max(1, self.provider.capabilities.batch_size)
        by_type: dict[str, dict[str, Rating]] = {}
        for key, value in asked.items():
            by_type.setdefault(key.memory_type, {})[key.record_id] = Rating(value, "llm")
        for memory_type, ratings in by_type.items():
            names = list(ratings)
            for start in range(0, len(names), batch):
                piece = {name: ratings[name] for name in names[start : start + batch]}
                written += write_ratings(self.provider, memory_type, piece, self.report, stamp=stamp)
        stamp = {**stamp, "importance_sample": self.report.taught}
        for memory_type, frame in self.frames("embedding"):
            todo = to_rate(frame, BackfillReport(mode=DISTILLED), upgrade=self.upgrades)
            for start in range(0, len(todo), batch):
                some = todo.slice(start, batch)
                found = self.rate(memory_type, some, regression, size)
                written += write_ratings(self.provider, memory_type, found, self.report, stamp=stamp)
        return written

    def rate(
        self, memory_type: str, frame: pl.DataFrame, regression: Regression | None, size: int
    ) -> dict[str, Rating]:
        """The ratings of a piece: verified is 1.0, what has no words is the heuristic's, the rest is predicted."""
        ratings: dict[str, Rating] = {}
        told: list[bool] = []
        for (name, text, role, _), sure in zip(
            self.turns(memory_type, frame), frame["verified"].to_list(), strict=True
        ):
            told.append(not sure and has_words(text))
            if not told[-1]:
                ratings[name] = heuristic_rating(text, role=role, verified=bool(sure))
        rest = frame.filter(told)
        if regression is None or not len(rest):
            return ratings
        predicted = regression.predict(self.rows_of(memory_type, rest, size)).tolist()
        for name, value in zip(rest.get_column("record_id").to_list(), predicted, strict=True):
            ratings[name] = Rating(round(min(1.0, max(FLOOR, value)), 2), DISTILLED)
        return ratings


def rate_by_sample(
    provider: Provider,
    model: Model,
    options: RunOptions,
    sample: int,
    *,
    now: int,
    salt: str,
    where: RatedRecords,
    answers: PaidAnswers | None = None,
    progress: Progress | None = None,
) -> DistilledReport:
    """Rates the unrated records of a scope by a model's ratings of a sample of them (SPEC §3.6).

    Idempotent and resumable: a record that has a rating is left alone (with ``options.upgrade_heuristic`` the
    heuristic's are replaced), and what was paid for is not paid again.

    Args:
        provider: the open store.
        model: who reads the sample.
        options: how it is asked, and what it may spend.
        sample: so many records, at least :data:`MIN_SAMPLE`.
        now: the wall clock, microseconds, stored with the ratings.
        salt: unpredictable text of this run, for the tags that rows go by.
        where: which records.
        answers: what was paid for before; by default only this run's own.
        progress: called after each answer.

    Returns:
        What was done; where ``problem`` says something, nothing was written.

    Raises:
        SettingError: a sample too small to learn from, or a budget in money without a price.
        StoreUnreadableError: a listing failed; what was rated before stays rated.
    """
    from fallow.importance.quality import spearman
    from fallow.importance.regression import cross_validated, fit

    if sample < MIN_SAMPLE:
        raise SettingError(f"a sample of {sample} teaches nothing", hint=f"--sample {MIN_SAMPLE} or more")
    report = DistilledReport(mode=DISTILLED, model=model.name)
    work = _Distillation(provider, model, options, where, now, report)
    work.company = company_of(provider, where.memory_types, where.scope, where.excluded_agents)
    rows = work.read()
    if not any(row.wanted for row in rows):
        # What is left is verified or has no words: that takes no model.
        _tell(provider, report, work.write({}, None, 0), where, now)
        return report
    known = work.by_this_model(rows)
    chosen = _sample(rows, known, sample)
    report.sample = len(chosen)
    asking, asked = rate_sample(
        provider,
        model,
        options,
        [key for key in chosen if key not in known],
        now=now,
        salt=salt,
        where=where,
        answers=answers or AnswersInMemory(),
        progress=progress,
    )
    _take_over(report, asking)
    ratings = {**{key: known[key] for key in chosen if key in known}, **asked}
    report.taught, report.floor = len(ratings), least_agreement(len(ratings))
    if not report.problem and len(ratings) < MIN_SAMPLE:
        why = f"; {report.stopped}" if report.stopped else ""
        report.problem = f"the model rated {len(ratings)} records of the sample, fewer than {MIN_SAMPLE}{why}"
    if report.problem:
        return report
    taught, values, size = work.taught_rows(ratings)
    report.heuristic_agreement = spearman(list(zip(taught.heuristic.tolist(), values.tolist(), strict=True)))
    report.cross_validated = cross_validated(taught, values)
    if report.cross_validated is None or report.cross_validated < report.floor:
        said = "nothing" if report.cross_validated is None else f"{report.cross_validated:.2f}"
        report.problem = (
            f"what {len(ratings)} ratings teach agrees with the model by {said} on records it did not see, less than "
            f"{report.floor:.2f}: nothing was written; a larger --sample, another model or purpose may do"
        )
        return report
    written = work.write(asked, fit(taught, values), size)
    report.settled = report.rated + report.raised + report.upgraded
    _tell(provider, report, written, where, now)
    return report


def _take_over(report: DistilledReport, asking: ModelReport) -> None:
    """What asking about the sample came to."""
    report.answered, report.from_paid, report.fallbacks = asking.answered, asking.from_paid, asking.fallbacks
    report.stopped, report.problem, report.failed = asking.stopped, asking.problem, asking.failed
    report.lost, report.unsettled, report.used, report.cost = asking.lost, asking.unsettled, asking.used, asking.cost
    report.pairs = asking.pairs


def _drawn(key: RecordKey) -> bytes:
    """A record's place in an order that says nothing about it and never changes."""
    return sha256(f"{key.memory_type}\x00{key.record_id}".encode("utf-8", "surrogatepass")).digest()


def _sample(rows: Sequence[_Read], known: Mapping[RecordKey, float], count: int) -> list[RecordKey]:
    """So many records with their share of each tenth of the free rating; those that the model has rated come first."""
    ordered = sorted(rows, key=lambda row: (row.free, _drawn(row.key)))
    chosen: list[RecordKey] = []
    for tenth in range(_TENTHS):
        part = ordered[len(ordered) * tenth // _TENTHS : len(ordered) * (tenth + 1) // _TENTHS]
        share = count * (tenth + 1) // _TENTHS - count * tenth // _TENTHS
        able = [row.key for row in part if row.wanted or row.key in known]
        chosen += sorted(able, key=lambda key: (key not in known, _drawn(key)))[:share]
    return chosen


def _model_of(row: Row) -> Any:
    metadata = row.get("metadata")
    return row.get("importance_model") or (metadata.get("importance_model") if isinstance(metadata, dict) else None)


def _features(text: str, role: str | None, around: Surroundings, company: Settled) -> list[float]:
    found = signals(text, company.rarity)
    who = str(role or "").lower()
    return [
        *(found[name] for name in WEIGHTS if name != "base"),
        *around.signals().values(),
        float(who == "assistant"),
        float(who == "user"),
        math.log1p(len(text)),
    ]


def _embeddings(frame: pl.DataFrame, size: int) -> np.ndarray:
    """Unit embeddings of that size; zeros where a record has none that can be used."""
    import numpy as np

    found = np.zeros((len(frame), size), dtype=np.float64)
    column = frame.get_column("embedding")
    fitting = np.flatnonzero((column.list.len().fill_null(0) == size).to_numpy()) if size else np.zeros(0, np.intp)
    if len(fitting):
        vectors = column.gather(fitting).explode().to_numpy().astype(np.float64).reshape(len(fitting), size)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        usable = (np.isfinite(norms) & (norms > 0)).ravel()
        found[fitting[usable]] = vectors[usable] / norms[usable]
    return found


def _tell(
    provider: Provider, report: DistilledReport, written: Sequence[RecordKey], where: RatedRecords, now: int
) -> None:
    """The run's one event (SPEC §10)."""
    if not written:
        return
    digest = ids_digest(written)
    payload = {
        "mode": DISTILLED,
        "model": report.model,
        "sample": report.sample,
        "taught": report.taught,
        "cross_validated": report.cross_validated,
        "floor": round(report.floor, 4),
        "heuristic_agreement": report.heuristic_agreement,
        "rated": report.rated,
        "raised": report.raised,
        "upgraded": report.upgraded,
        "by_source": dict(sorted(report.by_source.items())),
        "calls": report.used.calls,
        "input_tokens": report.used.input_tokens,
        "output_tokens": report.used.output_tokens,
        "cost": None if report.cost is None else round(report.cost, 6),
        "state": report.state,
        "ids_digest": digest,
    }
    event = control_event(
        "importance_rated", f"importance-backfill:{digest}", payload, now=now, agent_id=where.scope.agent_id
    )
    insert_control_rows(provider, [event])
