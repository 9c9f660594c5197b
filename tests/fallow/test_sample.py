"""The sample store: deterministic, in the agents' shapes, with everything a rule is about (STORES.md)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter

import pytest

from fallow.model.arguments import instant
from fallow.model.errors import StoreUnwritableError
from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES, read_record
from fallow.model.times import MICROSECONDS_PER_DAY, parse_time
from fallow.port.protocol import Capabilities, Outcome
from fallow.usecases.sample import EMBEDDING_LENGTH, embedding, sample_rows, write_sample_store

NOW = instant("2026-12-01T00:00:00Z")


def records(rows):
    return [read_record(row, name, row["_id"]) for name in PRIMARY_TYPES for row in rows[name]]


def text(rows):
    return json.dumps(rows, sort_keys=True)


def test_the_same_arguments_give_the_same_rows_in_another_process_and_zone():
    code = (
        "import json, hashlib; from fallow.usecases.sample import sample_rows;"
        f"print(json.dumps(sample_rows(now={NOW}, seed=3), sort_keys=True))"
    )
    environment = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "4711", "PYTHONPATH": "."}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert other.stdout.strip() == text(sample_rows(now=NOW, seed=3))


def test_seed_instant_and_size_each_matter():
    base = text(sample_rows(now=NOW, conversations=4))
    assert text(sample_rows(now=NOW, conversations=4, seed=8)) != base
    assert text(sample_rows(now=NOW + MICROSECONDS_PER_DAY, conversations=4)) != base
    assert text(sample_rows(now=NOW, conversations=5)) != base


def test_callers_may_change_what_they_got():
    rows = sample_rows(now=NOW, conversations=2)
    before = text(rows)
    for row in (row for of_type in rows.values() for row in of_type):
        for value in row.values():
            if isinstance(value, dict):
                value["changed"] = True
            elif isinstance(value, list):
                value.append("changed")
        row["changed"] = True
    assert text(sample_rows(now=NOW, conversations=2)) == before


@pytest.mark.parametrize("conversations", [0, 2, 36])
def test_every_size_holds_every_kind_of_record(conversations):
    rows = sample_rows(now=NOW, conversations=conversations)
    found = records(rows)
    assert all(rows[name] for name in (*PRIMARY_TYPES, "agents", "semantic_cache", "shared_memory"))
    assert sum(record.pinned for record in found) >= 6
    assert sum(record.verified for record in found) >= 3
    assert {record.retention_state for record in found} == {"active", "suppressed", "sealed"}
    assert any(record.importance is None for record in found)
    assert any(record.agent_id is None for record in found)
    cited = {cited for record in found for cited in record.citations}
    assert cited & {record.record_id for record in found}
    breaches = Counter(name for record in found for name in record.breaches)
    assert {
        "importance_not_a_number",
        "importance_out_of_range",
        "access_count_negative",
        "access_count_not_a_number",
        "last_accessed_at_unparsable",
        "created_at_unparsable",
    } <= set(breaches)


def test_the_default_size_is_about_400_records_of_one_year():
    rows = sample_rows(now=NOW, oddities=False)
    assert 350 <= sum(map(len, rows.values())) <= 450
    ages = [(NOW - record.created_at) / MICROSECONDS_PER_DAY for record in records(rows)]
    assert min(ages) >= 0
    assert 300 < max(ages) < 400
    rated = [record.importance is not None for record in records(rows)]
    assert 0.4 < sum(rated) / len(rated) < 0.8


def test_ids_are_unique_and_name_files_everywhere():
    for name, of_type in sample_rows(now=NOW).items():
        ids = [row["_id"] for row in of_type]
        assert len(ids) == len(set(ids)), name
        assert all(id_ and len(id_.encode()) <= 250 and not set(id_) & set("/\\\0") and id_[0] != "." for id_ in ids)


def test_without_oddities_no_value_is_in_breach_and_every_store_can_hold_it():
    rows = sample_rows(now=NOW, oddities=False)
    json.dumps(rows, allow_nan=False)
    assert [record.record_id for record in records(rows) if record.breaches] == []
    for row in rows["conversation_memory"]:
        assert row["timestamp"].endswith("+00:00")


def test_with_oddities_importance_is_bare_nan_somewhere_and_text_elsewhere():
    values = [row.get("importance") for row in sample_rows(now=NOW, conversations=2)["conversation_memory"]]
    assert any(isinstance(value, float) and math.isnan(value) for value in values)
    assert {"0.7", 7, True} <= {value for value in values if value == value}


def test_suppressed_records_carry_their_whole_audit_and_their_journal():
    rows = sample_rows(now=NOW, conversations=2)
    entries = [json.loads(row["content"]) for row in rows["shared_memory"]]
    journalled = {entry["target_record_id"] for entry in entries if entry["record_type"] == "memory_history_change"}
    heads = {entry["target_record_id"]: entry for entry in entries if entry["record_type"] == "memory_history_head"}
    suppressed = [
        row for name in PRIMARY_TYPES for row in rows[name] if read_record(row, name, row["_id"]).suppressed_by
    ]
    assert len(suppressed) >= 5
    for row in suppressed:
        assert row["_id"] in journalled
        assert row["_id"] in heads
        assert row["suppressed_from"] == "active"
        assert row["suppressed_by"].startswith("forget-plan-")
        assert parse_time(row["suppressed_at"]) < NOW
        assert row["suppression_reason"]
        assert row["suppression_approver"]
        assert row["suppression_note"]
    assert [row["_id"] for row in suppressed if row["retention_state"] == "active" and row["unsuppressed_at"]]


def test_summaries_cite_messages_that_point_back_to_them():
    rows = sample_rows(now=NOW)
    messages = {row["_id"]: row for row in rows["conversation_memory"]}
    assert len(rows["summaries"]) > 5
    for summary in rows["summaries"]:
        assert summary["memory_units_count"] == len(summary["source_message_ids"])
        assert {messages[cited]["memory_id"] for cited in summary["source_message_ids"]} == {summary["memory_id"]}
        assert summary["period_start"] <= summary["period_end"]
    assert any("supersedes" in summary for summary in rows["summaries"])


def test_one_agent_overrides_and_one_has_retention_off():
    policies = {row["agent_id"]: row["retrieval_policy"] for row in sample_rows(now=NOW)["agents"]}
    assert policies["agent-kitchen"]["retention"] == {"min_retention": "0.2", "grace_days": 45}
    assert policies["agent-visitors"]["retention"] == {"enabled": False}
    assert "retention" not in policies["agent-orchard"]


def test_embeddings_have_one_length_and_put_like_texts_side_by_side():
    rows = sample_rows(now=NOW)
    vectors = [row["embedding"] for of_type in rows.values() for row in of_type if row.get("embedding")]
    assert {len(vector) for vector in vectors} == {EMBEDDING_LENGTH}

    def cosine(left, right):
        return sum(a * b for a, b in zip(embedding(left), embedding(right), strict=True))

    assert cosine("prune row nine", "prune row nine") == pytest.approx(1.0, abs=1e-5)
    assert cosine("prune row nine", "prune row ten") > cosine("prune row nine", "jars of chutney")
    assert embedding("…") == [0.0] * EMBEDDING_LENGTH


class InMemory:
    """Rows by key: the least store that can be written."""

    capabilities = Capabilities(kind="memory", batch_size=7)

    def __init__(self, refuse: str = ""):
        self.rows = {}
        self.calls = 0
        self.refuse = refuse

    def insert(self, memory_type, rows):
        self.calls += 1
        outcomes = []
        for row in rows:
            json.dumps(row, allow_nan=False)
            key = RecordKey(memory_type, row["_id"])
            status = "already" if key in self.rows else "failed" if memory_type == self.refuse else "applied"
            if status == "applied":
                self.rows[key] = row
            outcomes.append(Outcome(key, status))
        return outcomes


def test_writing_inserts_every_row_once_in_batches_the_store_can_take():
    store = InMemory()
    written = write_sample_store(store, now=NOW, conversations=4)
    expected = sample_rows(now=NOW, conversations=4)
    assert written == {name: len(of_type) for name, of_type in expected.items()}
    assert len(store.rows) == sum(written.values())
    assert store.calls == sum(-(-len(of_type) // 7) for of_type in expected.values())
    assert set(write_sample_store(store, now=NOW, conversations=4).values()) == {0}


def test_writing_into_a_store_that_refuses_says_so():
    with pytest.raises(StoreUnwritableError, match="entity_memory was not written: failed"):
        write_sample_store(InMemory(refuse="entity_memory"), now=NOW, conversations=2)


def test_the_agents_way_of_writing_it_gives_files_that_read_back(sample_store):
    rows = sample_rows(now=NOW, conversations=4)
    for name, of_type in rows.items():
        files = {path.stem: path for path in (sample_store / name).glob("*.json") if path.name != "index.json"}
        assert set(files) == {row["_id"] for row in of_type}
        index = json.loads((sample_store / name / "index.json").read_text("utf-8"))
        assert set(index["items"]) == set(files)
    assert "NaN" in "".join(path.read_text("utf-8") for path in (sample_store / "conversation_memory").glob("*.json"))
