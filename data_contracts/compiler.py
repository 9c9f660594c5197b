"""Contracts as checks: ODCS files, which are the only source, compiled into rules (SPEC §13, DESIGN §7).

A file describes one or more tables. A table of level ``row`` has one row a stored thing; a table of level
``set`` has one row a store and says what holds of everything together. Both are checked in the same way:
:meth:`Rule.broken` is a Polars expression, and :mod:`fallow.data_contracts.great_expectations_suite` makes an
expectation of the same rule. What is absent (null, or empty text) breaks only a rule that asks for presence.

A rule that cannot be compiled is an error when the file is read, never a rule that holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
import yaml

FOLDER: Final = Path(__file__).resolve().parent
SUFFIX: Final = ".odcs.yaml"
Severity = Literal["must", "should"]
Level = Literal["row", "set"]

#: What a rule of each kind says beyond its column: needed names, then names that may be there.
KINDS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "present": (frozenset(), frozenset()),
    "unique": (frozenset(), frozenset()),
    "allowed": (frozenset({"values"}), frozenset()),
    "pattern": (frozenset({"pattern"}), frozenset()),
    "range": (frozenset(), frozenset({"minimum", "maximum", "above"})),
    "no_breach": (frozenset({"names"}), frozenset()),
    "not_after_as_of": (frozenset({"tolerance_seconds"}), frozenset()),
    "not_before": (frozenset({"other"}), frozenset()),
}
#: ODCS's own metrics, as kinds.
_METRICS: Final[Mapping[str, str]] = {"nullValues": "present", "duplicateValues": "unique"}
_CONDITIONS: Final = frozenset({"is", "at_least", "present"})


class ContractError(ValueError):
    """A contract that cannot be compiled; the message names the file, the rule and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Which rows a rule looks at: ``is`` (one of some values), ``at_least`` (a number), ``present`` (or not)."""

    column: str
    operator: str
    value: Any

    def holds(self, types: Mapping[str, pl.DataType]) -> pl.Expr:
        """True for the rows that the rule looks at."""
        column = pl.col(self.column)
        if self.operator == "present":
            return ~absent(self.column, types) if self.value else absent(self.column, types)
        holds: pl.Expr = column.is_in(self.value) if self.operator == "is" else column >= self.value
        return holds.fill_null(False)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of one table.

    ``sentence`` says in plain words what holds where it is kept. ``reads`` are the columns it needs.
    """

    id: str
    table: str
    level: Level
    severity: Severity
    sentence: str
    column: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    when: tuple[Condition, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """Every column that the rule rests on."""
        other = {str(self.options["other"])} if "other" in self.options else set()
        breaches = {"breaches"} if self.kind == "no_breach" else {self.column}
        return frozenset({*breaches, *other, *(item.column for item in self.when)})

    def broken(self, types: Mapping[str, pl.DataType], as_of: int) -> pl.Expr:
        """True where a row breaks this rule. ``types`` of the frame's columns, ``as_of`` in microseconds."""
        found = self._broken(types, as_of).fill_null(False)
        for condition in self.when:
            found = found & condition.holds(types)
        return found.alias(self.id)

    def _broken(self, types: Mapping[str, pl.DataType], as_of: int) -> pl.Expr:
        options, value = self.options, pl.col(self.column)
        text = types.get(self.column) == pl.String
        if self.kind == "present":
            return absent(self.column, types)
        if self.kind == "unique":
            return value.is_duplicated() & ~absent(self.column, types)
        if self.kind == "no_breach":
            return pl.col("breaches").list.set_intersection(list(options["names"])).list.len() > 0
        if self.kind == "not_after_as_of":
            return value > as_of + int(options["tolerance_seconds"]) * 1_000_000
        if self.kind == "not_before":
            return value < pl.col(options["other"])
        if self.kind == "range":
            minimum, maximum, above = options.get("minimum"), options.get("maximum"), options.get("above")
            outside = [] if minimum is None else [value < minimum]
            outside += [] if maximum is None else [value > maximum]
            outside += [] if above is None else [value <= above]
            return pl.any_horizontal(outside)
        kept = value.is_in(options["values"]) if self.kind == "allowed" else value.str.contains(whole(options))
        return ~kept & (value != "") if text else ~kept


def absent(column: str, types: Mapping[str, pl.DataType]) -> pl.Expr:
    """True where there is no value: null, or empty text."""
    value = pl.col(column)
    return value.is_null() | (value == "") if types.get(column) == pl.String else value.is_null()


def whole(options: Mapping[str, Any]) -> str:
    """A pattern rule's expression, for the whole value."""
    return f"^(?:{options['pattern']})$"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: what it means, and which stored fields carry it, by kind of store.

    ``sources`` is None where it is derived: from the columns in ``derived_from``.
    """

    name: str
    logical_type: str
    description: str
    sources: Mapping[str, tuple[str, ...]] | None
    derived_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a contract with its columns and rules."""

    name: str
    level: Level
    description: str
    columns: Mapping[str, Column]
    rules: tuple[Rule, ...]
    #: The columns of the whole contract, which its derived ones rest on.
    carriers: Mapping[str, Column]

    def applies(self, rule: Rule, store_kind: str) -> bool:
        """Whether a kind of store can carry what the rule rests on; a kind that no column names carries all."""
        return all(self.carries(name, store_kind) for name in rule.reads | {rule.column})

    def carries(self, name: str, store_kind: str) -> bool:
        """Whether a kind of store has a field for a column, or for what the column is derived from."""
        column = self.columns.get(name) or self.carriers[name]
        if column.sources is None:
            return all(self.carries(other, store_kind) for other in column.derived_from)
        return bool(column.sources.get(store_kind, ("?",)))


@dataclass(frozen=True, slots=True)
class Contract:
    """One file."""

    name: str
    version: str
    description: str
    owner: str
    tables: tuple[Table, ...]


@cache
def contracts() -> dict[str, Contract]:
    """Every contract by its name.

    Raises:
        ContractError: a file cannot be compiled.
    """
    found = [
        compile_contract(path.read_text(encoding="utf-8"), path.name) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))
    ]
    return {contract.name: contract for contract in found}


