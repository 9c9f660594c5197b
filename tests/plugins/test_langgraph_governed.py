"""GovernedStore: recalls are counted off the caller's path, results are ranked by SPEC §2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("langgraph.store.postgres", reason="langgraph-checkpoint-postgres is not installed")

from fallow_langgraph.governed import GovernedStore
from langgraph.store.base import GetOp, PutOp
from langgraph.store.postgres import AsyncPostgresStore

from fallow.model.errors import StoreNotFoundError
from fallow.model.keys import MISSING, RecordKey
from fallow.model.scoring import RetrievalScoring
from fallow.port.protocol import Patch
from tests.plugins.langgraph_world import World, world
from tests.servers.postgresql import PostgreSQL

MINE = ("memories", "u1")


@pytest.fixture
def agent(server: PostgreSQL) -> Iterator[World]:
    with world(server) as made:
        yield made


def counts(agent: World) -> dict[str, int]:
    with agent.open() as provider:
        return {
            name: count
            for batch in provider.scan("knowledge_base", ("record_id", "access_count"))
            for name, count in batch.frame.iter_rows()
            if count
        }


def test_what_is_read_is_counted_and_what_is_listed_or_put_is_not(agent: World) -> None:
    with agent.langgraph() as inner, GovernedStore(inner, agent.uri, every=60) as store:
        for key in ("a", "b", "c"):
            store.put(MINE, key, {"content": f"about {key}"})
        store.put(("elsewhere", "x", "y", "z"), "a", {"content": "no rule maps it"})
        before = agent.bytes()
        assert store.get(MINE, "a") is not None
        assert store.get(MINE, "a") is not None
        assert store.get(MINE, "nobody") is None
        assert store.get(("elsewhere", "x", "y", "z"), "a") is not None
        assert len(store.search(MINE, limit=2)) == 2
        assert store.list_namespaces() == [("elsewhere", "x", "y", "z"), MINE]
        store.flush()
        assert agent.bytes() == before, "the agent's own rows do not move by being counted"
        found = counts(agent)
        assert sum(found.values()) == 4
        assert found["memories.u1:a"] >= 2


def test_results_are_ranked_by_recency_importance_and_likeness(agent: World) -> None:
    with agent.langgraph() as inner:
        for key in ("old", "rated", "new"):
            inner.put(MINE, key, {"content": "one and the same"})
        ago = "now() - interval '200 days'"
        agent.run(f"update store set created_at = {ago}, updated_at = {ago} where key <> 'new'")
        with agent.open() as provider:
            key = RecordKey("knowledge_base", "memories.u1:rated")
            provider.patch([Patch(key, {"importance": MISSING}, {"importance": 1.0})])
        scoring = RetrievalScoring(alpha_recency=1, alpha_importance=3, alpha_relevance=0)
        with GovernedStore(inner, agent.uri, scoring=scoring) as store:
            assert [item.key for item in store.search(MINE, limit=3)] == ["rated", "new", "old"]
            assert [item.key for item in store.search(MINE, limit=1)] == ["rated"], "more is ranked than is given"
            assert [item.key for item in store.search(MINE, limit=1, offset=1)] == ["new"]
            assert [item.key for item in store.search(MINE, limit=5, offset=3)] == []
        with GovernedStore(inner, agent.uri, scoring=RetrievalScoring(alpha_importance=0, alpha_relevance=0)) as store:
            assert [item.key for item in store.search(MINE, limit=1)] == ["new"]
        if agent.index:
            inner.put(MINE, "near", {"content": "tea"})
            with GovernedStore(
                inner, agent.uri, scoring=RetrievalScoring(alpha_importance=0, alpha_recency=0)
            ) as store:
                assert store.search(MINE, query="tea", limit=1)[0].key == "near"


def test_the_same_of_an_async_store(agent: World) -> None:
    async def run() -> None:
        async with (
            AsyncPostgresStore.from_conn_string(agent.address, index=agent.index) as inner,
            GovernedStore(inner, agent.uri, every=60) as store,
        ):
            await store.aput(MINE, "a", {"content": "tea"})
            await store.aput(MINE, "b", {"content": "coffee"})
            item = await store.aget(MINE, "a")
            assert item is not None
            assert {one.key for one in await store.asearch(MINE)} == {"a", "b"}
            await asyncio.to_thread(store.flush)

    asyncio.run(run())
    assert counts(agent) == {"memories.u1:a": 2, "memories.u1:b": 1}


def test_a_batch_of_mixed_operations_answers_in_order(agent: World) -> None:
    with agent.langgraph() as inner, GovernedStore(inner, agent.uri) as store:
        store.batch([PutOp(MINE, "a", {"content": "tea"})])
        found = store.batch([GetOp(MINE, "nobody"), GetOp(MINE, "a"), PutOp(MINE, "b", {"content": "x"})])
        assert found[0] is None
        assert getattr(found[1], "key", None) == "a"
        assert found[2] is None


def test_recalls_left_at_the_end_are_written_and_a_lost_database_holds_nobody_up(agent: World) -> None:
    with agent.langgraph() as inner:
        with GovernedStore(inner, agent.uri, every=600) as store:
            store.put(MINE, "a", {"content": "tea"})
            store.get(MINE, "a")
        assert counts(agent) == {"memories.u1:a": 1}
        with GovernedStore(inner, agent.uri, every=600) as store:
            store.get(MINE, "a")
            agent.run("alter table fallow_fields rename to gone")
            agent.run("create view fallow_fields as select * from gone limit 1")
            store.flush()
            assert store.get(MINE, "a") is not None


def test_the_inner_stores_expiry_holds_through_the_wrapper(agent: World) -> None:
    with agent.langgraph(ttl={"default_ttl": 60, "refresh_on_read": False}) as inner:
        with GovernedStore(inner, agent.uri) as store:
            store.put(MINE, "a", {"content": "tea"})
            store.put(MINE, "b", {"content": "tea"}, ttl=None)
            before = agent.bytes()
            store.get(MINE, "a")
            store.search(MINE)
        assert agent.bytes() == before, "reading refreshes nothing where the store says so"
    assert agent.run("select key, ttl_minutes from store order by key") == [("a", 60), ("b", None)]


def test_a_search_refreshes_the_expiry_of_what_it_gives_alone(agent: World) -> None:
    with agent.langgraph(ttl={"default_ttl": 60}) as inner, GovernedStore(inner, agent.uri) as store:
        for key in "abc":
            store.put(MINE, key, {"content": "tea"})
        agent.run("update store set expires_at = now() + interval '1 minute'")
        [given] = store.search(MINE, limit=1)
        late = "expires_at > now() + interval '30 minutes'"
        assert agent.run(f"select key from store where {late}") == [(given.key,)]


def test_an_address_without_a_store_is_refused_at_once(server: PostgreSQL, agent: World) -> None:
    with server.database("empty_one") as name, agent.langgraph() as inner, pytest.raises(StoreNotFoundError):
        GovernedStore(inner, server.uri(name))
