"""Reading a whole store once: all primary types, owners by lineage, what is cited (SPEC §1.4, §6.4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from fallow.model.keys import RecordKey, Row
from fallow.model.record import (
    PLANNING_COLUMNS,
    PRIMARY_TYPES,
    BreachCounts,
    schema,
)
from fallow.port.protocol import Provider, Unreadable


def chunks(items: Sequence[RecordKey], size: int) -> Iterator[list[RecordKey]]:
    """The items in pieces of at most ``size``."""
    for start in range(0, len(items), max(1, size)):
        yield list(items[start : start + max(1, size)])


def fetch_keys(provider: Provider, keys: Iterable[RecordKey]) -> dict[RecordKey, Row | Unreadable]:
    """Whole rows of records of several types."""
    by_type: dict[str, list[str]] = {}
    for key in keys:
        by_type.setdefault(key.memory_type, []).append(key.record_id)
    return {
        RecordKey(memory_type, record_id): row
        for memory_type, ids in by_type.items()
        for record_id, row in provider.fetch(memory_type, ids).items()
    }


@dataclass(slots=True)
class StoreView:
    """All primary records of a store as planning sees them: one frame a type, owners derived, doubles set apart.

    ``cited`` holds every id that a readable, unsuppressed record cites. ``kept`` is what a use case read beside it,
    by a name of its own, so that several scopes of one night read it once.
    """

    frames: dict[str, pl.DataFrame]
    cited: pl.Series
    unreadable: list[Unreadable]
    breaches: BreachCounts = field(default_factory=BreachCounts)
    kept: dict[str, Any] = field(default_factory=dict)


def read_store(provider: Provider) -> StoreView:
    """Reads every primary type of a store, once (SPEC §1.4: completely, or not at all).

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    types = {name: read_type(provider, name) for name in PRIMARY_TYPES}
    return view_of(types, drops_owners=provider.capabilities.drops_owners)


def read_type(provider: Provider, memory_type: str) -> tuple[pl.DataFrame, list[Unreadable]]:
    """A type's records with the columns that planning reads, and what was unreadable. Raises as :func:`read_store`."""
    pieces = [pl.DataFrame(schema={name: schema()[name] for name in PLANNING_COLUMNS})]
    unreadable: list[Unreadable] = []
    for batch in provider.scan(memory_type, PLANNING_COLUMNS):
        pieces.append(batch.frame)
        unreadable.extend(batch.unreadable)
    return pl.concat(pieces, how="vertical"), unreadable


def view_of(types: Mapping[str, tuple[pl.DataFrame, Sequence[Unreadable]]], *, drops_owners: bool) -> StoreView:
    """What :func:`read_type` gave for every primary type, wherever it was read, as one view.

    Args:
        types: by memory type, in any order.
        drops_owners: as the store's :class:`~fallow.port.protocol.Capabilities` say.
    """
    frames: dict[str, pl.DataFrame] = {}
    unreadable: list[Unreadable] = []
    for memory_type in PRIMARY_TYPES:
        frame, torn = types[memory_type]
        unreadable.extend(torn)
        doubled = frame.filter(pl.col("record_id").is_duplicated()).get_column("record_id").unique(maintain_order=True)
        if len(doubled):
            frame = frame.filter(~pl.col("record_id").is_duplicated())
            unreadable.extend(Unreadable(RecordKey(memory_type, name), "duplicate id") for name in doubled.to_list())
        frames[memory_type] = frame
    if drops_owners:
        frames = _derive_owners(frames)
    return StoreView(frames, citations_of(frames), unreadable)


def citations_of(
    frames: Mapping[str, pl.DataFrame], without: Collection[str] = (), *, superseding: bool = True
) -> pl.Series:
    """Every id that a readable, unsuppressed record cites.

    Args:
        without: summaries whose citations do not count.
        superseding: whether naming a record as superseded counts as citing it.
    """
    silent = pl.col("record_id").is_in(list(without)) if without else pl.lit(False)
    cites = pl.col("citations")
    if not superseding:
        cites = cites.list.set_difference(pl.col("supersedes").fill_null([]))
    cited = pl.concat(
        (frame.lazy().filter(~silent) if name == "summaries" else frame.lazy())
        .filter(pl.col("retention_state") != "suppressed", pl.col("citations").list.len() > 0)
        .select(cites.explode())
        for name, frame in frames.items()
    )
    return cited.unique().drop_nulls().collect().get_column("citations")


def _derive_owners(frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Owners by lineage where the store drops them (SPEC §6.4).

    A summary belongs to the owner of its source messages; an unowned record to the one agent whose other
    records have its memory_id. Where two agents answer, nobody owns it.
    """
    messages = pl.concat(
        frame.lazy().filter(pl.col("agent_id").is_not_null()).select("record_id", pl.col("agent_id").alias("owner"))
        for name, frame in frames.items()
        if name != "summaries"
    )
    by_source = (
        frames["summaries"]
        .lazy()
        .filter(pl.col("agent_id").is_null())
        .select("record_id", pl.col("citations").alias("source"))
        .explode("source")
        .join(messages, left_on="source", right_on="record_id", how="inner")
        .group_by("record_id")
        .agg(pl.col("owner").unique())
        .filter(pl.col("owner").list.len() == 1)
        .select("record_id", pl.col("owner").list.first())
        .collect()
    )
    frames = {**frames, "summaries": _fill_owner(frames["summaries"], by_source, "record_id")}
    by_memory = (
        pl.concat(frame.lazy().select("memory_id", "agent_id") for frame in frames.values())
        .filter(pl.col("memory_id").is_not_null(), pl.col("agent_id").is_not_null())
        .group_by("memory_id")
        .agg(pl.col("agent_id").unique().alias("owner"))
        .filter(pl.col("owner").list.len() == 1)
        .select("memory_id", pl.col("owner").list.first())
        .collect()
    )
    return {name: _fill_owner(frame, by_memory, "memory_id") for name, frame in frames.items()}


def _fill_owner(frame: pl.DataFrame, owners: pl.DataFrame, on: str) -> pl.DataFrame:
    return (
        frame.join(owners, on=on, how="left", maintain_order="left")
        .with_columns(pl.coalesce("agent_id", "owner").alias("agent_id"))
        .drop("owner")
    )


def read_agents(provider: Provider) -> dict[str, dict[str, Any]]:
    """The agents' records of a store by agent id."""
    agents: dict[str, dict[str, Any]] = {}
    for row in provider.find("agents"):
        name = row.get("agent_id") or row.get("_id") or row.get("id")
        if isinstance(name, str) and name:
            agents[name] = row
    return agents
