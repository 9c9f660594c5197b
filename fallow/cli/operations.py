"""Commands around the pipeline: try it, see its settings, check what it stands on (SPEC §16)."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fallow.cli.app import AgentId, Json, Store, emit, note, open_store, say, settings_of, settings_variable, table
from fallow.model.errors import FallowError, UsageError


def demo(
    directory: Annotated[
        Path | None,
        typer.Option("--directory", help="Keep the sample store here; default: a temporary folder, removed."),
    ] = None,
    store_only: Annotated[
        bool, typer.Option("--store-only", help="Make the sample store and stop; needs --directory.")
    ] = False,
    in_prefect: Annotated[
        bool, typer.Option("--serve", help="Plan it in Prefect's UI and wait there for your approval, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option("--port", help="The UI's port, with --serve.", min=1, max=65535)] = 4200,
    as_json: Json = False,
) -> None:
    """Make a sample store and run rate, plan, approve, apply and restore on it."""
    if store_only and directory is None:
        raise UsageError("--store-only keeps a store, so it needs a place", hint="add --directory ./memory")
    if in_prefect and (store_only or as_json):
        raise UsageError("--serve goes on until Ctrl-C", hint="leave out --store-only and --json")
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not empty", hint="name a new folder; the demo writes into no existing store")
    with tempfile.TemporaryDirectory(prefix="fallow-demo-") as folder:
        place = Path(folder) / "store" if directory is None else directory
        if in_prefect:
            _demo_in_prefect(place, port)
        elif store_only:
            written = _sample_store(place)
            if as_json:
                emit({"store": {"rows": written}})
            else:
                say(f"A sample store at {place}: {sum(written.values())} rows an agent might have written over a year.")
        else:
            _demo(place, as_json)
            if directory is not None and not as_json:
                say(f"\nThe store stays at {directory}: try fallow plans --store {directory}")


def _sample_store(folder: Path) -> dict[str, int]:
    """A new sample store; how many rows of which type it holds."""
    from fallow.model.record import PRIMARY_TYPES
    from fallow.model.times import wall_clock
    from fallow.port.registry import open_provider
    from fallow.usecases.sample import write_sample_store

    for memory_type in PRIMARY_TYPES:
        (folder / memory_type).mkdir(parents=True, exist_ok=True)
    with open_provider(str(folder)) as provider:
        return dict(write_sample_store(provider, now=wall_clock()))


def _demo_in_prefect(folder: Path, port: int) -> None:
    """The sample store behind ``fallow serve``, with a run that plans it and waits for its approval."""
    from fallow.cli.serve import run_pipeline
    from fallow.importance import ImportanceConfig, ImportanceRater
    from fallow.importance.backfill import backfill_importance
    from fallow.model.times import wall_clock
    from fallow.port.registry import open_provider

    _sample_store(folder)
    with open_provider(str(folder)) as provider:
        rater = ImportanceRater(ImportanceConfig(mode="heuristic"))
        rated = backfill_importance(provider, rater=rater, now=wall_clock())
    say(f"A sample store at {folder}; {rated.rated} records had no importance and have one now.")
    run_pipeline(
        str(folder.resolve()),
        "127.0.0.1",
        port,
        deployment="plan-retention/nightly",
        parameters={"whole_store": True, "min_retention": 0.25, "force": True},
    )


def _demo(folder: Path, as_json: bool) -> None:
    from fallow.acting.apply import apply_plan
    from fallow.acting.deciding import decide
    from fallow.acting.restore import plan_keys, restore_records
    from fallow.cli.retention import show_plan
    from fallow.importance import ImportanceConfig, ImportanceRater
    from fallow.importance.backfill import backfill_importance
    from fallow.model.scope import Scope
    from fallow.model.settings import ApprovalConfig, resolve
    from fallow.model.times import wall_clock
    from fallow.plans.storage import publish
    from fallow.port.registry import open_provider
    from fallow.usecases.planner import plan_scope
    from fallow.usecases.suppressed import suppressed_records

    now = wall_clock()
    steps: dict[str, Any] = {}
    tell = (lambda _text="": None) if as_json else say
    written = _sample_store(folder)
    with open_provider(str(folder)) as provider:
        steps["store"] = {"rows": written}
        tell(f"1. A sample store: {sum(written.values())} rows an agent might have written over a year.\n")
        rated = backfill_importance(provider, rater=ImportanceRater(ImportanceConfig(mode="heuristic")), now=now)
        steps["rate"] = rated.to_json()
        tell(f"2. Rated: {rated.rated} records had no importance and have one now (heuristic, free).\n")
        settings = resolve({"retention.min_retention": 0.25}, environ={})
        plan = plan_scope(provider, settings, Scope(), as_of=now, now=now, requested_by="demo")
        publish(provider, plan, now=now, expiry_hours=72)
        steps["plan"] = {"plan_id": plan.plan_id, "counts": dict(plan.counts)}
        tell("3. The plan, a dry run:\n")
        if not as_json:
            show_plan(plan, rows=5)
        spared = plan.entries[0]
        decision = decide(
            provider,
            plan.plan_id,
            verdict="approved",
            approved_by="Ada",
            reason="trying fallow",
            leave_out=[spared.key],
            count=len(plan.entries),
            approval=ApprovalConfig(),
            now=now,
        )
        steps["approve"] = decision.to_json()
        tell(f"\n4. Approved by {decision.by}, who left out {spared.record_id}.")
        report = apply_plan(provider, plan.plan_id, now=now)
        steps["apply"] = report.to_json()
        hidden = len(suppressed_records(provider))
        tell(f"5. Applied: {report.applied} suppressed and journalled; {hidden} records are hidden now.")
        back = restore_records(
            provider,
            plan_keys(provider, plan.plan_id),
            approved_by="Ada",
            reason="and back again",
            now=now,
            plan_id=plan.plan_id,
        )
        steps["restore"] = back.to_json()
        tell(f"6. Restored: {len(back.restored)} records are back as they were. Nothing was deleted at any step.")
    if as_json:
        emit(steps)


def settings(store: Store = None, agent_id: AgentId = None, as_json: Json = False) -> None:
    """Show every setting, its value and where it came from."""
    from fallow.model.settings import SETTINGS, resolve

    if agent_id and not store:
        raise UsageError("an agent's overrides stand in its store", hint="add --store")
    if store:
        with open_store(store) as provider:
            resolved = settings_of(provider, agent_id)
    else:
        resolved = resolve(variable=settings_variable())
        for problem in resolved.problems:
            note(f"setting not used: {problem}")

    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    if as_json:
        values = {
            name: {"value": plain(item.value), "origin": item.origin, "environment": SETTINGS[name].env}
            for name, item in resolved.values.items()
        }
        emit({"agent_id": agent_id, "settings": values, "problems": list(resolved.problems)})
        return
    rows = [
        (name, str(plain(item.value)), item.origin, SETTINGS[name].env, SETTINGS[name].meaning)
        for name, item in resolved.values.items()
    ]
    table("Settings", ("setting", "value", "origin", "environment", "meaning"), rows)


def doctor(
    store: Store = None,
    create_indexes: Annotated[
        bool, typer.Option("--create-indexes", help="First make the indexes that fallow's own reading gains by.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Check the store, permissions, clock, versions and settings; exit 1 if something stands in the way."""
    if create_indexes and not store:
        raise UsageError("indexes are made in a store", hint="add --store")
    checks: list[dict[str, str]] = []

    def check(name: str, state: str, detail: str) -> None:
        checks.append({"check": name, "state": state, "detail": detail})

    _check_versions(check)
    if store:
        _check_store(store, check, create_indexes=create_indexes)
    else:
        check("store", "warning", "none named; pass --store or set FALLOW_STORE")
    _check_settings(check)
    bad = any(item["state"] == "error" for item in checks)
    if as_json:
        emit({"ok": not bad, "checks": checks})
    else:
        table("Doctor", ("check", "state", "detail"), [(c["check"], c["state"], c["detail"]) for c in checks])
    return 1 if bad else 0


