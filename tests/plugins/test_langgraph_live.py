"""A live LangGraph agent beside apply and restore: every put of its own is there, no put of it fails (issue 28)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("langgraph.store.postgres", reason="langgraph-checkpoint-postgres is not installed")

from langgraph.store.base import PutOp

from fallow.acting.deciding import decide
from fallow.model.settings import ApprovalConfig
from tests.crash.child import NOW, WORK
from tests.fallow.small_stores import planned
from tests.plugins.langgraph_world import World, world
from tests.servers.postgresql import PostgreSQL

MINE = ("memories", "u1")
OLD = 60
PUTS = 400


@pytest.fixture
def agent(server: PostgreSQL) -> Iterator[World]:
    with world(server) as made:
        with made.langgraph() as store:
            store.batch(
                [PutOp(MINE, f"old{n:02d}", {"content": f"small talk {n}", "importance": 0.05}) for n in range(OLD)]
            )
        made.age(120)
        with made.open() as provider:
            plan = planned(provider, as_of=NOW)
            approval = {"approval": ApprovalConfig(), "count": len(plan.entries), "reason": "spring"}
            decide(provider, plan.plan_id, verdict="approved", approved_by="Ada", now=NOW, **approval)
        yield made


def test_400_puts_beside_apply_and_restore_are_all_there(agent: World) -> None:
    faults: list[BaseException] = []
    last: dict[str, int] = {}
    ends = threading.Event()

    def write() -> None:
        """Puts of one and of many rows, in an order of the agent's own, over new keys and over those being hidden."""
        try:
            with agent.langgraph() as store:
                for number in range(PUTS // 4):
                    keys = [f"new{number % 50}", f"old{(number * 7) % OLD:02d}", f"old{(number * 3 + 1) % OLD:02d}"]
                    keys = keys if number % 2 else keys[::-1]
                    store.batch([PutOp(MINE, key, {"content": "live", "n": number, "importance": 0.9}) for key in keys])
                    store.put(MINE, "counter", {"content": "live", "n": number})
                    last.update(dict.fromkeys([*keys, "counter"], number))
        except BaseException as error:  # told to the test's own thread
            faults.append(error)
        finally:
            ends.set()

    thread = threading.Thread(target=write)
    thread.start()
    rounds = 0
    with agent.open() as provider:
        while not ends.is_set() or rounds < 1:
            WORK["apply"](provider, NOW + rounds)
            WORK["restore"](provider, NOW + rounds)
            rounds += 1
    thread.join()
    assert not faults, faults
    with agent.langgraph() as store:
        for key, number in last.items():
            item = store.get(MINE, key)
            assert item is not None, f"{key} is lost"
            assert item.value["n"] == number, f"{key} is an older one"
    both = "select key from store union select key from fallow_suppressed"
    rows = agent.run(f"select distinct key from ({both}) x where key like 'old%'")
    assert len(rows) == OLD, "a record of before is gone"
    hidden = agent.run("select count(*), count(*) filter (where value ->> 'content' = 'live') from fallow_suppressed")
    assert hidden[0][1] == 0, "what the agent wrote just now is never hidden"
