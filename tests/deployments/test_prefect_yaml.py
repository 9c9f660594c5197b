"""deployments/prefect.yaml: Prefect ignores what it does not know, so that every key is held here (DESIGN §6)."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel
from prefect.client.schemas.actions import DeploymentScheduleCreate

from tests.prefect_server import PREFECT_YAML

DOCUMENT: dict[str, Any] = yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))
SCHEDULE_KEYS = {"cron", "timezone", "slug", "active", "parameters", "day_or", "max_scheduled_runs"}
#: SPEC §15's schedules of the flows that are deployed here.
SCHEDULES = {
    "plan-retention": "0 2 * * *",
    "expire-plans": "*/15 * * * *",
    "apply-retention": None,
    "restore-memories": None,
}


def flow_of(deployment: dict[str, Any]) -> Flow[Any, Any]:
    module, _, name = deployment["entrypoint"].partition(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Flow)
    return found


def faults(document: dict[str, Any]) -> list[str]:
    """Everything about a prefect.yaml that Prefect would let pass and that would not work."""
    known = {"definitions", *PrefectYamlModel.model_fields}
    found = [f"unknown key {key}" for key in document if key.replace("-", "_") not in known]
    names: list[tuple[str, str]] = []
    for deployment in document["deployments"]:
        name = deployment.get("name", "?")
        found += [f"{name}: unknown key {key}" for key in deployment if key not in DeploymentConfig.model_fields]
        try:
            flow = flow_of(deployment)
        except (ImportError, AttributeError, AssertionError, KeyError) as error:
            found.append(f"{name}: does not resolve: {type(error).__name__}")
            continue
        names.append((flow.name, name))
        properties, required = flow.parameters.properties, set(flow.parameters.required)
        given = set(deployment.get("parameters") or {})
        found += [f"{name}: unknown parameter {key}" for key in given - set(properties)]
        for schedule in deployment.get("schedules") or []:
            found += [f"{name}: unknown schedule key {key}" for key in set(schedule) - SCHEDULE_KEYS]
            missing = required - given - set(schedule.get("parameters") or {})
            found += [f"{name}: its schedule misses the parameter {key}" for key in missing]
        limit = deployment.get("concurrency_limit")
        if flow.name == "plan-retention" and (limit or {}).get("collision_strategy") != "ENQUEUE":
            found.append(f"{name}: an approved run would be cancelled")
        if (deployment.get("work_pool") or {}).get("name") != "fallow":
            found.append(f"{name}: no worker serves it")
    found += [f"twice: {pair}" for pair in names if names.count(pair) > 1]
    return found


def test_every_key_parameter_and_flow_is_known() -> None:
    assert faults(DOCUMENT) == []


def damaged(change: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    change(document["deployments"])
    return document


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda d: d[0].update(concurency_limit={"limit": 1}), "unknown key concurency_limit"),
        (lambda d: d[0].pop("concurrency_limit"), "an approved run would be cancelled"),
        (lambda d: d[0].update(entrypoint="fallow.flows.plan_retention:plan"), "does not resolve"),
        (lambda d: d[0].update(entrypoint="flows.plan:plan_retention"), "does not resolve"),
        (lambda d: d[0].update(parameters={"min_retentoin": 0.1}), "unknown parameter min_retentoin"),
        (lambda d: d[1].update(schedules=[{"cron": "0 3 * * *"}]), "its schedule misses the parameter plan_id"),
        (lambda d: d[0]["schedules"][0].update(timezon="Etc/UTC"), "unknown schedule key timezon"),
        (lambda d: d[0].pop("work_pool"), "no worker serves it"),
    ],
)
def test_the_check_above_can_fail(change: Any, fault: str) -> None:
    assert any(fault in found for found in faults(damaged(change)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_those_of_the_specification_15(name: str) -> None:
    (deployment,) = [item for item in DOCUMENT["deployments"] if flow_of(item).name == name]
    crons = [(item["cron"], item["timezone"]) for item in deployment.get("schedules") or []]
    assert crons == ([] if SCHEDULES[name] is None else [(SCHEDULES[name], "Etc/UTC")])
    assert DeploymentScheduleCreate.model_fields.keys() >= {"active", "parameters", "slug"}


@pytest.mark.parametrize("deployment", DOCUMENT["deployments"], ids=lambda item: item["name"])
def test_every_parameter_is_described_and_none_but_the_needed_is_required(deployment: dict[str, Any]) -> None:
    for name, field in flow_of(deployment).parameters.properties.items():
        assert field.get("description"), f"{name} has no description in the form"


@pytest.mark.server
def test_prefect_deploys_all_of_it(prefect_server: Any, prefect_api: Any) -> None:
    """The session's server was deployed to by ``prefect deploy --all --prefect-file deployments/prefect.yaml``."""
    there = {item.name: item for item in prefect_api.read_deployments(limit=200)}
    for deployment in DOCUMENT["deployments"]:
        found = there[deployment["name"]]
        assert found.entrypoint == deployment["entrypoint"]
        assert found.work_pool_name == "fallow"
        assert found.enforce_parameter_schema
        assert [item.slug for item in found.schedules] == [item["slug"] for item in deployment.get("schedules") or []]
        if deployment.get("concurrency_limit"):
            assert found.global_concurrency_limit.limit == deployment["concurrency_limit"]["limit"]
            strategy = found.concurrency_options.collision_strategy.value
            assert strategy == deployment["concurrency_limit"]["collision_strategy"]
