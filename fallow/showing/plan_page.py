"""The plan's page, risk first, for somebody who has two minutes (SPEC §7.1), and what stands above the form.

Ids, names and excerpts come from stores and may hold anything: all is escaped before it stands in Markdown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fallow.judgement.policy import policy_advice
from fallow.judgement.words import MEANINGS, called, notices, scale_words
from fallow.model.keys import RecordKey
from fallow.plans.plan import PlanEntry, RetentionPlan
from fallow.showing.facts import NEAR, asked, at_stake, counted, since_last, visible, whose
from fallow.showing.inbox import until
from fallow.showing.markdown import escaped, markdown_table
from fallow.showing.risk import risk_lines
from fallow.usecases.desk import MAX_ROWS, Desk
from fallow.usecases.effect import effect_lines

_LOWEST: Final = 10
#: Records of a kind that the page asks to look at first.
_FIRST: Final = 5
#: Characters of the page that its rows may take; the rest is in the table artifact and in the store.
_ROOM: Final = 22_000
#: Below this share of recalled records the page says what that may mean.
_HARDLY: Final = 0.05


def sentence(plan: RetentionPlan) -> str:
    """The plan in one sentence."""
    return f"**{escaped(asked(plan))}** As of {until(plan.as_of)}."


def plain_reason(entry: PlanEntry) -> str:
    """Why a record is in a plan, as one would say it."""
    age = f"{entry.age_days:.0f} days old"
    used = f"recalled {counted(entry.access_count, 'time')}" if entry.access_count else "never recalled"
    return f"{age}, {used}, importance {entry.importance:.2f}: worth {entry.retention:.3f}"


def _line(entry: PlanEntry, texts: Mapping[RecordKey, str] | None) -> str:
    """One record, named as ``leave_out`` takes it, with its excerpt where that may be shown (SPEC §14)."""
    text = escaped((texts or {}).get(entry.key, ""))
    name = escaped(f"{entry.memory_type}:{entry.record_id}")
    return f"1. **{name}** {plain_reason(entry)}" + (f" *{text}*" if text else "")


def _lines(entries: Sequence[PlanEntry], texts: Mapping[RecordKey, str] | None) -> str:
    return "\n".join(_line(entry, texts) for entry in entries)


def form_text(lying: Desk, page: str = "") -> str:
    """What stands above the approval form where the interface shows it: short, so that the fields stay in sight.

    V1 of Prefect's interface gives it no height, and in V2 the fields come after it: whatever a decision needs
    stands in the fields.
    """
    link = f"[The page]({page})" if page else "The page"
    first = "".join(f"**{escaped(line)}** " for line in notices(lying.plan.document))
    return first + (
        f"Plan `{lying.plan.plan_id}`, until {until(lying.stored.expires_at)}. "
        f"{link} has the rows, what changed and the settings."
    )


def plan_page(lying: Desk, picture: str = "", file: str = "", links: Mapping[str, str] | None = None) -> str:
    """The page in SPEC §7.1's order: what is asked, what could be lost, what changed, the rows, the settings.

    Args:
        lying: the plan with what the store says about it.
        picture: the address of :func:`fallow.showing.pictures.plan_picture`'s PNG, or "".
        file: the address of the complete plan, or "".
        links: addresses in the UI by what they lead to.
    """
    plan, number = lying.plan, len(lying.plan.entries)
    parts = [
        f"# {escaped(whose(plan.scope))}: hide {number:,} of {counted(visible(plan), 'record')}?",
        *(f"**{escaped(line)}**" for line in notices(plan.document)),
        sentence(plan),
        (
            f"To answer: Resume, on the page of the run that waits; or `fallow review {plan.plan_id}`. To approve, "
            f"repeat the number of records planned: **{number}**. It waits until {until(lying.stored.expires_at)}; "
            "unanswered, it hides nothing."
        ),
        "## What could be lost",
        *_at_stake(lying),
        "## Since the last plan",
        *_since(lying),
    ]
    if picture:
        parts.append(f"![{escaped(alt_text(plan))}]({picture})")
    parts += ["## The records", *_rows(lying)]
    parts += ["## Settings that differ from the default", _settings(plan, everything=False)]
    parts += ["## How sure we are", *_sureness(plan), "## Protected, and why", _protected(plan)]
    parts += ["## All numbers", _numbers(plan), "## All settings", _settings(plan, everything=True)]
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


def alt_text(plan: RetentionPlan) -> str:
    """The picture in words, for those who do not see it."""
    ages = sorted(entry.age_days for entry in plan.entries)
    if not ages:
        return "Visible memories by age and importance; none is planned."
    highest = max(entry.importance for entry in plan.entries)
    return (
        f"Visible memories by age and importance. The {counted(len(ages), 'planned one')}, in colour, "
        f"{'is' if len(ages) == 1 else 'are'} {ages[0]:.0f} to {ages[-1]:.0f} days old, of importance up to "
        f"{highest:.2f}; the line is the importance below which a memory that is never recalled goes."
    )


def _at_stake(lying: Desk) -> list[str]:
    """Sentences, then the records to look at first: answers that go, the most important, the nearest to the cut."""
    plan, parts = lying.plan, []
    said = at_stake(plan, lying.effect)
    if "risk" in plan.document:
        said += risk_lines(plan.document["risk"], plan.counts["over_risk"])[1:]
    parts.append("\n".join(f"- {escaped(line)}" for line in said))
    if lying.effect is not None:
        parts.append("\n".join(f"- {escaped(line)}" for line in effect_lines(lying.effect)))
        losses = [
            (f"{item['memory_type']}:{item['record_id']}", item["probes"], ", ".join(item["only_answer_of"][:3]))
            for item in lying.effect["losses"][:_LOWEST]
        ]
        if losses:
            parts.append(markdown_table(("record to look at", "questions it answers now", "only answer of"), losses))
    important = sorted(plan.entries, key=lambda entry: (-entry.importance, entry.key))[:_FIRST]
    near = [entry for entry in reversed(plan.entries) if entry.retention > float(plan.policy("min_retention")) - NEAR]
    if important:
        parts += ["The most important of them:", _lines(important, lying.texts)]
    if near:
        parts += ["Nearest to the cut:", _lines(near[:_FIRST], lying.texts)]
    return parts


def _since(lying: Desk) -> list[str]:
    difference = lying.difference
    parts = [escaped(since_last(difference))]
    if difference is not None:
        for title, keys in (("New", difference.new), ("No longer planned", difference.gone)):
            if keys and len(keys) < len(difference.new) + len(difference.gone) + len(difference.still):
                named = ", ".join(escaped(f"{key.memory_type}:{key.record_id}") for key in keys[:_LOWEST])
                parts.append(f"{title}: {named}{', …' if len(keys) > _LOWEST else ''}")
    return parts


def _conversation(entry: PlanEntry) -> str:
    """What a record belongs to: its thread, else its memory, else its kind."""
    if entry.thread_id:
        return f"conversation {entry.thread_id}"
    if entry.memory_id:
        return f"memory {entry.memory_id}, {entry.memory_type.replace('_', ' ')}"
    return entry.memory_type.replace("_", " ")


def _rows(lying: Desk) -> list[str]:
    """The rows by conversation, the conversation with the most important record first; as many as a page can hold."""
    groups: dict[str, list[PlanEntry]] = {}
    for entry in lying.plan.entries:
        groups.setdefault(_conversation(entry), []).append(entry)
    ranked = sorted(groups.items(), key=lambda item: (-max(entry.importance for entry in item[1]), item[0]))
    said = [
        "Any of them can be left out, by the name in bold."
        + ("" if lying.texts is not None else " Texts are not shown here (`approval.show_text`).")
    ]
    room, listed = _ROOM, 0
    for name, entries in ranked:
        if room <= 0:
            break
        lines: list[str] = []
        for entry in sorted(entries, key=lambda entry: (-entry.importance, entry.key)):
            line = _line(entry, lying.texts)
            room -= len(line.encode()) + 1
            if room <= 0:
                break
            lines.append(line)
        if lines:
            said += [f"**{escaped(name)}**: {counted(len(entries), 'record')}", "\n".join(lines)]
        listed += len(lines)
    left = len(lying.plan.entries) - listed
    if left:
        said.append(f"{counted(left, 'more record')}: in the table of rows, and by `fallow show {lying.plan.plan_id}`.")
    return said


def _settings(plan: RetentionPlan, *, everything: bool) -> str:
    rows = [
        (name, _plain(item["value"]), item["origin"])
        for name, item in plan.document["policy"].items()
        if everything or item["origin"] != "default"
    ]
    return markdown_table(("setting", "value", "from"), rows) if rows else "None: every setting is at its default."


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
    said += [f"- {escaped(line)}." for line in scale_words(plan.document)]
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
    """The lowest records as rows of a table artifact, at most :data:`~fallow.usecases.desk.MAX_ROWS`."""
    names = ("record_id", "memory_type", "retention", "importance", "usage", "recency", "age_days", "access_count")
    return [{**{name: getattr(entry, name) for name in names}, "reason": entry.reason} for entry in entries[:MAX_ROWS]]
