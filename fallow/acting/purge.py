"""The semantic cache: what has expired, what is there twice, and an update in place (SPEC §11).

Cache entries are answers that can be had again; they are the only thing that fallow deletes.
"""

from __future__ import annotations

import json
import unicodedata
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fallow.model.arguments import (
    Time,
    id_or_none,
    instant,
    instant_or_none,
    number,
    several,
    switch,
    text,
    text_or_none,
)
from fallow.model.errors import StoreUnwritableError, UsageError
from fallow.model.keys import MISSING, RecordKey, Row, canonical_id
from fallow.model.record import read_mapping, read_number
from fallow.model.times import MICROSECONDS_PER_HOUR, parse_time
from fallow.port.journal import control_event, ids_digest, text_time
from fallow.port.journal_writing import insert_control_rows
from fallow.port.protocol import CachePurging, Patch, Provider

SEMANTIC_CACHE: Final = "semantic_cache"
_CREATED: Final = ("created_at", "timestamp", "createdAt")
#: Hours that no window goes beyond: a thousand years.
_LONGEST: Final = 8_766_000.0
_NAMESPACE: Final = uuid.UUID("0f0d2f61-5a0e-5b6e-9d52-0e3f6c1b7a77")
_TIMELESS: Final = "a duplicate without a readable time"
_OUTLIVES: Final = "a duplicate that expires later than the latest"
#: What the decision to remove an entry rests on; it is removed only where these are as they were read.
_DECIDING: Final = (*_CREATED, "expires_at", "query", "query_text", "agent_id", "memory_id", "user_id", "response")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How long an entry without an ``expires_at`` of its own is fresh.

    Attributes:
        ttl_hours: hours from creation; an entry exactly that old is expired.
        domain_windows: hours by domain, before ``ttl_hours``.
    """

    ttl_hours: float = 24.0
    domain_windows: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class PurgeReport:
    """What a purge found and removed.

    ``duplicates`` names the older entries by the latest one that answers the same; ``to_remove`` is what a run
    that is no dry run removes, ``kept`` what it left and why.
    """

    scanned: int = 0
    expired: list[str] = field(default_factory=list)
    duplicates: dict[str, list[str]] = field(default_factory=dict)
    without_time: list[str] = field(default_factory=list)
    to_remove: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """For ``--json`` and artifacts: ids and counts, no query."""
        return {
            "schema_version": 1,
            "dry_run": self.dry_run,
            "scanned": self.scanned,
            "expired": sorted(self.expired),
            "duplicates": {name: sorted(ids) for name, ids in sorted(self.duplicates.items())},
            "without_time": sorted(self.without_time),
            "to_remove": sorted(self.to_remove),
            "removed": sorted(self.removed),
            "kept": {reason: sorted(ids) for reason, ids in sorted(self.kept.items())},
            "state": "Completed" if self.expired or self.duplicates else "NothingToDo",
        }


def normalized_query(text: str) -> str:
    """What makes two queries the same: NFKC, case folded, without punctuation and white space at word edges."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    bare = (_strip_punctuation(word) for word in words)
    return unicodedata.normalize("NFKC", " ".join(word for word in bare if word))


def _strip_punctuation(word: str) -> str:
    start, end = 0, len(word)
    while start < end and unicodedata.category(word[start])[0] in "PSZC":
        start += 1
    while end > start and unicodedata.category(word[end - 1])[0] in "PSZC":
        end -= 1
    return word[start:end]


def _created(row: Mapping[str, Any]) -> int | None:
    instants = (parse_time(row.get(name)) for name in _CREATED)
    return next((instant for instant in instants if instant is not None), None)


def _domain(row: Mapping[str, Any]) -> str:
    holders = (row, read_mapping(row.get("metadata")))
    return next((str(holder["domain"]) for holder in holders if holder.get("domain")), "")


