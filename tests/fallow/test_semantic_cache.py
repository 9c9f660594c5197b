"""The only thing that fallow deletes, and when (SPEC §11)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fallow.acting.purge import CachePolicy, cache_answer, normalized_query, purge_semantic_cache
from fallow.model.times import MICROSECONDS_PER_HOUR
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, days_ago, record, tree

HOUR = MICROSECONDS_PER_HOUR


def entry(name: str, *, hours: float | None = 1, query: str | None = None, **more: Any) -> dict[str, Any]:
    row = {"_id": name, "query": query or f"query {name}", "response": "yes", "agent_id": "a", "memory_id": "m", **more}
    return row if hours is None else {**row, "timestamp": (NOW - hours * HOUR) / 1e6}


@pytest.fixture
def cache(tmp_path: Path):
    opened: list[Provider] = []

    def make(*rows: dict[str, Any]) -> Provider:
        root = tmp_path / "s"
        write_as_agent(root, {"semantic_cache": list(rows), CONVERSATION: [record("kept")], "shared_memory": []})
        opened.append(open_provider(str(root)))
        return opened[-1]

    yield make
    for provider in opened:
        provider.close()


def left(provider: Provider) -> set[str]:
    return {str(row["_id"]) for row in provider.find("semantic_cache")}


def test_exactly_the_ttl_is_expired_trap_20(cache) -> None:
    provider = cache(entry("exact", hours=24), entry("before", hours=24 - 1 / 3600), entry("fresh"))
    report = purge_semantic_cache(provider, now=NOW)
    assert report.removed == ["exact"]
    assert left(provider) == {"before", "fresh"}


def test_an_entrys_own_expiry_decides_and_one_without_a_time_stays_trap_51(cache) -> None:
    provider = cache(
        entry("own-later", hours=30, expires_at=days_ago(-2)),
        entry("own-past", hours=1, expires_at=(NOW - 1) / 1e6),
        entry("own-now", hours=1, expires_at=NOW / 1e6),
        entry("own-unreadable", hours=90, expires_at="next week"),
        entry("timeless", hours=None),
        entry("hit", hours=30, hit_count=99, last_accessed_at=days_ago(0)),
    )
    report = purge_semantic_cache(provider, now=NOW)
    assert sorted(report.removed) == ["hit", "own-now", "own-past"]
    assert sorted(report.without_time) == ["own-unreadable", "timeless"]
    assert left(provider) == {"own-later", "own-unreadable", "timeless"}


def test_domain_windows_and_an_agents_own_configuration_come_first(cache) -> None:
    provider = cache(
        entry("weather", hours=2, domain="weather"),
        entry("law", hours=90, metadata={"domain": "law"}),
        entry("slow", hours=30, agent_id="slow"),
        entry("slow-weather", hours=30, agent_id="slow", domain="weather"),
        entry("stock-old", hours=1, agent_id="stock", metadata='{"domain": "inventory"}'),
        entry("stock", hours=9000, agent_id="stock"),
        entry("bad", hours=24, agent_id="bad", domain="inventory"),
        entry("other", hours=30),
    )
    policy = CachePolicy(domain_windows={"weather": 1.0, "law": 1000.0})
    agents = {
        "slow": {"semantic_cache_config": {"ttl_hours": "48"}},
        "stock": {"semantic_cache_config": json.dumps({"freshness_by_domain": {"inventory": 60}, "ttl_hours": 1e308})},
        "bad": {"semantic_cache_config": {"ttl_hours": -1, "freshness_by_domain": [1]}},
    }
    report = purge_semantic_cache(provider, now=NOW, policy=policy, agents=agents)
    assert sorted(report.removed) == ["bad", "other", "stock-old", "weather"]


def test_the_same_query_in_the_same_scope_is_kept_once_the_latest_trap_41(cache) -> None:
    composed, decomposed = "caf\u00e9?", "cafe\u0301"
    provider = cache(
        entry("u1-old", hours=3, query="Hello?", user_id="u1"),
        entry("u1-new", hours=1, query="hello ?", user_id="u1"),
        entry("u2", hours=2, query="HELLO!", user_id="u2"),
        entry("c-old", hours=3, query=composed),
        entry("c-new", hours=2, query=decomposed),
        entry("inside", hours=2, query="don't go"),
        entry("inside-2", hours=1, query="dont go"),
        entry("other-memory", hours=1, query="hello", user_id="u1", memory_id="n"),
    )
    reported = purge_semantic_cache(provider, now=NOW, merge_duplicates=False)
    assert (reported.removed, len(left(provider))) == ([], 8)
    report = purge_semantic_cache(provider, now=NOW)
    assert report.duplicates == {"u1-new": ["u1-old"], "c-new": ["c-old"]}
    assert left(provider) == {"u1-new", "u2", "c-new", "inside", "inside-2", "other-memory"}
    assert "Hello" not in json.dumps(report.to_json())


def test_a_duplicate_goes_no_earlier_than_the_answer_that_replaces_it(cache) -> None:
    provider = cache(
        entry("timeless", hours=None, query="Hello"),
        entry("long", hours=3, query="hello", expires_at=days_ago(-9)),
        entry("short", hours=2, query="hello", expires_at=days_ago(-0.5)),
        entry("latest", hours=1, query="hello"),
        entry("session", hours=4, query="hello", session_id="s"),
        entry("global", hours=4, query="hello", scope="global"),
    )
    dry = purge_semantic_cache(provider, now=NOW, dry_run=True)
    assert (dry.to_remove, dry.removed) == (["short"], [])
    report = purge_semantic_cache(provider, now=NOW)
    assert report.duplicates == {"latest": ["timeless", "long", "short"]}
    assert report.removed == ["short"]
    assert sorted(name for names in report.kept.values() for name in names) == ["long", "timeless"]
    assert left(provider) == {"timeless", "long", "latest", "session", "global"}


def test_a_dry_run_removes_nothing_and_a_purge_nothing_else(cache, tmp_path: Path) -> None:
    provider = cache(entry("old", hours=99), entry("fresh"))
    before = tree(tmp_path / "s")
    assert purge_semantic_cache(provider, now=NOW, dry_run=True).expired == ["old"]
    assert tree(tmp_path / "s") == before
    purge_semantic_cache(provider, now=NOW)
    after = tree(tmp_path / "s")
    gone = {name for name in before if name not in after}
    assert gone == {"semantic_cache/old.json"}
    changed = {name for name in before if name in after and after[name] != before[name]}
    assert changed == {"semantic_cache/index.json", "shared_memory/index.json"}
    assert purge_semantic_cache(provider, now=NOW).to_json()["state"] == "NothingToDo"


def test_an_entry_that_was_renewed_meanwhile_stays(cache, tmp_path: Path) -> None:
    provider = cache(entry("old", hours=99))
    (found,) = provider.find("semantic_cache")
    path = tmp_path / "s" / "semantic_cache" / "old.json"
    path.write_text(json.dumps({**found, "timestamp": NOW / 1e6}))
    (outcome,) = provider.purge_cache({"old": {"timestamp": found["timestamp"]}})
    assert outcome.status == "changed"
    assert left(provider) == {"old"}


def test_caching_the_same_query_in_the_same_scope_is_an_update(cache) -> None:
    provider = cache()
    names = {
        cache_answer(provider, query=text, response=answer, now=NOW + at, agent_id="a", user_id="u1")
        for at, (text, answer) in enumerate([("Hello?", "one"), ("hello ?", "two"), ("HELLO", "three")])
    }
    other = cache_answer(provider, query="hello", response="four", now=NOW, agent_id="a", user_id="u2")
    assert len(names) == 1
    rows = {str(row["_id"]): row for row in provider.find("semantic_cache")}
    assert rows.keys() == names | {other}
    (name,) = names
    assert (rows[name]["response"], rows[name]["timestamp"]) == ("three", (NOW + 2) / 1e6)
    assert purge_semantic_cache(provider, now=NOW + 25 * HOUR).removed


@pytest.mark.parametrize(
    ("left_text", "right_text", "same"),
    [
        ("Hello?", "hello ?", True),
        ("¿Qué?", "qué", True),
        ("ﬁne", "FINE", True),
        ("Straße", "STRASSE", True),
        ("你好？", "你好", True),
        ("3.5", "35", False),
        ("don't", "dont", False),
        ("a b", "ab", False),
    ],
)
def test_when_two_queries_are_the_same_11(left_text: str, right_text: str, same: bool) -> None:
    assert (normalized_query(left_text) == normalized_query(right_text)) is same
