"""Which namespaces are which memory type, and where owner, user and thread stand in them.

LangGraph joins a namespace by dots, and a label holds none: ``memories.u1`` is the namespace ("memories", "u1").
A rule names such a namespace with places: ``memories.{user_id}``. The first rule that fits a namespace is its rule;
what fits none is listed by ``fallow doctor`` and never planned.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from fallow.model.errors import UsageError
from fallow.model.record import PRIMARY_TYPES

#: The environment variable that names a mapping: a path to TOML or JSON, or JSON itself.
SETTING: Final = "FALLOW_LANGGRAPH"

#: namespace:key   the default: keys of two namespaces may be alike
#: key             where a key is unique over all namespaces of the type (LangMem's keys are UUIDs)
Ids = Literal["namespace:key", "key"]
_PLACES: Final = ("agent_id", "memory_id", "user_id", "thread_id")
_PLACE: Final = re.compile(r"\{(\w+)\}\Z")
#: Namespaces whose rule is remembered at once.
_REMEMBERED: Final = 50_000
_RULE_KEYS: Final = frozenset({"namespace", "type", "text", "ids", *_PLACES})


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of namespace.

    Attributes:
        namespace: labels joined by dots; ``{user_id}`` and the like stand for one label each, ``*`` for any one,
            a closing ``**`` for any number of further ones.
        memory_type: one of SPEC §1's primary types.
        text: where the text stands in ``value``, as a path of keys joined by dots; empty: fallow's own rule, and
            where that finds nothing the whole value as JSON.
        ids: what a record's id is.
        scope: values that all its records have, by scope field (the owner, most often).
    """

    namespace: str
    memory_type: str
    text: str = ""
    ids: Ids = "namespace:key"
    scope: Mapping[str, str] = field(default_factory=dict)

    @property
    def pattern(self) -> str:
        """A regular expression over a whole prefix that PostgreSQL and Python read alike."""
        labels = self.namespace.split(".")
        open_end = labels[-1] == "**"
        parts = [_one(label) for label in (labels[:-1] if open_end else labels)]
        joined = r"\.".join(parts)
        if open_end:
            joined = rf"{joined}(\.[^.]+)*" if parts else r"[^.]+(\.[^.]+)*"
        return f"^{joined}$"

    def scope_of(self, prefix: str) -> dict[str, str]:
        """What a namespace that fits says of its records' scope; the namespace itself is their memory."""
        found = {"memory_id": prefix}
        for label, said in zip(self.namespace.split("."), prefix.split("."), strict=False):
            place = _PLACE.match(label)
            if place is not None:
                found[place[1]] = said
        return {**found, **self.scope}


def _one(label: str) -> str:
    if label == "*" or _PLACE.match(label):
        return "[^.]+"
    return re.sub(r"([^\w\s-])", r"\\\1", label)


@dataclass(frozen=True, slots=True)
class StoreMapping:
    """The rules of a store, in the order in which they are tried.

    Attributes:
        rules: the rules.
        expired: whether a suppressed row whose expiry has passed is kept (and reported by doctor) or given up.
        origin: where the mapping came from, for doctor.
    """

    rules: tuple[Rule, ...]
    expired: Literal["keep", "honour"] = "keep"
    origin: str = "default"
    _known: dict[str, tuple[Rule, Mapping[str, str]] | None] = field(default_factory=dict, compare=False, repr=False)

    def rule_of(self, prefix: str) -> Rule | None:
        """The first rule that fits a namespace, or None."""
        found = self.scoped(prefix)
        return None if found is None else found[0]

    def scoped(self, prefix: str) -> tuple[Rule, Mapping[str, str]] | None:
        """The first rule that fits a namespace with what it says of the scope; remembered, as rows share namespaces."""
        if prefix not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            rule = next((rule for rule in self.rules if _compiled(rule.pattern).match(prefix)), None)
            self._known[prefix] = None if rule is None else (rule, rule.scope_of(prefix))
        return self._known[prefix]

    def patterns(self, memory_type: str) -> list[str]:
        """The patterns of a type's rules; a namespace may fit one and still be another rule's."""
        return [rule.pattern for rule in self.rules if rule.memory_type == memory_type]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.removesuffix("$") + r"\Z", re.DOTALL)


#: LangMem's tools and its store manager write under ("memories", user), its profiles and episodes beside; LangGraph's
#: own pages write under (user, "memories").
DEFAULT: Final = StoreMapping(
    (
        Rule("memories.{user_id}.episodes", "workflow_memory"),
        Rule("memories.{user_id}.profile", "entity_memory"),
        Rule("memories.{user_id}.{thread_id}", "conversation_memory"),
        Rule("memories.{user_id}", "knowledge_base"),
        Rule("memories", "knowledge_base"),
        Rule("profiles.{user_id}", "entity_memory"),
        Rule("episodes.{user_id}", "workflow_memory"),
        Rule("summaries.{user_id}", "summaries"),
        Rule("conversations.{user_id}.{thread_id}", "conversation_memory"),
        Rule("{user_id}.memories", "knowledge_base"),
        Rule("{user_id}.profile", "entity_memory"),
    )
)