def _lifetime(row: Mapping[str, Any], agent: Mapping[str, Any] | None, policy: CachePolicy) -> float:
    """Hours for which an entry without an expiry of its own is fresh: the agent's word first, then the policy's.

    Agents keep ``semantic_cache_config``: ``ttl_hours``, and ``freshness_by_domain`` in seconds. Values that
    cannot be used are passed over.
    """
    config = read_mapping((agent or {}).get("semantic_cache_config"))
    domain = _domain(row)
    seconds = read_number(read_mapping(config.get("freshness_by_domain")).get(domain)) if domain else None
    asked = (
        None if seconds is None else seconds / 3600,
        read_number(config.get("ttl_hours")),
        policy.domain_windows.get(domain),
    )
    hours = next((hours for hours in asked if hours is not None and hours > 0), policy.ttl_hours)
    return min(hours, _LONGEST)


def expiry_of(row: Mapping[str, Any], policy: CachePolicy, agent: Mapping[str, Any] | None = None) -> int | None:
    """When an entry expires, microseconds since the epoch; None where no time says so, and it is kept.

    Its own ``expires_at`` decides, also against a shorter window; hits never extend anything.

    Args:
        row: the cache entry.
        policy: what holds where neither the entry nor its agent says anything.
        agent: the record of the agent that owns the entry.
    """
    own = row.get("expires_at")
    if own is not None and not (isinstance(own, str) and not own.strip()):
        return parse_time(own)
    created = _created(row)
    if created is None:
        return None
    return created + round(_lifetime(row, agent, policy) * MICROSECONDS_PER_HOUR)


