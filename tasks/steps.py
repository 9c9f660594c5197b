"""What every task shares: how a step is declared, which faults are tried again, how a store is opened in a run.

Readers and writers of a store are never cached: what they saw may have changed. Whether a step is tried
again follows from the error's class alone (:class:`~fallow.model.errors.TransientError`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import exponential_backoff
from prefect.variables import Variable

from fallow.model.errors import SettingError, TransientError
from fallow.model.settings import configured_stores, resolve, without_secrets
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider

P = ParamSpec("P")
R = TypeVar("R")

#: The Prefect variable that is the pipeline's settings page (SPEC §6.1).
VARIABLE: Final = "fallow_settings"
_RETRIES: Final = 4


def may_pass(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """Whether a failed step is worth another try: a busy or briefly absent store, nothing else."""
    return isinstance(state.result(raise_on_failure=False), TransientError)


def step(name: str) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Declares a task over a store: coarse, idempotent, never cached, tried again where that can help."""
    return task(
        name=name,
        retries=_RETRIES,
        retry_delay_seconds=exponential_backoff(backoff_factor=1),
        retry_jitter_factor=0.5,
        retry_condition_fn=may_pass,
        cache_policy=NO_CACHE,
        persist_result=False,
    )


def settings_variable() -> Mapping[str, Any]:
    """The variable ``fallow_settings``; empty where nobody has set it.

    Raises:
        SettingError: its value is no object. Nothing is planned by guessed settings.
    """
    value: Any = Variable.get(VARIABLE, default=None)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = False
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingError(
            f"the Prefect variable {VARIABLE} is not a JSON object",
            hint='such as {"retention": {"enabled": true}}; fallow settings lists the names',
        )
    return value


def address_of(store: str | None) -> str:
    """The address that a run's ``store`` parameter stands for.

    None is the one store that the worker is configured with. A configured store may be named without its
    password (:func:`fallow.model.settings.without_secrets`), so that no parameter of a run ever holds one.

    Raises:
        SettingError: none is named and none, or more than one, is configured.
    """
    if store is not None and store.strip():
        try:
            known = configured_stores()
        except SettingError:
            known = ()
        return next((item for item in known if without_secrets(item) == store.strip()), store.strip())
    known = configured_stores()
    if len(known) > 1:
        raise SettingError("several stores are configured", hint="name one in the parameter store")
    return known[0]


def stores_named(store: str | None) -> tuple[str, ...]:
    """The stores of a run: the one named, else every configured one, without its password (SPEC §6.1).

    Raises:
        SettingError: none is named and none is configured.
    """
    if store is not None and store.strip():
        return (store.strip(),)
    return tuple(without_secrets(address) for address in configured_stores())


def open_store(store: str | None, options: Mapping[str, Any] | None = None) -> Provider:
    """The store of a run, with the naive zones that the settings give. Raises as :func:`open_provider`."""
    zones = resolve(options, variable=settings_variable()).naive_timezone
    return open_provider(address_of(store), zones)
