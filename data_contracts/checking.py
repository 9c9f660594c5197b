"""A store held against its contracts: rule by rule how many rows break it, and which first (SPEC §13).

Two readers: :func:`gate` looks at what planning has read already, :func:`check_contracts` reads all that the
contracts describe. Both ask the same rules of the same frames; what the first has no column for it leaves to
the second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl
from fallow.data_contracts.compiler import FOLDER, SUFFIX, Rule, Table, tables
from fallow.data_contracts.frames import LOGICAL, control_frames, primary_frames
from fallow.data_contracts.remembering import last_metrics

from fallow.model.errors import StoreUnreadableError
from fallow.model.record import PRIMARY_TYPES
from fallow.port.gate import ContractResult
from fallow.port.protocol import Provider, Unreadable
from fallow.port.reading import StoreView

#: How many ids of rows that break a rule are named.
FIRST: Final = 10
#: The table over everything together, and the suffix of each type's own.
WHOLE_STORE: Final = "store"
AS_A_WHOLE: Final = "_as_a_whole"


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's outcome: ``failures`` of ``rows`` break it (for a table of level set: 1 of 1)."""

    rule: Rule
    rows: int
    failures: int
    first_ids: tuple[str, ...] = ()
    value: Any = None

    @property
    def name(self) -> str:
        """Table and rule, as reports and events name it."""
        return f"{self.rule.table}.{self.rule.id}"

    @property
    def memory_type(self) -> str | None:
        """The record type that it is about; None for the store as a whole and for control rows."""
        name = self.rule.table.removesuffix(AS_A_WHOLE)
        return name if name in PRIMARY_TYPES else None

    @property
    def refuses(self) -> bool:
        """Whether no scope may be planned while it stands: a must over a set of primary records."""
        return bool(self.failures) and self.rule.level == "set" and self.rule.severity == "must"

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts: ids and numbers, no text."""
        return {
            "table": self.rule.table,
            "rule": self.rule.id,
            "severity": self.rule.severity,
            "level": self.rule.level,
            "sentence": self.rule.sentence,
            "rows": self.rows,
            "failures": self.failures,
            "first_ids": list(self.first_ids),
            "value": self.value,
        }


State = Literal["Holds", "Warnings", "ContractBreach"]


@dataclass(slots=True)
class ContractReport:
    """All findings over a store; ``metrics`` by type is what the next check compares with."""

    store_kind: str
    findings: list[Finding] = field(default_factory=list)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Which contracts this is about."""
        return contracts_digest()

    @property
    def broken(self) -> list[Finding]:
        """What does not hold, musts first."""
        return sorted((item for item in self.findings if item.failures), key=lambda item: item.rule.severity)

    @property
    def state(self) -> State:
        """ContractBreach with a broken must, Warnings with a broken should, else Holds."""
        severities = {item.rule.severity for item in self.broken}
        return "ContractBreach" if "must" in severities else "Warnings" if severities else "Holds"

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts."""
        return {
            "schema_version": 1,
            "state": self.state,
            "contracts_sha256": contracts_digest(),
            "rows": {name: metrics["rows"] for name, metrics in self.metrics.items()},
            "findings": [item.to_json() for item in self.findings],
        }


def contracts_digest() -> str:
    """A hash over the contract files: which contracts a result is about."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob(f"*{SUFFIX}")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def evaluate(table: Table, frame: pl.DataFrame, *, store_kind: str, as_of: int) -> list[Finding]:
    """Every rule of a table that the store can carry and the frame has the columns for.

    Args:
        table: which rules.
        frame: its rows; other columns are not looked at.
        store_kind: as :class:`~fallow.port.protocol.Capabilities` names it.
        as_of: microseconds; later times are in the future.
    """
    types = dict(frame.schema)
    rules = [rule for rule in table.rules if rule.reads <= types.keys() and table.applies(rule, store_kind)]
    if not rules:
        return []
    # Names of breaches stand in few rows: their rules look at those alone.
    few = frame.filter(pl.col("breaches").list.len() > 0) if "breaches" in types else frame
    by_frame = [
        (few, [r for r in rules if r.kind == "no_breach"]),
        (frame, [r for r in rules if r.kind != "no_breach"]),
    ]
    found: dict[str, Finding] = {}
    for rows, some in by_frame:
        if not some:
            continue
        counts = rows.lazy().select(rule.broken(types, as_of).sum().alias(rule.id) for rule in some).collect().row(0)
        for rule, count in zip(some, counts, strict=True):
            first: tuple[str, ...] = ()
            if count and "record_id" in types and rule.level == "row":
                ids = rows.lazy().filter(rule.broken(types, as_of)).select("record_id").collect()["record_id"]
                first = tuple(str(name) for name in ids.unique().sort().head(FIRST).to_list())
            value = frame.item(0, rule.column) if rule.level == "set" and frame.height else None
            found[rule.id] = Finding(rule, frame.height, int(count or 0), first, value)
    return [found[rule.id] for rule in rules]


