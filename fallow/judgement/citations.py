"""What is cited, and so protected (SPEC §6.3)."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from fallow.model.settings import RetentionConfig
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, citations_of
from fallow.port.reflections import read_reflections


def cited_ids(provider: Provider, view: StoreView, config: RetentionConfig) -> pl.Series:
    """Every id whose record a citation protects, by the policy for rows that reflections cover (SPEC §6.3, §5).

    With ``covered_rows`` = ``release`` what only live reflections cite is not protected by that; unless
    ``superseded`` is ``protect``, being superseded protects nothing.
    """
    protecting = config.superseded == "protect"
    if config.covered_rows == "protect" and protecting:
        return view.cited
    without = () if config.covered_rows == "protect" else list(read_reflections(provider))
    return citations_of(view.frames, without, superseding=protecting)


def superseded_ids(frames: Mapping[str, pl.DataFrame]) -> frozenset[str]:
    """Every id that a readable, unsuppressed record supersedes; of a ring of them none, for nobody knows which is new.

    Args:
        frames: by memory type, records as :class:`fallow.port.reading.StoreView` has them.
    """
    pairs = pl.concat(
        frame.lazy()
        .filter(pl.col("retention_state") != "suppressed", pl.col("supersedes").list.len() > 0)
        .select("record_id", "supersedes")
        .explode("supersedes")
        for frame in frames.values()
    ).collect()
    successors: dict[str, set[str]] = {}
    for new, old in pairs.iter_rows():
        successors.setdefault(old, set()).add(new)
    waiting = {old: set(new) for old, new in successors.items()}
    while free := [old for old, new in waiting.items() if not new & waiting.keys()]:
        for old in free:
            del waiting[old]
    return frozenset(old for old, new in successors.items() if old not in waiting or new - waiting.keys())
