"""History through an endpoint's batch jobs, at half the price (SPEC §3.6): submit, come back later, collect.

A job runs for up to a day, so nothing waits for it. A run first collects the jobs that have ended, whatever
run submitted them: their answers become paid answers (:class:`fallow.importance.asking.PaidAnswers`), and a
run that asks nothing (``RunOptions.only_paid``) writes them. Then it submits what nobody has asked about yet.
A job is noted before it is submitted, under a marker that goes with it, so that one whose submitter died is
found again and not paid twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from fallow.importance.asking import Answer
from fallow.importance.budget import BATCH_DISCOUNT, Ledger, Price, Usage
from fallow.importance.parsing import parse_ratings
from fallow.importance.prompt import answer_tokens, build_prompt, cache_key, estimated_tokens, has_words, shortened
from fallow.importance.rating_run import ModelReport, RatedRecords, RunOptions, pending_rows, pieces_of, read_rows
from fallow.port.protocol import Provider

#: Calls in one job at most, and characters of text in one call.
MAX_CALLS: Final = 2_000
_MAX_CALL_TEXT: Final = 24_000

JobState = Literal["waiting", "ended", "gone"]


@dataclass(frozen=True, slots=True)
class BatchCall:
    """One call of a job, by its name in it."""

    name: str
    messages: Sequence[Mapping[str, str]]
    max_tokens: int


class Jobs(Protocol):
    """An endpoint that takes batch jobs."""

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def address(self) -> str:
        """Which endpoint and model this is."""
        ...

    def submit(self, calls: Sequence[BatchCall], marker: str) -> str:
        """Hands a job in; returns the endpoint's name for it. Raises as :meth:`Model.ask`."""
        ...

    def find(self, marker: str) -> str | None:
        """The endpoint's name for the job that was handed in with that marker, if it ever took it."""
        ...

    def state(self, job: str) -> JobState:
        """Where a job stands: ``ended`` also where it failed, expired or was cancelled; its answers may be few."""
        ...

    def answers(self, job: str) -> Iterator[tuple[str, Answer | None]]:
        """The answers of a job that has ended, by call; None where a call failed."""
        ...


class JobNotes(Protocol):
    """Where jobs under way are noted, beside the paid answers."""

    def known(self, keys: Collection[str]) -> dict[str, float]:
        """As :meth:`fallow.importance.asking.PaidAnswers.known`."""
        ...

    def answered(self, call: int, ratings: Mapping[str, float]) -> None:
        """As :meth:`fallow.importance.asking.PaidAnswers.answered`."""
        ...

    def begin_job(self, marker: str, endpoint: str, content: Mapping[str, Any]) -> None:
        """Notes a job that is about to be submitted."""
        ...

    def name_job(self, marker: str, job: str) -> None:
        """Notes the endpoint's name for it."""
        ...

    def jobs(self, endpoint: str) -> list[tuple[str, str | None, dict[str, Any]]]:
        """Marker, name and content of the jobs under way."""
        ...

    def end_job(self, marker: str) -> None:
        """Forgets a job."""
        ...


@dataclass(slots=True)
class Collected:
    """What became of the jobs under way.

    ``unrated`` counts texts by why their call gave them nothing; ``given_up`` has the reason of those that were
    answered all the same: asking again would be paid again, so they fall back.
    """

    jobs: int = 0
    waiting: int = 0
    rated: int = 0
    unrated: dict[str, int] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)
    used: Usage = field(default_factory=Usage)
    cost: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts."""
        return {
            "jobs": self.jobs,
            "waiting": self.waiting,
            "rated": self.rated,
            "unrated": dict(sorted(self.unrated.items())),
            "calls": self.used.calls,
            "input_tokens": self.used.input_tokens,
            "output_tokens": self.used.output_tokens,
            "cost": None if self.cost is None else round(self.cost, 6),
        }


@dataclass(slots=True)
class Submitted:
    """What was handed in. Tokens and cost are estimates from above, at the discount."""

    jobs: list[str] = field(default_factory=list)
    texts: int = 0
    stopped: str = ""
    estimated: Usage = field(default_factory=Usage)
    cost: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts."""
        return {
            "jobs": self.jobs,
            "texts": self.texts,
            "calls": self.estimated.calls,
            "stopped": self.stopped,
            "estimated_tokens": self.estimated.tokens,
            "estimated_cost": None if self.cost is None else round(self.cost, 6),
        }


def discounted(price: Price | None) -> Price | None:
    """What a job costs against calls that are answered at once."""
    return None if price is None else Price(price.input * BATCH_DISCOUNT, price.output * BATCH_DISCOUNT)


