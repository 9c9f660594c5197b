"""What a check remembers for the next one: a control-plane event with numbers and no text (SPEC §13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fallow.history import insert_control_rows
from fallow.journal import SHARED, content_of, control_event
from fallow.provider import Provider

if TYPE_CHECKING:
    from data_contracts.checking import ContractReport

EVENT: Final = "contracts_checked"
ACCEPTED: Final = "contracts_accepted"


def last_metrics(provider: Provider) -> dict[str, dict[str, Any]]:
    """Each type's numbers at the last recorded check, or when somebody accepted a change; empty at first."""
    latest: tuple[str, dict[str, dict[str, Any]]] = ("", {})
    for row in provider.find(SHARED, "learn-evt-"):
        content = content_of(row)
        if content.get("event_type") not in {EVENT, ACCEPTED}:
            continue
        payload, at = content.get("payload"), str(content.get("created_at"))
        found = payload.get("metrics") if isinstance(payload, Mapping) else None
        if isinstance(found, Mapping) and at >= latest[0]:
            usable = {
                str(name): dict(metrics)
                for name, metrics in found.items()
                if isinstance(metrics, Mapping) and isinstance(metrics.get("rows"), int)
            }
            latest = (at, usable)
    return latest[1]


def last_failures(provider: Provider) -> dict[str, int] | None:
    """Failures by rule at the last recorded check, what a trend is drawn from; None where there was none."""
    latest: tuple[str, dict[str, int] | None] = ("", None)
    for row in provider.find(SHARED, "learn-evt-"):
        content = content_of(row)
        payload, at = content.get("payload"), str(content.get("created_at"))
        if content.get("event_type") == EVENT and isinstance(payload, Mapping) and at >= latest[0]:
            failures = payload.get("failures")
            latest = (at, dict(failures) if isinstance(failures, Mapping) else {})
    return latest[1]


def record_check(provider: Provider, report: ContractReport, *, now: int, accepted_by: str | None = None) -> None:
    """Remembers a check as a control-plane event: what the next one is held against.

    While a must over a set is broken, the numbers of the last good check stay the measure, until somebody accepts
    the new ones: what vanished overnight is not forgotten the night after.
    """
    refused = any(item.refuses for item in report.findings)
    event = ACCEPTED if accepted_by else EVENT
    kept = {
        name: {
            key: value
            for key, value in metrics.items()
            if key == "rows" or (key.endswith("_share") and value is not None)
        }
        for name, metrics in report.metrics.items()
    }
    payload: dict[str, Any] = {
        "state": report.state,
        "contracts_sha256": report.digest,
        "failures": {item.name: item.failures for item in report.broken},
        "accepted_by": accepted_by,
    }
    if accepted_by or not refused:
        payload["metrics"] = kept
    insert_control_rows(provider, [control_event(event, f"contracts:{event}:{now}", payload, now=now)])
