"""Rows of the list of inputs that broke others, as far as the judgement answers for them; each test names its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.apply import apply_plan
from fallow.acting.deciding import decide
from fallow.cli.app import run
from fallow.model.arguments import instant
from fallow.model.errors import PlanStateError
from fallow.model.scope import Scope
from fallow.model.settings import ApprovalConfig, resolve
from fallow.model.times import MICROSECONDS_PER_DAY
from fallow.plans.plan import RetentionPlan
from fallow.plans.storage import publish
from fallow.port.protocol import Provider
from fallow.showing.plan_page import form_text, plan_page
from fallow.usecases.desk import desk
from fallow.usecases.explain import explain_record
from fallow.usecases.planner import RetentionPlanner, plan_scope, settings_for
from tests.fallow.small_stores import CONVERSATION, NOW, ids, planned, protected, record, store

AS_OF = "2026-12-01T00:00:00Z"


def page_of(provider: Provider, plan: RetentionPlan) -> str:
    return plan_page(desk(provider, plan.plan_id, now=NOW, show_text=False))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines that a command prints."""
    assert run(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def off(*names: str) -> list[dict[str, Any]]:
    """Agents that switched retention off."""
    return [{"_id": name, "agent_id": name, "retrieval_policy": {"retention": {"enabled": False}}} for name in names]


@pytest.mark.parametrize(
    ("count", "breaches", "eligible", "through"),
    [(10**12, 1, 0, 0), (7_776_001, 1, 0, 0), (7_776_000, 0, 100, 100), (5000, 0, 0, 0)],
)
def test_row_54_a_count_that_cannot_be_true_counts_as_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, breaches: int, eligible: int, through: int
) -> None:
    rows = [record(f"r{n:03}", importance=0.3, access_count=5) for n in range(100)]
    one = record("one", importance=0.9, access_count=count)
    with store(tmp_path / "s", *rows, one) as provider:
        plan = planned(provider)
        assert plan.counts["breaches"].get("access_count_implausible", 0) == breaches
        assert len(plan.entries) == eligible
        scale = plan.document["usage_scales"][CONVERSATION]
        top = {"record_id": "r000", "access_count": 5} if breaches else {"record_id": "one", "access_count": count}
        assert scale == {**top, "second": 5, "eligible_through_it": through}
        assert f"{through} more eligible through it" in page_of(provider, plan)
    lines = said(capsys, "retention-plan", "--store", str(tmp_path / "s"), "--as-of", AS_OF)
    assert any(f"{through} more eligible through it" in line for line in lines)


def test_row_58_a_hold_of_an_agent_and_a_memory_holds_the_unowned_records_that_the_plan_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with store(tmp_path / "s", record("nobodys", agent_id=None, memory_id="m"), record("other", memory_id="n")):
        pass
    named = ["--store", str(tmp_path / "s"), "--agent-id", "a", "--memory-id", "m"]
    before = document(capsys, "retention-plan", *named, "--as-of", AS_OF)
    assert [entry["record_id"] for entry in before["entries"]] == ["nobodys"]
    said(capsys, "hold", "add", *named, "--owner", "Ada", "--reason", "asked by law")
    after = document(capsys, "retention-plan", *named, "--as-of", AS_OF)
    assert (after["entries"], after["counts"]["protected"]["held"]) == ([], 1)


