"""The facts that a decision needs, in short plain sentences, said once for form, page, inbox and terminal (SPEC §7.1).

Plain text: who puts it into Markdown escapes it. No stored text is in it but the scope's ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from fallow.model.canonical import canonical_json, sha256
from fallow.model.scope import Scope
from fallow.plans.difference import Difference
from fallow.plans.plan import RetentionPlan
from fallow.showing.risk import risk_lines

#: So near to the cut, in retention, a small change of a rating would have kept a record.
NEAR: Final = 0.02
#: An id is cut to so many characters where a form or a run's name has little room.
_ROOM: Final = 60


def counted(number: int, one: str, many: str = "") -> str:
    """``1 plan``, ``2 plans``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def visible(plan: RetentionPlan) -> int:
    """Records of the plan's scope that agents see today; the share of a plan is taken of these (SPEC §6.8)."""
    return sum(int(number) for number in plan.document["distribution"])


def whose(scope: Scope) -> str:
    """Whose records a scope means, as short as it can be said on one line."""
    parts = [scope.agent_id or ("unowned records" if scope.unowned else "whole store")]
    parts += [f"memory {', '.join(scope.memory_ids)}"] if scope.memory_ids else []
    parts += [f"user {scope.user_id}"] if scope.user_id else []
    parts += [f"thread {scope.thread_id}"] if scope.thread_id else []
    flat = "".join(char if char.isprintable() else "·" for char in " ".join(", ".join(parts).split()))
    return flat if len(flat) <= _ROOM else flat[: _ROOM - 1] + "…"


def scope_key(scope: Scope, store_identity: str) -> str:
    """The scope as a part of an artifact's key: lower-case letters, digits and dashes, one for each scope and store."""
    words = re.sub(r"[^a-z0-9]+", "-", whose(scope).lower()).strip("-")[:40].strip("-")
    mark = sha256(canonical_json([store_identity, scope.to_json()]))[:6]
    return f"{words}-{mark}" if words else mark


def run_name(plan: RetentionPlan) -> str:
    """How a planning run that waits is called: ``plan-retention: agent-harbour, 38 of 412``."""
    return f"plan-retention: {whose(plan.scope)}, {len(plan.entries)} of {visible(plan)}"


def asked(plan: RetentionPlan) -> str:
    """What is asked, in one sentence."""
    number, of = len(plan.entries), visible(plan)
    share = number / of if of else 0.0
    percent = f"{share:.0%}" if share >= 0.01 or not share else "under 1%"
    return f"{whose(plan.scope)}: hide {number:,} of {counted(of, 'visible record')} ({percent}); all can be restored."


def at_stake(plan: RetentionPlan, effect: Mapping[str, Any] | None) -> list[str]:
    """What could be lost, the worst first, as short sentences.

    Args:
        plan: the plan.
        effect: what retrieval loses, as a document; None where nobody looked.
    """
    said = []
    if plan.wide:
        said.append(f"It is wide: it hides {plan.document['blast_radius']['share']:.0%} of its scope.")
    if effect is not None and sum(effect["probes"].values()):
        lost, answers = len(effect["nothing_left"]), len(effect["losses"])
        probes = counted(sum(effect["probes"].values()), "past question")
        verb = "loses its answer" if lost == 1 else "lose their answer"
        said.append(f"{lost if lost else 'None'} of {probes} {verb}; {counted(answers, 'planned record')} answer one.")
    else:
        said.append("No past question could be tried against it.")
    if "risk" in plan.document:
        said += risk_lines(plan.document["risk"], plan.counts["over_risk"])[:1]
    if plan.entries:
        highest = max(entry.importance for entry in plan.entries)
        cut = float(plan.policy("min_retention"))
        near = sum(entry.retention > cut - NEAR for entry in plan.entries)
        said.append(f"Highest importance {highest:.2f}; {counted(near, 'record')} within {NEAR:.2f} of the cut.")
    return said


def since_last(difference: Difference | None) -> str:
    """What changed since the last plan of the scope, in one sentence."""
    if difference is None:
        return "The first plan of this scope."
    return (
        f"Since the last plan of this scope ({difference.before}, {difference.state}): {len(difference.new):,} new, "
        f"{len(difference.gone):,} no longer planned, {len(difference.still):,} planned again."
    )


def difference_lines(difference: Difference | None) -> list[str]:
    """A difference with every record that is new or no longer planned."""
    lines = [since_last(difference)]
    if difference is not None:
        document = difference.to_json()
        lines += [f"+ {name}" for name in document["new"]] + [f"- {name}" for name in document["gone"]]
    return ["".join(char if char.isprintable() else "·" for char in line) for line in lines]
