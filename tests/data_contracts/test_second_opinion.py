"""Polars and Great Expectations count the same failures for every rule (DESIGN §7)."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from fallow.data_contracts.checking import ContractReport, check_contracts, evaluate
from fallow.data_contracts.compiler import KINDS, Table, tables
from fallow.data_contracts.frames import LOGICAL
from fallow.data_contracts.second_opinion import ask_great_expectations, compare

from tests.conftest import REPOSITORY
from tests.fallow.small_stores import NOW, days_ago, record, store

ROWS = 4000
AS_OF = NOW
SECOND = 1_000_000


def _pool(table: Table, column: str, kind: str, rng: random.Random) -> list[Any]:
    """Values that keep and values that break every rule on a column, and absence in both its forms."""
    by_type: dict[str, list[Any]] = {
        "string": ["alpha", "beta", "  ", "line\nbreak", "alpha\n", ""],
        "integer": [0, 1, 5, 10**9],
        "number": [0.0, 0.05, 0.5, 1.0],
        "boolean": [True, False],
        "timestamp": [AS_OF - 40 * 86_400 * SECOND, AS_OF - 1, AS_OF + 200 * SECOND, AS_OF + 400 * SECOND, 0, -5],
    }
    pool = [None, *by_type[kind]]
    rules = [rule for rule in table.rules if rule.column == column]
    conditions = [item for rule in table.rules for item in rule.when if item.column == column]
    for rule in rules:
        options = rule.options
        pool += options.get("values", [])
        for bound in ("minimum", "maximum", "above"):
            if bound in options:
                step = 1 if kind == "integer" else 0.01
                pool += [options[bound] - step, options[bound], options[bound] + step]
        if rule.kind == "pattern":
            good = {"[0-9a-f]{64}": "0f" * 32, "forget-plan-[0-9a-f]{28}": "forget-plan-" + "0f" * 14}[
                options["pattern"]
            ]
            pool += [good, good, good[:-1], good + "0", good.upper(), f"{good}\n"]
    for item in conditions:
        pool += list(item.value) if item.operator == "is" else []
        pool += [item.value - 1, item.value, item.value + 1] if item.operator == "at_least" else []
    if any(rule.kind == "unique" for rule in rules):
        pool += [f"id-{rng.randrange(10**9)}" for _ in range(ROWS)]
    return pool


def planted(table: Table, seed: int) -> pl.DataFrame:
    """A frame with every fault that the table's rules know, in many combinations."""
    rng = random.Random(seed)
    names = sorted({name for rule in table.rules for name in rule.options.get("names", ())})
    data: dict[str, Any] = {}
    for name, column in table.columns.items():
        if name == "breaches":
            data[name] = [rng.sample(names, rng.choice([0, 0, 0, 1, 2]) if len(names) > 1 else 0) for _ in range(ROWS)]
            if len(names) == 1:
                data[name] = [names if rng.random() < 0.2 else [] for _ in range(ROWS)]
        elif column.logical_type == "array":
            data[name] = [[] for _ in range(ROWS)]
        else:
            pool = _pool(table, name, column.logical_type, rng)
            data[name] = [None if rng.random() < 0.05 else rng.choice(pool) for _ in range(ROWS)]
    types = {name: LOGICAL[column.logical_type] for name, column in table.columns.items()}
    return pl.DataFrame(data, schema=types)


@pytest.fixture(scope="module")
def both() -> tuple[ContractReport, Any]:
    """Every table with planted faults, once by Polars and once by GX in its own process."""
    report = ContractReport("every kind")
    for number, (name, table) in enumerate(tables().items()):
        frame = planted(table, number)
        report.frames[name] = frame
        report.findings += evaluate(table, frame, store_kind="every kind", as_of=AS_OF)
    return report, ask_great_expectations(report, as_of=AS_OF)


def test_every_rule_of_every_table_is_asked_and_broken_by_some_rows(both: Any) -> None:
    report, _ = both
    asked = {(item.rule.table, item.rule.id): item for item in report.findings}
    assert asked.keys() == {(table.name, rule.id) for table in tables().values() for rule in table.rules}
    for item in report.findings:
        assert 0 < item.failures < item.rows, item.name
    assert {item.rule.kind for item in report.findings} == KINDS.keys()


