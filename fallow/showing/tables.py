"""Tables, counts and texts as a terminal or a pipe may show them (SPEC §16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: Between two columns on a terminal.
_GAP: Final = 2


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 plan``, ``2 plans``; ``things`` is the plural where an s does not make it."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def printable(text: str, limit: int = 120) -> str:
    """A stored text as a terminal may show it: one line, no control characters, cut."""
    flat = "".join(char if char.isprintable() else "·" for char in " ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def piped(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for another program: a head, a row a line, tabs between complete cells."""
    lines = ["\t".join(columns)]
    lines += ["\t".join(printable(cell, len(cell) + 1) for cell in row) for row in rows]
    return "".join(f"{line}\n" for line in lines)


def narrowest(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width below which some id of the table would be cut or wrapped: every column's longest word."""
    cells = [[name, *(row[at] for row in rows)] for at, name in enumerate(columns)]
    longest = [max((len(word) for cell in column for word in cell.split()), default=0) for column in cells]
    return sum(longest) + _GAP * len(longest)


def shown(columns: Sequence[str], row: Sequence[str]) -> list[str]:
    """A row's cells for a terminal: texts cut where they are long, what is one word whole."""
    return [printable(cell, 200 if " " in cell.strip() else len(cell) + 1) for cell in row[: len(columns)]]