def collect_jobs(jobs: Jobs, notes: JobNotes, price: Price | None = None) -> Collected:
    """Keeps the answers of every job that has ended. Killed and called again it keeps them once more, the same."""
    collected = Collected()
    for marker, known_as, content in notes.jobs(jobs.address):
        name = known_as or jobs.find(marker)
        state = "gone" if name is None else jobs.state(name)
        if name is not None and state == "waiting":
            collected.waiting += 1
            continue
        if name is not None and state == "ended":
            collected.jobs += 1
            _collect(jobs.answers(name), content["calls"], notes, collected)
        notes.end_job(marker)
    halved = discounted(price)
    collected.cost = None if halved is None else halved.of(collected.used.input_tokens, collected.used.output_tokens)
    return collected


def _collect(
    answers: Iterator[tuple[str, Answer | None]],
    calls: Mapping[str, Mapping[str, str]],
    notes: JobNotes,
    collected: Collected,
) -> None:
    for name, answer in answers:
        rows = calls.get(name)
        if rows is None:
            continue
        if answer is None:
            collected.unrated["no_answer"] = collected.unrated.get("no_answer", 0) + len(rows)
            continue
        collected.used.add(answer.usage)
        parsed = parse_ratings(answer.text, list(rows))
        notes.answered(0, {rows[tag]: rating for tag, rating in parsed.ratings.items()})
        collected.rated += len(parsed.ratings)
        collected.given_up.update((rows[tag], reason) for tag, reason in parsed.unrated.items())
        for reason in parsed.unrated.values():
            collected.unrated[reason] = collected.unrated.get(reason, 0) + 1


def submit_jobs(
    provider: Provider, jobs: Jobs, notes: JobNotes, options: RunOptions, where: RatedRecords, *, salt: str
) -> Submitted:
    """Hands in every text of a scope that nobody has asked about yet, within the budget (at the discount)."""
    submitted = Submitted()
    ledger = Ledger(options.budget, discounted(options.price))
    under_way = {
        key for _, _, content in notes.jobs(jobs.address) for rows in content["calls"].values() for key in rows.values()
    }
    calls: list[BatchCall] = []
    content: dict[str, Mapping[str, str]] = {}
    for number, batch in enumerate(_batches(provider, jobs, notes, options, where, under_way)):
        prompt = build_prompt(batch, purpose=options.purpose, salt=f"{salt} {number}")
        room = answer_tokens(len(batch))
        estimate = Usage(1, sum(estimated_tokens(message["content"]) for message in prompt.messages), room)
        limit = ledger.exhausted_by(estimate)
        if limit:
            submitted.stopped = f"the budget in {limit} is used up"
            break
        ledger.settle(Usage(), estimate)
        submitted.texts += len(batch)
        calls.append(BatchCall(f"call-{number}", prompt.messages, room))
        content[f"call-{number}"] = dict(prompt.rows)
        if len(calls) >= MAX_CALLS:
            submitted.jobs.append(_submit(jobs, notes, calls, content))
            calls, content = [], {}
    if calls:
        submitted.jobs.append(_submit(jobs, notes, calls, content))
    submitted.estimated, submitted.cost = ledger.spent, ledger.cost
    return submitted


def _submit(jobs: Jobs, notes: JobNotes, calls: Sequence[BatchCall], content: Mapping[str, Mapping[str, str]]) -> str:
    keys = sorted(key for rows in content.values() for key in rows.values())
    marker = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]
    notes.begin_job(marker, jobs.address, {"calls": content})
    name = jobs.submit(calls, marker)
    notes.name_job(marker, name)
    return name


def _batches(
    provider: Provider,
    jobs: Jobs,
    notes: JobNotes,
    options: RunOptions,
    where: RatedRecords,
    under_way: set[str],
) -> Iterator[list[tuple[str, str, str | None]]]:
    """(key, text, role) of the texts to ask about, a call's worth at a time."""
    batch: list[tuple[str, str, str | None]] = []
    characters = 0
    asked = set(under_way)
    for piece in pieces_of(pending_rows(provider, where, options, ModelReport(mode="llm"))):
        rows = [row for row in read_rows(provider, piece, options.upgrades) if row.wanted]
        keys = [cache_key(row.text, row.role, model=jobs.name, purpose=options.purpose) for row in rows]
        known = notes.known(set(keys))
        for key, row in zip(keys, rows, strict=True):
            if row.verified or key in asked or key in known or not has_words(row.text):
                continue
            asked.add(key)
            batch.append((key, row.text, row.role))
            characters += len(shortened(row.text))
            if len(batch) >= options.batch_size or characters >= _MAX_CALL_TEXT:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch
