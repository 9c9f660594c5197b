"""What is planned, and what protects: SPEC §6, and TRAPS.md's rows about planning."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fallow.acting.deciding import decide
from fallow.judgement.score import score
from fallow.model.errors import ApprovalRefusedError
from fallow.model.record import Record, frame_of, schema
from fallow.model.scope import Scope
from fallow.model.settings import ApprovalConfig, RetentionConfig, resolve
from fallow.model.times import MICROSECONDS_PER_DAY
from fallow.port.registry import open_provider
from fallow.usecases.planner import RetentionPlanner
from fallow.usecases.planning import make_plan
from tests.conftest import REPOSITORY, write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, days_ago, ids, planned, protected, record, store, tree

ANYONE = ApprovalConfig()


def test_a_missing_importance_counts_as_the_default_and_is_written_nowhere_trap_9(tmp_path: Path) -> None:
    rows = [record(f"r{n:04d}", importance=0.1 if n < 100 else None) for n in range(1000)]
    with store(tmp_path / "s", *rows) as provider:
        before = tree(tmp_path / "s" / CONVERSATION)
        plan = planned(provider)
        assert len(plan.entries) == 100
        assert plan.document["coverage"]["rated"] == 0.1
        low = planned(provider, default_importance=0.2)
        assert (low.counts["eligible"], low.entries[-1].importance) == (1000, 0.2)
        assert tree(tmp_path / "s" / CONVERSATION) == before


def test_the_cut_lies_where_importance_over_three_does_trap_18(tmp_path: Path) -> None:
    rows = [record(f"r{n:04d}", days=60, importance=0.44 if n % 2 else 0.46) for n in range(1000)]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider)
    assert plan.counts["eligible"] == 500
    assert {entry.importance for entry in plan.entries} == {0.44}
    assert plan.entries[0].retention == pytest.approx(0.147, abs=5e-4)
    assert plan.document["coverage"]["effective_importance_cut"] == 0.45


def test_exactly_the_grace_period_is_old_enough_and_exactly_the_cut_is_kept_trap_20(tmp_path: Path) -> None:
    second = 1 / 86400
    rows = [
        record("grace-exact", days=30, importance=0.0),
        record("grace-short", days=30 - second, importance=0.0),
    ]
    with store(tmp_path / "a", *rows) as provider:
        assert ids(planned(provider)) == ["grace-exact"]
    # Recency of ten years is 0 to 9 decimals: retention is a third of the importance.
    rows = [record("cut-exact", days=3650, importance=0.45), record("cut-below", days=3650, importance=0.449999)]
    with store(tmp_path / "b", *rows) as provider:
        assert ids(planned(provider)) == ["cut-below"]
        # Rounded to 9 decimals before the comparison, so that no engine's last bit decides.
        assert ids(planned(provider, min_retention=0.1500000001)) == ["cut-below", "cut-exact"]


record_parts = st.fixed_dictionaries(
    {
        "age": st.floats(0, 4000),
        "count": st.integers(0, 10_000),
        "importance": st.floats(0, 1),
    }
)


@settings(max_examples=200, deadline=None)
@given(record_parts, st.sampled_from(["age", "count", "importance"]), st.floats(0.01, 0.5))
def test_retention_rises_with_recency_usage_and_importance_each_alone_trap_19(parts, name, step) -> None:
    better = dict(parts)
    if name == "age":
        better["age"] = parts["age"] * (1 - step)
    elif name == "count":
        better["count"] = parts["count"] + 1 + int(100 * step)
    else:
        better["importance"] = parts["importance"] + (1 - parts["importance"]) * step

    def made(record_id: str, values: dict[str, float]) -> Record:
        return Record(
            record_id=record_id,
            memory_type=CONVERSATION,
            created_at=NOW - round(values["age"] * MICROSECONDS_PER_DAY),
            access_count=int(values["count"]),
            importance=values["importance"],
        )

    frame = score(frame_of([made("a", parts), made("b", better)], tuple(schema())[:18]), NOW, 0.995, 0.5)
    part = {"age": "recency", "count": "usage", "importance": "effective_importance"}[name]
    low, high = frame.get_column(part).to_list()
    total = frame.get_column("retention").to_list()
    assert all(math.isfinite(value) and 0 <= value <= 1 for value in total)
    if high > low:
        assert total[1] >= total[0]
    if high - low > 1e-8:
        assert total[1] > total[0]
    assert high >= low


def test_planning_24_times_gives_the_same_bytes_trap_16(tmp_path: Path) -> None:
    rows = [record(f"r{n}", days=40 + n) for n in range(20)]
    with store(tmp_path / "s", *rows) as provider:
        first = planned(provider)
        before = tree(tmp_path / "s")
        for _ in range(23):
            assert planned(provider).document == first.document
        assert tree(tmp_path / "s") == before


IN_ANOTHER_ZONE = """
import json, sys
from fallow.usecases.planner import RetentionPlanner
from fallow.port.registry import open_provider
provider = open_provider(sys.argv[1], json.loads(sys.argv[3]))
plan = RetentionPlanner(provider, environ={}).plan(as_of=int(sys.argv[2]), now=int(sys.argv[2]))
print(json.dumps([plan.plan_id, [e.record_id for e in plan.entries]]))
"""


def plan_under(zone_name: str, root: Path, as_of: int, zones: dict[str, str]) -> list[object]:
    environ = {**os.environ, "TZ": zone_name, "PYTHONHASHSEED": str(len(zone_name))}
    command = [sys.executable, "-c", IN_ANOTHER_ZONE, str(root), str(as_of), json.dumps(zones)]
    done = subprocess.run(command, env=environ, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("zones", [{}, {CONVERSATION: "America/New_York"}], ids=["utc", "new_york"])
def test_the_hosts_time_zone_changes_nothing_trap_13(tmp_path: Path, zones: dict[str, str]) -> None:
    """Naive and aware creation times three hours either side of the grace limit, planned in three zones."""
    rows = []
    for hours in (-3, -1, 0, 1, 3):
        age = 30 + hours / 24
        rows.append(record(f"aware{hours:+d}", days=age, importance=0.0))
        rows.append(record(f"naive{hours:+d}", importance=0.0, timestamp=days_ago(age).rstrip("Z")))
    write_as_agent(tmp_path / "s", {CONVERSATION: rows, "shared_memory": []})
    plans = [plan_under(name, tmp_path / "s", NOW, zones) for name in ("UTC", "Asia/Tokyo", "America/New_York")]
    assert plans[0] == plans[1] == plans[2]
    found = set(plans[0][1])
    assert {name for name in found if name.startswith("aware")} == {"aware+0", "aware+1", "aware+3"}
    # A naive time in New York is five hours later than the same digits in UTC: none is old enough.
    assert {name for name in found if name.startswith("naive")} == (
        set() if zones else {"naive+0", "naive+1", "naive+3"}
    )


def test_the_order_of_the_directory_changes_nothing(tmp_path: Path, make_sample_store, monkeypatch) -> None:
    first = make_sample_store("first")
    with open_provider(str(first)) as provider:
        expected = planned(provider, min_retention=0.4, grace_days=1)
    assert len(expected.entries) > 10
    real = os.scandir

    class Shuffled:
        def __init__(self, entries) -> None:
            self.entries = list(entries)
            random.Random(len(self.entries)).shuffle(self.entries)

        def __iter__(self):
            return iter(self.entries)

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            pass

        def close(self) -> None:
            pass

    def shuffled(path="."):
        with real(path) as entries:
            return Shuffled(entries)

    listdir = os.listdir
    monkeypatch.setattr(os, "scandir", shuffled)
    monkeypatch.setattr(os, "listdir", lambda path=".": sorted(listdir(path), reverse=True))
    second = make_sample_store("second")
    with open_provider(str(second)) as provider:
        provider.snapshot = False
        plan = planned(provider, min_retention=0.4, grace_days=1)
    assert plan.plan_id == expected.plan_id
    assert plan.entries == expected.entries


def test_the_cap_defers_and_says_so_and_counts_stay_exact_trap_26(tmp_path: Path) -> None:
    rows = [record(f"r{n:05d}", days=60 + n / 100) for n in range(2000)]
    with store(tmp_path / "s", *rows, *[record(f"y{n}", days=1) for n in range(137)]) as provider:
        plan = planned(provider)
        assert [plan.counts[name] for name in ("scanned", "eligible", "planned", "deferred")] == [2137, 2000, 500, 1500]
        # The lowest retention first: importance is equal, so the oldest.
        assert ids(plan) == [f"r{n:05d}" for n in range(1999, 1499, -1)]


def test_every_record_is_read_or_the_run_fails_trap_26(tmp_path: Path) -> None:
    with store(tmp_path / "s") as provider:
        write_as_agent(tmp_path / "s", {CONVERSATION: [record(f"r{n:05d}") for n in range(2013)]})
        assert planned(provider, max_candidates=1).counts["scanned"] == 2013


def test_a_plan_over_the_blast_radius_is_marked_and_asks_for_its_number_trap_27(tmp_path: Path) -> None:
    rows = [record(f"r{n:04d}", days=90, importance=0.1 if n < 980 else 0.9) for n in range(1000)]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider)
        assert (plan.wide, plan.counts["eligible"], len(plan.entries)) == (True, 980, 500)
        arguments = {"verdict": "approved", "approved_by": "Ada", "approval": ANYONE, "now": NOW}
        before = tree(tmp_path / "s")
        for count in (None, 980, 499):
            with pytest.raises(ApprovalRefusedError):
                decide(provider, plan.plan_id, count=count, leave_out=["r0000"], **arguments)
        assert tree(tmp_path / "s") == before
        # Before leave-outs: 500, although one is left out.
        decision = decide(provider, plan.plan_id, count=500, leave_out=["r0000"], **arguments)
        assert [name.record_id for name in decision.leave_out] == ["r0000"]


def test_old_alone_and_low_alone_are_not_enough_trap_28(tmp_path: Path) -> None:
    rows = [record("old-high", days=400, importance=0.9), record("young-low", days=5, importance=0.0)]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider)
        # Low enough at five days only where recency has decayed: make it so, and grace still protects.
        quick = RetentionPlanner(provider, config=RetentionConfig(min_retention=0.29)).plan(as_of=NOW, now=NOW)
        assert ids(plan) == ids(quick) == []


PINS = {
    "true": {"pinned": True},
    "yes": {"pinned": "yes"},
    "YES": {"pinned": " YES "},
    "on": {"pinned": "on"},
    "one": {"pinned": 1},
    "one-text": {"pinned": "1"},
    "metadata": {"metadata": {"pinned": "true"}},
    "metadata-text": {"metadata": '{"pinned": true}'},
    "tags": {"tags": ["pinned"]},
    "tags-case": {"tags": ["other", "Pinned"]},
    "tags-text": {"tags": "garden, pinned"},
    "metadata-tags": {"metadata": {"tags": ["pinned"]}},
}
NOT_PINS = {
    "false": {"pinned": False},
    "no": {"pinned": "no"},
    "zero": {"pinned": 0},
    "two": {"pinned": 2},
    "null": {"metadata": {"pinned": None}},
    "word-inside": {"tags": ["unpinned", "pinned-board"]},
}


@pytest.mark.parametrize("flag", ["pinned", "verified"])
def test_a_flag_protects_however_it_is_spelled_trap_29(tmp_path: Path, flag: str) -> None:
    def renamed(fields: dict[str, object]) -> dict[str, object]:
        return json.loads(json.dumps(fields).replace("pinned", flag).replace("Pinned", flag.title()))

    rows = [record(f"p-{name}", **renamed(fields)) for name, fields in PINS.items()]
    rows += [record(f"n-{name}", **renamed(fields)) for name, fields in NOT_PINS.items()]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider)
        assert sorted(ids(plan)) == sorted(f"n-{name}" for name in NOT_PINS)
        assert protected(plan) == {flag: len(PINS)}
        assert len(planned(provider, **{f"protect_{flag}": False}).entries) == len(rows)


def test_a_pinned_attribute_pins_its_entity_trap_29(tmp_path: Path) -> None:
    entity = {"agent_id": None, "content": None, "entity_id": "e", "name": "Ada"}
    pinned = {"attributes": [{"name": "birthday", "value": "10 December", "pinned": True}]}
    loose = {"attributes": [{"name": "birthday", "value": "10 December", "pinned": False}]}
    entities = [record("e1", **entity, **pinned), record("e2", **entity, **loose)]
    with store(tmp_path / "s", entity_memory=entities) as provider:
        assert ids(planned(provider)) == ["e2"]


def test_a_citation_protects_unless_its_own_or_a_suppressed_ones_trap_30(tmp_path: Path) -> None:
    object_id = "507f1f77bcf86cd799439011"
    rows = [
        record("c1"),
        record("c2", parent_id="c2"),
        record("c3"),
        record("c4"),
        record("c5"),
        record(object_id),
        record(
            "hidden",
            retention_state="suppressed",
            suppressed_by="forget-plan-of-theirs",
            suppressed_at=days_ago(2),
            suppression_reason="old",
            suppression_approver="Ada",
            source_ids=["c3"],
        ),
        record("successor", days=1, supersedes="c4", agent_id="another-agent"),
    ]
    summaries = [
        record("s1", days=1, source_message_ids=["c1", object_id]),
        record("s2", days=1, metadata={"source_ids": '["c5"]'}),
    ]
    with store(tmp_path / "s", *rows, summaries=summaries) as provider:
        plan = planned(provider)
        assert sorted(ids(plan)) == ["c2", "c3"]
        assert protected(plan) == {"cited": 4, "suppressed": 1}
        # The scope does not narrow who may cite: c4 is cited by another agent's record.
        assert sorted(ids(planned(provider, scope=Scope(agent_id="gardener")))) == ["c2", "c3"]
        assert sorted(ids(planned(provider, memory_types=[CONVERSATION]))) == ["c2", "c3"]


def test_a_record_without_access_data_created_yesterday_stays_trap_31(tmp_path: Path) -> None:
    rows = [record(f"r{n}", days=1, importance=None, access_count=None) for n in range(50)]
    with store(tmp_path / "s", *rows) as provider:
        assert planned(provider, min_retention=1.0).entries == ()


def test_a_time_in_the_future_counts_as_now_and_is_counted_trap_11(tmp_path: Path) -> None:
    rows = [
        record("touched-later", days=90, importance=0.0, last_accessed_at=days_ago(-10)),
        record("born-later", days=-3650, importance=0.0),
        record("skewed", days=90, importance=0.0, last_accessed_at=days_ago(-4 / 1440)),
    ]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider, min_retention=0.4, grace_days=0.0)
        found = {entry.record_id: entry for entry in plan.entries}
        assert found["touched-later"].recency == 1.0
        assert (found["born-later"].age_days, found["born-later"].recency) == (0.0, 1.0)
        assert plan.counts["breaches"] == {"created_at_in_future": 1, "last_accessed_at_in_future": 1}
        assert "born-later" not in ids(planned(provider, min_retention=0.4))


def test_bad_values_count_as_absent_and_never_stop_a_plan_trap_42(tmp_path: Path) -> None:
    values = {
        "nan": math.nan,
        "inf": math.inf,
        "minus-inf": -math.inf,
        "true": True,
        "too-high": 1.2,
        "negative": -0.1,
        "word": "high",
        "list": [0.1],
    }
    good = {"text": "0.7", "one": 1, "zero": 0, "padded": " 0.7 "}
    rows = [record(name, importance=value) for name, value in {**values, **good}.items()]
    counts = {"c-inf": math.inf, "c-negative": -1, "c-half": 1.5, "c-true": True, "c-word": "many"}
    rows += [record(name, importance=0.0, access_count=value) for name, value in counts.items()]
    rows += [record("c-text", importance=0.0, access_count="12"), record("c-float", importance=0.0, access_count=3.0)]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider, min_retention=1.0)
        found = {entry.record_id: entry for entry in plan.entries}
        assert {name: found[name].importance for name in values} == dict.fromkeys(values, 0.5)
        assert [found[name].importance for name in good] == [0.7, 1.0, 0.0, 0.7]
        assert {name: found[name].access_count for name in counts} == dict.fromkeys(counts, 0)
        assert [found["c-text"].access_count, found["c-float"].access_count] == [12, 3]
        breaches = plan.counts["breaches"]
        assert breaches["importance_out_of_range"] == 2
        assert breaches["importance_not_a_number"] == len(values) - 2
        assert sum(number for name, number in breaches.items() if name.startswith("access_count")) == len(counts)
        assert all(math.isfinite(entry.retention) for entry in plan.entries)


def test_an_id_that_no_store_can_hold_touches_no_file_trap_48(tmp_path: Path) -> None:
    outside = tmp_path / "etc"
    outside.mkdir()
    (outside / "x.json").write_text(json.dumps(record("x")))
    bad = ["../../etc/x", "../etc/x", "a/b", "a\\b", "", ".hidden", "n\0ul", "é" * 150, "x" * 251]
    with store(tmp_path / "s" / "t", record("good")) as provider:
        before = tree(tmp_path)
        expected = planned(provider).plan_id
        assert provider.fetch(CONVERSATION, bad) == {}
        outcomes = provider.insert("shared_memory", [{"_id": name, "content": "x"} for name in bad])
        assert {outcome.status for outcome in outcomes} == {"failed"}
        assert planned(provider).plan_id == expected
        after = tree(tmp_path)
        assert {name: after[name] for name in before if "shared_memory" not in name} == {
            name: data for name, data in before.items() if "shared_memory" not in name
        }
        assert not [name for name in after if name not in before and "shared_memory" not in name]


def test_a_record_that_cannot_be_read_is_reported_and_left_1_2(tmp_path: Path) -> None:
    with store(tmp_path / "s", record("good")) as provider:
        folder = tmp_path / "s" / CONVERSATION
        torn = {
            "torn": b'{"_id": "torn", "content": "half',
            "list": b"[1, 2]",
            "other": json.dumps(record("another")).encode(),
            "empty": b"",
            "bytes": b"\xff\xfe{}",
        }
        for name, data in torn.items():
            (folder / f"{name}.json").write_bytes(data)
        plan = planned(provider)
        assert ids(plan) == ["good"]
        assert protected(plan) == {"unreadable": len(torn)}
        assert {name: (folder / f"{name}.json").read_bytes() for name in torn} == torn


FIELDS = (
    *("importance", "access_count", "timestamp", "last_accessed_at", "tags", "metadata", "source_ids", "content"),
    *("retention_state", "agent_id", "memory_id", "parent_id", "pinned", "unsuppressed_at"),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=6,
    )
)
def test_no_row_however_shaped_stops_a_plan_1_2(tmp_path_factory, fields) -> None:
    root = tmp_path_factory.mktemp("shapes") / "s"
    with store(root, {**record("odd"), **fields}, record("good")) as provider:
        options = {"retention.min_retention": 1.0, "retention.grace_days": 0}
        plan = make_plan(provider, resolve(options, environ={}), scope=Scope(), as_of=NOW, now=NOW)
        assert "good" in ids(plan)
        assert all(math.isfinite(entry.retention) and 0 <= entry.retention <= 1 for entry in plan.entries)
