"""What LangGraph's own store shows of what fallow does, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("langgraph.store.postgres", reason="langgraph-checkpoint-postgres is not installed")

from fallow_langgraph.mapping import DEFAULT, read_mapping
from fallow_langgraph.provider import LangGraphProvider
from fallow_langgraph.writing import PUT_AGAIN
from langgraph.store.postgres import AsyncPostgresStore

from fallow.model.errors import FallowError, StoreNotFoundError, StoreUnreadableError, StoreUnwritableError, UsageError
from fallow.model.keys import RecordKey
from fallow.model.record import PLANNING_COLUMNS, requirements
from fallow.port.protocol import Patch
from tests.plugins.langgraph_world import DIMENSIONS, NOW, World, embed, world
from tests.servers.postgresql import PostgreSQL

MINE = ("memories", "u1")
KNOWLEDGE = "knowledge_base"
HIDE = {"retention_state": "suppressed", "suppressed_by": "forget-plan-x", "suppressed_from": "active"}
SHOW = {"retention_state": "active", "unsuppressed_by": "bea", "unsuppressed_at": "2026-12-02T00:00:00+00:00"}
TEXTS = {"k1": "likes green tea", "k2": "lives in a house by the sea", "k3": "works on rockets"}


@pytest.fixture
def agent(server: PostgreSQL) -> Iterator[World]:
    """A store with three memories of one user, 90 days old."""
    with world(server) as made:
        with made.langgraph() as store:
            for key, text in TEXTS.items():
                store.put(MINE, key, {"content": text})
        made.age()
        yield made


def write(provider: LangGraphProvider, name: str, changes: dict[str, Any], memory_type: str = KNOWLEDGE) -> Any:
    row = provider.fetch(memory_type, [name])[name]
    assert isinstance(row, dict), row
    [outcome] = provider.patch([Patch(RecordKey(memory_type, name), requirements(row), changes)])
    return outcome


def agents_see(agent: World) -> dict[str, set[str]]:
    """What LangGraph's own store answers, by way of asking: the keys of MINE."""
    with agent.langgraph() as store:
        seen = {
            "get": {key for key in TEXTS if store.get(MINE, key) is not None},
            "search": {item.key for item in store.search(MINE, limit=50)},
            "namespaces": {".".join(space) for space in store.list_namespaces()},
        }
        if agent.index:
            seen["vectors"] = {item.key for item in store.search(MINE, query="green tea", limit=50)}
    return seen


async def agents_see_async(agent: World) -> dict[str, set[str]]:
    async with AsyncPostgresStore.from_conn_string(agent.address, index=agent.index) as store:
        seen = {
            "get": {key for key in TEXTS if await store.aget(MINE, key) is not None},
            "search": {item.key for item in await store.asearch(MINE, limit=50)},
            "namespaces": {".".join(space) for space in await store.alist_namespaces()},
        }
        if agent.index:
            seen["vectors"] = {item.key for item in await store.asearch(MINE, query="green tea", limit=50)}
    return seen


def test_a_suppressed_row_is_in_no_answer_of_langgraph_and_comes_back_bit_for_bit(agent: World) -> None:
    before = agent.bytes()
    with agent.open() as provider:
        assert write(provider, "memories.u1:k1", HIDE).status == "applied"
        for seen in (agents_see(agent), asyncio.run(agents_see_async(agent))):
            assert seen.pop("namespaces") == {"memories.u1"}
            assert all(keys == {"k2", "k3"} for keys in seen.values()), seen
        assert {place: row for place, row in before.items() if place[1] != "k1"} == agent.bytes()
        for name in ("k2", "k3"):
            write(provider, f"memories.u1:{name}", HIDE)
        assert agents_see(agent)["namespaces"] == set()
        for name in TEXTS:
            assert write(provider, f"memories.u1:{name}", SHOW).status == "applied"
    assert agent.bytes() == before
    for seen in (agents_see(agent), asyncio.run(agents_see_async(agent))):
        assert seen.pop("namespaces") == {"memories.u1"}
        assert all(keys == set(TEXTS) for keys in seen.values()), seen
    assert agent.run("select count(*) from fallow_suppressed") == [(0,)]
    if agent.index:
        assert agent.run("select count(*) from fallow_suppressed_vectors") == [(0,)]


