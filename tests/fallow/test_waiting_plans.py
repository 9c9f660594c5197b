"""Plans that wait for an answer in a flow run: one open plan a scope, whichever run asks (SPEC §7.1, §15)."""

from __future__ import annotations

import pytest

from fallow.judgement.score import in_scope, scopes_of
from fallow.model.arguments import instant
from fallow.model.errors import PlanStateError, SettingError
from fallow.model.scope import Scope
from fallow.model.settings import configured_stores, resolve, without_secrets
from fallow.model.times import MICROSECONDS_PER_DAY
from fallow.plans.storage import conclude, plan_of_run, publish, stored_plan, take_over
from fallow.port.reading import read_store
from fallow.port.registry import open_provider
from fallow.usecases.planner import plan_scope

NOW = instant("2026-12-01T02:00:00Z")
RUN = "0c5c8f0e-0000-4000-8000-000000000001"
OTHER = "0c5c8f0e-0000-4000-8000-000000000002"


def planned(provider, *, days_ago=0, cut=0.3):
    settings = resolve({"retention.min_retention": cut}, environ={})
    as_of = NOW - days_ago * MICROSECONDS_PER_DAY
    return plan_scope(provider, settings, Scope(), as_of=as_of, now=NOW)


def test_a_run_finds_the_plan_it_published_and_no_other_7_3(sample_store):
    with open_provider(str(sample_store)) as provider:
        plan = planned(provider)
        assert plan_of_run(provider, RUN, NOW) is None
        publish(provider, plan, now=NOW, expiry_hours=72, flow_run_id=RUN)
        assert plan_of_run(provider, RUN, NOW).plan_id == plan.plan_id
        assert plan_of_run(provider, OTHER, NOW) is None
        again = publish(provider, plan, now=NOW, expiry_hours=72, flow_run_id=RUN)
        assert (again.waiting, again.already_open) == (plan.plan_id, False)
        assert publish(provider, plan, now=NOW, expiry_hours=72, flow_run_id=OTHER).already_open


def test_another_run_takes_a_question_over_whose_run_is_gone(sample_store):
    with open_provider(str(sample_store)) as provider:
        plan = planned(provider)
        publish(provider, plan, now=NOW, expiry_hours=72, flow_run_id=RUN)
        before = stored_plan(provider, plan.plan_id, NOW)
        for _ in range(2):
            take_over(provider, plan.plan_id, flow_run_id=OTHER, now=NOW + 5)
        after = stored_plan(provider, plan.plan_id, NOW + 5)
        assert (after.flow_run_id, after.expires_at, after.generation) == (OTHER, before.expires_at, before.generation)
        assert plan_of_run(provider, RUN, NOW).flow_run_id == OTHER
        conclude(provider, before, "rejected", by="Ada", reason="decided while it was taken over", now=NOW + 6)
        assert stored_plan(provider, plan.plan_id, NOW + 7).state == "rejected"
        with pytest.raises(PlanStateError):
            take_over(provider, plan.plan_id, flow_run_id=RUN, now=NOW + 8)


def test_a_missed_night_caught_up_late_leaves_the_later_question_standing_7_1(sample_store):
    with open_provider(str(sample_store)) as provider:
        late = planned(provider, days_ago=3, cut=0.25)
        tonight = planned(provider)
        assert late.item_set != tonight.item_set
        publish(provider, tonight, now=NOW, expiry_hours=72, flow_run_id=RUN)
        asked = publish(provider, late, now=NOW, expiry_hours=72, flow_run_id=OTHER)
        assert (asked.waiting, asked.already_open, asked.superseded) == (tonight.plan_id, True, ())
        assert stored_plan(provider, late.plan_id, NOW).state == "planned"


def test_a_night_is_one_scope_for_each_owner_and_one_for_what_nobody_owns_6_4(sample_store):
    with open_provider(str(sample_store)) as provider:
        view = read_store(provider)
        scopes = scopes_of(view)
        assert scopes[-1] == Scope(unowned=True)
        names = [scope.agent_id for scope in scopes[:-1]]
        assert names == sorted(set(names))
        assert len(names) > 1
        whole = sum(len(frame) for frame in view.frames.values())
        assert whole == sum(len(frame.filter(in_scope(scope))) for scope in scopes for frame in view.frames.values())


def test_an_empty_plan_is_stored_only_where_asked_for(sample_store):
    with open_provider(str(sample_store)) as provider:
        settings = resolve({"retention.min_retention": 0.0}, environ={})
        plan = plan_scope(provider, settings, Scope(), as_of=NOW, now=NOW, keep_empty=False)
        assert not plan.entries
        assert list(provider.find("shared_memory", "fallow-plan")) == []
        plan_scope(provider, settings, Scope(), as_of=NOW, now=NOW)
        assert len(list(provider.find("shared_memory", "fallow-plan-"))) == 1


def test_a_plan_shows_how_retention_spreads_over_its_scope_6_5(sample_store):
    with open_provider(str(sample_store)) as provider:
        plan = planned(provider)
    spread = plan.document["distribution"]
    suppressed = plan.counts["protected"].get("suppressed", 0)
    assert len(spread) == 20
    assert plan.counts["scanned"] - sum(spread) >= suppressed
    assert sum(spread[:6]) >= plan.counts["eligible"] > 0  # the cut of 0.3 lies on a bound of the 20 parts


@pytest.mark.parametrize(
    ("environ", "stores"),
    [
        ({"FALLOW_STORE": "/a"}, ("/a",)),
        ({"FALLOW_STORE": "/a", "FALLOW_STORES": " /b\n mongodb://h1,h2/db /b"}, ("/b", "mongodb://h1,h2/db")),
        ({"FALLOW_STORES": '["/with space", "/b"]'}, ("/with space", "/b")),
    ],
)
def test_scheduled_flows_work_on_the_stores_that_are_configured_6_1(environ, stores):
    assert configured_stores(environ) == stores


@pytest.mark.parametrize("environ", [{}, {"FALLOW_STORES": " "}, {"FALLOW_STORES": "[1]"}, {"FALLOW_STORES": "[oops"}])
def test_no_store_or_a_broken_list_is_said(environ):
    with pytest.raises(SettingError):
        configured_stores(environ)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("mongodb://u:p@ss:w@h:27017/db?x=1", "mongodb://u:***@h:27017/db?x=1"),
        ("oracle://user@host:1521/s", "oracle://user@host:1521/s"),
        ("/srv/a:b@c", "/srv/a:b@c"),
    ],
)
def test_no_secret_of_an_address_is_shown_14(address, shown):
    assert without_secrets(address) == shown
