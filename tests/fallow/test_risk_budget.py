"""A plan under a risk budget (SPEC §6.11): the store's own questions say how far it may go."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fallow import RetentionConfig, RetentionPlanner, RiskConfig
from fallow.cli.app import run
from fallow.model.errors import SettingError, UsageError
from fallow.model.scope import Scope
from fallow.model.settings import resolve
from fallow.plans.plan import RetentionPlan
from fallow.port.protocol import Provider
from fallow.usecases.planner import plan_scope
from tests.fallow.small_stores import NOW, ids, planned, record, store, tree

SIZE = 16
RNG = np.random.default_rng(12)
TOPICS = RNG.standard_normal((60, SIZE))


def near(vector: np.ndarray, noise: float, seed: int) -> list[float]:
    return (vector + noise * np.random.default_rng(seed).standard_normal(SIZE)).tolist()


def rows(questions: int = 60) -> list[dict]:
    """A question a topic, none of which is planned; an answer each, the first the least important; idle rows last."""
    asked = [record(f"q{n:02}", days=1, importance=0.9, embedding=near(TOPICS[n], 0.15, n)) for n in range(questions)]
    answers = [
        record(
            f"a{n:02}",
            role="assistant",
            importance=0.3 + n / 1000,
            embedding=near(TOPICS[n], 0.15, 100 + n),
        )
        for n in range(60)
    ]
    idle = [
        record(f"i{n:02}", role="assistant", importance=0.1 + n / 1000, embedding=RNG.standard_normal(SIZE).tolist())
        for n in range(40)
    ]
    return [*asked, *answers, *idle]


def under(provider: Provider, scope: Scope | None = None, **risk) -> RetentionPlan:
    named = {f"risk.{name}": value for name, value in risk.items()}
    named |= {"retention.min_retention": 0.5, "retention.formula": "importance_first"}
    settings = resolve(named, environ={}).replacing("store.naive_timezone", dict(provider.naive_timezone))
    return plan_scope(provider, settings, scope or Scope(), as_of=NOW, now=NOW)


def test_the_plan_stops_before_the_questions_lose_too_much_6_11(tmp_path: Path) -> None:
    with store(tmp_path / "s", *rows()) as provider:
        before = tree(tmp_path / "s" / "conversation_memory")
        free, bound = under(provider), under(provider, share=0.1)
        assert tree(tmp_path / "s" / "conversation_memory") == before
    risk = bound.document["risk"]
    assert risk["probes"] == 60
    assert risk["kinds"] == {"user turns": 60}
    assert risk["allowed"] == 2
    assert len(free.entries) == 100
    assert ids(bound) == ids(free)[: len(bound.entries)], "the policy's own order, shorter"
    assert 40 < len(bound.entries) < 50
    assert risk["within"] == len(bound.entries)
    assert risk["cost"] == pytest.approx(2 / 60)
    assert risk["p_value"] <= 0.1
    assert risk["losing_count"] == 2
    assert set(risk["losing"]) <= {f"conversation_memory:q{n:02}" for n in range(60)}
    assert bound.counts["over_risk"] == 100 - len(bound.entries)
    assert bound.counts["eligible"] == 100
    assert bound.counts["deferred"] == 0
    costs = [row["cost"] for row in risk["grid"]]
    assert costs == sorted(costs)
    assert costs[-1] > 0.9, "below .5 all answers are gone"


def test_too_few_questions_take_nothing_and_say_how_many_are_missing_6_11(tmp_path: Path) -> None:
    with store(tmp_path / "s", *rows(questions=10)) as provider:
        plan = under(provider, share=0.05)
    assert plan.entries == ()
    assert plan.document["risk"]["missing"] == 35
    assert plan.counts["over_risk"] == 100


def test_without_a_budget_nothing_of_it_is_in_the_plan_6_11(tmp_path: Path) -> None:
    with store(tmp_path / "s", *rows()) as provider:
        free = under(provider)
        assert under(provider, drop=0.5, questions=50).plan_id == free.plan_id
        bound = under(provider, share=0.1)
        wider = under(provider, share=1.0)
    assert "risk" not in free.document
    assert not any(name.startswith("risk") for name in free.document["policy"])
    assert "over_risk" not in free.counts
    assert bound.document["policy"]["risk.share"] == {"value": 0.1, "origin": "option"}
    assert ids(wider) == ids(free), "a budget of everything lowers nothing"
    assert wider.plan_id != free.plan_id, "the budget is part of the policy"


def test_a_budget_never_raises_what_a_plan_takes_6_11(tmp_path: Path) -> None:
    with store(tmp_path / "s", *rows()) as provider:
        capped = resolve({"risk.share": 0.1, "retention.max_candidates": 5, "retention.min_retention": 0.5}, environ={})
        plan = plan_scope(provider, capped, Scope(), as_of=NOW, now=NOW)
    assert len(plan.entries) == 5
    assert plan.counts["deferred"] + plan.counts["over_risk"] == plan.counts["eligible"] - 5
    assert plan.document["risk"]["cost"] == 0


def test_a_question_asked_again_counts_once_6_11(tmp_path: Path) -> None:
    again = [record(f"z{n:02}", days=2, importance=0.9, embedding=near(TOPICS[50], 0.01, 500 + n)) for n in range(30)]
    with store(tmp_path / "s", *rows(questions=20), *again) as provider:
        risk = under(provider, share=0.1).document["risk"]
    assert risk["probes"] == 20 + 1
    assert risk["duplicates"] == 29
    assert risk["missing"] == 1


def test_cached_queries_ask_and_hidden_turns_still_do_6_11(tmp_path: Path) -> None:
    cached = [
        {"_id": f"c{n}", "agent_id": "gardener", "query": "?", "embedding": near(TOPICS[n], 0.15, 900 + n)}
        for n in range(30)
    ]
    hidden = [row | {"retention_state": "suppressed"} if row["_id"].startswith("q") else row for row in rows(10)]
    with store(tmp_path / "s", *hidden, semantic_cache=cached) as provider:
        risk = under(provider, share=0.1).document["risk"]
    assert risk["kinds"] == {"cached queries": 30, "user turns": 10}


def test_an_agents_plan_asks_that_agents_questions_of_its_own_records_6_11(tmp_path: Path) -> None:
    theirs = [
        record(f"t{n:02}", days=1, importance=0.9, agent_id="smith", embedding=near(TOPICS[n], 0.1, 700 + n))
        for n in range(40)
    ]
    with store(tmp_path / "s", *rows(), *theirs) as provider:
        alone = under(provider, Scope(agent_id="gardener"), share=0.1)
        smith = under(provider, Scope(agent_id="smith"), share=0.1)
        both = under(provider, share=0.1)
    assert alone.document["risk"]["probes"] == 60
    assert smith.document["risk"]["probes"] == 40
    assert both.document["risk"]["probes"] == 100
    assert len(alone.entries) < 50, "what another agent knows answers nothing here"


def test_of_many_questions_old_and_new_ones_are_asked_alike_6_11(tmp_path: Path) -> None:
    many = [
        record(
            f"m{n:03}", days=1 + n, importance=0.9, embedding=np.random.default_rng(n).standard_normal(SIZE).tolist()
        )
        for n in range(200)
    ]
    with store(tmp_path / "s", *many, *rows(0)) as provider:
        half = under(provider, share=0.9, questions=100).document["risk"]
        late = under(provider, share=0.9, window_days=50).document["risk"]
    days = sorted(1 + int(name[-3:]) for name in half["losing"])
    assert half["probes"] == 100
    assert late["probes"] == 50
    assert not days or days[-1] > 100


def test_a_file_of_questions_takes_the_place_of_the_stores_own_6_11(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    lines = [json.dumps({"id": f"k{n}", "embedding": near(TOPICS[n], 0.1, n)}) for n in range(25)]
    file.write_text("\n".join(lines) + "\n\n")
    with store(tmp_path / "s", *rows()) as provider:
        risk = under(provider, share=0.1, questions_file=str(file)).document["risk"]
        assert risk["kinds"] == {"of a file": 25}
        file.write_text(lines[0] + '\n{"embedding": [1, 2]}\n')
        with pytest.raises(UsageError, match="line 2 of the file of questions has 2 numbers"):
            under(provider, share=0.1, questions_file=str(file))
        file.write_text("nonsense\n")
        with pytest.raises(UsageError, match="line 1"):
            under(provider, share=0.1, questions_file=str(file))
        with pytest.raises(UsageError, match="cannot be read"):
            under(provider, share=0.1, questions_file=str(tmp_path / "none"))


def test_forecast_explain_and_command_show_the_budget_6_11(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SHARE": "0.1"}.items():
        monkeypatch.setenv(f"FALLOW_RISK_{name}", value)
    monkeypatch.setenv("FALLOW_RETENTION_FORMULA", "importance_first")
    monkeypatch.setenv("MEMORIZZ_RETENTION_MIN_SCORE", "0.5")
    with store(tmp_path / "s", *rows()) as provider:
        plan = under(provider, share=0.1)
    at = ["--store", str(tmp_path / "s"), "--as-of", "2026-12-01T00:00:00Z"]
    assert run(["forecast", *at, "--json"]) == 0
    shares = {row["share"]: row["records"][0] for row in json.loads(capsys.readouterr().out)["risk"]}
    assert shares[0.1] == len(plan.entries)
    assert [shares[share] for share in sorted(shares)] == sorted(shares.values())
    assert run(["forecast", *at]) == 0
    assert "within a risk budget" in capsys.readouterr().err
    verdicts = {}
    for name in ("i00", "a59"):
        assert run(["explain", name, *at, "--json"]) == 0
        verdicts[name] = json.loads(capsys.readouterr().out)["verdict"]
    assert verdicts["i00"] == "eligible, within the risk budget of 0.1"
    assert (
        verdicts["a59"] == f"eligible, but the risk budget of 0.1 ends after {len(plan.entries)} records of its scope"
    )
    assert run(["retention-plan", *at]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "with 90% confidence at most 10% of new questions like these lose their nearest memory" in said
    assert "2 of them lose it at this cut (3.3%, p 0.053)" in said


def test_records_that_no_question_can_find_are_counted_6_11(tmp_path: Path) -> None:
    blind = [record(f"b{n}", role="assistant", importance=0.01) for n in range(3)]
    with store(tmp_path / "s", *rows(), *blind) as provider:
        assert under(provider, share=0.1).document["risk"]["without_embedding"] == 3


def test_explicit_settings_replace_every_other_source_the_budget_too_17(tmp_path: Path) -> None:
    config = RetentionConfig(min_retention=0.5, formula="importance_first")
    environ = {"FALLOW_RISK_SHARE": "0.1"}
    with store(tmp_path / "s", *rows()) as provider:
        free = RetentionPlanner(provider, config=config, environ=environ).plan(as_of=NOW, now=NOW)
        bound = RetentionPlanner(provider, config=config, risk=RiskConfig(share=0.1)).plan(as_of=NOW, now=NOW)
        named = RetentionPlanner(provider, environ=environ).plan(as_of=NOW, now=NOW)
    assert "risk" not in free.document
    assert bound.document["risk"]["share"] == named.document["risk"]["share"] == 0.1
    with pytest.raises(SettingError, match=r"RiskConfig\.share"):
        RiskConfig(share=2)


def test_plan_ids_without_a_budget_are_what_they_were(tmp_path: Path) -> None:
    with store(tmp_path / "s", *rows()) as provider:
        assert "risk" not in json.dumps(planned(provider).document["policy"])
