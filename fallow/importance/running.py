"""From settings to a backfill by a model: the endpoint, the budget, what was paid before (SPEC §3.6, §6.1).

The command and the flow both come through here, so that they do the same.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fallow.importance.batch_run import Collected, Submitted, collect_jobs, submit_jobs
from fallow.importance.budget import Budget, Price, price_of
from fallow.importance.rating_run import (
    Estimate,
    ModelReport,
    Order,
    Progress,
    RatedRecords,
    RunOptions,
    estimate_run,
    rate_by_model,
)
from fallow.model.errors import SettingError
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from fallow.model.settings import Settings, model_key
from fallow.port.parts import part
from fallow.port.protocol import Provider

if TYPE_CHECKING:
    from fallow.importance.distilled import DistilledReport

#: What brings the model client's packages.
_INSTALL: Final = "fallow[models]"


def run_options(settings: Settings, *, order: Order = "newest", upgrade_heuristic: bool = False) -> RunOptions:
    """What the settings say about a run."""
    prices = {name: Price(*pair) for name, pair in settings.get("model.prices").items()}
    return RunOptions(
        purpose=settings.get("importance.purpose"),
        batch_size=settings.get("importance.batch_size"),
        order=order,
        budget=Budget(
            max_calls=settings.get("importance.max_calls"),
            max_tokens=settings.get("importance.max_tokens"),
            max_cost=settings.get("importance.max_cost"),
        ),
        price=price_of(settings.get("importance.model"), prices),
        fallback_share=settings.get("importance.fallback_share"),
        upgrade_heuristic=upgrade_heuristic,
    )


def open_model(settings: Settings, *, key: str | None = None, model: str | None = None, answers: Any = None) -> Any:
    """The model that the settings name, at their endpoint (``fallow.providers.models.ModelClient``).

    Args:
        settings: resolved.
        key: the endpoint's key; None takes it from the environment.
        model: another model than ``importance.model``.
        answers: where the endpoint's dialect is kept.

    Raises:
        SettingError: no model is named, or a value cannot be used.
        ProviderMissingError: the client is not importable here.
    """
    models = part("fallow.models", "client", install=_INSTALL)
    endpoint = models.Endpoint(
        model=model or settings.get("importance.model"),
        base_url=settings.get("model.base_url"),
        api_key=model_key() if key is None else key,
        in_flight=settings.get("model.in_flight"),
        requests_per_minute=settings.get("model.requests_per_minute"),
        tokens_per_minute=settings.get("model.tokens_per_minute"),
        timeout=settings.get("model.timeout_seconds"),
    )
    return models.ModelClient(endpoint, dialects=answers)


def open_answers() -> Any:
    """What was paid before, in the user's cache folder; None where there is none."""
    return part("fallow.models", "answers", install=_INSTALL).AnswersOnDisk.of_user()


