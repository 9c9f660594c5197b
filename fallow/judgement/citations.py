"""What is cited, and so protected (SPEC §6.3)."""

from __future__ import annotations

import polars as pl

from fallow.model.settings import RetentionConfig
from fallow.port.protocol import Provider
from fallow.port.reading import StoreView, citations_of
from fallow.port.reflections import read_reflections


def cited_ids(provider: Provider, view: StoreView, config: RetentionConfig) -> pl.Series:
    """Every id whose record a citation protects, by the policy for rows that reflections cover (SPEC §6.3, §5).

    With ``covered_rows`` = ``release`` what only live reflections cite is not protected by that.
    """
    if config.covered_rows == "protect":
        return view.cited
    return citations_of(view.frames, list(read_reflections(provider)))