@pytest.mark.parametrize("kind", ["vector", "halfvec"])
def test_vectors_of_every_kind_and_dimension_come_back_bit_for_bit(server: PostgreSQL, kind: str) -> None:
    if not server.vectors:
        pytest.skip("pgvector is not installed")
    if kind == "halfvec" and not server.run(
        "select 1 from pg_available_extension_versions where name = 'vector' and version >= '0.7'"
    ):
        pytest.skip("this pgvector has no halfvec")
    with world(server) as made:
        made.run("drop index store_vectors_embedding_idx")
        made.run(f"alter table store_vectors alter embedding type {kind}({DIMENSIONS})")
        with made.langgraph() as store:
            store.put(MINE, "k1", {"content": "a b c", "title": "d"}, index=["content", "title"])
        if kind == "vector":
            made.run("update store_vectors set embedding = array_fill(1e-7::real, array[16])::vector(16)")
        before = made.run(f"select *, {kind}_send(embedding) from store_vectors order by field_name")
        assert len(before) == 2
        with made.open() as provider:
            write(provider, "memories.u1:k1", HIDE)
            assert made.run("select count(*) from store_vectors") == [(0,)]
            write(provider, "memories.u1:k1", SHOW)
        assert made.run(f"select *, {kind}_send(embedding) from store_vectors order by field_name") == before


def test_a_key_that_the_agent_put_again_is_left_and_said(agent: World) -> None:
    with agent.open() as provider:
        write(provider, "memories.u1:k1", HIDE)
        with agent.langgraph() as store:
            store.put(MINE, "k1", {"content": "likes black coffee now"})
        shown = agent.bytes()
        outcome = write(provider, "memories.u1:k1", SHOW)
        assert (outcome.status, outcome.detail) == ("failed", PUT_AGAIN)
        assert agent.bytes() == shown
        listed = {
            name: state
            for batch in provider.scan(KNOWLEDGE, ("record_id", "retention_state"))
            for name, state in batch.frame.iter_rows()
        }
        [again] = [name for name in listed if "#put-again-" in name]
        assert listed["memories.u1:k1"] == "suppressed"
        assert listed[again] == "active"
        # The new row is a record of its own: it can be suppressed and restored beside the old one.
        assert write(provider, again, {**HIDE, "suppressed_by": "forget-plan-y"}).status == "applied"
        assert agents_see(agent)["search"] == {"k2", "k3"}
        assert write(provider, again, SHOW).status == "applied"
        with agent.langgraph() as store:
            item = store.get(MINE, "k1")
            assert item is not None
            assert item.value == {"content": "likes black coffee now"}
            store.delete(MINE, "k1")
        assert write(provider, "memories.u1:k1", SHOW).status == "applied"
        assert agents_see(agent)["get"] == set(TEXTS)


def test_what_fallow_keeps_beside_a_row_moves_no_time_and_no_value_and_dies_with_it(agent: World) -> None:
    before = agent.bytes()
    with agent.open() as provider:
        assert write(provider, "memories.u1:k1", {"importance": 0.7, "importance_source": "llm"}).status == "applied"
        assert [one.status for one in provider.touch_many(KNOWLEDGE, ["memories.u1:k1"] * 2, NOW)] == ["applied"] * 2
        assert agent.bytes() == before
        row = provider.fetch(KNOWLEDGE, ["memories.u1:k1"])["memories.u1:k1"]
        assert isinstance(row, dict)
        assert (row["importance"], row["access_count"], row["user_id"]) == (0.7, 2, "u1")
        with agent.langgraph() as store:
            store.put(MINE, "k1", {"content": "likes green tea, cold"})
        kept = provider.fetch(KNOWLEDGE, ["memories.u1:k1"])["memories.u1:k1"]
        assert isinstance(kept, dict)
        assert (kept["importance"], kept["content"]) == (0.7, "likes green tea, cold")
        with agent.langgraph() as store:
            store.delete(MINE, "k1")
            store.put(MINE, "k1", {"content": "somebody else"})
        new = provider.fetch(KNOWLEDGE, ["memories.u1:k1"])["memories.u1:k1"]
        assert isinstance(new, dict)
        assert "importance" not in new
        assert "access_count" not in new


