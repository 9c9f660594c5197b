"""Named end states and events of the flows around a plan (SPEC §15)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fallow.tasks.asking import Standing
from fallow.tasks.showing import show_report
from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from fallow.model.settings import without_secrets

_DECIDED: Final[Mapping[str, str]] = {
    "rejected": "Rejected",
    "expired": "Expired",
    "superseded": "Superseded",
    "planned": "Expired",
}


def tell(event: str, subject: str, name: str, payload: Mapping[str, Any]) -> None:
    """Emits an event and logs it as one line of ``key=value`` pairs: counts and ids, no memory text.

    Args:
        event: its name, such as ``fallow.plan.applied``.
        subject: what it is about, as Prefect's resource ids are written.
        name: the subject as people call it.
        payload: what happened; the flow run's id is added, and in the event also the run's own resources.
    """
    whole = {**payload, "flow_run_id": flow_run.id or ""}
    emit_event(event, resource={"prefect.resource.id": subject, "prefect.resource.name": name}, payload=whole)
    get_run_logger().info(log_line(event, whole))


def log_line(event: str, payload: Mapping[str, Any]) -> str:
    """``event=… key=value …``; what is not one plain word is written as JSON, on one line."""
    return " ".join([f"event={event}", *(f"{name}={_word(value)}" for name, value in payload.items())])


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if re.fullmatch(r"[\w.:/@+-]+", text) else json.dumps(text, ensure_ascii=True)


def announce(what: str, plan_id: str, store: str | None, counts: Mapping[str, Any] | None = None) -> None:
    """Emits ``fallow.plan.<what>`` with its counts, for automations and for whoever counts."""
    payload = {"plan_id": plan_id, "store": without_secrets(store or ""), **(counts or {})}
    tell(f"fallow.plan.{what}", f"fallow.plan.{plan_id}", plan_id, payload)


def announce_breach(store: str | None, sentences: Sequence[str]) -> None:
    """Emits ``fallow.contracts.breach``: what of a store as a whole breaks its contract."""
    name = without_secrets(store or "the configured store")
    broken = list(dict.fromkeys(sentences))
    payload = {"store": name, "broken": broken[:20], "number": len(broken)}
    tell("fallow.contracts.breach", f"fallow.store.{name}", name, payload)


def counts_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of an apply's or a restore's report, for its event (SPEC §16.1)."""
    return {
        "applied": report["applied"],
        "already": report["already"],
        "skipped": {why: len(ids) for why, ids in report["skipped"].items()},
        "failed": {why: len(ids) for why, ids in report["failed"].items()},
        "unknown": len(report["unknown"]),
        "left_out": len(report.get("left_out") or ()),
        "approved_by": report.get("approved_by") or "",
    }


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
    announce("partially-applied" if failed else name.lower(), plan_id, store, counts_of(report))
    if name == "PartiallyApplied":
        return Failed(name=name, message=message)
    return Completed(name="Expired" if name == "Closed" else name, message=message)


def decided_state(plan_id: str, standing: Standing) -> State[Any]:
    """The state of a run whose plan nobody may apply."""
    by = f" by {standing.by}" if standing.by else ""
    why = f": {standing.reason}" if standing.reason else ""
    return Completed(name=_DECIDED[standing.state], message=f"{plan_id} was {standing.state}{by}{why}")
