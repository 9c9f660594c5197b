"""What a store's contracts are checked on: one frame a table, without text and without embeddings (SPEC §13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl
from fallow.data_contracts.compiler import Column, Table, tables

from fallow.model.keys import RecordKey, Row, canonical_id
from fallow.model.record import PRIMARY_TYPES, schema
from fallow.model.times import parse_time
from fallow.port.journal import SHARED, content_of
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import chunks

#: Columns of records that only suppressed ones have; read from their whole rows.
_OF_SUPPRESSED: Final[Mapping[str, pl.DataType]] = {
    "suppressed_at": pl.Int64(),
    "suppression_reason": pl.String(),
    "suppression_approver": pl.String(),
}
#: Column types by ODCS logical type; times are microseconds since the epoch.
LOGICAL: Final[Mapping[str, pl.DataType]] = {
    "string": pl.String(),
    "integer": pl.Int64(),
    "number": pl.Float64(),
    "boolean": pl.Boolean(),
    "timestamp": pl.Int64(),
    "array": pl.List(pl.String()),
}
_PIECE: Final = 20_000
#: Tables of control rows and cache entries; their names are the record types that rows carry.
_CONTROL: Final = (
    "memory_history_change",
    "memory_history_head",
    "learning_event",
    "fallow_plan",
    "fallow_decision",
    "semantic_cache",
)


def primary_frames(provider: Provider) -> dict[str, tuple[pl.DataFrame, list[Unreadable]]]:
    """Every primary type with all columns of its contract; texts are counted batch by batch and let go."""
    types = schema()
    frames: dict[str, tuple[pl.DataFrame, list[Unreadable]]] = {}
    for name in PRIMARY_TYPES:
        columns = [column for column in tables()[name].columns if column in types]
        wanted = {**{column: types[column] for column in columns}, "text_length": pl.Int64()}
        pieces = [pl.DataFrame(schema=wanted)]
        unreadable: list[Unreadable] = []
        for batch in provider.scan(name, [*columns, "text"]):
            length = pl.col("text").str.strip_chars().str.len_chars().cast(pl.Int64).alias("text_length")
            pieces.append(batch.frame.with_columns(length).drop("text"))
            unreadable += batch.unreadable
        frame = pl.concat(pieces, how="vertical")
        frames[name] = (_with_suppression(provider, name, frame), unreadable)
    known = pl.concat([frame.select("record_id") for frame, _ in frames.values()])["record_id"].unique()
    return {name: (_with_unresolved(frame, known), unreadable) for name, (frame, unreadable) in frames.items()}


def _with_suppression(provider: Provider, name: str, frame: pl.DataFrame) -> pl.DataFrame:
    hidden = frame.filter(pl.col("retention_state") == "suppressed").get_column("record_id").unique().to_list()
    found: list[dict[str, Any]] = []
    for chunk in chunks([RecordKey(name, record_id) for record_id in hidden], provider.capabilities.batch_size):
        for record_id, row in provider.fetch(name, [key.record_id for key in chunk]).items():
            if isinstance(row, Unreadable):
                continue
            found.append(
                {
                    "record_id": record_id,
                    "suppressed_at": parse_time(row.get("suppressed_at")),
                    "suppression_reason": _text(row.get("suppression_reason")),
                    "suppression_approver": _text(row.get("suppression_approver")),
                }
            )
    told = pl.DataFrame(found, schema={"record_id": pl.String(), **_OF_SUPPRESSED})
    return frame.join(told, on="record_id", how="left", maintain_order="left")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _with_unresolved(frame: pl.DataFrame, known: pl.Series) -> pl.DataFrame:
    cites = frame.with_row_index("_row").filter(pl.col("citations").list.len() > 0).select("_row", "citations")
    cited = cites.explode("citations").filter(~pl.col("citations").is_in(known.implode()))
    counted = cited.group_by("_row").agg(pl.len().cast(pl.Int64).alias("unresolved_citations"))
    joined = frame.with_row_index("_row").join(counted, on="_row", how="left", maintain_order="left")
    return joined.drop("_row").with_columns(pl.col("unresolved_citations").fill_null(0))


def control_frames(provider: Provider) -> dict[str, pl.DataFrame]:
    """Journal, events, stored plans and cache entries as their contracts name the fields; no text is kept."""
    kind = provider.capabilities.kind
    by_type = {name: tables()[name] for name in _CONTROL}
    pieces: dict[str, list[pl.DataFrame]] = {name: [_frame([], table)] for name, table in by_type.items()}
    waiting: dict[str, list[dict[str, Any]]] = {name: [] for name in by_type}
    for name, row in _control_rows(provider):
        waiting[name].append(read_control_row(by_type[name], row, kind))
        if len(waiting[name]) >= _PIECE:
            pieces[name].append(_frame(waiting[name], by_type[name]))
            waiting[name] = []
    return {name: pl.concat([*pieces[name], _frame(waiting[name], by_type[name])]) for name in by_type}


def _control_rows(provider: Provider) -> Iterator[tuple[str, Row]]:
    for row in provider.find(SHARED):
        kind = row.get("record_type")
        if kind in _CONTROL:
            yield str(kind), row
    for row in provider.find("semantic_cache"):
        yield "semantic_cache", row


def _frame(rows: Sequence[Mapping[str, Any]], table: Table) -> pl.DataFrame:
    types = {name: LOGICAL[column.logical_type] for name, column in table.columns.items()}
    return pl.DataFrame(list(rows), schema=types, orient="row")


def read_control_row(table: Table, row: Mapping[str, Any], store_kind: str) -> dict[str, Any]:
    """A control row's fields from where its contract says that they stand; what cannot be used is a named breach."""
    whole = {**row, "content": content_of(row)} if "record_type" in row else row
    read: dict[str, Any] = {"breaches": []}
    for name, column in table.columns.items():
        if column.sources is None:
            continue
        raw = next(
            (found for path in column.sources.get(store_kind, _any(column)) if (found := _at(whole, path))), None
        )
        value = None if raw is None else _convert(raw[0], column.logical_type)
        if raw is not None and value is None:
            read["breaches"].append(f"{name}_unusable")
        read[name] = value
    return read


def _any(column: Column) -> tuple[str, ...]:
    return next(iter((column.sources or {}).values()), ())


def _at(row: Mapping[str, Any], path: str) -> tuple[Any] | None:
    """The value at a dotted path in a one-tuple; None where it is absent, null or empty text."""
    value: Any = row
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return None if value is None or value == "" else (value,)


def _convert(value: Any, logical_type: str) -> Any:
    if logical_type == "timestamp":
        return parse_time(value)
    if logical_type == "boolean":
        return value if isinstance(value, bool) else None
    if logical_type == "integer":
        whole = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
        return int(value) if whole and abs(value) < 2**63 else None
    # A long text is read for being there, not for what it says.
    return canonical_id(value if not isinstance(value, str) else value[:200])
