"""The steps that rate what a store holds unrated (SPEC §3.6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fallow.tasks.steps import open_store, settings_variable, step
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.blocks.system import Secret

from fallow.importance.backfill import backfill_importance
from fallow.importance.rating_run import ModelReport, Order
from fallow.importance.running import estimate_backfill, run_backfill, run_batch_backfill
from fallow.model.scope import Scope
from fallow.model.settings import agent_policy, model_key
from fallow.model.times import wall_clock
from fallow.port.reading import read_agents
from fallow.usecases.planner import settings_for

#: The Secret block that holds the key for the model's endpoint; the worker's environment is asked after it.
KEY_BLOCK: Final = "fallow-model-key"
#: Seconds between two updates of the live progress.
_PROGRESS_EVERY: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class RatingOrder:
    """What a run was asked for beyond the settings."""

    options: Mapping[str, Any]
    order: Order = "newest"
    upgrade_heuristic: bool = False
    dry_run: bool = False
    batch: bool = False


@step("find who is rated how")
def find_scopes(store: str | None) -> list[tuple[Scope, tuple[str, ...]]]:
    """The scopes of a store that are rated apart, each with the agents that it leaves to others (SPEC §3.1).

    One for each agent whose own record says something about importance, and one for everything else.
    """
    with open_store(store) as provider:
        agents = read_agents(provider)
    own = tuple(sorted(name for name, record in agents.items() if _has_overrides(record)))
    return [*((Scope(agent_id=name), ()) for name in own), (Scope(), own)]


def _has_overrides(agent: Mapping[str, Any]) -> bool:
    scoring = agent_policy(agent).get("scoring")
    return isinstance(scoring, Mapping) and bool(scoring.get("importance"))


@step("rate")
def rate_scope(store: str | None, scope: Scope, excluded_agents: Collection[str], asked: RatingOrder) -> dict[str, Any]:
    """Rates the unrated records of one scope by its own settings; the report, with ``state`` as its end.

    Tried again it continues: what is rated is left alone, and what was paid for is not paid again.
    """
    variable = settings_variable()
    with open_store(store) as provider:
        settings = settings_for(provider, scope.agent_id, asked.options, variable=variable)
        mode = settings.get("importance.mode")
        if mode == "off":
            return {"state": "Off", "scope": scope.label}
        if mode == "llm" and asked.dry_run:
            estimate = estimate_backfill(
                provider,
                settings,
                scope=scope,
                excluded_agents=excluded_agents,
                upgrade_heuristic=asked.upgrade_heuristic,
            )
            return {"state": "Estimated", "mode": mode, "scope": scope.label, **estimate.to_json()}
        if mode == "llm" and asked.batch:
            through = run_batch_backfill(
                provider,
                settings,
                now=wall_clock(),
                scope=scope,
                excluded_agents=excluded_agents,
                order=asked.order,
                upgrade_heuristic=asked.upgrade_heuristic,
                key=endpoint_key(),
            )
            return {**through.to_json(), "scope": scope.label, "pairs": through.report.pairs}
        if mode == "llm":
            report = run_backfill(
                provider,
                settings,
                now=wall_clock(),
                scope=scope,
                excluded_agents=excluded_agents,
                order=asked.order,
                upgrade_heuristic=asked.upgrade_heuristic,
                key=endpoint_key(),
                progress=live_progress(scope.label),
            )
            return {**report.to_json(), "scope": scope.label, "pairs": report.pairs}
        free = backfill_importance(
            provider, now=wall_clock(), scope=scope, excluded_agents=excluded_agents, dry_run=asked.dry_run
        )
        return {**free.to_json(), "scope": scope.label}


def endpoint_key() -> str:
    """The key from the Secret block, else from the worker's environment; empty where neither has one."""
    try:
        value = Secret.load(KEY_BLOCK).get()  # type: ignore[union-attr]
    except ValueError:
        return model_key()
    return str(value).strip() or model_key()


def live_progress(label: str) -> Callable[[ModelReport], None]:
    """A progress artifact that follows the run, with calls and cost in its description."""
    artifact: Any = create_progress_artifact(0.0, key="importance-progress", description=f"{label}: begun")
    shown = time.monotonic()

    def show(report: ModelReport) -> None:
        nonlocal shown
        over = report.settled >= report.total or bool(report.problem)
        if time.monotonic() - shown < _PROGRESS_EVERY and not over:
            return
        shown = time.monotonic()
        share = 100.0 * report.settled / report.total if report.total else 100.0
        cost = "" if report.cost is None else f", cost {report.cost:.4f}"
        text = f"{label}: {report.settled} of {report.total} rows, {report.used.calls} calls{cost}"
        update_progress_artifact(artifact, round(share, 1), description=text)

    return show
