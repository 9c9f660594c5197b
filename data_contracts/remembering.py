"""What a check remembers for the next one: a control-plane event with numbers and no text (SPEC §13)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from fallow.model.times import FUTURE_TOLERANCE, parse_time, wall_clock
from fallow.port.journal import SHARED, content_of, control_event
from fallow.port.journal_writing import insert_control_rows
from fallow.port.protocol import Provider

if TYPE_CHECKING:
    from fallow.data_contracts.checking import ContractReport

EVENT: Final = "contracts_checked"
ACCEPTED: Final = "contracts_accepted"
_MOST: Final = 2**53


def last_metrics(provider: Provider) -> dict[str, dict[str, float]]:
    """Each type's numbers at the last recorded check, or when somebody accepted a change; empty at first.

    Anybody who can write to the store can write such an event: what is no number, or from the future, counts for
    nothing.
    """
    found: dict[str, dict[str, float]] = {}
    for payload in _payloads(provider, {EVENT, ACCEPTED}):
        metrics = payload.get("metrics")
        if isinstance(metrics, Mapping):
            found = {
                str(name): kept for name, raw in metrics.items() if (kept := _numbers(raw)).get("rows") is not None
            }
    return found


def last_failures(provider: Provider) -> dict[str, int] | None:
    """Failures by rule at the last recorded check, what a trend is drawn from; None where there was none."""
    found: dict[str, int] | None = None
    for payload in _payloads(provider, {EVENT}):
        found = {name: int(count) for name, count in _numbers(payload.get("failures")).items()}
    return found


def _payloads(provider: Provider, events: Collection[str]) -> list[Mapping[str, Any]]:
    """What these events carry, the oldest first."""
    told: list[tuple[int, str, Mapping[str, Any]]] = []
    latest = wall_clock() + FUTURE_TOLERANCE
    for row in provider.find(SHARED, "learn-evt-"):
        content = content_of(row)
        payload, at = content.get("payload"), parse_time(content.get("created_at"))
        if content.get("event_type") in events and isinstance(payload, Mapping) and at is not None and at <= latest:
            told.append((at, str(row.get("_id")), payload))
    return [payload for _, _, payload in sorted(told, key=lambda item: item[:2])]


def _numbers(raw: Any) -> dict[str, float]:
    """The entries that are numbers from 0 on and of a size that counts can have."""
    if not isinstance(raw, Mapping):
        return {}
    return {
        str(name): value
        for name, value in raw.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    }


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
