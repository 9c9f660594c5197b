"""Named end states and events of the flows around a plan (SPEC §15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.states import Completed, Failed

from fallow.settings import without_secrets
from tasks.asking import Standing
from tasks.showing import show_report

_DECIDED: Final[Mapping[str, str]] = {
    "rejected": "Rejected",
    "expired": "Expired",
    "superseded": "Superseded",
    "planned": "Expired",
}


def announce(what: str, plan_id: str, store: str | None) -> None:
    """Emits ``fallow.plan.<what>``, for automations."""
    emit_event(
        f"fallow.plan.{what}",
        resource={"prefect.resource.id": f"fallow.plan.{plan_id}", "prefect.resource.name": plan_id},
        payload={"plan_id": plan_id, "store": without_secrets(store or "")},
    )


def announce_breach(store: str | None, sentences: Sequence[str]) -> None:
    """Emits ``fallow.contracts.breach``: what of a store as a whole breaks its contract."""
    name = without_secrets(store or "the configured store")
    emit_event(
        "fallow.contracts.breach",
        resource={"prefect.resource.id": f"fallow.store.{name}", "prefect.resource.name": name},
        payload={"store": name, "broken": list(dict.fromkeys(sentences))[:20]},
    )


def applied_state(store: str | None, report: Mapping[str, Any]) -> State[Any]:
    """Shows an apply's report and gives the state that the run ends in."""
    plan_id, name = str(report["plan_id"]), str(report["state"])
    show_report(store, f"{plan_id}: {name}", "retention-report", report)
    skipped = sum(len(ids) for ids in report["skipped"].values())
    failed = sum(len(ids) for ids in report["failed"].values()) + len(report["unknown"])
    message = (
        f"{plan_id}: {report['applied']} suppressed now, {report['already']} before, {skipped} skipped, "
        f"{failed} failed, {len(report['left_out'])} left out; "
        f"approved by {report['approved_by']} ({report['standing']})"
    )
    announce("partially-applied" if failed else name.lower(), plan_id, store)
    if name == "PartiallyApplied":
        return Failed(name=name, message=message)
    return Completed(name="Expired" if name == "Closed" else name, message=message)


def decided_state(plan_id: str, standing: Standing) -> State[Any]:
    """The state of a run whose plan nobody may apply."""
    by = f" by {standing.by}" if standing.by else ""
    why = f": {standing.reason}" if standing.reason else ""
    return Completed(name=_DECIDED[standing.state], message=f"{plan_id} was {standing.state}{by}{why}")
