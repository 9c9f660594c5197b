"""Rating history by a model (SPEC §3.6): what is asked, what an answer becomes, when to stop.

One pass over the unrated rows of a scope, newest or oldest first. Rows with one and the same text are one
question. Calls go out in threads; everything else (budget, judgement of the answers, writing) is in the
calling thread, so that it can be read in order. An answer is kept as paid before anything else is done with
it, and its ratings are in the store before the next answer is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Event, Lock
from typing import Any, Final, Literal

import polars as pl

from fallow.importance.asking import Answer, AnswersInMemory, Model, PaidAnswers
from fallow.importance.backfill import (
    BackfillReport,
    Seen,
    company_of,
    rating_fields,
    read_scope,
    to_be_rated,
    to_rate,
    write_ratings,
)
from fallow.importance.budget import Budget, Ledger, Price, Usage
from fallow.importance.company import Settled
from fallow.importance.heuristic import Rarity, Rating, heuristic_rating
from fallow.importance.parsing import MISSING, UNREADABLE, ParsedAnswer, parse_ratings
from fallow.importance.prompt import (
    ANSWER_SCHEMA,
    Prompt,
    answer_tokens,
    build_prompt,
    cache_key,
    estimated_tokens,
    has_words,
    shortened,
)
from fallow.importance.quality import QualityCheck, fallback_problem, spearman
from fallow.model.errors import ModelRefusedError, ModelRequestError, ModelUnavailableError
from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES, read_record
from fallow.model.scope import Scope
from fallow.model.times import iso
from fallow.port.journal import control_event, ids_digest
from fallow.port.journal_writing import insert_control_rows
from fallow.port.protocol import Provider

Order = Literal["newest", "oldest"]
ORDERS: Final[tuple[Order, ...]] = ("newest", "oldest")

#: Reasons of this room for a fallback, beside the parser's.
EMPTY_TEXT: Final = "empty_text"
TRUNCATED: Final = "truncated"
EMPTY_ANSWER: Final = "empty_answer"
REFUSED: Final = "refused"

_COLUMNS: Final = (
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
)
#: Rows read at a time, and characters of text in one call at most.
_FIRST_PIECE: Final = 64
_PIECE: Final = 1_024
#: Questions kept ready: what the calls take while the store is busy with writing.
_STOCK: Final = 2_000
_MAX_CALL_TEXT: Final = 24_000
#: A cut-off or empty answer is asked for again with twice the room, so often in all.
_ATTEMPTS: Final = 3
#: Calls in a row that the endpoint failed or refused, before the run gives it up.
_FAILURES: Final = 3
#: The share of fallbacks is judged from so many of them on, or where nothing at all was rated.
_ENOUGH_FALLBACKS: Final = 5
_ENOUGH_ASKED: Final = 24
#: Texts kept to compare the model with the heuristic, and contents remembered as already judged.
_SAMPLE: Final = 500
_REMEMBERED: Final = 50_000


@dataclass(slots=True)
class ModelReport(BackfillReport):
    """What a run by a model did, beyond what every backfill reports.

    Attributes:
        model: the model's name.
        total: rows that had to be rated.
        settled: rows that are done with, one way or another.
        answered: rows that the model was asked about and answered or not (each content once).
        from_paid: rows rated by an answer that was paid for before, or for another row with the same text.
        fallbacks: rows rated by the heuristic instead, by reason; ``empty_text`` was never sent.
        left: rows not reached.
        stopped: why the run ended before its end, empty where it did not: the budget.
        problem: what needs a person's attention; nothing was paid after it was seen.
        lost: rows of calls that an earlier run sent before it died; they may be paid for twice.
        unsettled: calls of this run whose answer never came; they may have been paid for.
        used: calls and tokens as the endpoint counted them.
        cost: money for it; None where the model has no price.
        pairs: (heuristic, model) for a sample of rated rows.
    """

    model: str = ""
    total: int = 0
    settled: int = 0
    answered: int = 0
    from_paid: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    left: int = 0
    stopped: str = ""
    problem: str = ""
    lost: list[int] = field(default_factory=list)
    unsettled: int = 0
    used: Usage = field(default_factory=Usage)
    cost: float | None = None
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def state(self) -> str:
        """The run's end state (SPEC §15)."""
        if self.problem:
            return "NeedsAttention"
        return "Rated" if self.rated or self.raised or self.upgraded else "NothingToDo"

    @property
    def agreement(self) -> float | None:
        """Spearman's rank correlation of heuristic and model over the sample."""
        return spearman(self.pairs)

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts."""
        return {
            **BackfillReport.to_json(self),
            "state": self.state,
            "model": self.model,
            "total": self.total,
            "asked": self.answered,
            "from_paid": self.from_paid,
            "fallbacks": dict(sorted(self.fallbacks.items())),
            "left": self.left,
            "stopped": self.stopped,
            "problem": self.problem,
            "lost_calls": len(self.lost),
            "lost_rows": sum(self.lost),
            "unsettled_calls": self.unsettled,
            "calls": self.used.calls,
            "input_tokens": self.used.input_tokens,
            "output_tokens": self.used.output_tokens,
            "cost": None if self.cost is None else round(self.cost, 6),
            "agreement": {"spearman": self.agreement, "rows": len(self.pairs)},
        }


@dataclass(frozen=True, slots=True)
class Question:
    """One text that the model is asked about, and every row that waits for its rating."""

    key: str
    text: str
    role: str | None
    rows: list[RecordKey]


@dataclass(frozen=True, slots=True)
class _Call:
    questions: tuple[Question, ...]
    prompt: Prompt
    room: int
    attempt: int

    @property
    def estimate(self) -> Usage:
        return Usage(1, sum(estimated_tokens(message["content"]) for message in self.prompt.messages), self.room)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run would ask and cost, before anything is paid.

    ``minutes`` is the time that the set pace takes at least; None without a pace.
    """

    rows: int
    verified: int
    empty: int
    paid_before: int
    same_text: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    minutes: float | None

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts."""
        return {
            "schema_version": 1,
            "rows": self.rows,
            "verified": self.verified,
            "empty_text": self.empty,
            "paid_before": self.paid_before,
            "same_text": self.same_text,
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": None if self.cost is None else round(self.cost, 6),
            "minutes": None if self.minutes is None else round(self.minutes, 2),
        }


Progress = Callable[[ModelReport], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How history is rated by a model.

    Attributes:
        purpose: what the agent is for.
        batch_size: rows in one call.
        order: which rows come first, by creation.
        budget: what the run may spend.
        price: the model's; None where it is not known.
        fallback_share: more fallbacks than this share of the rows asked about need attention.
        upgrade_heuristic: ask also about rows that the heuristic, or a regression on a sample, has rated, and
            replace those ratings (SPEC §3.4).
        only_paid: ask nothing: rate what needs no model and what was paid for before, and leave the rest.
    """

    purpose: str = ""
    batch_size: int = 8
    order: Order = "newest"
    budget: Budget = field(default_factory=Budget)
    price: Price | None = None
    fallback_share: float = 0.2
    upgrade_heuristic: bool = False
    only_paid: bool = False

    @property
    def upgrades(self) -> str:
        """The source whose ratings may replace others, or empty (:func:`~fallow.importance.backfill.replaced_by`)."""
        return "llm" if self.upgrade_heuristic else ""