def test_great_expectations_counts_the_same_for_every_rule(both: Any) -> None:
    report, opinion = both
    assert opinion.errors == {}
    assert opinion.differing == {}
    assert opinion.agreeing == len(report.findings) > 350
    assert len(opinion.raw_sha256) == 64


def test_a_frame_of_nothing_and_columns_of_nothing_are_counted_alike() -> None:
    for rows in (0, 7):
        report = ContractReport("every kind")
        for name in ("conversation_memory", "conversation_memory_as_a_whole", "fallow_plan", "store"):
            types = {key: LOGICAL[column.logical_type] for key, column in tables()[name].columns.items()}
            frame = pl.DataFrame({key: [None] * rows for key in types}, schema=types)
            report.frames[name] = frame
            report.findings += evaluate(tables()[name], frame, store_kind="every kind", as_of=AS_OF)
        opinion = ask_great_expectations(report, as_of=AS_OF)
        assert (opinion.errors, opinion.differing) == ({}, {})
        assert opinion.agreeing == len(report.findings)


def test_an_exception_of_great_expectations_is_an_error_and_neither_pass_nor_failure() -> None:
    table = tables()["conversation_memory"]
    frame = planted(table, 1)
    report = ContractReport("every kind")
    report.findings = evaluate(table, frame, store_kind="every kind", as_of=AS_OF)
    report.frames["conversation_memory"] = frame.with_columns(pl.col("importance").cast(pl.String) + " of 10")
    opinion = ask_great_expectations(report, as_of=AS_OF)
    assert {"conversation_memory.importance_in_range", "conversation_memory.importance_on_model_scale"} <= set(
        opinion.errors
    )
    assert all("of 10" not in text for text in opinion.errors.values()), "no value of the store in an error"
    assert not opinion.settled
    assert opinion.agreeing > 30, "one rule's exception leaves the others their answers"
    assert {"polars", "gx"} == set(next(iter(opinion.to_json()["differing"].values()), {"polars": 0, "gx": 0}))


def test_no_answer_at_all_is_an_error_too() -> None:
    table = tables()["store"]
    report = ContractReport("every kind")
    report.findings = evaluate(table, planted(table, 1), store_kind="every kind", as_of=AS_OF)
    report.frames = {"no_such_table": planted(table, 1)}
    opinion = ask_great_expectations(report, as_of=AS_OF)
    assert opinion.agreeing == 0
    assert "*" in opinion.errors or len(opinion.errors) >= len(report.findings)


def test_answers_that_only_one_side_gave_are_errors() -> None:
    table = tables()["store"]
    report = ContractReport("every kind")
    report.findings = evaluate(table, planted(table, 1), store_kind="every kind", as_of=AS_OF)
    answers: dict[str, dict[str, Any]] = {
        "store": {item.rule.id: {"failures": item.failures} for item in report.findings} | {"extra": {"failures": 0}}
    }
    first = report.findings[0]
    answers["store"].pop(first.rule.id)
    answers["store"][report.findings[1].rule.id] = {"failures": report.findings[1].failures + 1}
    opinion = compare(report, answers, "{}")
    assert opinion.errors == {first.name: "not answered", "store.extra": "answered by Great Expectations alone"}
    assert opinion.differing == {
        report.findings[1].name: (report.findings[1].failures, report.findings[1].failures + 1)
    }


def test_the_raw_answer_holds_no_text_and_no_id(tmp_path: Any) -> None:
    rows = [record(f"secret-id-{n}", importance=1.4, last_accessed_at=days_ago(1)) for n in range(5)]
    with store(tmp_path / "s", *rows) as provider:
        report = check_contracts(provider, as_of=AS_OF, keep_frames=True)
        opinion = ask_great_expectations(report, as_of=AS_OF)
    assert opinion.settled
    assert "importance_readable" in opinion.raw
    assert "secret-id" not in opinion.raw
    assert "what secret-id-1 says" not in opinion.raw


def test_planning_never_loads_great_expectations() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import fallow.flows.plan_retention, fallow.tasks.planning, fallow.tasks.applying, "
        "fallow.cli.retention, fallow.data_contracts.checking; "
        "sys.exit('great_expectations' in sys.modules or 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
