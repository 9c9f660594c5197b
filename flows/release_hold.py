"""release-hold: let records go that somebody held (SPEC §6.3)."""

from __future__ import annotations

from typing import Annotated, Any

from fallow.tasks.applying import release
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field


@flow(name="release-hold", flow_run_name="release {hold_id} for {released_by}", persist_result=False)
def release_hold(
    hold_id: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^\s*[0-9a-f]{16}\s*$")],
    released_by: Annotated[str, Field(min_length=1, max_length=240, pattern=r"\S")],
    reason: Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")],
    store: str = "",
) -> State[Any]:
    """Ends a hold: the records that it kept can be planned again. No record changes; again, nothing changes.

    Args:
        hold_id: The hold, as fallow hold list shows it.
        released_by: Who lets the records go; FALLOW_APPROVERS says who may.
        reason: Why.
        store: Address of the store; empty means the one that the worker is configured with.
    """
    hold = release(store.strip() or None, hold_id.strip(), released_by, reason)
    return Completed(
        name="Applied",
        message=f"hold {hold['hold_id']} of {hold['owner']} was released by {hold['released_by']} ({hold['standing']})",
    )