def test_reading_makes_no_table_and_writes_nothing(agent: World) -> None:
    tables = agent.run("select relname from pg_class where relkind = 'r' order by 1")
    with agent.open() as provider:
        list(provider.scan(KNOWLEDGE, PLANNING_COLUMNS))
        provider.fetch(KNOWLEDGE, ["memories.u1:k1"])
        list(provider.find("shared_memory", ""))
        provider.diagnose()
        provider.identity()
    assert agent.run("select relname from pg_class where relkind = 'r' order by 1") == tables


def test_expiry_is_kept_while_suppressed_and_honoured_only_where_the_setting_says_so(agent: World) -> None:
    agent.run("update store set expires_at = now() - interval '1 hour', ttl_minutes = 60 where key = 'k1'")
    before = agent.bytes()
    with agent.open() as provider:
        write(provider, "memories.u1:k1", HIDE)
        with agent.langgraph(ttl={"sweep_interval_minutes": 1}) as store:
            assert store.sweep_ttl() == 0
        found = {name: text for name, _, text in provider.diagnose()}
        assert found["suppressed rows past their expiry"].startswith("1, kept until restored")
        assert write(provider, "memories.u1:k1", SHOW).status == "applied"
        assert agent.bytes() == before
        write(provider, "memories.u1:k1", HIDE)
    rules = [{"namespace": "memories.{user_id}", "type": KNOWLEDGE}]
    with agent.open(read_mapping({"rules": rules, "expired": "honour"}, "test")) as provider:
        row = provider.fetch(KNOWLEDGE, ["memories.u1:k1"])["memories.u1:k1"]
        assert isinstance(row, dict)
        [outcome] = provider.patch([Patch(RecordKey(KNOWLEDGE, "memories.u1:k1"), requirements(row), SHOW)])
        assert outcome.status == "gone"
    assert agent.run("select count(*) from fallow_suppressed") == [(0,)]


def test_a_namespace_that_no_rule_fits_and_a_value_that_is_no_object_are_listed_and_never_planned(agent: World) -> None:
    with agent.langgraph() as store:
        store.put(("prompts", "support", "v1"), "p", {"content": "be kind"})
    agent.run(
        "insert into store (prefix, key, value) values ('memories.u1', 'bad', '[1]'), ('memories.u1', 'text', '\"x\"')"
    )
    with agent.open() as provider:
        found = {name: (level, text) for name, level, text in provider.diagnose()}
        assert found["namespaces that no rule fits"] == ("warning", "1 rows, never planned: prompts.support.v1 (1)")
        assert found["values that are no objects"][0] == "warning"
        assert "3" in found["namespaces memories.{user_id}"][1] or "5 rows" in found["namespaces memories.{user_id}"][1]
        listed, torn = set(), set()
        for memory_type in ("knowledge_base", "conversation_memory", "entity_memory", "summaries", "workflow_memory"):
            for batch in provider.scan(memory_type, ("record_id",)):
                listed |= set(batch.frame["record_id"])
                torn |= {item.key.record_id for item in batch.unreadable}
        assert listed == {f"memories.u1:{key}" for key in TEXTS}
        assert torn == {"memories.u1:bad", "memories.u1:text"}


def test_keys_of_4_kb_and_of_every_form_are_kept(agent: World) -> None:
    keys = ["k" * 4096, "a:b", "#put-again-7", "乗 𝔘", "'; drop table store; --", "%s", " "]
    with agent.langgraph() as store:
        for key in keys:
            store.put(("memories", "u:2%"), key, {"content": f"of {key[:9]}"})
    with agent.open() as provider:
        names = [f"memories.u%3A2%25:{key}" for key in keys]
        before = agent.bytes()
        for name in names:
            assert write(provider, name, HIDE).status == "applied", name[:40]
        assert len(agent.bytes()) == len(TEXTS)
        for name in names:
            assert write(provider, name, SHOW).status == "applied", name[:40]
        assert agent.bytes() == before


