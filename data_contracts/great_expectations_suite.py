"""The same rules by Great Expectations: a second opinion, in a process of its own (DESIGN §7).

``python -m fallow.data_contracts.great_expectations_suite FOLDER`` reads the frames that :func:`write_job` put there
and writes ``result.json`` (failures or the error of every rule) and ``raw.json`` (what GX itself said; counts
only, no values). Nothing else imports this module's GX: it takes seconds to load.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
from fallow.data_contracts.compiler import Condition, Rule, Table, tables

_JOB: Final = "job.json"
_RESULT: Final = "result.json"
RAW: Final = "raw.json"


def write_job(folder: Path, frames: Mapping[str, pl.DataFrame], *, store_kind: str, as_of: int) -> None:
    """Puts down what the other process checks: one Arrow file a table, and what the rules depend on."""
    for name, frame in frames.items():
        frame.write_ipc(folder / f"{name}.arrow")
    job = {"tables": sorted(frames), "store_kind": store_kind, "as_of": as_of}
    (folder / _JOB).write_text(json.dumps(job), encoding="utf-8")


def read_result(folder: Path) -> dict[str, dict[str, Any]]:
    """By table and rule ``{"failures": n}`` or ``{"error": text}``; OSError or ValueError where there is none."""
    found: dict[str, dict[str, Any]] = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
    return found


def expectation(rule: Rule, as_of: int) -> Any:
    """The expectation that fails on exactly the rows that break the rule; its meta carries the rule's id."""
    gxe: Any = importlib.import_module("great_expectations.expectations")
    options = rule.options
    common: dict[str, Any] = {"meta": {"rule": rule.id}}
    condition = _condition(rule.when)
    if condition is not None:
        common["row_condition"] = condition
    if rule.kind == "not_before":
        return gxe.ExpectColumnPairValuesAToBeGreaterThanB(
            column_A=rule.column,
            column_B=options["other"],
            or_equal=True,
            ignore_row_if="either_value_is_missing",
            **common,
        )
    common["column"] = "breaches" if rule.kind == "no_breach" else rule.column
    if rule.kind == "present":
        return gxe.ExpectColumnValuesToNotBeNull(**common)
    if rule.kind == "unique":
        return gxe.ExpectColumnValuesToBeUnique(**common)
    if rule.kind == "allowed":
        return gxe.ExpectColumnValuesToBeInSet(value_set=list(options["values"]), **common)
    if rule.kind == "pattern":
        return gxe.ExpectColumnValuesToMatchRegex(regex=rf"\A(?:{options['pattern']})\Z", **common)
    if rule.kind == "no_breach":
        names = "|".join(options["names"])
        return gxe.ExpectColumnValuesToNotMatchRegex(regex=f",(?:{names}),", **common)
    if rule.kind == "not_after_as_of":
        return gxe.ExpectColumnValuesToBeBetween(
            max_value=as_of + int(options["tolerance_seconds"]) * 1_000_000, **common
        )
    above = options.get("above")
    return gxe.ExpectColumnValuesToBeBetween(
        min_value=options.get("minimum") if above is None else above,
        max_value=options.get("maximum"),
        strict_min=above is not None,
        **common,
    )


def _condition(when: Iterable[Condition]) -> Any:
    from great_expectations.expectations.row_conditions import Column

    combined: Any = None
    for item in when:
        column: Any = Column(item.column)
        if item.operator == "is":
            one = column.is_in(item.value)
        elif item.operator == "at_least":
            one = column >= item.value
        else:
            one = column.is_not_null() if item.value else column.is_null()
        combined = one if combined is None else combined & one
    return combined


def columns_of(frame: pl.DataFrame) -> Any:
    """A frame as GX takes it, of pandas on numpy: empty text is absent, breaches are one text between commas."""
    pandas: Any = importlib.import_module("pandas")
    data: dict[str, Any] = {}
    for name, kind in frame.schema.items():
        column = frame.get_column(name)
        if kind == pl.List(pl.String):
            column = pl.select(
                pl.when(column.list.len() > 0).then("," + column.list.join(",") + ",").otherwise(None)
            ).to_series()
            kind = pl.String()
        if kind == pl.String:
            data[name] = column.replace("", None).to_numpy(allow_copy=True).astype(object)
        elif kind == pl.Boolean and column.null_count():
            data[name] = column.to_numpy(allow_copy=True).astype(object)
        else:
            data[name] = column.to_numpy(allow_copy=True)
    return pandas.DataFrame(data)


def check(
    table: Table, frame: pl.DataFrame, *, store_kind: str, as_of: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Every rule of a table that the frame has the columns for, by GX: results by rule, and GX's own answer."""
    gx: Any = importlib.import_module("great_expectations")
    rules = [rule for rule in table.rules if rule.reads <= set(frame.columns) and table.applies(rule, store_kind)]
    needed = {name for rule in rules for name in rule.reads}
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset(table.name)
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch(
        batch_parameters={"dataframe": columns_of(frame.select(name for name in frame.columns if name in needed))}
    )
    suite = gx.ExpectationSuite(name=table.name)
    for rule in rules:
        suite.add_expectation(expectation(rule, as_of))
    answer = batch.validate(suite, result_format={"result_format": "BASIC", "partial_unexpected_count": 0})
    raw = answer.to_json_dict()
    results: dict[str, dict[str, Any]] = {rule.id: {"error": "Great Expectations gave no answer"} for rule in rules}
    for item in answer.results:
        said: dict[str, Any] = item.to_json_dict()
        results[said["expectation_config"]["meta"]["rule"]] = _outcome(said)
    return results, raw


def _outcome(said: Mapping[str, Any]) -> dict[str, Any]:
    """A result's failures, or its error: an exception is neither a pass nor a failed rule."""
    exceptions = said.get("exception_info") or {}
    entries = [exceptions] if "raised_exception" in exceptions else list(exceptions.values())
    raised = [entry for entry in entries if isinstance(entry, Mapping) and entry.get("raised_exception")]
    if raised:
        text = str(raised[0].get("exception_message") or "no message").strip().splitlines()[0]
        return {"error": text[:200]}
    count = (said.get("result") or {}).get("unexpected_count")
    if count is None:
        return {"failures": 0} if said.get("success") else {"error": "failed without a count"}
    if bool(count) == bool(said.get("success")):
        return {"error": f"success is {said.get('success')} with {count} failures"}
    return {"failures": int(count)}


def main(folder: Path) -> None:
    """Checks what :func:`write_job` wrote and writes both answers beside it."""
    job = json.loads((folder / _JOB).read_text(encoding="utf-8"))
    results, raw = {}, {}
    for name in job["tables"]:
        frame = pl.read_ipc(folder / f"{name}.arrow")
        try:
            results[name], raw[name] = check(
                tables()[name], frame, store_kind=job["store_kind"], as_of=int(job["as_of"])
            )
        except Exception as error:
            message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:200]
            results[name] = {"*": {"error": message}}
    (folder / RAW).write_text(json.dumps(raw, default=str), encoding="utf-8")
    (folder / _RESULT).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    main(Path(sys.argv[1]))
