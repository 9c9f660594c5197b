"""Every SQL statement that fallow sends to Oracle, and nothing else (STORES.md, Oracle).

Names of schemas, tables and columns come from the data dictionary or the address and are held to plain
identifiers here; values are always binds. A test parses each statement with sqlglot's oracle grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_$#]{0,127}\Z", re.ASCII)

#: Which database answers: its unique name and container; readable by every user.
DATABASE: Final = (
    "SELECT SYS_CONTEXT('USERENV', 'DB_UNIQUE_NAME') AS db_name, "
    "SYS_CONTEXT('USERENV', 'CON_NAME') AS con_name, "
    "SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA') AS schema_name FROM dual"
)
#: What the schema holds, as far as the user may see it.
COLUMNS: Final = (
    "SELECT table_name, column_name, data_type FROM all_tab_columns WHERE owner = :owner ORDER BY table_name, column_id"
)
#: When a table was made: another moment in a copy.
CREATED: Final = (
    "SELECT object_id, created FROM all_objects "
    "WHERE owner = :owner AND object_name = :table_name AND object_type = 'TABLE'"
)
#: The server's clock, in UTC.
CLOCK: Final = "SELECT SYS_EXTRACT_UTC(SYSTIMESTAMP) AS utc_now FROM dual"

#: How a condition compares a column: by value, by a whole CLOB, by its being NULL, or a CLOB by its holding nothing
#: (an empty CLOB is not NULL, and compares with nothing).
Comparison = Literal["value", "clob", "null", "empty"]


def identifier(name: str) -> str:
    """The name itself, where it is a plain identifier.

    Raises:
        ValueError: it would have to be quoted.
    """
    if not _NAME.match(name):
        raise ValueError("no plain identifier")
    return name


def table(schema: str, name: str) -> str:
    """A table with its schema."""
    return f"{identifier(schema)}.{identifier(name)}"


def object_text(column: str) -> str:
    """A text column only where it holds an object: other text never crosses the wire."""
    return f"CASE WHEN {identifier(column)} LIKE '{{%' THEN {column} END AS {column}"


def select(target: str, expressions: Sequence[str], *, where: str = "", order: str = "") -> str:
    """Rows of a table."""
    statement = f"SELECT {', '.join(expressions)} FROM {target}"  # noqa: S608
    if where:
        statement += f" WHERE {where}"
    return statement + (f" ORDER BY {order}" if order else "")


def among(column: str, count: int, prefix: str = "k") -> str:
    """A column is one of ``count`` binds."""
    return f"{identifier(column)} IN ({', '.join(f':{prefix}{n}' for n in range(count))})"


def starts_with(column: str) -> str:
    """A column begins with the pattern bound as ``starting``, in which ``!`` escapes."""
    return f"{identifier(column)} LIKE :starting ESCAPE '!'"


def doubled(target: str, column: str) -> str:
    """Ids that several rows have."""
    name = identifier(column)
    return f"SELECT {name} FROM {target} WHERE {name} IS NOT NULL GROUP BY {name} HAVING COUNT(*) > 1"  # noqa: S608


def agents(agents_table: str, configs_table: str) -> str:
    """Agents beside their own settings, where they have any."""
    if not configs_table:
        return f"SELECT a.agent_id FROM {agents_table} a ORDER BY a.agent_id"  # noqa: S608
    return (
        f"SELECT a.agent_id, c.additional_config FROM {agents_table} a "  # noqa: S608
        f"LEFT JOIN {configs_table} c ON c.agent_id = a.id ORDER BY a.agent_id"
    )


def _conditions(conditions: Mapping[str, Comparison]) -> Iterable[str]:
    for place, (column, comparison) in enumerate(conditions.items()):
        name = identifier(column)
        if comparison == "null":
            yield f"{name} IS NULL"
        elif comparison == "empty":
            yield f"NVL(DBMS_LOB.GETLENGTH({name}), 0) = 0"
        elif comparison == "clob":
            yield f"DBMS_LOB.COMPARE({name}, :c{place}) = 0"
        else:
            yield f"{name} = :c{place}"


def update(target: str, sets: Sequence[str], merged: str, conditions: Mapping[str, Comparison]) -> str:
    """One row by ``:id``, where every condition holds; ``merged`` names a JSON column to merge ``:merged`` into.

    Values to set are ``:s0``…, conditions ``:c0``… by their places.
    """
    parts = [f"{identifier(name)} = :s{place}" for place, name in enumerate(sets)]
    if merged:
        name = identifier(merged)
        parts.append(f"{name} = JSON_MERGEPATCH(NVL({name}, '{{}}'), :merged RETURNING CLOB)")
    where = " AND ".join(["id = :id", *_conditions(conditions)])
    return f"UPDATE {target} SET {', '.join(parts) or 'id = id'} WHERE {where}"  # noqa: S608


def insert(target: str, columns: Sequence[str]) -> str:
    """A new row; its values are ``:s0``… by their places."""
    names = ", ".join(identifier(name) for name in columns)
    return f"INSERT INTO {target} ({names}) VALUES ({', '.join(f':s{n}' for n in range(len(columns)))})"  # noqa: S608


def delete(target: str, conditions: Mapping[str, Comparison]) -> str:
    """One row by ``:id``, where every condition holds."""
    where = " AND ".join(["id = :id", *_conditions(conditions)])
    return f"DELETE FROM {target} WHERE {where}"  # noqa: S608


#: What the mechanism needs on each of the five tables (STORES.md), by column.
RETENTION_COLUMNS: Final[Mapping[str, str]] = {
    "importance": "NUMBER(5,4)",
    "last_accessed_at": "TIMESTAMP",
    "access_count": "NUMBER(10) DEFAULT 0",
    "retention_state": "VARCHAR2(32) DEFAULT 'active'",
    "retention_meta": "CLOB CHECK (retention_meta IS JSON)",
}


def add_column(target: str, column: str) -> str:
    """The DDL that an old schema lacks: printed for its owner, never run by fallow."""
    return f"ALTER TABLE {target} ADD ({identifier(column)} {RETENTION_COLUMNS[column]})"


_CLOB_JSON: Final = "CLOB CHECK ({0} IS JSON)"
#: The tables as agents make them, for scratch stores and the tests' stand-in: columns beside ``id`` by table.
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "conversation_memory": {
        "memory_id": "VARCHAR2(255)",
        "thread_id": "VARCHAR2(255)",
        "role": "VARCHAR2(50)",
        "content": "CLOB",
        "timestamp": "TIMESTAMP",
        "agent_id": "VARCHAR2(255)",
        "user_id": "VARCHAR2(255)",
        "summary_id": "VARCHAR2(255)",
        **RETENTION_COLUMNS,
    },
    "knowledge_base": {
        **dict.fromkeys(("memory_id", "agent_id", "user_id", "knowledge_base_id", "namespace"), "VARCHAR2(255)"),
        "content": "CLOB",
        "memory_type": "VARCHAR2(100)",
        "chunk_index": "NUMBER(10)",
        "chunk_count": "NUMBER(10)",
        "chunking_strategy": "VARCHAR2(100)",
        "source_id": "VARCHAR2(255)",
        "parent_source_id": "VARCHAR2(255)",
        "linked_source_ids": _CLOB_JSON.format("linked_source_ids"),
        "metadata": _CLOB_JSON.format("metadata"),
        "status": "VARCHAR2(50)",
        "superseded_by": "VARCHAR2(255)",
        "superseded_at": "TIMESTAMP",
        "created_at": "TIMESTAMP",
        "updated_at": "TIMESTAMP",
        "last_accessed": "TIMESTAMP",
        **RETENTION_COLUMNS,
        "importance": "NUMBER(3,2)",
    },
    "entity_memory": {
        "entity_id": "VARCHAR2(255)",
        "name": "VARCHAR2(500)",
        "entity_type": "VARCHAR2(100)",
        **{name: _CLOB_JSON.format(name) for name in ("attributes", "relations", "metadata")},
        **dict.fromkeys(("memory_id", "agent_id", "user_id"), "VARCHAR2(255)"),
        "created_at": "TIMESTAMP",
        "updated_at": "TIMESTAMP",
        **RETENTION_COLUMNS,
    },
    "summaries": {
        "summary_id": "VARCHAR2(255)",
        "content": "CLOB",
        "source_message_ids": _CLOB_JSON.format("source_message_ids"),
        "summary_type": "VARCHAR2(50)",
        **dict.fromkeys(("memory_id", "agent_id", "user_id", "thread_id"), "VARCHAR2(255)"),
        "period_start": "NUMBER",
        "period_end": "NUMBER",
        "memory_units_count": "NUMBER(10)",
        "created_at": "TIMESTAMP",
        **RETENTION_COLUMNS,
    },
    "workflow_memory": {
        "workflow_id": "VARCHAR2(255)",
        "name": "VARCHAR2(500)",
        "description": "CLOB",
        "steps": _CLOB_JSON.format("steps"),
        "current_step": "NUMBER(10)",
        "status": "VARCHAR2(50)",
        "outcome": "CLOB",
        **dict.fromkeys(("memory_id", "agent_id", "user_id"), "VARCHAR2(255)"),
        "user_query": "CLOB",
        "canonical_hash": "VARCHAR2(128)",
        "canonical_signature": "CLOB",
        "step_count": "NUMBER(10)",
        "promoted_skill_id": "VARCHAR2(255)",
        "skills_activated": "CLOB",
        "shadow_evaluations": "CLOB",
        "created_at": "TIMESTAMP",
        "updated_at": "TIMESTAMP",
        **RETENTION_COLUMNS,
    },
    "shared_memory": {
        "memory_id": "VARCHAR2(255)",
        "content": "CLOB",
        "scope": "VARCHAR2(50)",
        "owner_agent_id": "VARCHAR2(255)",
        "access_list": "CLOB",
        "created_at": "TIMESTAMP",
        "updated_at": "TIMESTAMP",
    },
    "semantic_cache": {
        "cache_key": "VARCHAR2(255)",
        "query_text": "CLOB",
        "response": "CLOB",
        "scope": "VARCHAR2(50)",
        "similarity_threshold": "NUMBER",
        "hit_count": "NUMBER(10)",
        **dict.fromkeys(("agent_id", "memory_id", "session_id", "user_id"), "VARCHAR2(255)"),
        "metadata": _CLOB_JSON.format("metadata"),
        "created_at": "TIMESTAMP",
        "expires_at": "TIMESTAMP",
        "last_accessed": "TIMESTAMP",
    },
}


def create_table(target: str, columns: Mapping[str, str]) -> str:
    """The DDL of a table for scratch stores, with its RAW key."""
    parts = ["id RAW(16) PRIMARY KEY", *(f"{identifier(name)} {kind}" for name, kind in columns.items())]
    return f"CREATE TABLE {target} ({', '.join(parts)})"


def drop_table(target: str) -> str:
    """The DDL that removes a scratch table, and leaves nothing of it in the recycle bin."""
    return f"DROP TABLE {target} PURGE"
