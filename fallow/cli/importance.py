"""The command that rates what a store holds unrated (SPEC §3.6)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fallow.cli.app import (
    AgentId,
    Json,
    MemoryId,
    Store,
    ThreadId,
    UserId,
    emit,
    note,
    open_store,
    say,
    scope_of,
    settings_of,
)
from fallow.model.arguments import memory_types as checked_types
from fallow.model.errors import SettingError, UsageError
from fallow.model.times import wall_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from fallow.importance.distilled import DistilledReport
    from fallow.importance.rating_run import Estimate, ModelReport, Order
    from fallow.importance.running import BatchBackfill


def backfill_importance(
    store: Store = None,
    agent_id: AgentId = None,
    memory_id: MemoryId = None,
    user_id: UserId = None,
    thread_id: ThreadId = None,
    memory_type: Annotated[list[str] | None, typer.Option("--memory-type", help="Only this type; repeatable.")] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", help="heuristic (free), llm or distilled; default the setting, else heuristic."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="llm: the model that rates.")] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", help="llm: any OpenAI-compatible endpoint.")] = None,
    purpose: Annotated[str | None, typer.Option("--purpose", help="llm: what the agent is for.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="llm: rows in one call.")] = None,
    order: Annotated[str, typer.Option("--order", help="llm: newest or oldest first.")] = "newest",
    max_calls: Annotated[int | None, typer.Option("--max-calls", help="llm: stop after so many calls.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="llm: stop at so many tokens.")] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", help="llm: stop at so much money.")] = None,
    in_flight: Annotated[int | None, typer.Option("--in-flight", help="llm: calls out at once.")] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", help="distilled: so many records the model reads; the rest follows.")
    ] = None,
    upgrade_heuristic: Annotated[
        bool,
        typer.Option("--upgrade-heuristic", help="llm, distilled: also replace ratings of a lesser source, once."),
    ] = False,
    batch: Annotated[
        bool,
        typer.Option("--batch", help="llm: by the endpoint's batch jobs, at half the price; run again to collect."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="heuristic: rate and count; llm: estimate calls and cost. Write nothing.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Rate what has no rating, by the free heuristic or by a model; a stored rating stays."""
    from fallow.importance.backfill import backfill_importance as backfill
    from fallow.model.record import PRIMARY_TYPES

    types = checked_types(memory_type or PRIMARY_TYPES, "--memory-type")
    by_model: dict[str, Any] = {
        "importance.model": model,
        "importance.purpose": purpose,
        "importance.batch_size": batch_size,
        "importance.max_calls": max_calls,
        "importance.max_tokens": max_tokens,
        "importance.max_cost": max_cost,
        "model.base_url": base_url,
        "model.in_flight": in_flight,
    }
    scope = scope_of(agent_id, memory_id, user_id, thread_id)
    with open_store(store) as provider:
        distilled = _is_distilled(mode, sample, batch)
        settings = settings_of(provider, agent_id, {"importance.mode": "llm" if distilled else mode, **by_model})
        if settings.get("importance.mode") == "llm":
            from fallow.importance.running import estimate_backfill, run_backfill

            direction = _order(order)
            if dry_run:
                estimate = estimate_backfill(
                    provider,
                    settings,
                    scope=scope,
                    memory_types=types,
                    upgrade_heuristic=upgrade_heuristic,
                    sample=sample,
                )
                _show_estimate(estimate, settings.get("importance.model"), as_json)
                return 0
            if distilled:
                from fallow.importance.running import run_distilled_backfill

                by_sample = run_distilled_backfill(
                    provider,
                    settings,
                    sample or 0,
                    now=wall_clock(),
                    scope=scope,
                    memory_types=types,
                    upgrade_heuristic=upgrade_heuristic,
                    progress=_progress(),
                )
                _show_distilled(by_sample, as_json)
                return 1 if by_sample.problem else 5 if by_sample.failed else 0
            if batch:
                from fallow.importance.running import run_batch_backfill

                through = run_batch_backfill(
                    provider,
                    settings,
                    now=wall_clock(),
                    scope=scope,
                    memory_types=types,
                    order=direction,
                    upgrade_heuristic=upgrade_heuristic,
                )
                _show_batch(through, as_json)
                return 1 if through.report.problem else 5 if through.report.failed else 0
            model_report = run_backfill(
                provider,
                settings,
                now=wall_clock(),
                scope=scope,
                memory_types=types,
                order=direction,
                upgrade_heuristic=upgrade_heuristic,
                progress=_progress(),
            )
            _show_model_report(model_report, as_json)
            if model_report.problem:
                return 1
            return 5 if model_report.failed else 0
        given = [name for name, value in by_model.items() if value is not None]
        if given or upgrade_heuristic or batch:
            flag = "--upgrade-heuristic" if upgrade_heuristic else "--batch" if batch else ""
            what = flag or f"--{given[0].partition('.')[2].replace('_', '-')}"
            raise UsageError(f"{what} is for a model", hint="add --mode llm")
        if mode == "off":
            raise SettingError("--mode off rates nothing", hint="heuristic or llm")
        report = backfill(provider, now=wall_clock(), scope=scope, memory_types=types, dry_run=dry_run)
    if as_json:
        emit(report.to_json())
    else:
        verb = "would be rated" if dry_run else "rated"
        say(f"{report.rated} of {report.scanned} records {verb}; {report.already} had a rating.")
        if report.raised:
            say(f"  verified and raised to 1.0: {report.raised}")
        _show_suspect(report.suspect)
        _show_ids({"skipped": report.skipped, "failed": report.failed})
    return 5 if report.failed else 0


