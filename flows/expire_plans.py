"""expire-plans: end what nobody answered in time, and the runs that wait for nothing any more (SPEC §7.2, §15)."""

from __future__ import annotations

from typing import Any

from fallow.flows.outcomes import announce
from fallow.tasks.applying import record_expiry
from fallow.tasks.inbox import show_open_plans
from fallow.tasks.runs import settle_waiting_runs
from fallow.tasks.steps import stores_named
from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed


@flow(name="expire-plans", persist_result=False)
def expire_plans(store: str = "") -> State[Any]:
    """Records expired plans, ends the runs whose plan was settled, and wakes those whose plan was approved.

    Args:
        store: Address of the store; empty means every store that the worker is configured with.
    """
    done: list[str] = []
    for name in stores_named(store):
        lapsed = record_expiry(name)
        for plan_id in lapsed.expired:
            announce("expired", plan_id, name)
        done += [f"{plan_id} expired" for plan_id in lapsed.expired]
        done += [f"{plan_id} closed" for plan_id in lapsed.closed]
        for state, runs in settle_waiting_runs(name).items():
            done += [f"run {run} {state}" for run in runs]
    for line in done:
        get_run_logger().info(line)
    if done:
        show_open_plans(store)
    if not done:
        return Completed(name="NothingToDo", message="no plan has expired and no run waits for nothing")
    return Completed(name="Expired", message=f"{len(done)} ended: {'; '.join(done[:20])}")
