"""What people are shown: the form's text, the plan's page and table, the reports (SPEC §6.5, §7.1).

Only text is made here, from plans and reports. Ids and names come from stores and may hold anything, so
everything is escaped before it stands in Markdown.
"""

from __future__ import annotations

import base64
import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fallow.judgement.policy import policy_advice
from fallow.judgement.words import MEANINGS, called
from fallow.model.keys import RecordKey
from fallow.model.settings import without_secrets
from fallow.model.times import iso
from fallow.plans.plan import PlanEntry, RetentionPlan
from fallow.showing.risk import risk_lines
from fallow.usecases.effect import effect_lines
from fallow.usecases.suppressed import Suppressed

#: A table artifact of more rows is dropped by Prefect's event log and shown empty by its UI.
MAX_ROWS: Final = 500
_LOWEST: Final = 10
#: Below this share of recalled records the page says what that may mean.
_HARDLY: Final = 0.05
#: Broken rules that a contract page lists for a store.
MAX_BROKEN: Final = 50
_MARKS: Final = str.maketrans({mark: "\\" + mark for mark in "\\`*_{}[]()#+!|~"})


#: What renderers turn into links by themselves: addresses with a scheme, www and mail.
_LINKS: Final = (
    (re.compile(r":(?=//)"), "&colon;"),
    (re.compile(r"(?i)(?<=www)\."), "&period;"),
    (re.compile(r"@"), "&commat;"),
)


def escaped(value: Any) -> str:
    """A stored text as one harmless line of Markdown: no markup, HTML or link, no line end, no invisible character."""
    flat = "".join(char if char.isprintable() else "·" for char in " ".join(str(value).split()))
    shown = html.escape(flat, quote=False).translate(_MARKS)
    for pattern, entity in _LINKS:
        shown = pattern.sub(entity, shown)
    return shown


def _short(instant: str) -> str:
    return f"{instant[:16].replace('T', ' ')} UTC"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; its cells are escaped here."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def sentence(plan: RetentionPlan) -> str:
    """The plan in one sentence."""
    return (
        f"**{len(plan.entries)} of {plan.counts['scanned']} records** of {escaped(plan.scope.label)} "
        f"would be suppressed, as of {_short(str(plan.document['as_of']))}. "
        "Nothing is deleted, and every record can be restored."
    )


def lowest(plan: RetentionPlan, texts: Mapping[RecordKey, str] | None) -> str:
    """The lowest records with their reasons, and excerpts where they may be shown (SPEC §14).

    A list: the form is too narrow for a table.
    """
    return "\n".join(_line(entry, texts) for entry in plan.entries[:_LOWEST])


def _line(entry: PlanEntry, texts: Mapping[RecordKey, str] | None) -> str:
    """One record, named as ``leave_out`` takes it."""
    text = escaped((texts or {}).get(entry.key, ""))
    name = escaped(f"{entry.memory_type}:{entry.record_id}")
    return f"1. **{name}** {plain_reason(entry)}" + (f" *{text}*" if text else "")


def plain_reason(entry: PlanEntry) -> str:
    """Why a record is in a plan, as one would say it."""
    age = f"{entry.age_days:.0f} days old"
    used = (
        "never recalled"
        if not entry.access_count
        else f"recalled {entry.access_count} {'time' if entry.access_count == 1 else 'times'}"
    )
    return f"{age}, {used}, importance {entry.importance:.2f}: worth {entry.retention:.3f}"


def form_text(plan: RetentionPlan, texts: Mapping[RecordKey, str] | None, expires_at: int, refusal: str) -> str:
    """What stands above the approval form."""
    parts = [f"**Your last answer was not taken: {escaped(refusal)}.** Nothing was written."] if refusal else []
    parts += [f"Plan `{plan.plan_id}`", sentence(plan)]
    if plan.wide:
        share = plan.document["blast_radius"]["share"]
        parts.append(f"**This hides {share:.0%} of its scope**: look twice.")
    if "risk" in plan.document:
        parts += [escaped(line) for line in risk_lines(plan.document["risk"], plan.counts["over_risk"])[:2]]
    parts += [
        (
            f"To approve, repeat the number of records planned: {len(plan.entries)}. "
            f"The answer is taken until {_short(iso(expires_at))}."
        ),
        f"The {min(_LOWEST, len(plan.entries))} lowest of {len(plan.entries)}:",
        lowest(plan, texts),
    ]
    return "\n\n".join(parts)