def _is_distilled(mode: str | None, sample: int | None, batch: bool) -> bool:
    if mode != "distilled":
        if sample is not None:
            raise UsageError("--sample is for a regression on a sample", hint="add --mode distilled")
        return False
    if sample is None:
        raise UsageError("--mode distilled needs the size of the sample", hint="--sample 300")
    if batch:
        raise UsageError("--batch is for --mode llm", hint="leave it out: a sample is asked about at once")
    return True


def _order(text: str) -> Order:
    if text == "newest":
        return "newest"
    if text == "oldest":
        return "oldest"
    raise UsageError(f"--order '{text[:20]}' is unknown", hint="newest or oldest")


def _progress() -> Callable[[ModelReport], None] | None:
    """A line that is written over on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(report: ModelReport) -> None:
        cost = "" if report.cost is None else f", cost {report.cost:.4f}"
        line = f"{report.settled} of {report.total} rows, {report.used.calls} calls{cost}"
        sys.stderr.write(f"\r\x1b[2Kfallow: {line}" + ("\n" if report.settled >= report.total else ""))
        sys.stderr.flush()

    return show


def _show_estimate(estimate: Estimate, model: str, as_json: bool) -> None:
    if as_json:
        emit({"mode": "llm", "dry_run": True, "model": model, "estimate": estimate.to_json()})
        return
    cost = "unknown: set model.prices" if estimate.cost is None else f"about {estimate.cost:.4f}"
    say(f"{estimate.rows} records would be rated by {model}: nothing was paid.")
    say(f"  {estimate.calls} calls, about {estimate.input_tokens} tokens in and {estimate.output_tokens} out")
    say(f"  cost {cost}")
    if estimate.minutes is not None:
        say(f"  at the set pace at least {estimate.minutes:.1f} minutes")
    for what, count in (
        ("without words, by the heuristic", estimate.empty),
        ("verified, 1.0", estimate.verified),
        ("paid for before", estimate.paid_before),
        ("with the text of another row", estimate.same_text),
    ):
        if count:
            say(f"  {what}: {count}")


def _show_model_report(report: ModelReport, as_json: bool) -> None:
    if as_json:
        emit(report.to_json())
        return
    say(f"{report.state}: {report.rated} of {report.scanned} records rated; {report.already} had a rating.")
    for source, count in sorted(report.by_source.items()):
        say(f"  by {source}: {count}")
    cost = "" if report.cost is None else f", cost {report.cost:.4f}"
    say(f"  {report.used.calls} calls, {report.used.input_tokens} tokens in, {report.used.output_tokens} out{cost}")
    if report.agreement is not None:
        say(f"  rank correlation with the heuristic: {report.agreement:.2f} over {len(report.pairs)} rows")
    for what, count in (
        ("by an answer paid for before or for the same text", report.from_paid),
        ("ratings of the heuristic replaced", report.upgraded),
        ("verified and raised to 1.0", report.raised),
        ("not reached", report.left),
        ("calls without an answer, perhaps paid", report.unsettled),
        ("calls of an earlier run that died, perhaps paid twice", len(report.lost)),
    ):
        if count:
            say(f"  {what}: {count}")
    for reason, count in sorted(report.fallbacks.items()):
        say(f"  by the heuristic instead, {reason}: {count}")
    _show_suspect(report.suspect)
    _show_ids({"skipped": report.skipped, "failed": report.failed})
    for text in (report.stopped, report.problem):
        if text:
            note(text)


def _show_distilled(report: DistilledReport, as_json: bool) -> None:
    if not as_json and report.sample:
        free = "" if report.heuristic_agreement is None else f"; the heuristic's is {report.heuristic_agreement:.2f}"
        say(f"{report.model} rated {report.taught} of a sample of {report.sample} records.")
        if report.cross_validated is not None:
            say(f"  agreement on records left out {report.cross_validated:.2f}, at least {report.floor:.2f}{free}")
    _show_model_report(report, as_json)


def _show_batch(through: BatchBackfill, as_json: bool) -> None:
    if as_json:
        emit(through.to_json())
        return
    collected, submitted = through.collected, through.submitted
    cost = "" if collected.cost is None else f", cost {collected.cost:.4f}"
    say(f"{collected.jobs} jobs collected: {collected.rated} texts rated{cost}; {collected.waiting} jobs still wait.")
    for reason, count in sorted(collected.unrated.items()):
        say(f"  not rated by their job, {reason}: {count}")
    about = "" if submitted.cost is None else f", at most about {submitted.cost:.4f}"
    say(f"{len(submitted.jobs)} jobs handed in over {submitted.texts} texts{about}; run this again to collect them.")
    if submitted.stopped:
        note(submitted.stopped)
    _show_model_report(through.report, as_json)


def _show_suspect(count: int) -> None:
    if count:
        say(f"  suspect: {count} ratings of exactly 1.0 by a model (a model's 1 may have been stored so)")


def _show_ids(groups: Mapping[str, Mapping[str, list[str]]]) -> None:
    for title, reasons in groups.items():
        for why, ids in sorted(reasons.items()):
            say(f"  {title}, {why}: {len(ids)}")