def _scope(row: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Who may be given the entry; an entry of one session, or of a wider reach, is another scope too."""
    return tuple(canonical_id(row.get(name)) for name in ("agent_id", "memory_id", "user_id", "session_id", "scope"))


def _query(row: Mapping[str, Any]) -> str:
    texts = (row.get(name) for name in ("query_text", "query"))
    return next((normalized_query(text) for text in texts if isinstance(text, str)), "")


def purge_semantic_cache(
    provider: Provider,
    *,
    now: Time | None = None,
    policy: CachePolicy | None = None,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
    merge_duplicates: bool = True,
    dry_run: bool = False,
) -> PurgeReport:
    """Removes expired entries, and of entries that answer the same query in the same scope all but the latest.

    An older one stays, reported, where it has no readable time, or where its own expiry is later than that of
    the latest: nothing that says how long it is good for goes before the answer that replaces it.

    Args:
        provider: the open store.
        now: the wall clock, a time of SPEC §1.5.
        policy: how long entries are fresh that do not say so themselves.
        agents: agents' own records by id, for their cache configuration.
        merge_duplicates: remove older duplicates too; else they are only reported.
        dry_run: report what would be removed and remove nothing.

    Raises:
        UsageError: an argument is none of SPEC §1.5, or this kind of store has no cache that could be purged.
        StoreUnreadableError: the listing failed or was cut short; nothing was removed.
    """
    now, dry_run = instant(now), switch(dry_run, "dry_run")
    merge_duplicates = switch(merge_duplicates, "merge_duplicates")
    if not isinstance(provider, CachePurging):
        raise UsageError(f"a {provider.capabilities.kind} store has no semantic cache that fallow can purge")
    base = policy or CachePolicy()
    report = PurgeReport(dry_run=dry_run)
    doomed: dict[str, Row] = {}
    fresh: dict[tuple[tuple[str | None, ...], str], list[tuple[Row, int | None]]] = {}
    for row in provider.find(SEMANTIC_CACHE):
        report.scanned += 1
        name = str(row["_id"])
        expires = expiry_of(row, base, (agents or {}).get(str(row.get("agent_id"))))
        if expires is None:
            report.without_time.append(name)
        if expires is not None and now >= expires:
            report.expired.append(name)
            doomed[name] = row
        elif query := _query(row):
            fresh.setdefault((_scope(row), query), []).append((row, expires))
    for entries in fresh.values():
        if len(entries) < 2:
            continue
        entries.sort(key=lambda entry: (_created(entry[0]) is not None, _created(entry[0]) or 0, str(entry[0]["_id"])))
        (latest, last), older = entries[-1], entries[:-1]
        report.duplicates[str(latest["_id"])] = [str(row["_id"]) for row, _ in older]
        for row, expires in older if merge_duplicates else ():
            name = str(row["_id"])
            if expires is None:
                report.kept.setdefault(_TIMELESS, []).append(name)
            elif row.get("expires_at") is not None and (last is None or expires > last):
                report.kept.setdefault(_OUTLIVES, []).append(name)
            else:
                doomed[name] = row
    names = list(doomed)
    report.to_remove += names
    if dry_run or not doomed:
        return report
    size = max(1, provider.capabilities.batch_size)
    for start in range(0, len(names), size):
        chunk = names[start : start + size]
        expected = {name: {key: doomed[name].get(key, MISSING) for key in _DECIDING} for name in chunk}
        for outcome in provider.purge_cache(expected):
            if outcome.status in {"applied", "gone"}:
                report.removed.append(outcome.key.record_id)
            else:
                reason = outcome.detail or outcome.status
                report.kept.setdefault(reason, []).append(outcome.key.record_id)
    if report.removed:
        digest = ids_digest([RecordKey(SEMANTIC_CACHE, name) for name in report.removed])
        payload = {
            "scanned": report.scanned,
            "expired": len(report.expired),
            "duplicates": sum(map(len, report.duplicates.values())),
            "removed": len(report.removed),
            "ids_digest": digest,
        }
        insert_control_rows(
            provider, [control_event("semantic_cache_purged", f"cache-purge:{now}:{digest}", payload, now=now)]
        )
    return report


def cache_answer(
    provider: Provider,
    *,
    query: str,
    response: str,
    now: Time | None = None,
    agent_id: str | None = None,
    memory_id: str | None = None,
    user_id: str | None = None,
    expires_at: Time | None = None,
    embedding: Iterable[float] | None = None,
    domain: str | None = None,
) -> str:
    """Caches an answer: the same query in the same scope again is an update of the same entry; its id.

    Times are those of SPEC §1.5; without ``now`` the system's clock is asked. Caching anew starts the entry's life
    anew.

    Raises:
        UsageError: an argument is none of SPEC §1.5, or the query says nothing.
        StoreUnwritableError: the store refused the entry.
    """
    now, expires_at = instant(now), instant_or_none(expires_at, "expires_at")
    query, response, domain = text(query, "query"), text(response, "response"), text_or_none(domain, "domain")
    scope = tuple(
        id_or_none(value, name)
        for name, value in (("agent_id", agent_id), ("memory_id", memory_id), ("user_id", user_id))
    )
    numbers = None if embedding is None else [number(one, "embedding") for one in several(embedding, "embedding")]
    normal = normalized_query(query)
    if not normal:
        raise UsageError("the query says nothing", hint="only queries with a word in them are cached")
    name = str(uuid.uuid5(_NAMESPACE, json.dumps([*scope, normal])))
    values: Row = {
        "query": query,
        "query_text": query,
        "response": response,
        "timestamp": now / 1e6,
        "created_at": text_time(now),
        "expires_at": None if expires_at is None else expires_at / 1e6,
        "hit_count": 0,
        "usage_count": 0,
    }
    more = {"embedding": numbers, "domain": domain}
    values |= {key: value for key, value in more.items() if value is not None}
    named = dict(zip(("agent_id", "memory_id", "user_id"), scope, strict=True))
    row = {"_id": name, "id": name, "cache_key": name, "scope": "local", **named, **values}
    (outcome,) = provider.insert(SEMANTIC_CACHE, [row])
    if outcome.status == "already":
        (outcome,) = provider.patch([Patch(RecordKey(SEMANTIC_CACHE, name), {}, values)])
    if outcome.status not in {"applied", "unknown"}:
        raise StoreUnwritableError(
            f"the cache entry was not stored: {outcome.detail or outcome.status}", hint="check space and permissions"
        )
    return name
