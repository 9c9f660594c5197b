"""Reflection: a conversation is summarised once enough importance has piled up (SPEC §5; Park et al. 2023, 4.2).

Nothing lives in the process: what has accumulated is computed from the stored rows, which rows are covered
from the stored summaries, how often a model failed from the stored events. A pass that died anywhere is
continued by the next: a summary stored is found by its id, which derives from the conversation and the first
row that it covers, and rows that it covers are marked then.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import polars as pl

from fallow.judgement.score import in_scope
from fallow.model.arguments import Time, count_or_none, instant, switch
from fallow.model.canonical import DECIMALS
from fallow.model.errors import FallowError
from fallow.model.keys import MISSING, RecordKey, Row
from fallow.model.record import display_text, read_record
from fallow.model.scope import Scope, scope_or_all
from fallow.model.settings import Settings
from fallow.port.journal import SHARED, change_id, control_event, event_id, text_time
from fallow.port.journal_writing import Change, insert_again, insert_control_rows, write_journal
from fallow.port.protocol import Patch, Provider, Unreadable
from fallow.port.reading import fetch_keys
from fallow.port.reflections import NOTHING_KEPT, REFLECTION, SUMMARIES, covered_ids, read_reflections
from fallow.reflection.prompt import NOTHING, Claim, Reflected, build_prompt, parse_reflection

CONVERSATION: Final = "conversation_memory"
#: After so many failed passes a conversation is listed as needing attention; its rows stay uncovered.
ATTENTION_AFTER: Final = 3
#: Rows that the extractive fallback quotes, and characters of each.
_EXTRACTS: Final = 8
_EXTRACT_LENGTH: Final = 240
_NAMESPACE: Final = uuid.UUID("a3a0e3f6-4c0e-5a6d-8f39-3f1b7d2f9c55")
_COLUMNS: Final = (
    "record_id",
    "agent_id",
    "memory_id",
    "user_id",
    "thread_id",
    "created_at",
    "importance",
    "summary_id",
    "retention_state",
)

Generate = Callable[[str], str]
Progress = Callable[[int, int], None]


class Conversation(NamedTuple):
    """What names a conversation (SPEC §5.1)."""

    agent_id: str | None
    memory_id: str | None
    user_id: str | None
    thread_id: str | None

    @property
    def label(self) -> str:
        """Its ids in a few words."""
        named = [f"{name.removesuffix('_id')} {value}" for name, value in zip(self._fields, self, strict=True) if value]
        return ", ".join(named) or "no ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionConfig:
    """When and how conversations are summarised (SPEC §5).

    Attributes:
        threshold: accumulated importance (0..1 a row) at which a pass begins.
        window: rows that one summary covers at most.
        count_unrated: unrated rows add ``default_importance``; by default they add nothing.
        default_importance: what an unrated row adds then.
        extractive: without a model, the most important rows in order stand for a summary.
        purpose: what the agent is for; the model reads with it in mind.
    """

    threshold: float = 15.0
    window: int = 50
    count_unrated: bool = False
    default_importance: float = 0.5
    extractive: bool = False
    purpose: str = ""


def reflection_config(settings: Settings) -> ReflectionConfig:
    """The reflection section of resolved settings."""
    return ReflectionConfig(
        threshold=settings.get("reflection.threshold"),
        window=settings.get("reflection.window"),
        count_unrated=settings.get("reflection.count_unrated"),
        default_importance=settings.get("scoring.default_importance"),
        extractive=settings.get("reflection.extractive"),
        purpose=settings.get("importance.purpose"),
    )


@contextmanager
def reflecting_model(settings: Settings, *, key: str | None = None) -> Iterator[Generate | None]:
    """The model that reflects: ``reflection.model``, else the one that rates (SPEC §5.1); None where none is named.

    Args:
        settings: resolved.
        key: the endpoint's key; None takes it from the environment.

    Raises:
        SettingError: the endpoint's settings cannot be used.
        ProviderMissingError: the client is not importable here.
    """
    name = settings.get("reflection.model").strip() or settings.get("importance.model").strip()
    if not name:
        yield None
        return
    from fallow.importance.running import open_model

    with open_model(settings, key=key, model=name) as model:
        yield model.generate_text


@dataclass(frozen=True, slots=True)
class Accumulated:
    """A conversation's uncovered rows and what they add up to; ``record_ids`` oldest first."""

    conversation: Conversation
    total: float
    record_ids: tuple[str, ...]
    importances: tuple[float | None, ...]
    instants: tuple[int | None, ...]

    def missing(self, threshold: float) -> float:
        """How much is missing to the threshold, 0 where it is reached."""
        return max(0.0, round(threshold - self.total, DECIMALS))


