"""Other policies than the mean of three: weights, and importance first (SPEC §6.2 stays the default)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallow.judgement.policy import policy_advice
from fallow.model.errors import SettingError
from fallow.model.settings import RetentionConfig, resolve
from fallow.usecases.explain import days_until_eligible, explain_record
from tests.conftest import write_as_agent
from tests.fallow.small_stores import NOW, days_ago, ids, planned, protected, record, store


def test_the_default_is_the_papers_mean_and_equal_weights_are_the_same_to_the_bit(tmp_path: Path) -> None:
    rows = [record(f"r{n}", importance=n / 37, access_count=n % 5, days=40 + n) for n in range(30)]
    with store(tmp_path / "s", *rows) as provider:
        usual = planned(provider, min_retention=0.5)
        doubled = planned(provider, min_retention=0.5, weights=[2, 2, 2])
    assert usual.policy("weights") == [1.0, 1.0, 1.0]
    assert usual.policy("formula") == "mean"
    assert [entry.retention for entry in usual.entries] == pytest.approx([e.retention for e in doubled.entries])
    assert usual.plan_id != doubled.plan_id, "the policy is a part of the id"


def test_weights_say_what_counts(tmp_path: Path) -> None:
    rows = [record("rated", importance=0.9, days=400), record("used", importance=0.1, access_count=9, days=400)]
    with store(tmp_path / "s", *rows) as provider:
        assert ids(planned(provider, min_retention=0.5, weights="1, 0, 0")) == ["used"]
        assert ids(planned(provider, min_retention=0.5, weights="0, 1, 0")) == ["rated"]
        plan = planned(provider, min_retention=0.2, weights="3, 1, 0")
        assert plan.document["coverage"]["effective_importance_cut"] == pytest.approx(0.8 / 3)


def test_importance_first_hides_by_importance_and_spares_what_was_recalled_lately(tmp_path: Path) -> None:
    rows = [
        record("low", importance=0.1, days=40),
        record("low but recalled", importance=0.1, days=400, access_count=1, last_accessed_at=days_ago(6)),
        record("low, recalled long ago", importance=0.1, days=400, access_count=5, last_accessed_at=days_ago(8)),
        record("old but good", importance=0.6, days=900),
        record("unrated", importance=None, days=900),
    ]
    with store(tmp_path / "s", *rows) as provider:
        plan = planned(provider, min_retention=0.3, formula="importance_first")
        assert ids(plan) == ["low, recalled long ago", "low"]
        assert protected(plan) == {"recalled": 1}
        assert plan.document["coverage"]["effective_importance_cut"] == 0.3
        told = explain_record(
            provider,
            "low but recalled",
            memory_type=None,
            as_of=NOW,
            settings_of=lambda _: resolve({"retention.formula": "importance_first"}, environ={}),
        )
        assert told["protected_by"] == "recalled"


@pytest.mark.parametrize(
    "bad", ["1,1", "1,1,1,1", "0,0,0", "-1,1,1", "nan,1,1", "a,b,c", [1, 1], {"x": 1}, "", 3, True]
)
def test_weights_that_are_none_are_refused(bad: object) -> None:
    with pytest.raises(SettingError, match="weights"):
        RetentionConfig(weights=bad)  # type: ignore[arg-type]


def test_a_formula_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="formula"):
        RetentionConfig(formula="median")


@pytest.mark.parametrize(
    ("weights", "importance", "expected"),
    [
        # recency below 2 * 0.15 - 0.29 = 0.01 after ln 0.01 / ln 0.995 hours; the grace period ends after 20 days.
        ((1, 0, 1), 0.29, 38.28),
        ((1, 0, 1), 0.1, 20.0),
        ((1, 1, 1), 0.95, None),
        ((1, 0, 0), 0.1, 20.0),
        ((1, 0, 0), 0.2, None),
    ],
)
def test_days_until_eligible_follow_the_weights(weights, importance, expected) -> None:
    found = days_until_eligible(
        importance=importance,
        usage=0.0,
        idle_hours=0.0,
        age_days=10.0,
        minimum=0.15 if weights != (1, 1, 1) else 0.3,
        grace_days=30.0,
        decay=0.995,
        weights=weights,
    )
    assert found == (expected if expected is None else pytest.approx(expected, abs=0.01))


def test_a_store_that_is_rated_is_told_of_the_better_policy_and_no_other_is() -> None:
    assert "importance_first" in policy_advice(0.9, "mean", (1, 1, 1))
    assert policy_advice(0.5, "mean", (1, 1, 1)) == ""
    assert policy_advice(0.9, "importance_first", (1, 1, 1)) == ""
    assert policy_advice(0.9, "mean", (3, 1, 1)) == ""


def test_plan_and_doctor_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fallow.cli.app import run

    write_as_agent(tmp_path / "s", {"conversation_memory": [record("r1")], "shared_memory": []})
    assert run(["retention-plan", "--store", str(tmp_path / "s")]) == 0
    assert "retention.formula = importance_first" in capsys.readouterr().out
    run(["doctor", "--store", str(tmp_path / "s")])
    assert "importance_first" in capsys.readouterr().out
