"""The commands that hold stores against their data contracts and against each other (SPEC §12, §13)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fallow.cli.app import AsOf, Json, Store, emit, open_store, say, settings_of, table
from fallow.model.arguments import instant
from fallow.model.errors import UsageError
from fallow.model.times import wall_clock
from fallow.port import gate


def contracts(
    what: Annotated[str, typer.Argument(help="check, or show the contracts themselves.")] = "check",
    store: Store = None,
    gx: Annotated[bool, typer.Option("--gx", help="Ask Great Expectations for a second opinion.")] = False,
    gx_json: Annotated[
        Path | None, typer.Option("--gx-json", help="With --gx: keep its own answer in this file.")
    ] = None,
    accept: Annotated[
        str | None, typer.Option("--accept", help="Your name: today's numbers of records are right, count from them.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="With show: only this contract.")] = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> int:
    """Check a store against its data contracts; exit 4 where a must is broken."""
    if what not in {"check", "show"}:
        raise UsageError(f"'{what[:40]}' is nothing that contracts does", hint="check or show")
    if gx_json is not None and not gx:
        raise UsageError("--gx-json needs --gx", hint="there is no answer of Great Expectations without it")
    if what == "show":
        _show(name, as_json)
        return 0
    from fallow.acting.deciding import check_approver

    shipped = gate.contracts()
    now, at = wall_clock(), instant(as_of, "--as-of")
    opinion = None
    with open_store(store) as provider:
        approval = settings_of(provider, None).approval
        by = None if accept is None else check_approver(accept, approval)[0]
        report = shipped.check_contracts(provider, as_of=at, keep_frames=gx)
        if gx:
            opinion = shipped.ask_great_expectations(report, as_of=at)
            if gx_json is not None:
                gx_json.write_text(opinion.raw, encoding="utf-8")
        shipped.record_check(provider, report, now=now, accepted_by=by)
    if as_json:
        emit({**report.to_json(), "second_opinion": None if opinion is None else opinion.to_json()})
    else:
        _tell(report, opinion)
    if report.state == "ContractBreach" and accept is None:
        return 4
    return 0 if opinion is None or opinion.settled else 1


def _tell(report: Any, opinion: Any) -> None:
    rows = [
        (item.rule.table, item.rule.id, item.rule.severity, str(item.failures), ", ".join(item.first_ids[:3]))
        for item in report.broken
    ]
    title = f"{report.state}: {len(rows)} of {len(report.findings)} rules are broken"
    table(title, ("table", "rule", "severity", "failures", "first"), rows, right=("failures",))
    for item in report.broken:
        if item.refuses:
            say(f"No scope may be planned: {gate.contracts().refusal(item)}")
    if opinion is None:
        return
    say(f"Great Expectations counts {opinion.agreeing} rules alike, {len(opinion.differing)} differently.")
    for rule, (ours, its) in opinion.differing.items():
        say(f"{rule}: {ours} here, {its} by Great Expectations")
    for rule, error in opinion.errors.items():
        say(f"error: {rule}: {error}")


def _show(name: str | None, as_json: bool) -> None:
    known = gate.contracts().contracts()
    if name is not None and name not in known:
        raise UsageError(f"there is no contract '{name[:40]}'", hint=f"one of {', '.join(known)}")
    shown = [known[name]] if name else list(known.values())
    if as_json:
        rules: list[dict[str, Any]] = [
            {
                "contract": contract.name,
                "version": contract.version,
                "table": part.name,
                "rule": rule.id,
                "column": rule.column,
                "severity": rule.severity,
                "level": rule.level,
                "sentence": rule.sentence,
            }
            for contract in shown
            for part in contract.tables
            for rule in part.rules
        ]
        emit({"schema_version": 1, "rules": rules})
        return
    for contract in shown:
        say(f"{contract.name} {contract.version}, {contract.owner}: {contract.description}")
        for part in contract.tables:
            rows = [(rule.column, rule.id, rule.severity, rule.sentence) for rule in part.rules]
            table(f"{part.name}: {part.description}", ("field", "rule", "severity", "says"), rows)


def parity(
    store: Annotated[list[str] | None, typer.Option("--store", help="A store's address; give two.")] = None,
    as_json: Json = False,
) -> int:
    """Compare the records of two stores, field by field of their contracts; exit 1 where they differ."""
    stores = store or []
    if len(stores) != 2:
        raise UsageError("parity compares two stores", hint="fallow parity --store A --store B")
    with open_store(stores[0]) as first, open_store(stores[1]) as second:
        found = gate.contracts().compare_stores(first, second)
    if as_json:
        emit(found.to_json())
        return 0 if found.same else 1
    rows = [
        (name, str(found.compared[name]), str(found.only_first[name]), str(found.only_second[name]))
        for name in found.compared
    ]
    counts = ("in both", "only first", "only second")
    table("The same" if found.same else "Not the same", ("type", *counts), rows, right=counts)
    if found.differences:
        told = [(d.memory_type, d.column, str(d.records), ", ".join(d.first_ids[:3])) for d in found.differences]
        table("Fields that differ", ("type", "field", "records", "first"), told, right=("records",))
    for name, columns in found.not_carried.items():
        if columns:
            say(f"{name}: not compared, one of the stores has no field for it: {', '.join(columns)}")
    return 0 if found.same else 1
