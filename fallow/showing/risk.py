"""What a plan says of its risk budget, in words: said here once (SPEC §6.11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def risk_lines(risk: Mapping[str, Any], over: int) -> list[str]:
    """A plan's ``risk`` as sentences, the promise first.

    Args:
        risk: the document's.
        over: eligible records that the budget kept out of the plan.
    """
    share, sure = f"{risk['share']:.1%}".replace(".0%", "%"), f"{risk['confidence']:.0%}"
    kinds = ", ".join(f"{number} {kind}" for kind, number in risk["kinds"].items())
    asked = f"{risk['probes']} past {'question' if risk['probes'] == 1 else 'questions'}" + (
        f" ({kinds})" if kinds else ""
    )
    if risk["missing"]:
        more = "question is" if risk["missing"] == 1 else "questions are"
        few = (
            f"Risk budget: {asked} are too few to promise anything at {share} with {sure}: {risk['missing']} more "
            f"{more} needed, and nothing is taken under the budget ({over} eligible records stay)."
        )
        return [few]
    promised = (
        f"Risk budget: with {sure} confidence at most {share} of new questions like these lose their nearest "
        f"memory, by {asked}; {risk['losing_count']} of them lose it at this cut "
        f"({risk['cost']:.1%}, p {risk['p_value']:.3f})."
    )
    lines = [
        promised,
        f"The budget reaches {risk['within']} records down the order; {over} eligible ones stay for it.",
    ]
    if risk["losing"]:
        lines.append(
            "Questions that lose: " + ", ".join(risk["losing"][:10]) + ("…" if risk["losing_count"] > 10 else "")
        )
    grid = ", ".join(f"below {row['min_retention']:g}: {row['cost']:.0%} of {row['records']}" for row in risk["grid"])
    lines.append(f"What other cuts would cost (share of questions, records): {grid}.")
    if risk["without_embedding"]:
        lines.append(
            f"{risk['without_embedding']} planned {'record has' if risk['without_embedding'] == 1 else 'records have'} "
            "no usable embedding: no question finds them, and the budget says nothing about them."
        )
    return lines