def run_backfill(
    provider: Provider,
    settings: Settings,
    *,
    now: int,
    scope: Scope | None = None,
    excluded_agents: Collection[str] = (),
    memory_types: Sequence[str] = PRIMARY_TYPES,
    order: Order = "newest",
    upgrade_heuristic: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> ModelReport:
    """A backfill by the model that the settings name. Raises as :func:`open_model` and :func:`rate_by_model`."""
    options = run_options(settings, order=order, upgrade_heuristic=upgrade_heuristic)
    answers = open_answers()
    try:
        with open_model(settings, key=key, answers=answers) as model:
            return rate_by_model(
                provider,
                model,
                options,
                now=now,
                salt=secrets.token_hex(16),
                scope=scope,
                excluded_agents=excluded_agents,
                memory_types=memory_types,
                answers=answers,
                progress=progress,
            )
    finally:
        if answers is not None:
            answers.close()


def run_distilled_backfill(
    provider: Provider,
    settings: Settings,
    sample: int,
    *,
    now: int,
    scope: Scope | None = None,
    excluded_agents: Collection[str] = (),
    memory_types: Sequence[str] = PRIMARY_TYPES,
    upgrade_heuristic: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> DistilledReport:
    """A backfill by a sample that the settings' model reads (:func:`~fallow.importance.distilled.rate_by_sample`).

    Raises:
        SettingError: the sample is too small; and as :func:`open_model`.
    """
    from fallow.importance.distilled import rate_by_sample

    options = run_options(settings, upgrade_heuristic=upgrade_heuristic)
    answers = open_answers()
    try:
        with open_model(settings, key=key, answers=answers) as model:
            return rate_by_sample(
                provider,
                model,
                options,
                sample,
                now=now,
                salt=secrets.token_hex(16),
                where=RatedRecords(scope or Scope(), tuple(memory_types), tuple(excluded_agents)),
                answers=answers,
                progress=progress,
            )
    finally:
        if answers is not None:
            answers.close()


@dataclass(frozen=True, slots=True)
class BatchBackfill:
    """What one run over an endpoint's batch jobs did: collected, written, and handed in."""

    collected: Collected
    report: ModelReport
    submitted: Submitted

    @property
    def state(self) -> str:
        """The run's end state; jobs that wait are no work of this run."""
        return self.report.state

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts: the report, with both."""
        return {
            **self.report.to_json(),
            "collected": self.collected.to_json(),
            "submitted": self.submitted.to_json(),
        }


def run_batch_backfill(
    provider: Provider,
    settings: Settings,
    *,
    now: int,
    scope: Scope | None = None,
    excluded_agents: Collection[str] = (),
    memory_types: Sequence[str] = PRIMARY_TYPES,
    order: Order = "newest",
    upgrade_heuristic: bool = False,
    key: str | None = None,
) -> BatchBackfill:
    """Collects what earlier jobs answered, writes it, and hands in the rest (:mod:`fallow.importance.batch_run`).

    Where the answers show that the model is of no use, nothing more is handed in.

    Raises:
        SettingError: there is no cache folder to note jobs in; and as :func:`run_backfill`.
    """
    options = run_options(settings, order=order, upgrade_heuristic=upgrade_heuristic)
    where = RatedRecords(scope or Scope(), tuple(memory_types), tuple(excluded_agents))
    answers = open_answers()
    if answers is None:
        raise SettingError("batch jobs need a cache folder to be noted in", hint="set FALLOW_CACHE_DIR")
    try:
        with open_model(settings, key=key, answers=answers) as model:
            jobs = part("fallow.models", "batches", install=_INSTALL).BatchJobs(model)
            collected = collect_jobs(jobs, answers, options.price)
            report = rate_by_model(
                provider,
                model,
                replace(options, only_paid=True),
                now=now,
                salt=secrets.token_hex(16),
                scope=scope,
                excluded_agents=excluded_agents,
                memory_types=memory_types,
                answers=answers,
                given_up=collected.given_up,
            )
            submitted = Submitted()
            if not report.problem:
                submitted = submit_jobs(provider, jobs, answers, options, where, salt=secrets.token_hex(16))
            return BatchBackfill(collected, report, submitted)
    finally:
        answers.close()


def estimate_backfill(
    provider: Provider,
    settings: Settings,
    *,
    scope: Scope | None = None,
    excluded_agents: Collection[str] = (),
    memory_types: Sequence[str] = PRIMARY_TYPES,
    upgrade_heuristic: bool = False,
    sample: int | None = None,
) -> Estimate:
    """What :func:`run_backfill` would ask and cost, before anything is paid; it ignores the budget.

    With ``sample``, what :func:`run_distilled_backfill` would: that share of it.

    Raises:
        SettingError: no model is named.
    """
    model = settings.get("importance.model")
    if not model.strip():
        raise SettingError("no model is named", hint="set MEMORIZZ_IMPORTANCE_MODEL or pass --model")
    answers = open_answers()
    try:
        whole = estimate_run(
            provider,
            model,
            replace(run_options(settings, upgrade_heuristic=upgrade_heuristic), budget=Budget()),
            scope=scope,
            excluded_agents=excluded_agents,
            memory_types=memory_types,
            answers=answers,
            requests_per_minute=settings.get("model.requests_per_minute"),
            tokens_per_minute=settings.get("model.tokens_per_minute"),
        )
        return whole if sample is None else _part_of(whole, sample)
    finally:
        if answers is not None:
            answers.close()


def _part_of(whole: Estimate, sample: int) -> Estimate:
    to_ask = whole.rows - whole.verified - whole.empty
    share = min(1.0, sample / to_ask) if to_ask > 0 else 0.0
    return replace(
        whole,
        calls=math.ceil(whole.calls * share),
        input_tokens=math.ceil(whole.input_tokens * share),
        output_tokens=math.ceil(whole.output_tokens * share),
        cost=None if whole.cost is None else whole.cost * share,
        minutes=None if whole.minutes is None else whole.minutes * share,
    )
