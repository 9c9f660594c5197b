"""Contracts: compiled from their files, and what each rule finds in real stores (SPEC §13)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from fallow.data_contracts.checking import check_contracts, gate
from fallow.data_contracts.compiler import FOLDER, ContractError, compile_contract, contracts, tables
from fallow.data_contracts.parity import compare_stores
from fallow.data_contracts.remembering import EVENT, last_failures, last_metrics, record_check
from open_data_contract_standard.model import OpenDataContractStandard

from fallow.acting.apply import apply_plan
from fallow.model.errors import ContractBreachError
from fallow.model.record import PRIMARY_TYPES
from fallow.port.gate import ContractResult
from fallow.port.journal import control_event
from fallow.port.journal_writing import insert_control_rows
from fallow.port.reading import read_store
from tests.cli.test_commands import document
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, days_ago, planned, record, store
from tests.fallow.test_applying import approve

FILES = sorted(FOLDER.glob("*.odcs.yaml"))


def good(name: str, **fields: Any) -> dict[str, Any]:
    """A record that no rule finds fault with."""
    usual = {"importance_source": "heuristic", "access_count": 2, "last_accessed_at": days_ago(80)}
    return record(name, **{**usual, "role": "user", "thread_id": "t", **fields})


def broken(provider: Any, table: str = CONVERSATION) -> dict[str, int]:
    """Failures by rule over one type's rows and the type as a whole, without what holds."""
    report = check_contracts(provider, as_of=NOW)
    of_type = {table, f"{table}_as_a_whole"}
    return {item.rule.id: item.failures for item in report.broken if item.rule.table in of_type}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_a_contract_of_the_standard_and_says_what_it_means(path: Path) -> None:
    contract = OpenDataContractStandard.from_file(str(path))
    assert (contract.apiVersion, contract.kind, contract.status) == ("v3.1.0", "DataContract", "active")
    assert contract.team
    assert path.name == f"{contract.name}.odcs.yaml"
    for table in contract.schema_:
        for column in table.properties:
            assert column.description, column.name
            assert column.logicalType, column.name
            assert all(rule.description and rule.severity for rule in column.quality or ()), column.name


def test_there_is_one_for_every_record_type_and_for_what_fallow_adds() -> None:
    assert contracts().keys() == {*PRIMARY_TYPES, "semantic_cache", "journal", "events", "stored_plans", "store"}
    assert all(contract.owner and contract.version.count(".") == 2 for contract in contracts().values())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kind: no_breach", "kind: no_worries"),
        ("severity: must", "severity: maybe"),
        ("engine: fallow", "engine: another"),
        ("tolerance_seconds: 300", "tolerance: 300"),
        ("kind: range, minimum: 0, maximum: 1", "kind: range"),
        ("kind: range, minimum: 0, maximum: 1", "kind: range, minimum: 0, most: 1"),
        ("other: created_at", "other: birthday"),
        ("metric: nullValues", "metric: rowCount"),
        ("mustBe: 0", "mustBe: 3"),
        ("validValues", "validColours"),
        ("present: true", "absent: false"),
        ("{column: access_count, at_least: 1}", "{column: access_kount, at_least: 1}"),
        ("id: memory_id_is_text", "id: agent_id_is_text"),
        ("level, value: row", "level, value: cell"),
        ("- {property: derivedFrom, value: [citations]}", "- {property: derivedFrom, value: [quotes]}"),
        ("schema:", "scheme:"),
        ("description: When the record came to be.", "description: [unclosed"),
    ],
)
def test_what_cannot_be_compiled_is_an_error(old: str, new: str) -> None:
    text = (FOLDER / "conversation_memory.odcs.yaml").read_text()
    assert old in text
    with pytest.raises(ContractError, match=r"altered\.odcs\.yaml"):
        compile_contract(text.replace(old, new, 1), "altered.odcs.yaml")