def gate(provider: Provider, view: StoreView, *, as_of: int) -> ContractResult:
    """What planning and applying must know of a store that they have read (SPEC §13). Writes nothing.

    A row that breaks a must is quarantined; a must over a set refuses every scope with that type in it.
    """
    kind = provider.capabilities.kind
    before = last_metrics(provider)
    report = ContractReport(kind)
    quarantined: dict[str, frozenset[str]] = {}
    for name, frame in view.frames.items():
        report.findings += evaluate(tables()[name], frame, store_kind=kind, as_of=as_of)
        unreadable = [item for item in view.unreadable if item.key.memory_type == name]
        _as_a_whole(report, name, frame, unreadable, before.get(name), as_of)
        quarantined[name] = _breaking_a_must(tables()[name], frame, report.findings, as_of)
    _whole_store(report, before, as_of, readable=True)
    broken = report.broken
    summary = {
        "state": report.state,
        "contracts_sha256": contracts_digest(),
        "rules": len(report.findings),
        "broken": {item.name: item.failures for item in broken},
        "musts": sorted(item.name for item in broken if item.rule.severity == "must"),
        "quarantined": {name: len(ids) for name, ids in quarantined.items() if ids},
        "result_sha256": result_digest(report.findings),
    }
    refusals = tuple((item.memory_type, refusal(item)) for item in broken if item.refuses)
    return ContractResult(summary, quarantined, refusals)


def refusal(finding: Finding) -> str:
    """A broken rule over a set as a sentence with its number."""
    value = f"{finding.value:.3g}" if isinstance(finding.value, float) else finding.value
    return f"{finding.rule.table.removesuffix(AS_A_WHOLE)}: {finding.rule.sentence} ({finding.rule.column} {value})"