def plan_page(
    plan: RetentionPlan,
    texts: Mapping[RecordKey, str] | None,
    expires_at: int,
    picture: bytes,
    file: str,
    links: Mapping[str, str] | None = None,
    effect: Mapping[str, Any] | None = None,
) -> str:
    """The plan's page, for somebody who has two minutes: what, how much, why, how sure (SPEC §6.5).

    Args:
        plan: the plan.
        texts: excerpts of the lowest records, where they may be shown.
        expires_at: until when it waits, microseconds.
        picture: the distribution of retention, a PNG.
        file: the address of the complete plan, or "".
        links: addresses in the UI by what they lead to.
        effect: what retrieval loses (SPEC §7.1), as a document; None where nobody looked.
    """
    number = len(plan.entries)
    parts = [
        f"# Retention plan: {escaped(plan.scope.label)}",
        sentence(plan),
        (
            f"It waits for its approval until {_short(iso(expires_at))}. Unanswered, it hides nothing. "
            f"To answer: the run's menu with three dots, Resume; or `fallow approve {plan.plan_id}`. "
            f"To approve, repeat the number of records planned: **{number}**."
        ),
    ]
    if plan.wide:
        share = plan.document["blast_radius"]["share"]
        parts.append(
            f"**Wide: it hides {share:.0%} of its scope**, above the limit set for a plan. A first plan over an old "
            "store is like that, and so is one after ratings were lost. Look twice."
        )
    parts += ["## The numbers", _numbers(plan), "## Protected, and why", _protected(plan)]
    parts += [
        f"## The {min(_LOWEST, number)} lowest",
        "Any of them can be left out, by the name in bold.",
        lowest(plan, texts),
        "## How sure we are",
        *_sureness(plan),
    ]
    if picture:
        parts.append(f"![how retention spreads, and where the cut is]({data_url(picture)})")
    if "risk" in plan.document:
        parts.append("## Risk")
        parts += [escaped(line) for line in risk_lines(plan.document["risk"], plan.counts["over_risk"])]
    if effect:
        parts += ["## What retrieval loses, and what comes back", *_effect(effect)]
    parts += [
        "## Policy",
        markdown_table(
            ("setting", "value", "from"),
            [(name, _plain(item["value"]), item["origin"]) for name, item in plan.document["policy"].items()],
        ),
    ]
    for title, names in (
        ("Agents that switched retention off, left out", plan.document["agents"]["left_out"]),
        ("Agents whose own policy differs from this one", plan.document["agents"]["differing"]),
        ("Settings found but not used", plan.document["settings_problems"]),
    ):
        if names:
            parts.append(f"{title}: " + ", ".join(escaped(name) for name in names) + ".")
    parts += ["## More"]
    parts += [f"[{name}]({address})" for name, address in (links or {}).items()]
    parts += [
        f"The complete plan: `{file}`" if file else "The complete plan is in the store.",
        f"`fallow show {plan.plan_id}` lists every record; `fallow explain RECORD_ID` says why one is (not) here.",
        f"Plan `{plan.plan_id}`, SHA-256 `{plan.document_sha256}`.",
    ]
    return "\n\n".join(parts)


def _effect(effect: Mapping[str, Any]) -> list[str]:
    """The effect preview: sentences, and the records that an approver may want to leave out."""
    parts = [escaped(line) for line in effect_lines(effect)]
    losses = [
        (f"{item['memory_type']}:{item['record_id']}", item["probes"], ", ".join(item["only_answer_of"][:3]))
        for item in effect["losses"][:_LOWEST]
    ]
    if losses:
        parts.append(markdown_table(("record to look at", "questions it answers now", "only answer of"), losses))
    return parts


def _numbers(plan: RetentionPlan) -> str:
    counts = plan.counts
    rows = [
        ("records in scope", counts["scanned"]),
        ("old enough and below the cut, unprotected", counts["eligible"]),
        ("in this plan", counts["planned"]),
        ("deferred to a later plan by the cap", counts["deferred"]),
    ]
    if "over_risk" in counts:
        rows.append(("kept by the risk budget", counts["over_risk"]))
    if counts["changed_while_planning"]:
        rows.append(("changed while this was planned, left out", counts["changed_while_planning"]))
    types = Counter(entry.memory_type for entry in plan.entries)
    rows += [(f"of these in {name}", number) for name, number in types.most_common()]
    agents = Counter(entry.agent_id or "nobody" for entry in plan.entries)
    if len(agents) > 1:
        rows += [(f"of these owned by {name}", number) for name, number in agents.most_common(10)]
    return markdown_table(("", "records"), rows)