def rate_by_model(
    provider: Provider,
    model: Model,
    options: RunOptions,
    *,
    now: int,
    salt: str,
    scope: Scope | None = None,
    excluded_agents: Collection[str] = (),
    memory_types: Sequence[str] = PRIMARY_TYPES,
    answers: PaidAnswers | None = None,
    given_up: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ModelReport:
    """Rates the unrated rows of a scope by a model, with the heuristic where it gives nothing (SPEC §3.6).

    Idempotent and resumable: a row that has a rating is left alone, and what was paid for is not paid again.

    Args:
        provider: the open store.
        model: who is asked.
        options: how.
        now: the wall clock, microseconds, stored with the ratings.
        salt: unpredictable text of this run, for the tags that rows go by.
        scope: which records; by default the whole store.
        excluded_agents: in the whole store, not these agents' records.
        memory_types: of which types.
        answers: what was paid for before; by default only this run's own.
        given_up: contents that the model was asked about elsewhere without getting a rating, with the reason:
            they fall back.
        progress: called after each answer.

    Raises:
        StoreUnreadableError: a listing failed; what was rated before stays rated.
        SettingError: a budget in money without a price.
    """
    where = RatedRecords(scope or Scope(), tuple(memory_types), tuple(excluded_agents))
    return _Run(provider, model, options, now, salt, where, answers or AnswersInMemory(), given_up or {}).go(progress)


def rate_sample(
    provider: Provider,
    model: Model,
    options: RunOptions,
    keys: Collection[RecordKey],
    *,
    now: int,
    salt: str,
    where: RatedRecords,
    answers: PaidAnswers | None = None,
    progress: Progress | None = None,
) -> tuple[ModelReport, dict[RecordKey, float]]:
    """Asks a model about these of a scope's records, as :func:`rate_by_model` does, and writes nothing.

    Returns what the asking came to, and the model's ratings; where the report has a problem, no rating is to be used.

    Raises:
        As :func:`rate_by_model`.
    """
    run = _Run(provider, model, options, now, salt, where, answers or AnswersInMemory(), {}, frozenset(keys))
    report = run.go(progress)
    found = {
        RecordKey(memory_type, name): rating.importance
        for memory_type, ratings in run.ready.items()
        for name, rating in ratings.items()
        if rating.source == "llm" and rating.importance is not None
    }
    return report, found


@dataclass(frozen=True, slots=True)
class RatedRecords:
    """Which records a run is about."""

    scope: Scope
    memory_types: tuple[str, ...]
    excluded_agents: tuple[str, ...] = ()


def estimate_run(
    provider: Provider,
    model: str,
    options: RunOptions,
    *,
    scope: Scope | None = None,
    excluded_agents: Collection[str] = (),
    memory_types: Sequence[str] = PRIMARY_TYPES,
    answers: PaidAnswers | None = None,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> Estimate:
    """What :func:`rate_by_model` would ask and cost. Reads only; estimates tokens from above."""
    answers = answers or AnswersInMemory()
    report = ModelReport(mode="llm")
    where = RatedRecords(scope or Scope(), tuple(memory_types), tuple(excluded_agents))
    frame = pending_rows(provider, where, options, report)
    verified = empty = paid = same = tokens = calls = 0
    in_call = characters = asked = 0
    seen: set[bytes] = set()
    overhead = sum(
        estimated_tokens(message["content"])
        for message in build_prompt([("", "", None)], purpose=options.purpose, salt="").messages
    )
    for piece in pieces_of(frame):
        rows = read_rows(provider, piece)
        keys = [cache_key(row.text, row.role, model=model, purpose=options.purpose) for row in rows]
        known = answers.known(set(keys))
        for key, row in zip(keys, rows, strict=True):
            digest = bytes.fromhex(key)[:10]
            if row.verified:
                verified += 1
            elif not has_words(row.text):
                empty += 1
            elif digest in seen:
                same += 1
            elif key in known:
                paid += 1
            else:
                seen.add(digest)
                asked += 1
                shown = shortened(row.text)
                tokens += estimated_tokens(shown) + 24
                if in_call == 0 or in_call >= options.batch_size or characters + len(shown) > _MAX_CALL_TEXT:
                    calls, in_call, characters = calls + 1, 0, 0
                in_call, characters = in_call + 1, characters + len(shown)
    tokens += calls * overhead
    output = 16 * calls + 20 * asked
    minutes = [calls / requests_per_minute] if requests_per_minute else []
    minutes += [(tokens + output) / tokens_per_minute] if tokens_per_minute else []
    return Estimate(
        rows=len(frame),
        verified=verified,
        empty=empty,
        paid_before=paid,
        same_text=same,
        calls=calls,
        input_tokens=tokens,
        output_tokens=output,
        cost=None if options.price is None else options.price.of(tokens, output),
        minutes=max(minutes) if minutes else None,
    )


def pending_rows(provider: Provider, where: RatedRecords, options: RunOptions, report: ModelReport) -> pl.DataFrame:
    """Type and id of every row to rate, in the order asked for; no text yet."""
    frames = [pl.DataFrame(schema={"memory_type": pl.String, "record_id": pl.String, "created_at": pl.Int64})]
    for memory_type in where.memory_types:
        for frame in read_scope(provider, memory_type, where.scope, _COLUMNS, excluded_agents=where.excluded_agents):
            report.scanned += len(frame)
            todo = to_rate(frame, report, upgrade=options.upgrades)
            frames.append(todo.select(pl.lit(memory_type).alias("memory_type"), "record_id", "created_at"))
    newest = options.order == "newest"
    return pl.concat(frames).sort("created_at", "record_id", descending=[newest, False], nulls_last=True)


def pieces_of(frame: pl.DataFrame) -> Iterator[list[RecordKey]]:
    """Small pieces first, so that the first call does not wait for a large one."""
    start, size = 0, _FIRST_PIECE
    while start < len(frame):
        yield [RecordKey(*row[:2]) for row in frame.slice(start, size).rows()]
        start, size = start + size, min(_PIECE, 4 * size)


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row as it is now; ``wanted``: it still is to be rated."""

    key: RecordKey
    text: str
    role: str | None
    verified: bool
    wanted: bool
    seen: Seen


def read_rows(provider: Provider, keys: Sequence[RecordKey], upgrade: str = "") -> list[ReadRow]:
    """The rows that are still there, in the order of the keys."""
    by_type: dict[str, list[str]] = {}
    for key in keys:
        by_type.setdefault(key.memory_type, []).append(key.record_id)
    rows = {memory_type: provider.fetch(memory_type, ids) for memory_type, ids in by_type.items()}
    found: list[ReadRow] = []
    for key in keys:
        row = rows[key.memory_type].get(key.record_id)
        if isinstance(row, dict):
            record = read_record(row, key.memory_type, key.record_id)
            seen = Seen(rating_fields(row), record.importance is not None)
            found.append(ReadRow(key, record.text, record.role, record.verified, to_be_rated(record, upgrade), seen))
    return found


def _add(report: BackfillReport, part: BackfillReport) -> None:
    """Adds what one writing came to."""
    report.rated += part.rated
    report.raised += part.raised
    report.upgraded += part.upgraded
    for total, counts in ((report.skipped, part.skipped), (report.failed, part.failed)):
        for reason, ids in counts.items():
            total.setdefault(reason, []).extend(ids)
    for source, count in part.by_source.items():
        report.by_source[source] = report.by_source.get(source, 0) + count
    report.distribution = [a + b for a, b in zip(report.distribution, part.distribution, strict=True)]
    for source, tenths in part.distribution_by_source.items():
        before = report.distribution_by_source.get(source, [0] * len(tenths))
        report.distribution_by_source[source] = [a + b for a, b in zip(before, tenths, strict=True)]


def _compared(sample: Sequence[tuple[str, str | None, float]]) -> list[tuple[float, float]]:
    """How the free rating judges rows that the model rated: (heuristic, model)."""
    rarity = Rarity.of(text for text, _, _ in sample)
    ratings = [(heuristic_rating(text, role=role, rarity=rarity).importance, rating) for text, role, rating in sample]
    return [(heuristic, rating) for heuristic, rating in ratings if heuristic is not None]


class _Run:
    """One run's state; see :func:`rate_by_model`."""

    def __init__(
        self,
        provider: Provider,
        model: Model,
        options: RunOptions,
        now: int,
        salt: str,
        where: RatedRecords,
        answers: PaidAnswers,
        given_up: Mapping[str, str],
        only: frozenset[RecordKey] | None = None,
    ) -> None:
        self.only = only
        self.provider, self.model, self.options, self.now, self.salt = provider, model, options, now, salt
        self.where, self.answers, self.given_up = where, answers, given_up
        self.report = ModelReport(mode="llm", model=model.name)
        self.ledger = Ledger(options.budget, options.price)
        self.quality = QualityCheck()
        self.stamp = {"importance_model": model.name, "importance_rated_at": iso(now)}
        self.ready: dict[str, dict[str, Rating]] = {}
        self.waiting: dict[str, Question] = {}
        self.again: deque[_Call] = deque()
        self.judged: set[str] = set()
        self.store = ThreadPoolExecutor(1, thread_name_prefix="store")
        self.seen: dict[RecordKey, Seen] = {}
        self.questions: deque[Question] = deque()
        self.asked_for: list[RecordKey] = []
        self.read_all = False
        self.comparing: Future[list[tuple[float, float]]] | None = None
        self.reading: Future[list[ReadRow]] | None = None
        self.writing: Future[tuple[BackfillReport, list[RecordKey]]] | None = None
        self.distrusted = ""
        self.halt, self.lock = Event(), Lock()
        self.sample: list[tuple[str, str | None, float]] = []
        self.written: list[RecordKey] = []
        self.failures = 0
        self.calls = 0
        self._company: Settled | None = None

    def go(self, progress: Progress | None) -> ModelReport:
        report = self.report
        report.lost = self.answers.lost()
        frame = pending_rows(self.provider, self.where, self.options, report)
        if self.only is not None:
            named = [RecordKey(*row[:2]) in self.only for row in frame.iter_rows()]
            frame = frame.filter(pl.Series(named, dtype=pl.Boolean))
        report.total = len(frame)
        unsettled = self.model.unsettled
        pieces = pieces_of(frame)
        out: dict[Future[Any], _Call] = {}
        with (
            self.store,
            ThreadPoolExecutor(self.model.in_flight, thread_name_prefix="rating") as pool,
        ):
            try:
                while True:
                    self._use_store(pieces)
                    self._send(pool, out)
                    pending = {*out, *(future for future in (self.reading, self.writing) if future is not None)}
                    if not pending:
                        break
                    done, _ = wait(pending, return_when=FIRST_COMPLETED)
                    self._from_store(done)
                    for future in done & out.keys():
                        self._settle(out.pop(future), future)
                    if report.problem:
                        self._call_back(out)
                    report.unsettled = self.model.unsettled - unsettled
                    if progress is not None:
                        progress(report)
            finally:
                self._call_back(out)
        report.left = report.total - report.settled
        report.unsettled = self.model.unsettled - unsettled
        self._account()
        if not report.problem:
            report.problem = self._too_many_fallbacks()
        report.pairs = _compared(self.sample) if self.comparing is None else self.comparing.result()
        self._tell()
        return report

    # The store: one thread reads ahead and writes, so that no call waits for it

    def _use_store(self, pieces: Iterator[list[RecordKey]]) -> None:
        """Starts writing what is rated, and reading on where few questions are left."""
        if self.writing is None and self.ready and self.only is None:
            ready, self.ready = self.ready, {}
            self.writing = self.store.submit(self._write, ready)
        stopped = self.report.problem or self.report.stopped
        if self.reading is None and not stopped and not self.read_all and len(self.questions) < _STOCK:
            piece = next(pieces, None)
            if piece is None:
                self.read_all = True
            else:
                self.reading = self.store.submit(read_rows, self.provider, piece, self.options.upgrades)
                self.asked_for = piece

    def _from_store(self, done: set[Future[Any]]) -> None:
        if self.writing in done:
            part, keys = self.writing.result()
            self.writing = None
            self.written += keys
            _add(self.report, part)
        if self.reading in done:
            rows = self.reading.result()
            self.reading = None
            self._take_rows(rows)

    def _write(self, ready: Mapping[str, Mapping[str, Rating]]) -> tuple[BackfillReport, list[RecordKey]]:
        """In the store's thread: puts what is rated into the store; counts it in a report of its own."""
        part, written = BackfillReport(mode="llm"), list[RecordKey]()
        size = max(1, self.provider.capabilities.batch_size)
        for memory_type, ratings in ready.items():
            pairs = list(ratings.items())
            for start in range(0, len(pairs), size):
                piece = dict(pairs[start : start + size])
                seen = {name: self.seen.pop(RecordKey(memory_type, name)) for name in piece}
                written += write_ratings(self.provider, memory_type, piece, part, stamp=self.stamp, seen=seen)
        return part, written

    # What goes out

    def _send(self, pool: ThreadPoolExecutor, out: dict[Future[Any], _Call]) -> None:
        """Fills the threads, and as many calls again so that none of them ever waits for the writing."""
        while not self.report.problem and not self.report.stopped and len(out) < 2 * self.model.in_flight:
            call = self.again.popleft() if self.again else self._next_call()
            if call is None:
                return
            limit = self.ledger.exhausted_by(call.estimate)
            if limit:
                self.again.appendleft(call)
                if not out:
                    self.report.stopped = f"the budget in {limit} is used up"
                return
            self.ledger.reserve(call.estimate)
            out[pool.submit(self._ask, call)] = call

    def _next_call(self) -> _Call | None:
        """The next full batch, and at the end what is left."""
        batch: list[Question] = []
        characters = 0
        if len(self.questions) < self.options.batch_size and not self.read_all:
            return None
        while self.questions and len(batch) < self.options.batch_size and characters < _MAX_CALL_TEXT:
            batch.append(self.questions.popleft())
            characters += len(shortened(batch[-1].text))
        return self._call(batch) if batch else None

    def _call(self, batch: Sequence[Question], attempt: int = 1) -> _Call:
        self.calls += 1
        prompt = build_prompt(
            [(question.key, question.text, question.role) for question in batch],
            purpose=self.options.purpose,
            salt=f"{self.salt} {self.calls}",
        )
        return _Call(tuple(batch), prompt, answer_tokens(len(batch)) << (attempt - 1), attempt)

    def _take_rows(self, rows: Sequence[ReadRow]) -> None:
        """Texts to ask about; what needs no asking is rated at once."""
        self._skip("gone", {*self.asked_for} - {row.key for row in rows})
        self._skip("rated meanwhile", {row.key for row in rows if not row.wanted})
        rows = [row for row in rows if row.wanted]
        purpose = self.options.purpose
        keys = [cache_key(row.text, row.role, model=self.model.name, purpose=purpose) for row in rows]
        known = self.answers.known(set(keys))
        for key, row in zip(keys, rows, strict=True):
            self.seen[row.key] = row.seen
            if row.verified:
                self._rate(row.key, heuristic_rating(row.text, role=row.role, verified=True))
            elif not has_words(row.text):
                self._fall_back(Question(key, row.text, row.role, [row.key]), EMPTY_TEXT)
            elif key in self.waiting:
                self.waiting[key].rows.append(row.key)
            elif key in known:
                self._judge_paid(key, known[key])
                if self.distrusted:
                    return
                self.report.from_paid += 1
                self._rate(row.key, Rating(known[key], "llm"))
                self._keep(row.text, row.role, known[key])
            elif key in self.given_up:
                self._give_up(Question(key, row.text, row.role, [row.key]), self.given_up[key])
            elif self.options.only_paid:
                del self.seen[row.key]
            else:
                question = Question(key, row.text, row.role, [row.key])
                self.waiting[key] = question
                self.questions.append(question)

    def _ask(self, call: _Call) -> tuple[Answer, ParsedAnswer]:
        """In a thread: asks, and keeps what was paid for before anything else happens."""
        if self.halt.is_set():
            raise CancelledError
        number = self.answers.sent(len(call.questions))
        try:
            answer = self.model.ask(call.prompt.messages, max_tokens=call.room, schema=ANSWER_SCHEMA)
        except Exception:
            self.answers.answered(number, {})
            raise
        parsed = parse_ratings(answer.text, list(call.prompt.rows))
        rows = call.prompt.rows
        parsed = ParsedAnswer(
            {rows[tag]: value for tag, value in parsed.ratings.items()},
            {rows[tag]: reason for tag, reason in parsed.unrated.items()},
            parsed.unknown,
        )
        self.answers.answered(number, parsed.ratings)
        self._judge([parsed.ratings[one.key] for one in call.questions if one.key in parsed.ratings])
        return answer, parsed

    # What comes back

    def _settle(self, call: _Call, future: Future[Any]) -> None:
        try:
            answer, parsed = future.result()
        except CancelledError:
            self.ledger.settle(call.estimate, Usage())
            return
        except ModelRequestError:
            self.ledger.settle(call.estimate, Usage())
            self._refused(call)
            return
        except ModelUnavailableError as error:
            self.ledger.settle(call.estimate, Usage())
            self._failed(call, error.message)
            return
        except ModelRefusedError as error:
            self.ledger.settle(call.estimate, Usage())
            self.report.problem = self.report.problem or error.message
            return
        self.failures = 0
        self.ledger.settle(call.estimate, answer.usage)
        self._account()
        self._take(call, answer, parsed)

    def _take(self, call: _Call, answer: Answer, parsed: ParsedAnswer) -> None:
        if self.distrusted:
            self.report.problem = self.report.problem or self.distrusted
            # What shows that the ratings say nothing is not stored, nor is what comes after it.
            return
        empty = not answer.text.strip()
        cut = answer.finish == "length"
        again: list[Question] = []
        for question in call.questions:
            rating = parsed.ratings.get(question.key)
            reason = parsed.unrated.get(question.key, MISSING)
            if rating is not None:
                self.report.answered += 1
                self.waiting.pop(question.key, None)
                self.report.from_paid += len(question.rows) - 1
                for row in question.rows:
                    self._rate(row, Rating(rating, "llm"))
                self._keep(question.text, question.role, rating)
            elif (empty or (cut and reason in {MISSING, UNREADABLE})) and answer.finish != "refusal":
                if call.attempt < _ATTEMPTS:
                    again.append(question)
                else:
                    self._give_up(question, TRUNCATED if cut else EMPTY_ANSWER)
            else:
                self._give_up(question, REFUSED if answer.finish == "refusal" else reason)
        if again:
            self.again.append(self._call(again, call.attempt + 1))
        if self.report.answered + sum(self.report.fallbacks.values()) >= _ENOUGH_ASKED:
            self.report.problem = self.report.problem or self._too_many_fallbacks()

    def _refused(self, call: _Call) -> None:
        """A request refused for what is in it: the rows are asked about in halves, until one is alone."""
        self.failures += 1
        if self.failures >= _FAILURES * 4 and not self.report.answered:
            self.report.problem = self.report.problem or f"model '{self.model.name[:80]}' refuses every request"
        elif len(call.questions) == 1:
            self._give_up(call.questions[0], REFUSED)
        else:
            middle = len(call.questions) // 2
            self.again.extend(
                self._call(part, call.attempt) for part in (call.questions[:middle], call.questions[middle:])
            )

    def _failed(self, call: _Call, why: str) -> None:
        """Rows of a call that stayed unanswered keep no rating: a later run asks about them again."""
        self.failures += 1
        for question in call.questions:
            self.waiting.pop(question.key, None)
            self.report.settled += len(question.rows)
            for row in question.rows:
                del self.seen[row]
            self.report.failed.setdefault("the model did not answer", []).extend(row.record_id for row in question.rows)
        if self.failures >= _FAILURES:
            self.report.problem = self.report.problem or f"{self.failures} calls in a row failed: {why}"

    def _call_back(self, out: dict[Future[Any], _Call]) -> None:
        """Takes back the calls that no thread has begun."""
        self.halt.set()
        for future in [future for future in out if future.cancel()]:
            self.ledger.settle(out.pop(future).estimate, Usage())

    def _give_up(self, question: Question, reason: str) -> None:
        self.waiting.pop(question.key, None)
        self.report.answered += 1
        self._fall_back(question, reason)

    def _fall_back(self, question: Question, reason: str) -> None:
        self.report.fallbacks[reason] = self.report.fallbacks.get(reason, 0) + len(question.rows)
        if self.only is not None:
            self.report.settled += len(question.rows)
            return
        for row in question.rows:
            if self.seen[row].rated:
                del self.seen[row]
                self.report.settled += 1
                self.report.skipped.setdefault("keeps the rating it had", []).append(row.record_id)
            elif reason == EMPTY_TEXT:
                self._rate(row, heuristic_rating(question.text, role=question.role))
            else:
                (around,) = self.company.around(row.memory_type, [row.record_id])
                rarity = self.company.rarity
                self._rate(row, heuristic_rating(question.text, role=question.role, around=around, rarity=rarity))

    @property
    def company(self) -> Settled:
        """What the scope's records say of each other, looked at when the first row falls back."""
        if self._company is None:
            # In the store's thread, as all use of the provider while calls are out.
            where = self.where
            looking = self.store.submit(
                company_of, self.provider, where.memory_types, where.scope, where.excluded_agents
            )
            self._company = looking.result()
        return self._company

    def _rate(self, row: RecordKey, rating: Rating) -> None:
        self.report.settled += 1
        self.ready.setdefault(row.memory_type, {})[row.record_id] = rating

    def _judge_paid(self, key: str, rating: float) -> None:
        """A rating from before is judged with this run's, each content once."""
        if key in self.judged:
            return
        if len(self.judged) >= _REMEMBERED:
            self.judged.clear()
        self.judged.add(key)
        self._judge([rating])
        self.report.problem = self.report.problem or self.distrusted

    def _judge(self, ratings: Sequence[float]) -> None:
        """Judges a batch as it arrives, in whichever thread: what shows the model useless lets no call follow."""
        with self.lock:
            self.quality.add(ratings)
            self.distrusted = self.distrusted or self.quality.problem
            if self.distrusted:
                self.halt.set()

    def _skip(self, reason: str, keys: set[RecordKey]) -> None:
        if keys:
            self.report.settled += len(keys)
            self.report.skipped.setdefault(reason, []).extend(sorted(key.record_id for key in keys))

    # What is told

    def _account(self) -> None:
        self.report.used, self.report.cost = self.ledger.spent, self.ledger.cost

    def _too_many_fallbacks(self) -> str:
        useless = sum(count for reason, count in self.report.fallbacks.items() if reason != EMPTY_TEXT)
        rated = self.report.by_source.get("llm", 0) + sum(
            rating.source == "llm" for ratings in self.ready.values() for rating in ratings.values()
        )
        if useless < _ENOUGH_FALLBACKS and (rated or not useless):
            return ""
        return fallback_problem(useless, useless + rated, self.options.fallback_share)

    def _keep(self, text: str, role: str | None, rating: float) -> None:
        if len(self.sample) < _SAMPLE:
            self.sample.append((shortened(text), role, rating))
            if len(self.sample) == _SAMPLE:
                self.comparing = self.store.submit(_compared, self.sample)

    def _tell(self) -> None:
        """The run's one event (SPEC §10): counts, parameters, a digest of the ids."""
        report = self.report
        if not self.written:
            return
        digest = ids_digest(self.written)
        payload = {
            "mode": "llm",
            "model": report.model,
            "purpose_sha256": sha256(self.options.purpose.strip().encode("utf-8", "replace")).hexdigest(),
            "batch_size": self.options.batch_size,
            "rated": report.rated,
            "raised": report.raised,
            "upgraded": report.upgraded,
            "by_source": dict(sorted(report.by_source.items())),
            "fallbacks": dict(sorted(report.fallbacks.items())),
            "calls": report.used.calls,
            "input_tokens": report.used.input_tokens,
            "output_tokens": report.used.output_tokens,
            "cost": None if report.cost is None else round(report.cost, 6),
            "state": report.state,
            "ids_digest": digest,
        }
        key = f"importance-backfill:{digest}"
        insert_control_rows(
            self.provider,
            [control_event("importance_rated", key, payload, now=self.now, agent_id=self.where.scope.agent_id)],
        )
