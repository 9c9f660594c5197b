"""Reading a store in shards that other processes or machines can take (DESIGN §9).

A shard is one memory type as Parquet: small enough to travel, and the same frame wherever it was read, so that the
plan's id does not depend on the runner.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from fallow.tasks.steps import open_store, step

from fallow.model.keys import RecordKey
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import StoreView, read_type, view_of


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A memory type as it was read: its planning columns as Parquet, and (record id, reason) of what was unreadable."""

    memory_type: str
    parquet: bytes
    unreadable: tuple[tuple[str, str], ...]


@step("load a shard")
def load_shard(store: str, memory_type: str) -> Shard:
    """Reads one memory type of a store. Reads only."""
    with open_store(store) as provider:
        frame, unreadable = read_type(provider, memory_type)
    written = io.BytesIO()
    frame.write_parquet(written, compression="zstd")
    torn = tuple((item.key.record_id, item.reason) for item in unreadable)
    return Shard(memory_type=memory_type, parquet=written.getvalue(), unreadable=torn)


def view_of_shards(shards: Sequence[Shard], provider: Provider) -> StoreView:
    """The shards of a whole store as one view."""
    types = {
        shard.memory_type: (
            pl.read_parquet(io.BytesIO(shard.parquet)),
            [Unreadable(RecordKey(shard.memory_type, name), reason) for name, reason in shard.unreadable],
        )
        for shard in shards
    }
    return view_of(types, drops_owners=provider.capabilities.drops_owners)