def load_mapping(said: str | None) -> StoreMapping:
    """The mapping that the setting names: blank is the default, else a path to TOML or JSON, or JSON itself.

    Raises:
        UsageError: it cannot be read or says what no mapping says; the message names the rule.
    """
    if said is None or not said.strip():
        return DEFAULT
    text, origin = said.strip(), SETTING
    try:
        if text.startswith("{"):
            return read_mapping(json.loads(text), origin)
        path = Path(text).expanduser()
        body = path.read_text("utf-8")
        return read_mapping(tomllib.loads(body) if path.suffix == ".toml" else json.loads(body), f"{origin}={path}")
    except OSError as error:
        raise UsageError(
            f"{SETTING} names {text[:200]!r}, which cannot be read: {error.strerror}", hint="a path to TOML or JSON"
        ) from None
    except ValueError as error:
        raise UsageError(f"{SETTING} cannot be read: {error}", hint="docs/langgraph.md has an example") from None


def read_mapping(said: Any, origin: str) -> StoreMapping:
    """A mapping as TOML or JSON says it: ``rules``, a list of tables, and ``expired``. Raises as load_mapping."""
    if not isinstance(said, Mapping) or not isinstance(said.get("rules"), list) or not said["rules"]:
        raise UsageError(f"{origin}: a mapping is an object with rules, a list", hint="docs/langgraph.md has one")
    unknown = set(said) - {"rules", "expired"}
    if unknown:
        raise UsageError(f"{origin}: no mapping has {', '.join(sorted(map(str, unknown)))}", hint="rules, expired")
    expired = said.get("expired", "keep")
    if expired not in ("keep", "honour"):
        raise UsageError(f"{origin}: expired is keep or honour, not {expired!r}", hint="keep is the default")
    return StoreMapping(
        tuple(_rule(item, f"{origin}: rule {n + 1}") for n, item in enumerate(said["rules"])), expired, origin
    )


def _rule(said: Any, where: str) -> Rule:
    if not isinstance(said, Mapping) or not all(isinstance(value, str) for value in said.values()):
        raise UsageError(f"{where} is no table of texts", hint="namespace and type are wanted")
    unknown = set(said) - _RULE_KEYS
    if unknown:
        raise UsageError(f"{where}: no rule has {', '.join(sorted(unknown))}", hint=", ".join(sorted(_RULE_KEYS)))
    namespace, memory_type = said.get("namespace", ""), said.get("type", "")
    if memory_type not in PRIMARY_TYPES:
        raise UsageError(f"{where}: {memory_type!r} is no memory type", hint=f"one of {', '.join(PRIMARY_TYPES)}")
    _check_labels(namespace.split("."), where)
    ids = said.get("ids", "namespace:key")
    if ids not in ("namespace:key", "key"):
        raise UsageError(f"{where}: ids is namespace:key or key, not {ids!r}", hint="namespace:key is the default")
    scope = {name: said[name] for name in _PLACES if said.get(name)}
    return Rule(namespace, memory_type, said.get("text", ""), "key" if ids == "key" else "namespace:key", scope)


def _check_labels(labels: Sequence[str], where: str) -> None:
    if not all(labels):
        raise UsageError(f"{where}: a namespace is labels joined by dots", hint="memories.{user_id}")
    if "**" in labels[:-1]:
        raise UsageError(f"{where}: ** stands at the end of a namespace", hint="memories.**")
    for label in labels:
        place = _PLACE.match(label)
        if "{" in label and (place is None or place[1] not in _PLACES):
            raise UsageError(f"{where}: {label!r} is no place", hint="{" + "}, {".join(_PLACES) + "}")


def record_id(rule: Rule, prefix: str, key: str, suffix: str = "") -> str:
    """A row's record id. In ``namespace:key`` the namespace's own colons are escaped, so that no two rows share one."""
    if rule.ids == "key":
        return key + suffix
    return f"{prefix.replace('%', '%25').replace(':', '%3A')}:{key}{suffix}"


#: What the id of a row ends with that the agent has put while another row of its key is suppressed.
_AGAIN: Final = re.compile(r"#put-again--?\d+\Z")


def places_of(
    mapping: StoreMapping, memory_type: str, record_ids: Sequence[str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Where records of these ids can lie: (prefix, key) pairs, and keys alone for rules whose ids are keys."""
    names = dict.fromkeys(form for name in record_ids for form in (name, _AGAIN.sub("", name)))
    pairs: list[tuple[str, str]] = []
    rules = [rule for rule in mapping.rules if rule.memory_type == memory_type]
    for name in names:
        said, colon, key = name.partition(":")
        prefix = said.replace("%3A", ":").replace("%25", "%")
        rule = mapping.rule_of(prefix) if colon else None
        if rule is not None and rule.memory_type == memory_type and rule.ids == "namespace:key":
            pairs.append((prefix, key))
    return pairs, list(names) if any(rule.ids == "key" for rule in rules) else []