def test_a_good_store_breaks_nothing(tmp_path: Path) -> None:
    with store(tmp_path / "s", *[good(f"r{n}", user_id="u") for n in range(5)]) as provider:
        assert broken(provider) == {}


PLANTED: list[tuple[set[str], dict[str, Any]]] = [
    ({"agent_id_is_text"}, {"agent_id": {"x": 1}}),
    ({"memory_id_is_text"}, {"memory_id": [1]}),
    ({"user_id_is_text"}, {"user_id": 1.5}),
    ({"thread_id_is_text"}, {"thread_id": True}),
    ({"created_at_parsable", "created_at_present"}, {"timestamp": "yesterday"}),
    ({"created_at_present"}, {"timestamp": None}),
    ({"created_at_not_in_future", "last_accessed_at_not_before_creation"}, {"timestamp": days_ago(-3650)}),
    ({"last_accessed_at_parsable"}, {"last_accessed_at": "soon"}),
    ({"last_accessed_at_not_in_future"}, {"last_accessed_at": days_ago(-10)}),
    ({"last_accessed_at_not_before_creation"}, {"last_accessed_at": days_ago(200)}),
    ({"access_count_readable", "access_count_where_accessed"}, {"access_count": -1}),
    ({"access_count_readable", "access_count_where_accessed"}, {"access_count": math.inf}),
    ({"access_count_readable", "access_count_where_accessed"}, {"access_count": 2.5}),
    ({"importance_readable"}, {"importance": 1.2}),
    ({"importance_readable"}, {"importance": math.nan}),
    ({"importance_readable"}, {"importance": True}),
    ({"importance_on_model_scale"}, {"importance": 0.05, "importance_source": "llm"}),
    ({"importance_of_verified"}, {"importance": 0.9, "importance_source": "verified"}),
    ({"importance_source_known"}, {"importance_source": "oracle"}),
    ({"retention_state_readable"}, {"retention_state": "on holiday"}),
    (
        {
            "suppressed_by_where_suppressed",
            "suppressed_at_where_suppressed",
            "suppression_reason_where_suppressed",
            "suppression_approver_where_suppressed",
        },
        {"retention_state": "suppressed"},
    ),
    ({"retention_state_fits_suppression"}, {"suppressed_by": "forget-plan-x"}),
    ({"citations_resolve"}, {"source_ids": ["nowhere"]}),
    ({"text_not_blank"}, {"content": " \n "}),
    ({"role_known"}, {"role": "narrator"}),
]


@pytest.mark.parametrize(
    ("rules", "fields"), PLANTED, ids=[f"{n}-{min(rules)}" for n, (rules, _) in enumerate(PLANTED)]
)
def test_a_planted_fault_is_found_by_its_rules_and_no_other_traps_11_12_42(tmp_path: Path, rules, fields) -> None:
    row = {name: value for name, value in {**good("bad"), **fields}.items() if value is not None}
    with store(tmp_path / "s", *[good(f"r{n}") for n in range(9)], row) as provider:
        counts = {name: failures for name, failures in broken(provider).items() if name in rules or failures}
        expected = dict.fromkeys(rules, 1)
        optional = {"last_accessed_at_where_counted"} if fields.get("last_accessed_at") == "soon" else set()
        assert {name: n for name, n in counts.items() if name not in optional} == expected
        findings = check_contracts(provider, as_of=NOW).broken
        assert {item.first_ids for item in findings if item.rule.id in rules} == {("bad",)}


def test_emptiness_never_passes_trap_44(tmp_path: Path) -> None:
    with store(tmp_path / "empty") as provider:
        found = {item.name for item in check_contracts(provider, as_of=NOW).broken}
        assert found == {"store.store_not_empty"}
    rows = [record(f"r{n}", importance=None) for n in range(50)]
    with store(tmp_path / "unrated", *rows) as provider:
        found = broken(provider)
        assert found["importance_present_somewhere"] == found["last_accessed_at_present_somewhere"] == 1
    renamed = [
        {("created" if name == "timestamp" else name): value for name, value in good(f"r{n}").items()}
        for n in range(50)
    ]
    with store(tmp_path / "renamed", *renamed) as provider:
        assert broken(provider) == {"created_at_present": 50, "created_at_present_somewhere": 1}


