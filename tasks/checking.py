"""The step that holds a store against its contracts, with a second opinion (SPEC §13, DESIGN §7)."""

from __future__ import annotations

from typing import Any

from fallow.tasks.showing import write_file
from fallow.tasks.steps import open_store, step

from fallow.model.times import wall_clock
from fallow.port.gate import contracts


@step("check the contracts")
def check_store(store: str | None, as_of: int, second_opinion: bool) -> dict[str, Any]:
    """Checks a store, remembers the outcome for the next check, and keeps Great Expectations' own answer as a file.

    The answer names for every broken rule what it counted the last time, and what refuses every scope.
    """
    shipped = contracts()
    with open_store(store) as provider:
        before = shipped.last_failures(provider)
        report = shipped.check_contracts(provider, as_of=as_of, keep_frames=second_opinion)
        opinion = shipped.ask_great_expectations(report, as_of=as_of) if second_opinion else None
        shipped.record_check(provider, report, now=wall_clock())
    told: dict[str, Any] = report.to_json()
    for item, finding in zip(told["findings"], report.findings, strict=True):
        item["before"] = None if before is None else before.get(finding.name, 0)
    told["refusals"] = [shipped.refusal(item) for item in report.broken if item.refuses]
    told["second_opinion"] = None if opinion is None else opinion.to_json()
    told["raw_file"] = ""
    if opinion is not None and opinion.raw:
        told["raw_file"] = write_file(f"great-expectations-{opinion.raw_sha256[:16]}.json", opinion.raw)
    return told
