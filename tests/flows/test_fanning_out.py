"""Loading and rating on a Dask cluster of two workers, and the same plan as without (DESIGN §9)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fallow.flows import fanning_out
from fallow.flows.backfill_importance import backfill_importance
from fallow.tasks.planning import make_plans

from fallow.model.errors import SettingError
from fallow.model.settings import DASK_ENV
from fallow.model.times import iso, wall_clock
from fallow.plans.storage import list_plans
from fallow.port.registry import open_provider
from tests.conftest import REPOSITORY
from tests.flows.driving import ASK, PLAN, plans_of, start
from tests.prefect_server import stop, wait_until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler and two worker processes, on loopback; the scheduler's address."""
    folder = tmp_path_factory.mktemp("dask")
    places, environ = folder / "scheduler.json", {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    log = (folder / "dask.log").open("wb")

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distributed.cli." + arguments[0], *arguments[1:]]
        return subprocess.Popen(command, env=environ, cwd=folder, stdout=log, stderr=log)

    quiet = ["--no-dashboard", "--scheduler-file", str(places)]
    running = [begin("dask_scheduler", "--host", "127.0.0.1", "--port", "0", *quiet)]
    try:
        wait_until(places.is_file, "the scheduler is up")
        for _ in range(2):
            worker = ["--nthreads", "1", "--host", "127.0.0.1", "--no-nanny", "--local-directory", str(folder)]
            running.append(begin("dask_worker", *quiet, *worker))
        from distributed import Client

        with Client(scheduler_file=str(places), timeout="60s", set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            yield client.scheduler.address
    finally:
        for process in reversed(running):
            stop(process)
        log.close()


def test_the_same_plan_on_threads_and_on_two_workers_9(
    prefect_api, make_sample_store, cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_sample_store(now=iso(wall_clock()))
    as_of = wall_clock()
    arguments = {"scope": None, "as_of": as_of, "force": True, "requested_by": None}
    options = {"retention.min_retention": 0.4}
    alone = make_plans(str(store), options=options, **arguments)
    monkeypatch.setenv(DASK_ENV, cluster)
    shards = fanning_out.load_shards(str(store))
    assert {shard.memory_type for shard in shards} >= {"conversation_memory", "summaries"}
    spread = make_plans(str(store), options=options, shards=shards, **arguments)
    assert [plan.plan_id for plan in spread] == [plan.plan_id for plan in alone]
    assert sum(plan.planned for plan in alone) > 10


def test_a_nightly_run_on_the_cluster_waits_for_its_approval_9(
    prefect_api, make_sample_store, cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_sample_store(now=iso(wall_clock()))
    monkeypatch.setenv(DASK_ENV, cluster)
    _, state = start(prefect_api, PLAN, store=str(store), **ASK)
    assert state.name == "Suspended"
    assert len(plans_of(store)) == 1


def test_rating_on_the_cluster_rates_every_agents_records_once_9(
    prefect_api, make_sample_store, cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_sample_store(now=iso(wall_clock()))
    monkeypatch.setenv(DASK_ENV, cluster)
    state = backfill_importance(store=str(store), mode="heuristic", return_state=True)
    assert (state.name, state.type.value) == ("Rated", "COMPLETED"), state.message
    again = backfill_importance(store=str(store), mode="heuristic", return_state=True)
    assert again.name == "NothingToDo"
    with open_provider(str(store)) as provider:
        assert list_plans(provider, wall_clock()) == []


def test_a_cluster_without_prefect_dask_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DASK_ENV, "tcp://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "prefect_dask.task_runners", None)
    with pytest.raises(SettingError, match="prefect-dask is not installed"):
        fanning_out.load_shards(str(tmp_path))