def test_a_field_that_stops_coming_is_seen_before_it_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "s"
    write_as_agent(root, {CONVERSATION: [good(f"r{n:03d}") for n in range(120)], "shared_memory": []})
    document("contracts", "--store", root)
    for n in range(40):
        path = root / CONVERSATION / f"r{n:03d}.json"
        row = json.loads(path.read_text())
        row["remembered_importance"] = row.pop("importance")
        path.write_text(json.dumps(row))
    told = document("contracts", "--store", root)
    (lost,) = [item for item in told["findings"] if item["failures"] and item["rule"] == "importance_share_kept"]
    assert round(lost["value"], 3) == 0.333


def test_a_store_that_cannot_be_listed_is_a_breach_and_no_crash(tmp_path: Path) -> None:
    with store(tmp_path / "s", good("r1")) as provider:
        target = tmp_path / "s" / CONVERSATION
        for path in target.iterdir():
            path.unlink()
        target.rmdir()
        target.write_text("a file where a folder was")
        report = check_contracts(provider, as_of=NOW)
        assert report.state == "ContractBreach"
        assert [item.name for item in report.broken] == ["store.store_readable"]


def test_what_is_torn_or_there_twice(tmp_path: Path) -> None:
    with store(
        tmp_path / "s", good("r1"), good("r2"), knowledge_base=[good("k")], long_term_memory=[good("k")]
    ) as provider:
        (tmp_path / "s" / CONVERSATION / "r2.json").write_text("{")
        report = check_contracts(provider, as_of=NOW)
        found = {item.name: item.value for item in report.broken}
        assert found["conversation_memory_as_a_whole.all_readable"] == 1
        assert found["knowledge_base_as_a_whole.ids_not_doubled"] == 1
        assert report.state == "ContractBreach"
        result = gate(provider, read_store(provider), as_of=NOW)
        assert [name for name, _ in result.refusals] == ["knowledge_base"]
        with pytest.raises(ContractBreachError, match="No two stored rows answer to one id"):
            result.refuse(PRIMARY_TYPES)
        result.refuse([CONVERSATION])


def test_rows_that_vanish_overnight_refuse_plan_and_apply_until_somebody_accepts_it(tmp_path: Path) -> None:
    root = tmp_path / "s"
    rows = [good(f"r{n:03d}", days=300, access_count=0) for n in range(200)]
    for row in rows:
        row.pop("last_accessed_at")
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})
    assert document("contracts", "--store", root)["rows"][CONVERSATION] == 200
    before = document("retention-plan", "--store", root, "--max-candidates", "5", "--publish")
    for n in range(60):
        (root / CONVERSATION / f"r{n + 140:03d}.json").unlink()
    for _ in range(2):
        told = document("contracts", "--store", root, code=4)
        musts = {f["table"]: f for f in told["findings"] if f["failures"] and f["severity"] == "must"}
        assert musts.keys() == {"conversation_memory_as_a_whole", "store"}
        assert musts["store"]["value"] == 0.7
    refused = document("retention-plan", "--store", root, code=4)
    assert refused["error"]["code"] == "contract_breach"
    assert "fallow contracts --accept NAME" in refused["error"]["hint"]
    tree = {path: path.read_bytes() for path in (root / CONVERSATION).iterdir()}
    approval = ("--approved-by", "Ada", "--count", str(before["counts"]["planned"]))
    refused = document("retention-apply", before["plan_id"], *approval, "--store", root, code=4)
    assert refused["error"]["code"] == "contract_breach"
    assert {path: path.read_bytes() for path in (root / CONVERSATION).iterdir()} == tree
    assert document("contracts", "--store", root, "--accept", "Mallory", code=1, FALLOW_APPROVERS="Ada")["error"]
    document("contracts", "--store", root, "--accept", "Ada", FALLOW_APPROVERS="Ada")
    assert document("contracts", "--store", root)["state"] != "ContractBreach"
    assert document("retention-apply", before["plan_id"], *approval, "--store", root)["applied"] == 5