def _check_versions(check: Any) -> None:
    from importlib.metadata import PackageNotFoundError, version

    from fallow.port.registry import missing_packages, registered

    check("python", "ok", sys.version.split()[0])
    for name in ("fallow", "polars", "numpy", "msgspec", "prefect", "openai"):
        try:
            check(name, "ok", version(name))
        except PackageNotFoundError:
            state = "error" if name in {"fallow", "polars", "numpy", "msgspec"} else "info"
            check(name, state, "not installed")
    for item in registered():
        if item.kind is None:
            check(f"provider {item.name}", "warning", f"{item.origin} cannot be used: {item.problem}")
            continue
        lacking = missing_packages(item.kind)
        need = f"needs {', '.join(lacking)}: pip install '{item.kind.install}'"
        check(f"provider {item.kind.name}", "info" if lacking else "ok", need if lacking else item.origin)
    year = time.gmtime().tm_year
    check("clock", "ok" if 2025 <= year < 2100 else "error", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def _check_store(store: str, check: Any, *, create_indexes: bool) -> None:
    from fallow.judgement.policy import policy_advice
    from fallow.model.record import PRIMARY_TYPES
    from fallow.port.protocol import Diagnosing, Indexing
    from fallow.port.reading import read_agents
    from fallow.reflection.reflecting import share_kept_by_reflections
    from fallow.usecases.planner import settings_for

    try:
        with open_store(store) as provider:
            check("store", "ok", f"{provider.capabilities.kind}, {provider.identity()}")
            if create_indexes and isinstance(provider, Indexing):
                made = provider.create_indexes()
                check("indexes", "ok", f"made {', '.join(made)}" if made else "all are there")
            elif create_indexes:
                check("indexes", "info", f"a store of kind {provider.capabilities.kind} needs none of fallow's")
            known, rated = 0, 0
            for memory_type in PRIMARY_TYPES:
                records, unreadable = 0, 0
                for batch in provider.scan(memory_type, ("record_id", "importance")):
                    records += len(batch.frame)
                    rated += len(batch.frame) - batch.frame["importance"].null_count()
                    unreadable += len(batch.unreadable)
                known += records
                state = "warning" if unreadable else "ok"
                check(memory_type, state, f"{records} records" + (f", {unreadable} unreadable" if unreadable else ""))
            if isinstance(provider, Diagnosing):
                for name, state, detail in provider.diagnose():
                    check(name, state, detail)
            policy = settings_of(provider, None).retention
            advice = policy_advice(rated / known if known else 0.0, policy.formula, policy.weights)
            if advice:
                check("policy", "info", advice)
            share = share_kept_by_reflections(provider)
            if share >= _ALMOST_ALL and settings_of(provider, None).retention.covered_rows == "protect":
                check(
                    "reflections",
                    "warning",
                    f"{share:.0%} of the conversation turns are protected because reflections cite them, so hardly "
                    "any is eligible; retention.covered_rows = release lets them go",
                )
            for agent_id, record in sorted(read_agents(provider).items()):
                for problem in settings_for(provider, agent_id, agents={agent_id: record}).problems:
                    check(f"agent {agent_id}", "warning", problem)
    except FallowError as error:
        check("store", "error", f"{error.message} — {error.hint}" if error.hint else error.message)


#: From this share on of turns that reflections protect, doctor says so.
_ALMOST_ALL = 0.8


def _check_settings(check: Any) -> None:
    from fallow.model.settings import SETTINGS, resolve

    resolved = resolve(variable=settings_variable())
    for problem in resolved.problems:
        check("settings", "warning", problem)
    for name, item in resolved.values.items():
        if item.origin != "default":
            check(
                name,
                "info",
                f"{item.value} (from {item.origin}{', ' + SETTINGS[name].env if item.origin == 'environment' else ''})",
            )
    if not resolved.approval.approvers:
        check("approvers", "warning", "FALLOW_APPROVERS is not set: any name can approve, recorded as claimed")
    address = os.environ.get("PREFECT_API_URL", "").strip()
    if address:
        from fallow.cli.server import look_at_server

        for name, state, detail in look_at_server(address, os.environ.get("PREFECT_API_AUTH_STRING"), _DEPLOYED):
            check(name, state, detail)
    else:
        check("prefect server", "info", "PREFECT_API_URL names none: decisions are made on the command line")


#: What runs on a schedule, or is called by people, once the pipeline is deployed (SPEC §15).
_DEPLOYED = (
    "plan-retention/nightly",
    "apply-retention/apply",
    "restore-memories/restore",
    "expire-plans/expire",
    "check-data-contracts/nightly-check",
    "backfill-importance/new-rows",
    "reflect-conversations/half-hourly",
    "purge-semantic-cache/hourly",
    "check-drift/nightly-drift",
    "release-hold/release",
)
