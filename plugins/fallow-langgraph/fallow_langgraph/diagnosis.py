"""What ``fallow doctor`` says of a store of LangGraph's: what it would map, and what it may do there."""

from __future__ import annotations

from typing import Any

import psycopg

from fallow_langgraph.mapping import StoreMapping

_LISTED = 8
_UNCOUNTED = ("access data", "warning", "none: recency rests on updated_at (GovernedStore counts recalls)")


def diagnose(
    connection: psycopg.Connection[tuple[Any, ...]], mapping: StoreMapping, tables: bool
) -> list[tuple[str, str, str]]:
    """Checks as (name, level, what was found). ``tables``: fallow's own tables are there."""
    rows = connection.execute("select prefix, count(*) from store group by prefix order by prefix").fetchall()
    found = [(f"mapping, from {mapping.origin}", "info", f"{len(mapping.rules)} rules, the first that fits counts")]
    by_rule: dict[int, tuple[int, int]] = {}
    unmapped: list[tuple[str, int]] = []
    for prefix, count in rows:
        rule = mapping.rule_of(prefix)
        if rule is None:
            unmapped.append((prefix, count))
            continue
        place = mapping.rules.index(rule)
        spaces, records = by_rule.get(place, (0, 0))
        by_rule[place] = (spaces + 1, records + count)
    for place, (spaces, records) in sorted(by_rule.items()):
        rule = mapping.rules[place]
        said = f"{rule.memory_type}: {records} rows of {spaces} namespaces, text from {rule.text or 'its usual fields'}"
        owner = rule.scope.get("agent_id") or ("{agent_id}" if "{agent_id}" in rule.namespace else "nobody")
        found.append((f"namespaces {rule.namespace}", "ok", f"{said}, owner {owner}, ids are {rule.ids}"))
    if unmapped:
        names = ", ".join(f"{prefix} ({count})" for prefix, count in unmapped[:_LISTED])
        more = f" and {len(unmapped) - _LISTED} more" if len(unmapped) > _LISTED else ""
        total = sum(count for _, count in unmapped)
        found.append(("namespaces that no rule fits", "warning", f"{total} rows, never planned: {names}{more}"))
    kept = _hidden(connection, mapping) if tables else [_UNCOUNTED]
    return [*found, *_odd(connection), *_rights(connection, tables), *kept]


def _odd(connection: psycopg.Connection[tuple[Any, ...]]) -> list[tuple[str, str, str]]:
    found = connection.execute("select count(*) from store where jsonb_typeof(value) <> 'object'").fetchone()
    count = found[0] if found is not None else 0
    return [("values that are no objects", "warning", f"{count}, unreadable and never planned")] if count else []


def _rights(connection: psycopg.Connection[tuple[Any, ...]], tables: bool) -> list[tuple[str, str, str]]:
    found = connection.execute(
        "select has_table_privilege('store', 'insert') and has_table_privilege('store', 'update')"
        " and has_table_privilege('store', 'delete'), has_schema_privilege(n.oid, 'create'), n.nspname"
        " from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass('store')"
    ).fetchone()
    assert found is not None
    writes, creates, schema = found
    if writes and (creates or tables):
        return [("permissions", "ok", "may suppress and restore")]
    lacks = (
        "INSERT, UPDATE and DELETE on store" if not writes else f"CREATE on schema {schema}, for fallow's own tables"
    )
    return [("permissions", "warning", f"may read only, nothing can be planned durably or applied: lacks {lacks}")]


def _hidden(connection: psycopg.Connection[tuple[Any, ...]], mapping: StoreMapping) -> list[tuple[str, str, str]]:
    found = connection.execute(
        "select count(*), count(*) filter (where expires_at < now()),"
        " count(*) filter (where exists (select from store s where s.prefix = h.prefix and s.key = h.key))"
        " from fallow_suppressed h"
    ).fetchone()
    touched = connection.execute("select exists (select from fallow_fields where fields ? 'access_count')").fetchone()
    assert found is not None
    assert touched is not None
    count, expired, again = found
    answer = [("suppressed rows", "info", f"{count}, outside LangGraph's store until they are restored")]
    if expired:
        what = "kept until restored" if mapping.expired == "keep" else "given up by the next write"
        answer.append(
            ("suppressed rows past their expiry", "warning", f"{expired}, {what} (expired={mapping.expired})")
        )
    if again:
        answer.append(("keys put again while suppressed", "info", f"{again}: restoring leaves the agent's row"))
    if not touched[0]:
        answer.append(_UNCOUNTED)
    return answer