def test_a_small_store_may_shrink_and_a_look_changes_nothing(tmp_path: Path) -> None:
    with store(tmp_path / "s", *[good(f"r{n}") for n in range(9)]) as provider:
        assert last_metrics(provider) == {}
        report = check_contracts(provider, as_of=NOW)
        assert last_metrics(provider) == {}
        record_check(provider, report, now=NOW)
        assert last_metrics(provider)[CONVERSATION]["rows"] == 9
        for n in range(8):
            (tmp_path / "s" / CONVERSATION / f"r{n}.json").unlink()
        assert broken(provider) == {}
        (tmp_path / "s" / CONVERSATION / "r8.json").unlink()
        assert broken(provider) == {"type_not_emptied": 1}


def test_a_plan_carries_its_contract_result_outside_its_id_and_quarantines_rows(tmp_path: Path) -> None:
    odd = record("odd", suppressed_by="forget-plan-of-somebody")
    with store(tmp_path / "s", *[record(f"r{n}") for n in range(3)], odd) as provider:
        view = read_store(provider)
        result = gate(provider, view, as_of=NOW)
        assert result.quarantined[CONVERSATION] == {"odd"}
        plan = planned(provider, view=view, contracts=result)
        assert plan.counts["protected"]["quarantined"] == 1
        assert plan.document["contracts"]["musts"] == ["conversation_memory.retention_state_fits_suppression"]
        assert len(plan.document["contracts"]["contracts_sha256"]) == 64
        assert {entry.record_id for entry in plan.entries} == {"r0", "r1", "r2"}
        without = planned(provider, contracts=ContractResult())
        assert {entry.record_id for entry in without.entries} == {"r0", "r1", "r2", "odd"}


def test_the_same_entries_have_the_same_id_with_and_without_contracts(tmp_path: Path) -> None:
    with store(tmp_path / "s", *[record(f"r{n}") for n in range(3)]) as provider:
        view = read_store(provider)
        with_result = planned(provider, view=view, contracts=gate(provider, view, as_of=NOW))
        without = planned(provider, contracts=ContractResult())
        assert with_result.plan_id == without.plan_id


def test_a_record_that_breaks_a_must_since_its_plan_is_skipped_when_it_is_applied(tmp_path: Path) -> None:
    from fallow.plans.storage import store_plan

    with store(tmp_path / "s", *[record(f"r{n}") for n in range(3)]) as provider:
        plan = store_plan(provider, planned(provider))
        approve(provider, plan)
        path = tmp_path / "s" / CONVERSATION / "r1.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "suppressed_by": "forget-plan-of-somebody"}))
        report = apply_plan(provider, plan.plan_id, now=NOW, gate=lambda view: gate(provider, view, as_of=NOW))
        assert (report.applied, report.skipped) == (2, {"quarantined": ["r1"]})


def test_the_gate_leaves_what_it_has_no_column_for_to_the_nightly_check(tmp_path: Path) -> None:
    with store(tmp_path / "s", good("r1", role="narrator")) as provider:
        assert broken(provider) == {"role_known": 1}
        assert gate(provider, read_store(provider), as_of=NOW).summary["state"] == "Holds"


