"""A corrected fact behind its correction: which candidates others supersede, and their order (SPEC §2.1, §6.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from fallow.model.keys import canonical_id
from fallow.model.record import read_mapping, read_superseded

if TYPE_CHECKING:
    from fallow.ranking.scoring import Candidate

#: What an outdated row may name its successor by.
_SUCCESSOR: Final = "superseded_by"


class Outdated:
    """Which candidates others of them supersede, by their positions.

    A row says what it supersedes (``supersedes``, ``supersedes_id``), or by what it was superseded
    (``superseded_by``). Only what is among the candidates and not suppressed counts; rings say nothing.
    """

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        items = [item for item in candidates if item.signals.retention_state != "suppressed"]
        places: dict[str, list[int]] = {}
        for item in items:
            if item.record_id:
                places.setdefault(item.record_id, []).append(item.position)
        found: dict[int, set[int]] = {}
        for item in items:
            metadata = read_mapping(item.row.get("metadata"))
            for old in read_superseded(item.record_id, item.row, metadata):
                for place in places.get(old, ()):
                    found.setdefault(place, set()).add(item.position)
            by = canonical_id(item.row.get(_SUCCESSOR) or metadata.get(_SUCCESSOR)) or ""
            if by != item.record_id and by in places:
                found.setdefault(item.position, set()).update(places[by])
        self._successors = _without_rings(found)
        self._generations = _generations(self._successors)
        self._instead: dict[int, int] = {}

    def generation(self, item: Candidate) -> int:
        """How many corrections a candidate is behind; 0 where nothing supersedes it."""
        return self._generations.get(item.position, 0)

    def dropped_for(self, item: Candidate, other: Candidate) -> None:
        """``item`` was dropped as a repeat of ``other``, which then stands for it."""
        self._instead[item.position] = other.position

    def among(self, kept: Sequence[Candidate]) -> dict[int, set[int]]:
        """The successors of those that are kept, as far as they or what stands for them are kept."""
        left = {item.position for item in kept}
        found = {}
        for old in left & self._successors.keys():
            if after := {self._kept(new) for new in self._successors[old]} & left - {old}:
                found[old] = after
        return found

    def _kept(self, position: int) -> int:
        while position in self._instead:
            position = self._instead[position]
        return position

    def reorder(self, kept: Sequence[Candidate]) -> None:
        """Changes scores so that no candidate has one as high as what supersedes it.

        The two change places: a question that finds the outdated fact finds its correction there. The outdated
        one says in its ``scoring`` by what it is superseded.
        """
        items = {item.position: item for item in kept}
        found = self.among(kept)
        changed = bool(found)
        while changed:
            changed = False
            for old in sorted(found):
                for new in sorted(found[old]):
                    first, second = items[new].scoring, items[old].scoring
                    second["superseded_by"] = items[new].record_id
                    high, low = second["score"], first["score"]
                    if high >= low:
                        first["score"] = high
                        second["score"] = low if low < high else math.nextafter(low, -math.inf)
                        changed = True


def _without_rings(found: Mapping[int, set[int]]) -> dict[int, set[int]]:
    waiting = {old: set(new) for old, new in found.items()}
    while free := [old for old, new in waiting.items() if not new & waiting.keys()]:
        for old in free:
            del waiting[old]
    return {old: kept for old, new in found.items() if (kept := new - waiting.keys() if old in waiting else new)}


def _generations(found: Mapping[int, set[int]]) -> dict[int, int]:
    depth: dict[int, int] = {}
    changed = bool(found)
    while changed:
        changed = False
        for old, new in found.items():
            behind = 1 + max(depth.get(place, 0) for place in new)
            if behind > depth.get(old, 0):
                depth[old], changed = behind, True
    return depth