def result_digest(findings: Sequence[Finding]) -> str:
    """A hash over every rule's outcome."""
    text = json.dumps([item.to_json() for item in findings], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def check_contracts(provider: Provider, *, as_of: int, keep_frames: bool = False) -> ContractReport:
    """Holds everything that the contracts describe against them: records, cache, journal, events, plans. Reads only.

    Args:
        provider: the open store.
        as_of: microseconds; later times are in the future.
        keep_frames: keeps each table's frame in the report, for a second opinion.

    A listing that fails breaks the rule that the store is readable; it is no error of this function.
    """
    kind = provider.capabilities.kind
    before = last_metrics(provider)
    report = ContractReport(kind)
    try:
        primary = primary_frames(provider)
        for name, (frame, unreadable) in primary.items():
            _look(report, tables()[name], frame, as_of, keep_frames)
            _as_a_whole(report, name, frame, unreadable, before.get(name), as_of, keep_frames)
        del primary
        for name, frame in control_frames(provider).items():
            _look(report, tables()[name], frame, as_of, keep_frames)
    except StoreUnreadableError:
        _whole_store(report, before, as_of, readable=False, keep=keep_frames)
    else:
        _whole_store(report, before, as_of, readable=True, keep=keep_frames)
    return report


def _look(report: ContractReport, table: Table, frame: pl.DataFrame, as_of: int, keep: bool = False) -> None:
    report.findings += evaluate(table, frame, store_kind=report.store_kind, as_of=as_of)
    if keep:
        report.frames[table.name] = frame.select(name for name in frame.columns if name in table.columns)


def _breaking_a_must(table: Table, frame: pl.DataFrame, findings: Sequence[Finding], as_of: int) -> frozenset[str]:
    broken = [
        item.rule
        for item in findings
        if item.failures and item.rule.table == table.name and item.rule.severity == "must"
    ]
    if not broken:
        return frozenset()
    types = dict(frame.schema)
    ids = frame.filter(pl.any_horizontal(rule.broken(types, as_of) for rule in broken)).get_column("record_id")
    return frozenset(ids.to_list())


def _as_a_whole(
    report: ContractReport,
    name: str,
    frame: pl.DataFrame,
    unreadable: Sequence[Unreadable],
    before: Mapping[str, Any] | None,
    as_of: int,
    keep: bool = False,
) -> None:
    metrics = _metrics(frame, unreadable, before)
    report.metrics[name] = metrics
    _look(report, tables()[name + AS_A_WHOLE], _one_row(tables()[name + AS_A_WHOLE], metrics), as_of, keep)


def _whole_store(
    report: ContractReport, before: Mapping[str, Mapping[str, Any]], as_of: int, *, readable: bool, keep: bool = False
) -> None:
    rows = sum(metrics["rows"] for metrics in report.metrics.values())
    rows_before = sum(int(metrics["rows"]) for metrics in before.values()) if before else None
    metrics: dict[str, Any] = {"readable": readable, "record_id": "store"}
    if readable:
        metrics |= {
            "primary_rows": rows,
            "primary_rows_before": rows_before,
            "primary_rows_kept": rows / rows_before if rows_before else None,
        }
    _look(report, tables()[WHOLE_STORE], _one_row(tables()[WHOLE_STORE], metrics), as_of, keep)


def _one_row(table: Table, metrics: Mapping[str, Any]) -> pl.DataFrame:
    columns = {name: column for name, column in table.columns.items() if name in metrics}
    return pl.DataFrame(
        {name: [metrics[name]] for name in columns},
        schema={name: LOGICAL[column.logical_type] for name, column in columns.items()},
    )


def _metrics(frame: pl.DataFrame, unreadable: Sequence[Unreadable], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a type's set-level rules look at; a share of nothing is absent, and what the frame lacks is left out."""
    doubled = {item.key.record_id for item in unreadable if item.reason.startswith("duplicate id")}
    twice = frame.filter(pl.col("record_id").is_duplicated()).get_column("record_id")
    rows = frame.height - len(twice) + twice.n_unique()
    doubled.update(twice.to_list())
    torn = sum(1 for item in unreadable if not item.reason.startswith("duplicate id"))
    rows_before = None if before is None else int(before["rows"])
    metrics: dict[str, Any] = {
        "rows": rows,
        "rows_before": rows_before,
        "rows_kept": rows / rows_before if rows_before else None,
        "doubled": len(doubled),
        "unreadable": torn,
    }
    for name in _SHARED_FIELDS:
        if name not in frame.columns:
            continue
        column = pl.col(name)
        there = (
            column > 0
            if name == "text_length"
            else column.list.len() > 0
            if name == "citations"
            else column.is_not_null()
        )
        share = frame.select(there.fill_null(False).sum()).item() / frame.height if frame.height else None
        was = None if before is None else before.get(f"{name}_share")
        metrics[f"{name}_share"] = share
        metrics[f"{name}_share_lost"] = None if share is None or was is None else max(0.0, was - share)
    rated = frame.get_column("importance").drop_nulls()
    metrics |= {"rated": len(rated), "distinct_ratings": rated.n_unique() if len(rated) else 0}
    if "importance_source" in frame.columns:
        by_model = frame.filter(pl.col("importance_source") == "llm").get_column("importance").drop_nulls()
        at_top = int((by_model == 1.0).sum())
        metrics |= {
            "model_ratings": len(by_model),
            "model_ratings_at_top": at_top / len(by_model) if len(by_model) else None,
        }
    return metrics


_SHARED_FIELDS: Final = (
    "agent_id",
    "memory_id",
    "user_id",
    "thread_id",
    "created_at",
    "last_accessed_at",
    "importance",
    "importance_source",
    "citations",
    "text_length",
)
