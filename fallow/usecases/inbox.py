"""Every plan that waits for its approver, over several stores (SPEC §16 ``review``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fallow.model.errors import FallowError
from fallow.model.settings import without_secrets
from fallow.plans.storage import StoredPlan, list_plans
from fallow.port.protocol import Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A plan that waits.

    Attributes:
        address: its store as it is opened; it may hold a password and is never shown.
        store: the same without one.
        plan: the plan's head.
    """

    address: str
    store: str
    plan: StoredPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """What waits, the newest first, and the stores that could not be asked, with the reason."""

    waiting: tuple[Waiting, ...]
    unasked: tuple[tuple[str, str], ...]


def open_plans(addresses: Iterable[str], opening: Callable[[str], Provider], now: int) -> Inbox:
    """Lists the open plans of several stores. One that cannot be read is named and hides no other.

    Args:
        addresses: the stores.
        opening: opens one.
        now: microseconds; a plan whose time has passed waits no more.
    """
    waiting: list[Waiting] = []
    unasked: list[tuple[str, str]] = []
    for address in addresses:
        store = without_secrets(address)
        try:
            with opening(address) as provider:
                found = list_plans(provider, now)
        except FallowError as error:
            unasked.append((store, error.message))
            continue
        waiting += [Waiting(address=address, store=store, plan=plan) for plan in found if plan.state == "open"]
    waiting.sort(key=lambda item: (-(item.plan.published_at or item.plan.planned_at), item.plan.plan_id))
    return Inbox(waiting=tuple(waiting), unasked=tuple(unasked))