@cache
def tables() -> dict[str, Table]:
    """Every table of every contract by its name."""
    return {table.name: table for contract in contracts().values() for table in contract.tables}


def compile_contract(text: str, where: str) -> Contract:
    """A contract's text as tables of rules.

    Raises:
        ContractError: it is no contract, or a rule is of an unknown kind, lacks what its kind needs, says
            something its kind does not know, or names a column that its table does not have.
    """
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe)
        found: tuple[Table, ...] = ()
        for entry in data["schema"]:
            found += (_table(entry, where, found[0].columns if found else {}),)
        contract = Contract(
            data["name"], str(data["version"]), data["description"]["purpose"], data["team"]["name"], found
        )
    except ContractError:
        raise
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ContractError(f"{where} is no contract: {type(error).__name__} {str(error)[:120]}") from None
    for table in found:
        ids = [rule.id for rule in table.rules]
        if len(set(ids)) != len(ids):
            raise ContractError(f"{where}: two rules of {table.name} have one id")
    return contract


def _table(entry: Mapping[str, Any], where: str, carriers: Mapping[str, Column]) -> Table:
    level = _custom(entry).get("level")
    if level not in {"row", "set"}:
        raise ContractError(f"{where}: {entry['name']} is neither of level row nor set")
    columns: dict[str, Column] = {}
    rules: list[Rule] = []
    for item in entry["properties"]:
        custom = _custom(item)
        sources = custom.get("sources")
        columns[item["name"]] = Column(
            item["name"],
            item["logicalType"],
            item["description"],
            None if sources is None else {kind: tuple(names) for kind, names in sources.items()},
            tuple(custom.get("derivedFrom") or ()),
        )
        if (sources is None) == (not custom.get("derivedFrom")):
            raise ContractError(f"{where}: {item['name']} has neither or both of sources and derivedFrom")
        for flag, kind in (("required", "present"), ("unique", "unique")):
            if item.get(flag):
                says = "is there" if kind == "present" else "names one row"
                sentence = f"In every row {item['name']} {says}."
                rule_id = f"{item['name']}_{flag}"
                rules.append(Rule(rule_id, entry["name"], level, "must", sentence, item["name"], kind))
        rules += [_rule(rule, entry["name"], level, item["name"], where) for rule in item.get("quality") or ()]
    if entry.get("quality"):
        raise ContractError(f"{where}: rules stand with the column that they are about")
    for rule in rules:
        missing = [name for name in rule.reads if name not in columns]
        if missing:
            raise ContractError(f"{where}: rule {rule.id} names '{missing[0]}', which is no column of {entry['name']}")
    lost = [name for item in columns.values() for name in item.derived_from if name not in {**carriers, **columns}]
    if lost:
        raise ContractError(f"{where}: a column of {entry['name']} is derived from '{lost[0]}', which is none")
    return Table(entry["name"], level, entry["description"], columns, tuple(rules), carriers)