@dataclass(slots=True)
class ConversationOutcome:
    """What became of one conversation at the threshold."""

    conversation: Conversation
    total: float
    rows: int
    summaries: list[str] = field(default_factory=list)
    covered: int = 0
    failure: str = ""
    failures: int = 0

    @property
    def needs_attention(self) -> bool:
        """Whether passes over it have failed so often that somebody should look."""
        return bool(self.failure) and self.failures >= ATTENTION_AFTER


@dataclass(slots=True)
class ReflectionReport:
    """What a run found and did (SPEC §5)."""

    threshold: float
    conversations: int = 0
    waiting: list[tuple[Conversation, float]] = field(default_factory=list)
    reached: list[ConversationOutcome] = field(default_factory=list)
    marked: int = 0
    dry_run: bool = False

    @property
    def state(self) -> Literal["NothingToDo", "Reflected", "Partial", "NeedsAttention"]:
        """NothingToDo, Reflected, Partial (a failure that will be retried) or NeedsAttention."""
        if any(item.needs_attention for item in self.reached):
            return "NeedsAttention"
        if any(item.failure for item in self.reached):
            return "Partial"
        return "Reflected" if self.marked or any(item.summaries for item in self.reached) else "NothingToDo"

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts: ids and numbers, no text."""
        return {
            "schema_version": 1,
            "dry_run": self.dry_run,
            "threshold": self.threshold,
            "conversations": self.conversations,
            "waiting": [
                {**key._asdict(), "accumulated": total, "missing": round(self.threshold - total, DECIMALS)}
                for key, total in self.waiting
            ],
            "reached": [
                {
                    **item.conversation._asdict(),
                    "accumulated": item.total,
                    "rows": item.rows,
                    "covered": item.covered,
                    "summaries": item.summaries,
                    "failure": item.failure or None,
                    "failures": item.failures,
                    "needs_attention": item.needs_attention,
                }
                for item in self.reached
            ],
            "rows_marked": self.marked,
            "state": self.state,
        }


def accumulate(
    provider: Provider,
    config: ReflectionConfig,
    *,
    scope: Scope | None = None,
    reflections: Mapping[str, Row] | None = None,
) -> list[Accumulated]:
    """What has piled up in every conversation that no reflection covers yet, the most first (SPEC §5.1).

    Rows count, active or suppressed, that no reflection covers and that carry no summary_id; summaries add
    nothing. Sums are math.fsum over the stored ratings, rounded to 9 decimals: the same in every engine.

    Raises:
        StoreUnreadableError: the listing failed or was cut short.
    """
    known = read_reflections(provider) if reflections is None else reflections
    covered = pl.Series([name for row in known.values() for name in covered_ids(row)], dtype=pl.String)
    frames = [batch.frame for batch in provider.scan(CONVERSATION, _COLUMNS)]
    if not frames:
        return []
    rows = (
        pl.concat(frames)
        .lazy()
        .filter(in_scope(scope or Scope()), pl.col("summary_id").is_null())
        .filter(~pl.col("record_id").is_in(covered.implode()))
        .sort("created_at", "record_id", nulls_last=True)
        .group_by(Conversation._fields, maintain_order=True)
        .agg("record_id", "importance", "created_at")
        .collect()
    )
    found: list[Accumulated] = []
    for *key, ids, importances, instants in rows.iter_rows():
        unrated = config.default_importance if config.count_unrated else 0.0
        total = round(math.fsum(unrated if value is None else value for value in importances), DECIMALS)
        found.append(Accumulated(Conversation(*key), total, tuple(ids), tuple(importances), tuple(instants)))
    found.sort(key=lambda item: (-item.total, [value or "" for value in item.conversation]))
    return found


def share_kept_by_reflections(provider: Provider) -> float:
    """The share of a store's conversation turns that live reflections cite, 0..1.

    Raises:
        StoreUnreadableError: the listing failed or was cut short.
    """
    live = [row for row in read_reflections(provider).values() if row.get("retention_state") != "suppressed"]
    covered = {name for row in live for name in covered_ids(row)}
    if not covered:
        return 0.0
    names = [
        name for batch in provider.scan(CONVERSATION, ("record_id",)) for name in batch.frame["record_id"].to_list()
    ]
    return len(covered.intersection(names)) / len(names) if names else 0.0


def reflection_id(conversation: Conversation, first: str) -> str:
    """The id of the reflection whose first covered row is ``first``: two passes at once make one summary."""
    parts = [*(value or "" for value in conversation), first]
    return str(uuid.uuid5(_NAMESPACE, "\0".join(parts)))


def _failure_key(conversation: Conversation, first: str, number: int) -> str:
    return f"reflection-failed:{reflection_id(conversation, first)}:{number}"


def failures_of(provider: Provider, conversation: Conversation, first: str) -> int:
    """How often a pass over these rows has failed, counted by its events (SPEC §5.3)."""
    count = 0
    while True:
        names = [event_id(_failure_key(conversation, first, count + step)) for step in range(1, 9)]
        there = provider.fetch(SHARED, names)
        for name in names:
            if name not in there:
                return count
            count += 1


def reflect(
    provider: Provider,
    config: ReflectionConfig,
    *,
    now: Time | None = None,
    generate: Generate | None = None,
    scope: Scope | None = None,
    dry_run: bool = False,
    max_calls: int | None = None,
    progress: Progress | None = None,
) -> ReflectionReport:
    """Summarises every conversation that has reached the threshold (SPEC §5). Idempotent and resumable.

    Args:
        provider: the open store.
        config: threshold, window and fallback.
        now: the wall clock, a time of SPEC §1.5; becomes created_at.
        generate: a model; None uses the extractive fallback where the configuration allows it.
        scope: which conversations; by default all.
        dry_run: report what has accumulated and write nothing.
        max_calls: asks the model at most so often; the rest waits for the next run.
        progress: called with (conversations done, conversations at the threshold).

    Raises:
        StoreUnreadableError: a listing failed.
    """
    now, dry_run, max_calls = instant(now), switch(dry_run, "dry_run"), count_or_none(max_calls, "max_calls")
    scope = scope_or_all(scope)
    reflections = read_reflections(provider)
    report = ReflectionReport(threshold=config.threshold, dry_run=dry_run)
    if not dry_run:
        report.marked += _mark_left_over(provider, reflections)
    found = accumulate(provider, config, scope=scope, reflections=reflections)
    report.conversations = len(found)
    ripe = [item for item in found if item.total >= config.threshold]
    report.waiting = [(item.conversation, item.total) for item in found if item.total < config.threshold]
    calls = 0
    for number, item in enumerate(ripe, 1):
        outcome = ConversationOutcome(item.conversation, item.total, len(item.record_ids))
        report.reached.append(outcome)
        if dry_run:
            outcome.failures = failures_of(provider, item.conversation, item.record_ids[0])
            continue
        _announce(provider, item, config, now)
        for start in range(0, len(item.record_ids), config.window):
            if max_calls is not None and calls >= max_calls:
                outcome.failure = "the budget of calls is spent; the next run continues"
                break
            calls += 1
            if not _reflect_window(provider, config, item, start, generate, now, outcome, report):
                break
        if progress is not None:
            progress(number, len(ripe))
    return report


def _announce(provider: Provider, item: Accumulated, config: ReflectionConfig, now: int) -> None:
    """``Reflection scheduled`` (SPEC §5.4), once for what has accumulated since the last reflection."""
    payload = {
        **item.conversation._asdict(),
        "accumulated": item.total,
        "threshold": config.threshold,
        "rows": len(item.record_ids),
        "trace": "Reflection scheduled",
    }
    key = f"reflection-scheduled:{reflection_id(item.conversation, item.record_ids[0])}"
    conversation = item.conversation
    event = control_event(
        "reflection_scheduled",
        key,
        payload,
        now=now,
        agent_id=conversation.agent_id,
        memory_id=conversation.memory_id,
        thread_id=conversation.thread_id,
        user_id=conversation.user_id,
    )
    insert_control_rows(provider, [event])


def _reflect_window(
    provider: Provider,
    config: ReflectionConfig,
    item: Accumulated,
    start: int,
    generate: Generate | None,
    now: int,
    outcome: ConversationOutcome,
    report: ReflectionReport,
) -> bool:
    """One summary over one window: asked, stored if absent, journalled, its rows marked. Whether to go on."""
    ids = item.record_ids[start : start + config.window]
    stored = provider.fetch(CONVERSATION, ids)
    rows = {name: row for name in ids if isinstance(row := stored.get(name), dict)}
    if not rows:
        return True
    try:
        reflected = _ask(config, rows, item, start, generate)
    except FallowError as error:
        _failed(provider, item, ids[0], outcome, error.message, now)
        return False
    summary = _summary_row(item, list(rows), start, reflected, now)
    name = str(summary["_id"])
    (result,) = provider.insert(SUMMARIES, [summary])
    standing = provider.fetch(SUMMARIES, [name]).get(name)
    if not isinstance(standing, dict):
        detail = result.detail or "the summary could not be read back"
        _failed(provider, item, ids[0], outcome, detail, now)
        return False
    covered = covered_ids(standing)
    _journal(provider, standing, covered, now)
    outcome.summaries.append(name)
    outcome.covered += len(covered)
    report.marked += _mark(provider, name, covered)
    # Where another pass was first with another set of rows, the rest is looked at anew by the next run.
    return set(covered) == set(rows)


def _ask(
    config: ReflectionConfig,
    rows: Mapping[str, Row],
    item: Accumulated,
    start: int,
    generate: Generate | None,
) -> Reflected:
    importances = dict(zip(item.record_ids[start:], item.importances[start:], strict=True))
    instants = dict(zip(item.record_ids[start:], item.instants[start:], strict=True))
    texts = {name: display_text(row) for name, row in rows.items()}
    told = [name for name in rows if texts[name].strip()]
    if not told:
        return Reflected((Claim("No text was said in this part of the conversation.", tuple(rows)),), None, "empty")
    if generate is None:
        if not config.extractive:
            raise FallowError(
                "no model is configured for reflection",
                hint="set MEMORIZZ_REFLECTION_MODEL, or allow extracts with FALLOW_REFLECTION_EXTRACTIVE=true",
            )
        best = sorted(told, key=lambda name: (-(importances[name] or 0.0), told.index(name)))[:_EXTRACTS]
        chosen = [name for name in told if name in set(best)]
        return Reflected(tuple(Claim(_extract(texts[name]), (name,)) for name in chosen), None, "extractive")
    roles = {name: str(rows[name].get("role") or "") for name in told}
    turns = [
        (name, roles[name], None if instants[name] is None else text_time(instants[name] or 0), texts[name])
        for name in told
    ]
    try:
        answer = generate(build_prompt(turns, purpose=config.purpose))
    except FallowError:
        raise
    except Exception as error:
        raise FallowError(f"the model failed: {type(error).__name__}", hint="the next run tries again") from error
    reflected = parse_reflection(answer, told)
    if not reflected.claims and reflected.method != NOTHING:
        raise FallowError("the model's answer holds no summary", hint="the next run tries again")
    return reflected


def _extract(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _EXTRACT_LENGTH else flat[: _EXTRACT_LENGTH - 2].rstrip() + " …"


def _summary_row(item: Accumulated, ids: Sequence[str], start: int, reflected: Reflected, now: int) -> Row:
    at = dict(zip(item.record_ids[start:], item.instants[start:], strict=True))
    stored = dict(zip(item.record_ids[start:], item.importances[start:], strict=True))
    known = [instant for name in ids if (instant := at[name]) is not None]
    rated = [value for name in ids if (value := stored[name]) is not None]
    importance = reflected.importance if reflected.importance is not None else max(rated, default=None)
    name = reflection_id(item.conversation, ids[0])
    row: Row = {
        "_id": name,
        "id": name,
        "summary_id": name,
        "content": "\n".join(claim.line for claim in reflected.claims),
        "summary_type": REFLECTION,
        **item.conversation._asdict(),
        "period_start": None if not known else min(known) / 1e6,
        "period_end": None if not known else max(known) / 1e6,
        "memory_units_count": len(ids),
        "source_message_ids": list(ids),
        "created_at": now / 1e6,
        "embedding": None,
        "metadata": {
            "method": reflected.method,
            "writer": "fallow",
            "claims": [{"rows": list(claim.rows), "cited": bool(claim.rows)} for claim in reflected.claims],
        },
    }
    if reflected.method == NOTHING:
        # The rows are covered and not asked about again; no agent needs to read that there was nothing (SPEC §5.3).
        row |= _hidden(now)
    elif importance is not None:
        row["importance"] = importance
        row["importance_source"] = "llm" if reflected.importance is not None else "heuristic"
    return row


def _hidden(now: int) -> Row:
    """What keeps a reflection that says "nothing" from retrieval: suppressed from the start, by no plan."""
    return {
        "content": "Nothing in this part of the conversation is worth keeping.",
        "retention_state": "suppressed",
        "suppressed_by": NOTHING_KEPT,
        "suppressed_at": text_time(now),
        "suppression_reason": "the model found nothing worth keeping",
        "suppression_approver": "fallow",
        "suppressed_from": "active",
    }


def _journal(provider: Provider, summary: Row, covered: Iterable[str], now: int) -> None:
    """A stored summary's journal entry and head (SPEC §10)."""
    key = RecordKey(SUMMARIES, str(summary["_id"]))
    change = Change(
        change_id("reflect", "reflection", key),
        read_record(summary, *key),
        actor="fallow",
        source="reflection",
        before={},
        after=summary,
        changed=tuple(sorted(name for name in summary if name not in {"_id", "id"})),
        now=now,
        action="created",
        parents=tuple({"record_id": name, "relation": "source_message"} for name in covered),
    )
    write_journal(provider, [change], {})


