"""The Oracle store that MemoRizz wrote, loaded into the stand-in: its plans and ours (STORES.md)."""

from __future__ import annotations

import array
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fallow.providers import oracle_statements as sql
from fallow.providers.oracle import LOGICAL_IDS, OracleProvider

from fallow.model.arguments import instant
from fallow.port.reading import read_store
from fallow.usecases.suppressed import suppressed_records
from tests.fallow.peer import Rows, differences, raw_rows, score_differences

PREFIX = "FIXTURE_"
#: Tables beside the memory types, and columns that scratch stores do without.
BESIDE = {
    "agents": {"agent_id": "VARCHAR2(255)", "name": "VARCHAR2(255)", "instruction": "CLOB"},
    "agent_llm_configs": {"agent_id": "RAW(16)", "additional_config": "CLOB CHECK (additional_config IS JSON)"},
}
JSON = ("metadata", "attributes", "relations", "steps", "source_message_ids", "linked_source_ids")


def native(value: Any) -> Any:
    """A value as the export spells it, as the driver binds it."""
    if not isinstance(value, dict):
        return value
    [(kind, inner)] = value.items()
    if kind == "raw":
        return bytes.fromhex(inner)
    return datetime.fromisoformat(inner) if kind == "timestamp" else array.array("f", inner)


def as_text(row: dict[str, Any], memory_type: str) -> tuple[str, dict[str, Any]]:
    """A row's id and fields, worked out from the export without fallow's own reading."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        value = value.get("timestamp", value) if isinstance(value, dict) else value
        plain[name] = json.loads(value) if name in JSON and value else value
    plain |= json.loads(row.get("retention_meta") or "{}")
    digits = row["id"]["raw"].lower()
    raw = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return str(row[LOGICAL_IDS[memory_type]] if memory_type in LOGICAL_IDS else raw), plain


def load(shared: Path, standin: Any) -> Rows:
    """Every table of the export, with its vectors; the rows of memory types by (type, id)."""
    rows = []
    connection = standin.pool().acquire()
    for name, columns in {**sql.TABLES, **BESIDE}.items():
        path = shared / "fixtures" / "oracle" / f"{name}.jsonl"
        exported = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        has_vectors = any("embedding" in row for row in exported)
        more = {"embedding": "VECTOR(32, FLOAT32)"} if has_vectors else {}
        target = f"MEMORIZZ.{PREFIX}{name}"
        cursor = connection.cursor()
        if name == "agent_llm_configs":
            cursor.execute(f"CREATE TABLE {target} (agent_id RAW(16), additional_config CLOB)")
        else:
            cursor.execute(sql.create_table(target, {**columns, **more}))
        for row in exported:
            kept = {key: native(value) for key, value in row.items() if key in {*columns, *more, "id"}}
            statement = sql.insert(target, list(kept))
            cursor.execute(statement, {f"s{n}": value for n, value in enumerate(kept.values())})
            if name in sql.TABLES:
                rows.append((name, *as_text(row, name)))
    connection.commit()
    connection.close()
    return raw_rows(rows)


@pytest.fixture(scope="module")
def loaded(shared: Path, oracle: Any) -> Iterator[Rows]:
    rows = load(shared, oracle)
    yield rows
    connection = oracle.pool().acquire()
    for name in {**sql.TABLES, **BESIDE}:
        connection.cursor().execute(sql.drop_table(f"MEMORIZZ.{PREFIX}{name}"))
    connection.close()


@pytest.fixture
def provider(loaded: Rows, oracle: Any) -> Iterator[OracleProvider]:
    # Its columns were written in UTC, where files of the same agents hold local times.
    with OracleProvider(oracle.pool(), "MEMORIZZ", prefix=PREFIX) as opened:
        yield opened


def test_candidates_are_memorizzs_but_for_what_stores_md_lists_e(shared: Path, loaded: Rows, provider: Any) -> None:
    expected = json.loads((shared / "fixtures" / "expected-oracle.json").read_text())
    as_of = instant(expected["now"])
    for scenario in expected["scenarios"]:
        named = f"{scenario['name']} {scenario['agent_id']}"
        assert differences(provider, scenario, loaded, as_of) == [], named
        assert score_differences(provider, scenario, loaded, as_of) == [], named
    assert len(expected["scenarios"]) >= 30
    theirs = {(item["memory_type"], item["record_id"]) for item in expected["scenarios"][0]["suppressed"]}
    assert theirs
    assert {(item.memory_type, item.record_id) for item in suppressed_records(provider)} == theirs


def test_agents_settings_are_read_from_the_table_beside_them_2_4(provider: Any) -> None:
    policies = {row["agent_id"]: row.get("retrieval_policy") for row in provider.find("agents")}
    assert policies["agent-harbour"]["retention"] == {"min_retention": 0.35, "grace_days": 14}
    assert len(policies) == 3
    assert set(provider.fetch("agents", ["agent-harbour", "nobody"])) == {"agent-harbour"}


def test_planning_asks_for_no_text_and_no_vector_3(provider: Any, oracle: Any) -> None:
    oracle.statements.clear()
    view = read_store(provider)
    assert sum(frame.height for frame in view.frames.values()) > 300
    told = [statement for statement, _ in oracle.statements]
    assert any("retention_meta" in statement for statement in told)
    assert not any("embedding" in statement for statement in told)
    assert not any(" description" in statement or " user_query" in statement for statement in told)
    assert all("CASE WHEN content" in text for text in told if " content" in text and "retention_meta" in text)


def test_vectors_come_where_they_are_asked_for_3(provider: Any) -> None:
    batches = list(provider.scan("conversation_memory", ("record_id", "embedding")))
    lengths = {len(vector) for batch in batches for vector in batch.frame["embedding"].to_list() if vector is not None}
    assert lengths == {32}