def test_row_59_everybody_uses_the_same_words_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FALLOW_RETENTION_FORMULA", "importance_first")
    rows = [record(f"r{n}", agent_id="kept") for n in range(3)]
    rows += [record(f"o{n:02}", agent_id=("off1", "off2")[n % 2]) for n in range(14)]
    rows += [record("fresh", agent_id="kept", last_accessed_at="2026-11-29T00:00:00Z")]
    broken = record(
        "broken", agent_id="kept", retention_state="suppressed", suppressed_at="2026-11-01T00:00:00Z", importance=0.1
    )
    with store(tmp_path / "s", *rows, broken, agents=off("off1", "off2")) as provider:
        plan = plan_scope(provider, settings_for(provider, None), Scope(), as_of=NOW, now=NOW)
        page = page_of(provider, plan)
    at = ["--store", str(tmp_path / "s"), "--as-of", AS_OF]
    assert (ids(plan), protected(plan)) == (["r0", "r1", "r2"], {"quarantined": 1, "recalled": 1})
    assert "| quarantined | 1 | it breaks its data contract |" in page
    assert "| recalled | 1 | recalled within the last week |" in page
    assert document(capsys, "forecast", *at)["eligible"][2]["records"][0] == 3
    assert document(capsys, "rater-report", *at)["eligible"]["stored"] == 3
    told = {name: document(capsys, "explain", name, *at) for name in ("broken", "fresh", "r0", "o00")}
    assert told["broken"]["verdict"] == "not eligible: quarantined"
    assert told["fresh"]["verdict"] == "not eligible: recalled"
    assert told["r0"]["verdict"] == "eligible: number 1 of the plan"
    assert told["r0"]["formula"] == "retention 0.100 = importance 0.100 (importance first), cut 0.15"
    assert told["o00"]["agent_switched_off"]
    lines = said(capsys, "explain", "r0", *at)
    assert "retention 0.100 = importance 0.100 (importance first), cut 0.15" in lines
    assert not any("/ 3" in line for line in lines)


def test_row_59_a_mean_with_weights_is_explained_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FALLOW_RETENTION_WEIGHTS", "2,1,0")
    with store(tmp_path / "s", record("r0")):
        pass
    told = document(capsys, "explain", "r0", "--store", str(tmp_path / "s"), "--as-of", AS_OF)
    terms = "(2 × importance 0.100 + usage 0.000 + 0 × recency 0.000) / 3"
    assert told["formula"] == f"retention 0.067 = {terms}, cut 0.15"


def test_row_60_the_library_plans_with_the_contract_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [record("r0"), record("odd", suppressed_by="forget-plan-of-somebody")]
    with store(tmp_path / "s", *rows) as provider:
        plan = RetentionPlanner(provider).plan(as_of=NOW)
    assert (ids(plan), protected(plan)) == (["r0"], {"quarantined": 1})
    by_command = document(capsys, "retention-plan", "--store", str(tmp_path / "s"), "--as-of", AS_OF)
    assert by_command["plan_id"] == plan.plan_id


def test_row_63_a_plan_made_twice_shows_the_counts_of_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with store(tmp_path / "s", record("r0")) as provider:
        first = planned(provider)
        assert planned(provider).document == first.document
        for number in range(3):
            (tmp_path / "s" / CONVERSATION / f"torn{number}.json").write_text("{")
        second = planned(provider)
    assert second.plan_id == first.plan_id
    assert (first.counts["protected"]["unreadable"], second.counts["protected"]["unreadable"]) == (0, 3)
    again = document(capsys, "retention-plan", "--store", str(tmp_path / "s"), "--as-of", AS_OF)
    assert (again["plan_id"], again["counts"]["protected"]["unreadable"]) == (first.plan_id, 3)


def test_row_64_a_plan_by_name_says_first_that_the_agent_switched_retention_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with store(tmp_path / "s", record("r0", agent_id="a"), agents=off("a")) as provider:
        plan = planned(provider, scope=Scope(agent_id="a"))
        page = page_of(provider, plan)
        form = form_text(desk(provider, plan.plan_id, now=NOW, show_text=False))
    first = "Retention is switched off for agent a: this plan was made by its name."
    lines = said(capsys, "retention-plan", "--store", str(tmp_path / "s"), "--agent-id", "a", "--as-of", AS_OF)
    assert (ids(plan), lines[0]) == (["r0"], first)
    assert said(capsys, "show", plan.plan_id, "--store", str(tmp_path / "s"))[0] == first
    assert page.splitlines()[2] == f"**{first}**"
    assert form.startswith(f"**{first}** ")