def _failed(
    provider: Provider, item: Accumulated, first: str, outcome: ConversationOutcome, reason: str, now: int
) -> None:
    """Records a failure as an event, so that it is counted over restarts; nothing else has moved."""
    outcome.failure = reason
    number = failures_of(provider, item.conversation, first) + 1
    payload = {
        **item.conversation._asdict(),
        "reason": reason,
        "failure": number,
        "needs_attention": number >= ATTENTION_AFTER,
    }
    event = control_event(
        "reflection_failed",
        _failure_key(item.conversation, first, number),
        payload,
        now=now,
        agent_id=item.conversation.agent_id,
        memory_id=item.conversation.memory_id,
        thread_id=item.conversation.thread_id,
        user_id=item.conversation.user_id,
    )
    insert_control_rows(provider, [event])
    outcome.failures = number


def _mark_left_over(provider: Provider, reflections: Mapping[str, Row]) -> int:
    """Completes passes that died after their summary was stored: journal entry, and summary_id on its rows."""
    unmarked: set[str] = set()
    for batch in provider.scan(CONVERSATION, ("record_id", "summary_id")):
        unmarked |= set(batch.frame.filter(pl.col("summary_id").is_null()).get_column("record_id").to_list())
    marked = 0
    for name, row in reflections.items():
        metadata = row.get("metadata")
        if not isinstance(metadata, Mapping) or metadata.get("writer") != "fallow":
            continue
        left = [item for item in covered_ids(row) if item in unmarked]
        if left:
            insert_again_summary(provider, row)
            created = read_record(row, SUMMARIES, name).created_at
            _journal(provider, row, covered_ids(row), created or 0)
            marked += _mark(provider, name, left)
    return marked


def insert_again_summary(provider: Provider, row: Row) -> None:
    """Inserts a stored summary once more, so that agents' listings have it whatever its pass died over."""
    provider.insert(SUMMARIES, [row])
    insert_again(provider, [change_id("reflect", "reflection", RecordKey(SUMMARIES, str(row["_id"])))])


def _mark(provider: Provider, summary_id: str, ids: Sequence[str]) -> int:
    """Sets summary_id on covered rows that have none; a row changed meanwhile is looked at again, twice."""
    pending = [RecordKey(CONVERSATION, name) for name in ids]
    marked = 0
    for _ in range(3):
        rows = fetch_keys(provider, pending)
        patches = []
        for key in pending:
            row = rows.get(key)
            if row is None or isinstance(row, Unreadable) or row.get("summary_id"):
                continue
            patches.append(Patch(key, {"summary_id": row.get("summary_id", MISSING)}, {"summary_id": summary_id}))
        pending = []
        size = max(1, provider.capabilities.batch_size)
        for start in range(0, len(patches), size):
            for outcome in provider.patch(patches[start : start + size]):
                marked += outcome.status == "applied"
                if outcome.status in {"changed", "unknown"}:
                    pending.append(outcome.key)
        if not pending:
            break
    return marked
