"""Stored text as harmless Markdown. Ids and names come from stores and may hold anything (SPEC §14)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

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


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; its cells are escaped here."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