def _custom(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {item["property"]: item["value"] for item in entry.get("customProperties") or ()}


def _rule(entry: Mapping[str, Any], table: str, level: Level, column: str, where: str) -> Rule:
    name = str(entry.get("id"))
    severity = entry.get("severity")
    if severity not in {"must", "should"}:
        raise ContractError(f"{where}: rule {name} is neither must nor should")
    kind, options = _kind(entry, name, where)
    when = [_condition(item, name, where) for item in options.pop("when", ())]
    if kind not in KINDS:
        raise ContractError(f"{where}: rule {name} is of an unknown kind '{kind}'")
    needed, possible = KINDS[kind]
    for missing in sorted(needed - options.keys()):
        raise ContractError(f"{where}: rule {name} does not say {missing}")
    for unknown in sorted(options.keys() - needed - possible):
        raise ContractError(f"{where}: rule {name} says '{unknown}', which {kind} does not know")
    if kind == "range" and not options:
        raise ContractError(f"{where}: rule {name} names no bound")
    if kind == "pattern":
        re.compile(whole(options))
    return Rule(name, table, level, severity, str(entry["description"]), column, kind, options, tuple(when))


def _kind(entry: Mapping[str, Any], name: str, where: str) -> tuple[str, dict[str, Any]]:
    if entry.get("type") == "custom" and entry.get("engine") == "fallow":
        options = dict(entry["implementation"])
        return str(options.pop("kind", "")), options
    if entry.get("type") != "library":
        raise ContractError(f"{where}: rule {name} is for another engine")
    if entry.get("mustBe") != 0 or entry.get("unit") != "rows":
        raise ContractError(f"{where}: rule {name} must allow 0 rows; no other number can be checked")
    metric = str(entry.get("metric"))
    if metric in _METRICS:
        return _METRICS[metric], {}
    arguments = dict(entry.get("arguments") or {})
    if metric == "invalidValues" and arguments.keys() == {"validValues"}:
        return "allowed", {"values": list(arguments["validValues"])}
    if metric == "invalidValues" and arguments.keys() == {"pattern"}:
        return "pattern", arguments
    raise ContractError(f"{where}: rule {name} is of an unknown kind '{metric}'")


def _condition(entry: Mapping[str, Any], name: str, where: str) -> Condition:
    operators = entry.keys() - {"column"}
    if len(operators) != 1 or not operators <= _CONDITIONS:
        raise ContractError(f"{where}: rule {name} has a condition that is none of {', '.join(sorted(_CONDITIONS))}")
    (operator,) = operators
    return Condition(str(entry["column"]), operator, entry[operator])
