"""Plan, apply, explain, forecast, rater-report, holds and library say the same of every record (SPEC §6.10)."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fallow.acting.apply import ApplyReport, apply_plan
from fallow.acting.deciding import decide
from fallow.acting.evidence import gather_evidence
from fallow.acting.holds import place_hold
from fallow.judgement.policy import Policy
from fallow.judgement.verdicts import Evidence, protections
from fallow.model.keys import RecordKey
from fallow.model.record import PRIMARY_TYPES, read_record
from fallow.model.scope import Scope
from fallow.model.settings import ApprovalConfig
from fallow.port.gate import check_store
from fallow.port.protocol import Provider
from fallow.port.reading import read_store
from fallow.usecases.explain import explain_record
from fallow.usecases.forecast import forecast
from fallow.usecases.planner import RetentionPlanner, plan_scope, settings_for
from fallow.usecases.rater_report import report_ratings
from tests.fallow.small_stores import CONVERSATION, NOW, days_ago, record, store

KNOWLEDGE = "knowledge_base"
AGENTS = ("a", "b", None)
MEMORIES = ("m", "n")


def disagreements(provider: Provider, scope: Scope, environ: Mapping[str, str]) -> list[str]:
    """Where two of those who judge say different things; applies the plan at the end."""

    def settings_of(name: str | None) -> Any:
        return settings_for(provider, name, environ=environ)

    found: list[str] = []

    def compare(what: str, here: Any, there: Any) -> None:
        if here != there:
            found.append(f"{what}: {here} against {there}")

    chosen = settings_of(scope.agent_id)
    plan = plan_scope(provider, chosen, scope, as_of=NOW, now=NOW)
    view, policy = read_store(provider), Policy.of(chosen)
    told = {
        RecordKey(kind, name): explain_record(
            provider, name, memory_type=kind, settings_of=settings_of, as_of=NOW, scope=scope
        )
        for kind in PRIMARY_TYPES
        for name in view.frames[kind]["record_id"].to_list()
    }
    compare("planned", [entry.key for entry in plan.entries], _planned(told))
    low = [item for item in told.values() if item["protected_by"] == item["reason"] and _low(item, policy)]
    protected = {name: number for name, number in plan.counts["protected"].items() if name != "unreadable"}
    compare("protected", protected, dict(Counter(item["reason"] for item in low)))
    eligible = sum(item["verdict"].startswith("eligible") for item in told.values())
    compare("eligible", plan.counts["eligible"], eligible)
    ahead = forecast(provider, chosen, scope=scope, as_of=NOW)
    compare("forecast", ahead.eligible[policy.retention.min_retention][0], eligible)
    compare("scanned", ahead.scanned, plan.counts["scanned"])
    compare("rater report", report_ratings(provider, chosen, scope=scope, as_of=NOW).eligible["stored"], eligible)
    library = RetentionPlanner(provider, scope.agent_id or "", environ=environ)
    again = library.plan(scope.memory_ids, as_of=NOW, now=NOW, unowned=scope.unowned)
    compare("library", again.plan_id, plan.plan_id)
    evidence = gather_evidence(provider, view, policy, as_of=NOW, contracts=check_store(provider, view, NOW))
    for key, item in told.items():
        if item["reason"] in {"other_scope", "opted_out", "type_not_planned"}:
            continue
        row = read_record(provider.fetch(*_one(key))[key.record_id], *key)
        (afresh,) = protections([row], policy, evidence, as_of=NOW)
        shown = None if item["protected_by"] == "conversation_minimum" else item["protected_by"]
        compare(f"protection of {key.record_id}", afresh, shown)
    if plan.entries:
        number = len(plan.entries)
        approval = ApprovalConfig()
        decide(provider, plan.plan_id, verdict="approved", approved_by="Ada", count=number, approval=approval, now=NOW)
        report = apply_plan(provider, plan.plan_id, now=NOW, approval=approval)
        compare("applied", (report.applied, report.skipped, report.state), (number, {}, "Applied"))
    return found


def _one(key: RecordKey) -> tuple[str, list[str]]:
    return key.memory_type, [key.record_id]


def _planned(told: Mapping[RecordKey, dict[str, Any]]) -> list[RecordKey]:
    planned = [(item["rank"], key) for key, item in told.items() if item["reason"] == "planned"]
    return [key for _, key in sorted(planned)]


def _low(item: Mapping[str, Any], policy: Policy) -> bool:
    age = item["score"]["age_days"]
    old = age is None or age >= policy.retention.grace_days
    return old and item["score"]["retention"] < policy.retention.min_retention


@st.composite
def rows(draw: st.DrawFn, number: int, memory_type: str) -> dict[str, Any]:
    name = f"{memory_type[0]}{number}"
    odd = draw(st.sampled_from([{}] * 8 + ["pinned", "verified", "suppressed", "torn", "restored", "undated", "never"]))
    fields: dict[str, Any] = {
        "agent_id": draw(st.sampled_from(AGENTS)),
        "memory_id": draw(st.sampled_from(MEMORIES)),
        "importance": draw(st.sampled_from([None, 0.0, 0.05, 0.1, 0.3, 0.9])),
        "access_count": draw(st.sampled_from([0, 0, 0, 1, 5, 10**12])),
        "days": draw(st.sampled_from([5, 29, 30, 31, 60, 200, 400])),
    }
    if draw(st.integers(0, 4)) == 0:
        fields["last_accessed_at"] = days_ago(draw(st.sampled_from([1, 8, 40])))
    if draw(st.integers(0, 5)) == 0:
        fields["source_ids"] = [f"{memory_type[0]}{draw(st.integers(0, 9))}"]
    by_odd: dict[str, dict[str, Any]] = {
        "pinned": {"pinned": True},
        "verified": {"verified": True},
        "suppressed": {
            "retention_state": "suppressed",
            "suppressed_by": "forget-plan-of-theirs",
            "suppressed_at": days_ago(3),
            "suppression_reason": "old",
            "suppression_approver": "Ada",
        },
        "torn": {"suppressed_by": "forget-plan-of-somebody"},
        "restored": {"unsuppressed_at": days_ago(10), "unsuppressed_by": "Ada"},
        "undated": {"timestamp": 0},
        "never": {"timestamp": "no time"},
    }
    return record(name, **{**fields, **(by_odd[odd] if isinstance(odd, str) else {})})


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    off = draw(st.booleans())
    overrides = draw(st.sampled_from([{}, {"grace_days": 10}, {"formula": "importance_first"}]))
    return {
        "turns": [draw(rows(number, CONVERSATION)) for number in range(draw(st.integers(0, 9)))],
        "facts": [draw(rows(number, KNOWLEDGE)) for number in range(draw(st.integers(0, 5)))],
        "agents": [
            {"_id": "a", "agent_id": "a", "retrieval_policy": {"retention": overrides}},
            {"_id": "b", "agent_id": "b", "retrieval_policy": {"retention": {"enabled": not off}}},
        ],
        "hold": draw(st.sampled_from([None, {"agent_id": "a", "memory_ids": ("m",)}, {"memory_ids": ("n",)}])),
        "scope": draw(
            st.sampled_from(
                [{}, {"agent_id": "a"}, {"agent_id": "b"}, {"agent_id": "a", "memory_ids": ("m",)}, {"unowned": True}]
            )
        ),
        "environ": {
            "MEMORIZZ_RETENTION_MIN_SCORE": draw(st.sampled_from(["0.15", "0.4"])),
            "MEMORIZZ_RETENTION_MAX_CANDIDATES": draw(st.sampled_from(["2", "500"])),
            "FALLOW_RETENTION_KEEP_PER_CONVERSATION": draw(st.sampled_from(["0", "2"])),
            "FALLOW_RETENTION_FORMULA": draw(st.sampled_from(["mean", "importance_first"])),
            "MEMORIZZ_RETENTION_MEMORY_TYPES": draw(st.sampled_from(["", "conversation_memory"])),
            "FALLOW_RETENTION_STALE_SHARE": "1",
        },
    }


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(world=worlds())
def test_everybody_says_the_same_of_every_record(world: dict[str, Any]) -> None:
    scope = Scope(**world["scope"])
    with (
        tempfile.TemporaryDirectory() as folder,
        store(Path(folder) / "s", *world["turns"], **{KNOWLEDGE: world["facts"]}, agents=world["agents"]) as provider,
    ):
        if world["hold"]:
            place_hold(provider, scope=Scope(**world["hold"]), owner="Ada", reason="asked", now=NOW)
        assert disagreements(provider, scope, world["environ"]) == []


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(world=worlds())
def test_a_hold_of_a_plans_scope_holds_all_that_the_plan_would_take(world: dict[str, Any]) -> None:
    scope = Scope(**world["scope"])
    with (
        tempfile.TemporaryDirectory() as folder,
        store(Path(folder) / "s", *world["turns"], **{KNOWLEDGE: world["facts"]}, agents=world["agents"]) as provider,
    ):
        place_hold(provider, scope=scope, everything=True, owner="Ada", reason="asked", now=NOW)
        chosen = settings_for(provider, scope.agent_id, environ=world["environ"])
        plan = plan_scope(provider, chosen, scope, as_of=NOW, now=NOW)
        assert (len(plan.entries), plan.counts["eligible"]) == (0, 0)


def some(root: Path) -> Any:
    """A store in which every one of the planted disagreements shows."""
    rows = [
        record("free", agent_id="a"),
        record("off", agent_id="b"),
        record("torn", agent_id="a", suppressed_by="forget-plan-of-somebody"),
        record("held", agent_id="a", memory_id="m"),
    ]
    off = {"_id": "b", "agent_id": "b", "retrieval_policy": {"retention": {"enabled": False}}}
    return store(root, *rows, agents=[off])


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("fallow.usecases.forecast.opted_out", lambda *_: ()),
        ("fallow.usecases.rater_report.opted_out", lambda *_: ()),
        ("fallow.usecases.forecast.check_store", lambda *_: None),
        ("fallow.usecases.explain.check_store", lambda *_: None),
        ("fallow.usecases.planning.check_store", lambda *_: None),
        ("fallow.usecases.forecast.gather_evidence", lambda *_, **__: Evidence()),
        ("fallow.acting.apply.protections", lambda rows, *_, **__: ["cited" for _ in rows]),
        ("tests.fallow.test_one_judgement.gather_evidence", lambda *_, **__: Evidence()),
    ],
)
def test_a_planted_disagreement_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: Any
) -> None:
    with some(tmp_path / "s") as provider:
        place_hold(provider, scope=Scope(agent_id="a", memory_ids=("m",)), owner="Ada", reason="asked", now=NOW)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("tests.fallow.test_one_judgement.decide", lambda *_, **__: None)
            patched.setattr("tests.fallow.test_one_judgement.apply_plan", lambda *_, **__: APPLIED)
            assert disagreements(provider, Scope(), {}) == []
        monkeypatch.setattr(where, what)
        assert disagreements(provider, Scope(), {}) != []


#: What applying the plan over :func:`some` reports.
APPLIED = ApplyReport(plan_id="", applied=1)
