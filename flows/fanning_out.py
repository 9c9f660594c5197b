"""Spreading the load and rate steps over a Dask cluster, where one is named (DESIGN §9).

Both are flows of their own, so that a plan that waits for its approval needs the cluster only while it is made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fallow.tasks.rating import RatingOrder, rate_scope
from fallow.tasks.shards import Shard, load_shard
from prefect import flow

from fallow.model.errors import SettingError
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from fallow.model.settings import DASK_ENV, dask_address


@flow(name="load-shards", flow_run_name="load", persist_result=False)
def _load(store: str) -> list[Shard]:
    """Reads every memory type of a store at once, each wherever the runner puts it."""
    futures = [load_shard.submit(store, memory_type) for memory_type in PRIMARY_TYPES]
    return [future.result() for future in futures]


@flow(name="rate-scopes", flow_run_name="rate", persist_result=False, validate_parameters=False)
def _rate(store: str, scopes: Sequence[tuple[Scope, Collection[str]]], asked: RatingOrder) -> list[dict[str, Any]]:
    """Rates every scope of a store at once, each wherever the runner puts it."""
    futures = [rate_scope.submit(store, scope, tuple(excluded), asked) for scope, excluded in scopes]
    return [future.result() for future in futures]


def load_shards(store: str) -> list[Shard]:
    """The store in shards, read by the cluster; nothing where no cluster is named: planning reads by itself.

    Raises:
        SettingError: a cluster is named and prefect-dask is not installed.
    """
    address = dask_address()
    return _on(_load, address)(store) if address else []


def rate_scopes(
    store: str, scopes: Sequence[tuple[Scope, Collection[str]]], asked: RatingOrder
) -> list[dict[str, Any]]:
    """Rates scopes one after the other, or on the cluster all at once. Raises as :func:`load_shards`."""
    address = dask_address()
    if address and len(scopes) > 1:
        reports: list[dict[str, Any]] = _on(_rate, address)(store, scopes, asked)
        return reports
    return [rate_scope(store, scope, excluded, asked) for scope, excluded in scopes]


def _on(spread: Any, address: str) -> Any:
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ModuleNotFoundError:
        raise SettingError(
            f"{DASK_ENV} names a cluster and prefect-dask is not installed", hint="pip install 'fallow[dask]'"
        ) from None
    return spread.with_options(task_runner=DaskTaskRunner(address=address))