def test_another_schema_is_a_clear_error_and_nothing_is_written(server: PostgreSQL) -> None:
    with server.database("other_schema") as name:
        with pytest.raises(StoreNotFoundError, match="no table store"):
            LangGraphProvider(server.address(name))
        server.run("create table store (prefix text, key text, value json, primary key (prefix, key))", name)
        with pytest.raises(StoreUnreadableError, match="another schema version"):
            LangGraphProvider(server.address(name))
    with world(server) as made:
        made.run("insert into store_migrations values (99)")
        with pytest.raises(StoreUnreadableError, match="version 99"):
            made.open()
        made.run("delete from store_migrations where v = 99")
        made.open().close()
        tables = {row[0] for row in made.run("select relname from pg_class where relkind = 'r'")}
        assert not any(table.startswith("fallow") for table in tables)


def test_a_role_that_may_only_read_plans_nothing_and_says_why(agent: World) -> None:
    agent.run("do $$ begin create role only_reads login; exception when duplicate_object then null; end $$")
    agent.run("grant select on all tables in schema public to only_reads")
    before = agent.bytes()
    with LangGraphProvider(agent.server.address(agent.name, "only_reads")) as provider:
        assert sum(batch.frame.height for batch in provider.scan(KNOWLEDGE, ("record_id",))) == 3
        levels = {name: level for name, level, _ in provider.diagnose()}
        assert (levels["permissions"], levels["access data"]) == ("warning", "warning")
        assert provider.identity().startswith("langgraph:")
        with pytest.raises(StoreUnwritableError):
            write(provider, "memories.u1:k1", HIDE)
    assert agent.bytes() == before


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"rules": []},
        {"rules": [{"namespace": "a", "type": "semantic_cache"}]},
        {"rules": [{"namespace": "a..b", "type": KNOWLEDGE}]},
        {"rules": [{"namespace": "a.**.b", "type": KNOWLEDGE}]},
        {"rules": [{"namespace": "a.{nobody}", "type": KNOWLEDGE}]},
        {"rules": [{"namespace": "a", "type": KNOWLEDGE, "owner": "x"}]},
        {"rules": [{"namespace": "a", "type": KNOWLEDGE, "ids": "uuid"}]},
        {"rules": [{"namespace": "a", "type": KNOWLEDGE}], "expired": "yes"},
        {"rules": [{"namespace": "a", "type": KNOWLEDGE}], "expires": "keep"},
    ],
)
def test_a_mapping_that_says_nothing_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_mapping(said, "test")


@pytest.mark.parametrize(
    ("prefix", "memory_type", "scope"),
    [
        ("memories.u1", "knowledge_base", {"user_id": "u1"}),
        ("memories", "knowledge_base", {}),
        ("u1.memories", "knowledge_base", {"user_id": "u1"}),
        ("memories.u1.t1", "conversation_memory", {"user_id": "u1", "thread_id": "t1"}),
        ("memories.u1.profile", "entity_memory", {"user_id": "u1"}),
        ("memories.u1.episodes", "workflow_memory", {"user_id": "u1"}),
        ("prompts.a.b.c", None, {}),
        ("memories.", None, {}),
        ("memories.u1\n", "knowledge_base", {"user_id": "u1\n"}),
    ],
)
def test_the_default_mapping(prefix: str, memory_type: str | None, scope: dict[str, str]) -> None:
    rule = DEFAULT.rule_of(prefix)
    assert (rule.memory_type if rule else None) == memory_type
    if rule is not None:
        assert rule.scope_of(prefix) == {"memory_id": prefix, **scope}


@pytest.mark.parametrize("uri", ["langgraph+postgresql://x", "langgraph+postgresql://127.0.0.1:1/nobody"])
def test_an_address_that_leads_nowhere_is_an_error_with_a_hint(uri: str) -> None:
    with pytest.raises(FallowError) as caught:
        LangGraphProvider.from_uri(uri, {})
    assert caught.value.hint


def test_embeddings_are_langgraphs_vectors(agent: World) -> None:
    if not agent.index:
        pytest.skip("pgvector is not installed")
    with agent.open() as provider:
        write(provider, "memories.u1:k1", HIDE)
        found = {
            name: vector
            for batch in provider.scan(KNOWLEDGE, ("record_id", "embedding"))
            for name, vector in batch.frame.iter_rows()
        }
    for key, text in TEXTS.items():
        assert found[f"memories.u1:{key}"] == pytest.approx(embed([text])[0])
