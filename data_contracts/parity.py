"""Which contract fields differ between the records of two stores (SPEC §12)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl
from fallow.data_contracts.checking import FIRST
from fallow.data_contracts.compiler import tables
from fallow.data_contracts.frames import primary_frames

from fallow.port.protocol import Provider


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of a type that is not the same in both stores."""

    memory_type: str
    column: str
    records: int
    first_ids: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Ids and numbers; never the values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(slots=True)
class Parity:
    """What two stores have in common.

    Attributes:
        compared: records that are in both, by type.
        only_first, only_second: how many are in one alone, by type.
        differences: fields that differ.
        not_carried: fields that one of the two cannot carry, by type: not compared.
    """

    compared: dict[str, int] = field(default_factory=dict)
    only_first: dict[str, int] = field(default_factory=dict)
    only_second: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    not_carried: dict[str, list[str]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether both hold the same records with the same fields, as far as both can carry them."""
        return not (self.differences or any(self.only_first.values()) or any(self.only_second.values()))

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "schema_version": 1,
            "same": self.same,
            "compared": self.compared,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "not_carried": self.not_carried,
            "differences": [item.to_json() for item in self.differences],
        }


def compare_stores(first: Provider, second: Provider) -> Parity:
    """Compares all primary records of two stores, field by field of their contracts. Reads only.

    Raises:
        StoreUnreadableError: a listing failed or was cut short.
    """
    found = Parity()
    kinds = (first.capabilities.kind, second.capabilities.kind)
    ours, theirs = primary_frames(first), primary_frames(second)
    for name in ours:
        one, other = (frames[name][0].unique("record_id", keep="any") for frames in (ours, theirs))
        both = one.join(other, on="record_id", how="inner", suffix=":other", coalesce=True)
        found.compared[name] = both.height
        found.only_first[name] = one.height - both.height
        found.only_second[name] = other.height - both.height
        table = tables()[name]
        found.not_carried[name] = [
            column
            for column in table.columns
            if column in one.columns and not all(table.carries(column, k) for k in kinds)
        ]
        for column in table.columns:
            if column in {"record_id", "breaches", *found.not_carried[name]} or column not in one.columns:
                continue
            left, right = pl.col(column), pl.col(f"{column}:other")
            if column == "citations":
                left, right = left.list.unique().list.sort(), right.list.unique().list.sort()
            ids = both.filter(left.ne_missing(right)).get_column("record_id").sort()
            if len(ids):
                found.differences.append(Difference(name, column, len(ids), tuple(ids.head(FIRST).to_list())))
    return found
