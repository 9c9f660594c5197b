"""What people are shown of reports, contracts and what is hidden (SPEC §9, §13).

Only text is made here, from plans and reports. Ids and names come from stores and may hold anything, so
everything is escaped before it stands in Markdown.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fallow.model.settings import without_secrets
from fallow.showing.inbox import until
from fallow.showing.markdown import escaped, markdown_table
from fallow.usecases.desk import MAX_ROWS
from fallow.usecases.suppressed import Suppressed

#: Broken rules that a contract page lists for a store.
MAX_BROKEN: Final = 50


def suppressed_rows(found: Sequence[Suppressed]) -> list[dict[str, Any]]:
    """The latest suppressions as rows of a table artifact.

    The first two columns are called as the fields of the restore deployment's form, and hold what they take: a
    page shows three columns before one has to scroll.
    """
    return [
        {
            "records": f"{item.memory_type}:{item.record_id}",
            "plan_id": item.suppressed_by,
            "why": item.reason,
            "when": item.suppressed_at,
            "approver": item.approver,
            "standing": item.standing,
            "agent_id": item.agent_id,
            "memory_id": item.memory_id,
        }
        for item in found[:MAX_ROWS]
    ]


def report_page(title: str, report: Mapping[str, Any]) -> str:
    """What became of every record of an apply or a restore, as its report has it (SPEC §16.1)."""
    rows = [("done now", report["applied"]), ("done before", report["already"])]
    rows += [(f"skipped, {why}", len(ids)) for why, ids in report["skipped"].items()]
    rows += [(f"failed, {why}", len(ids)) for why, ids in report["failed"].items()]
    rows += [("unknown", len(report["unknown"]))] if report["unknown"] else []
    rows += [("left out by the approver", len(report["left_out"]))] if report.get("left_out") else []
    # The plan's id stands in the text: a heading that long runs out of its column.
    parts = [f"# {report['state']}", escaped(title), markdown_table(("what became of it", "records"), rows)]
    for what in ("skipped", "failed"):
        for why, ids in report[what].items():
            shown = ", ".join(escaped(name) for name in ids[:20])
            parts.append(f"{what}, {escaped(why)}: {shown}{', …' if len(ids) > 20 else ''}")
    if report.get("approved_by"):
        parts.append(f"Approved by {escaped(report['approved_by'])} ({escaped(report['standing'])}).")
    return "\n\n".join(parts)


def data_url(picture: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def contracts_page(reports: Mapping[str, Mapping[str, Any]], as_of: int) -> str:
    """What every store's contract check found: the broken rules, the trend, and the second opinion (SPEC §13)."""
    parts = [f"# Data contracts as of {until(as_of)}"]
    for name, report in reports.items():
        broken = [item for item in report["findings"] if item["failures"]]
        parts.append(f"## {escaped(without_secrets(name))}: {report['state']}")
        parts += [f"**No scope may be planned.** {escaped(says)}" for says in report["refusals"]]
        parts.append(f"{len(report['findings'])} rules were checked, {len(broken)} are broken.")
        if broken:
            shown = sorted(broken, key=lambda item: (item["severity"], -item["failures"]))[:MAX_BROKEN]
            parts.append(
                markdown_table(
                    ("table", "rule", "severity", "rows", "failures", "last time", "first"),
                    [
                        (
                            item["table"],
                            item["sentence"],
                            item["severity"],
                            item["rows"],
                            item["failures"],
                            "first check" if item["before"] is None else item["before"],
                            ", ".join(item["first_ids"][:3]),
                        )
                        for item in shown
                    ],
                )
            )
            if len(shown) < len(broken):
                parts.append(f"{len(broken) - len(shown)} more broken rules are in the table.")
        opinion = report["second_opinion"]
        if opinion is not None:
            parts.append(
                f"Second opinion by Great Expectations: {opinion['agreeing']} rules counted alike, "
                f"{len(opinion['differing'])} differently, {len(opinion['errors'])} not answered. "
                f"Its own answer: `{report['raw_file'] or 'not kept'}`, SHA-256 `{opinion['raw_sha256']}`."
            )
            parts += [
                f"- error: {escaped(rule)}: {escaped(text)}" for rule, text in list(opinion["errors"].items())[:20]
            ]
            parts += [
                f"- {escaped(rule)}: {both['polars']} here, {both['gx']} there"
                for rule, both in list(opinion["differing"].items())[:20]
            ]
    return "\n\n".join(parts)


def contracts_rows(reports: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Provider x rule as a table, the broken first; cut at :data:`MAX_ROWS` rows."""
    rows = [
        {
            "store": without_secrets(name),
            "table": item["table"],
            "rule": item["rule"],
            "severity": item["severity"],
            "rows": item["rows"],
            "failures": item["failures"],
            "last time": item["before"],
            "first ids": ", ".join(item["first_ids"][:3]),
        }
        for name, report in reports.items()
        for item in report["findings"]
    ]
    rows.sort(key=lambda row: (row["failures"] == 0, row["severity"]))
    return rows[:MAX_ROWS]
