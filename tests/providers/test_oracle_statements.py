"""Every statement for Oracle is Oracle's grammar, and values are never part of one (issue: one module, checked)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlglot
from fallow.providers import oracle_statements as sql
from sqlglot import exp

T = sql.table("MEMORIZZ", "conversation_memory")
KINDS: dict[str, sql.Comparison] = {"importance": "value", "content": "clob", "user_id": "null", "metadata": "empty"}

STATEMENTS = {
    "database": sql.DATABASE,
    "columns": sql.COLUMNS,
    "created": sql.CREATED,
    "clock": sql.CLOCK,
    "select": sql.select(T, ["id", "importance", sql.object_text("content")], order="id"),
    "select among": sql.select(T, ["id"], where=sql.among("id", 3)),
    "select starting": sql.select(T, ["id"], where=sql.starts_with("memory_id"), order="memory_id"),
    "doubled": sql.doubled(T, "summary_id"),
    "agents": sql.agents(sql.table("M", "agents"), sql.table("M", "agent_llm_configs")),
    "agents alone": sql.agents(sql.table("M", "agents"), ""),
    "update": sql.update(T, ["importance", "retention_state"], "", KINDS),
    "update merging": sql.update(T, ["retention_state"], "retention_meta", KINDS),
    "update nothing": sql.update(T, [], "", KINDS),
    "insert": sql.insert(T, ["id", "content"]),
    "delete": sql.delete(T, KINDS),
    **{f"add {name}": sql.add_column(T, name) for name in sql.RETENTION_COLUMNS},
    **{f"create {name}": sql.create_table(f"M.{name}", columns) for name, columns in sql.TABLES.items()},
    "drop": sql.drop_table(T),
}


def parsed(statement: str) -> exp.Expression:
    # sqlglot knows no RETURNING CLOB inside JSON_MERGEPATCH; Oracle does (SQL Language Reference, JSON_MERGEPATCH).
    # It knows IS JSON as a condition but not inside a column's CHECK.
    statement = statement.replace(" RETURNING CLOB)", ")")
    statement = re.sub(r" CHECK \(\w+ IS JSON\)", "", statement)
    tree = sqlglot.parse_one(statement, read="oracle")
    assert not isinstance(tree, exp.Command), "only read as opaque text"
    return tree


@pytest.mark.parametrize("name", STATEMENTS)
def test_it_is_oracles_grammar(name: str) -> None:
    parsed(STATEMENTS[name])


@pytest.mark.parametrize(
    "statement", ["UPDATE t SET a = WHERE id = :id", "SELECT FROM WHERE", "INSERT INTO t (a VALUES (1)"]
)
def test_the_check_refuses_what_is_none(statement: str) -> None:
    with pytest.raises(sqlglot.errors.ParseError):
        parsed(statement)


@pytest.mark.parametrize("name", ["a b", 'a"', "a;drop", "", "1a", "é", "a" * 129])
def test_names_that_would_need_quotes_are_refused(name: str) -> None:
    for made in (lambda: sql.table("M", name), lambda: sql.insert(T, [name]), lambda: sql.update(T, [name], "", {})):
        with pytest.raises(ValueError):
            made()


def test_the_condition_is_in_the_where_clause_and_no_vector_in_an_update_trap_45() -> None:
    tree = parsed(STATEMENTS["update merging"])
    where = tree.find(exp.Where)
    assert where is not None
    assert {column.name.lower() for column in where.find_all(exp.Column)} >= {"id", *KINDS}
    assert "embedding" not in STATEMENTS["update merging"]


def test_no_other_module_of_the_provider_speaks_sql() -> None:
    text = Path(sql.__file__).with_name("oracle.py").read_text(encoding="utf-8")
    assert not re.search(
        r"\b(SELECT|UPDATE|INSERT INTO|DELETE FROM|MERGE|ALTER TABLE|FROM dual)\s+\w",
        text.replace("an UPDATE whose", "").replace("grant the user SELECT", ""),
    )
