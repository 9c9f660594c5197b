"""The step that keeps the inbox: one page of every plan that waits, over all agents and stores."""

from __future__ import annotations

from fallow.tasks.addresses import OPEN_PLANS, run_address
from fallow.tasks.steps import open_store, step, stores_named
from prefect.artifacts import create_markdown_artifact

from fallow.model.errors import SettingError
from fallow.model.settings import configured_stores
from fallow.model.times import wall_clock
from fallow.showing.inbox import inbox_page
from fallow.usecases.inbox import open_plans


@step("show what waits")
def show_open_plans(store: str | None) -> int:
    """Writes the inbox anew: the configured stores, and the one that this run is about.

    Returns:
        How many plans wait.
    """
    names = list(stores_named(store))
    try:
        configured_stores()
    except SettingError:
        pass
    else:
        names += stores_named(None)
    inbox = open_plans(dict.fromkeys(names), open_store, wall_clock())
    page = inbox_page(inbox, lambda item: run_address(item.plan.flow_run_id) if item.plan.flow_run_id else "")
    create_markdown_artifact(page, key=OPEN_PLANS, description=f"{len(inbox.waiting)} waiting")
    return len(inbox.waiting)