def test_row_71_a_plan_of_the_future_is_a_what_if_until_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = instant("2030-01-01T00:00:00Z")
    with store(tmp_path / "s", record("r0", days=5)) as provider:
        plan = plan_scope(provider, resolve({}, environ={}), Scope(), as_of=later, now=NOW)
        assert ids(plan) == ["r0"]
        assert page_of(provider, plan).splitlines()[2].startswith("**What if: this plan lies 3 years ahead.")
        approval: dict[str, Any] = {"approved_by": "Ada", "count": 1, "approval": ApprovalConfig()}
        with pytest.raises(PlanStateError, match="what-if"):
            decide(provider, plan.plan_id, verdict="approved", **approval, now=NOW)
        with pytest.raises(PlanStateError, match="what-if"):
            publish(provider, plan, now=NOW, expiry_hours=72)
        with pytest.raises(PlanStateError, match="what-if"):
            apply_plan(provider, plan.plan_id, now=NOW)
        soon = plan_scope(provider, resolve({}, environ={}), Scope(), as_of=later, now=later - MICROSECONDS_PER_DAY)
        assert decide(provider, soon.plan_id, verdict="approved", **approval, now=later).verdict == "approved"
        assert apply_plan(provider, soon.plan_id, now=later).applied == 1
    lines = said(capsys, "retention-plan", "--store", str(tmp_path / "s"), "--as-of", "2090-01-01")
    assert lines[0].startswith("What if: this plan lies")


def test_row_72_a_creation_time_before_2000_is_not_known(tmp_path: Path) -> None:
    times = [0, "0", -1, 1, 45000, "1970-01-01T00:00:00Z", "1900-01-01T00:00:00Z"]
    rows = [record(f"r{n}", timestamp=value) for n, value in enumerate(times)]
    with store(tmp_path / "s", *rows, record("y2k", timestamp="2000-01-01")) as provider:
        plan = planned(provider)
        assert ids(plan) == ["y2k"]
        assert plan.counts["breaches"] == {"created_at_implausible": 7}
        told = explain_record(
            provider, "r4", memory_type=None, settings_of=lambda _: resolve({}, environ={}), as_of=NOW
        )
        assert (told["verdict"], told["score"]["age_days"]) == ("not eligible: unknown creation time", None)
        assert "earliest_time" not in plan.document["policy"]
        options = {"store.earliest_time": "1950-01-01"}
        wider = plan_scope(provider, resolve(options, environ={}), Scope(), as_of=NOW, now=NOW)
        assert (len(wider.entries), wider.counts["breaches"]) == (7, {"created_at_implausible": 1})
        assert wider.policy("earliest_time") == "1950-01-01T00:00:00Z"
        approval: dict[str, Any] = {"approved_by": "Ada", "count": 7, "approval": ApprovalConfig()}
        decide(provider, wider.plan_id, verdict="approved", **approval, now=NOW)
        assert apply_plan(provider, wider.plan_id, now=NOW).applied == 7


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (("--agent-id", "gardner"), "No record of the store has agent gardner; the nearest: gardener."),
        (("--memory-id", "zzz"), "No record of the store has memory zzz; the nearest: orchard."),
    ],
)
def test_row_73_a_scope_without_records_says_so_and_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: tuple[str, str], sentence: str
) -> None:
    with store(tmp_path / "s", record("r0")):
        pass
    lines = said(capsys, "retention-plan", "--store", str(tmp_path / "s"), *named, "--as-of", AS_OF)
    assert " ".join(lines).startswith(sentence)
    known = said(capsys, "retention-plan", "--store", str(tmp_path / "s"), "--agent-id", "gardener", "--as-of", AS_OF)
    assert known[0].startswith("forget-plan-")