def test_parity_names_the_fields_that_differ_and_the_records_of_one_alone_12(tmp_path: Path) -> None:
    rows = [good(f"r{n}") for n in range(4)]
    with store(tmp_path / "a", *rows) as first, store(tmp_path / "b", *rows) as second:
        assert compare_stores(first, second).same
    other = [*rows[:2], {**rows[2], "importance": 0.9, "content": "longer than it was"}, good("r9")]
    with store(tmp_path / "a2", *rows) as first, store(tmp_path / "b2", *other) as second:
        found = compare_stores(first, second).to_json()
    assert {(item["column"], item["records"]) for item in found["differences"]} == {
        ("importance", 1),
        ("text_length", 1),
    }
    assert (found["only_first"][CONVERSATION], found["only_second"][CONVERSATION]) == (1, 1)
    assert document("parity", "--store", tmp_path / "a2", "--store", tmp_path / "b2", code=1)["same"] is False
    assert document("parity", "--store", tmp_path / "a2", "--store", tmp_path / "a2")["same"] is True


def test_show_prints_every_rule(tmp_path: Path) -> None:
    told = document("contracts", "show")
    assert len(told["rules"]) == sum(len(table.rules) for table in tables().values())
    one = document("contracts", "show", "--name", "journal")
    assert {item["table"] for item in one["rules"]} == {"memory_history_change", "memory_history_head"}
    assert document("contracts", "show", "--name", "diary", code=2)["error"]
    assert document("contracts", "dance", code=2)["error"]


def test_the_second_opinion_on_the_command_line(tmp_path: Path) -> None:
    write_as_agent(tmp_path / "s", {CONVERSATION: [good("r1")], "shared_memory": []})
    told = document("contracts", "--store", tmp_path / "s", "--gx", "--gx-json", tmp_path / "gx.json")
    opinion = told["second_opinion"]
    assert (opinion["differing"], opinion["errors"]) == ({}, {})
    assert opinion["agreeing"] == len(told["findings"])
    assert "conversation_memory" in json.loads((tmp_path / "gx.json").read_text())


def test_the_files_hold_no_anchor_and_every_table_is_reached() -> None:
    for path in FILES:
        text = path.read_text()
        assert "&id" not in text
        names = {table["name"] for table in yaml.safe_load(text)["schema"]}
        assert names <= tables().keys()


def test_what_fallow_writes_itself_keeps_its_contracts(tmp_path: Path) -> None:
    document("demo", "--directory", tmp_path / "orchard")
    told = document("contracts", "--store", tmp_path / "orchard")
    rows = {item["table"]: item["rows"] for item in told["findings"]}
    assert all(rows[name] > 0 for name in ("learning_event", "memory_history_change", "memory_history_head"))
    assert rows["fallow_plan"] >= 3
    assert rows["fallow_decision"] == 1
    own = {"learning_event", "memory_history_change", "memory_history_head", "fallow_plan", "fallow_decision"}
    assert [item for item in told["findings"] if item["failures"] and item["table"] in own] == []
    assert [item for item in told["findings"] if item["failures"] and item["severity"] == "must"] == []


@pytest.mark.parametrize(
    "metrics",
    [
        {CONVERSATION: {"rows": "many"}},
        {CONVERSATION: {"rows": True}},
        {CONVERSATION: {"rows": 10**400, "agent_id_share": "x"}},
        {CONVERSATION: {"rows": 200, "agent_id_share": "x", "importance_share": [1], "user_id_share": None}},
        {CONVERSATION: {"rows": -5}},
        {CONVERSATION: [1], "diary": {"rows": 4}},
        "none",
        None,
    ],
)
def test_events_that_anybody_may_have_written_break_nothing(tmp_path: Path, metrics: Any) -> None:
    with store(tmp_path / "s", *[good(f"r{n}") for n in range(190)]) as provider:
        events = [
            control_event(EVENT, "forged", {"metrics": metrics, "failures": metrics}, now=NOW),
            control_event(EVENT, "tomorrow", {"metrics": {CONVERSATION: {"rows": 9_000_000}}}, now=2 * NOW),
        ]
        insert_control_rows(provider, events)
        result = gate(provider, read_store(provider), as_of=NOW)
        assert result.refusals == ()
        assert check_contracts(provider, as_of=NOW).state in {"Holds", "Warnings"}
        last_failures(provider)