def _protected(plan: RetentionPlan) -> str:
    held = [(reason, number) for reason, number in plan.counts["protected"].items() if number]
    if not held:
        return "Nothing that is old and low enough is protected."
    held.sort(key=lambda item: -item[1])
    return markdown_table(
        ("old and low enough, but", "records", ""),
        [(called(reason), number, MEANINGS[reason]) for reason, number in held],
    )


def _sureness(plan: RetentionPlan) -> list[str]:
    """Coverage, contracts and broken values, each with what it means for the decision."""
    coverage = plan.document["coverage"]
    said = [
        f"- Rated: **{coverage['rated']:.0%}** of the records."
        + (" The others count with the default, so age and use decide." if coverage["rated"] < 1 else ""),
        f"- Ever recalled: **{coverage['accessed']:.0%}**."
        + (
            " Hardly any: either nothing is needed, or the agent does not record its reads."
            if coverage["accessed"] < _HARDLY
            else ""
        ),
        (
            f"- Recency is used up (below 0.01) for **{coverage['recency_below_0.01']:.0%}**. A record that was never "
            f"recalled falls below the cut when its importance is under **{coverage['effective_importance_cut']:.2f}**."
        ),
    ]
    advice = policy_advice(coverage["rated"], plan.policy("formula", "mean"), plan.policy("weights", (1, 1, 1)))
    said += [f"- {escaped(advice)}."] if advice else []
    contracts = plan.document.get("contracts")
    if not contracts:
        said.append("- Data contracts: not checked.")
    else:
        broken = contracts["broken"]
        said.append(
            f"- Data contracts: {contracts['rules']} rules, "
            + ("all hold." if not broken else f"**{len(broken)} broken** ({escaped(contracts['state'])}): ")
            + ", ".join(f"{escaped(name)} {number}" for name, number in sorted(broken.items())[:_LOWEST])
            + (", …" if len(broken) > _LOWEST else "")
        )
        if contracts["quarantined"]:
            said.append(f"- Kept out of the plan by a contract: {escaped(_plain(contracts['quarantined']))}")
    breaches = plan.counts["breaches"]
    said.append(
        "- Values out of their range, which count as absent: "
        + (", ".join(f"{escaped(name)} {number}" for name, number in breaches.items()) or "none")
        + "."
    )
    return ["\n".join(said)]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {item}" for name, item in value.items()) or "none"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def plan_rows(entries: Sequence[PlanEntry]) -> list[dict[str, Any]]:
    """The lowest records as rows of a table artifact."""
    names = ("record_id", "memory_type", "retention", "importance", "usage", "recency", "age_days", "access_count")
    return [{**{name: getattr(entry, name) for name in names}, "reason": entry.reason} for entry in entries[:MAX_ROWS]]


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


def distribution_picture(plan: RetentionPlan) -> bytes:
    """How the retention of the scope's visible records spreads, as a PNG; the cut is marked."""
    import vl_convert

    counts = plan.document["distribution"]
    width = 1 / len(counts)
    bars = [
        {"from": round(number * width, 6), "to": round((number + 1) * width, 6), "records": count}
        for number, count in enumerate(counts)
    ]
    spread = {"field": "from", "type": "quantitative", "bin": "binned", "title": "retention"}
    picture: bytes = vl_convert.vegalite_to_png(
        {
            "width": 520,
            "height": 160,
            "layer": [
                {
                    "data": {"values": bars},
                    "mark": {"type": "bar", "color": "#4c78a8"},
                    "encoding": {
                        "x": {**spread, "scale": {"domain": [0, 1]}},
                        "x2": {"field": "to"},
                        "y": {"field": "records", "type": "quantitative", "title": "visible records"},
                    },
                },
                {
                    "data": {"values": [{"cut": plan.policy("min_retention")}]},
                    "mark": {"type": "rule", "color": "#e45756", "size": 2},
                    "encoding": {"x": {"field": "cut", "type": "quantitative"}},
                },
            ],
        }
    )
    return picture


def data_url(picture: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def contracts_page(reports: Mapping[str, Mapping[str, Any]], as_of: int) -> str:
    """What every store's contract check found: the broken rules, the trend, and the second opinion (SPEC §13)."""
    parts = [f"# Data contracts as of {_short(iso(as_of))}"]
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
