"""An agent that writes in MongoDB while a plan is applied and taken back: every write of both counts (TRAPS 23, 24)."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import Any

from pymongo import MongoClient

from fallow.acting.apply import apply_plan
from fallow.acting.restore import plan_keys, restore_records
from fallow.importance.backfill import backfill_importance
from fallow.port.registry import open_provider
from tests.conftest import REPOSITORY
from tests.fallow.small_stores import CONVERSATION, NOW, planned, record
from tests.fallow.test_applying import HOUR, approve
from tests.servers.mongodb import with_database

#: Single updates of single fields, as agents send them: every one is acknowledged, and counted here.
AGENT = """
import json, random, sys
from pymongo import MongoClient
address, name, kind, turns, run = sys.argv[1:6]
rows = MongoClient(address)[name][kind]
chance, done = random.Random(3), {"touched": {}, "edited": {}, "inserted": [], "deleted": []}
print("ready", flush=True)
for turn in range(int(turns)):
    at = 1790000000 + turn
    who = f"t{chance.randrange(10)}"
    touch = {"$inc": {"access_count": 1}, "$set": {"last_accessed_at": at}}
    if rows.update_one({"_id": who}, touch).matched_count:
        done["touched"][who] = done["touched"].get(who, 0) + 1
    who = f"e{chance.randrange(10)}"
    if rows.update_one({"_id": who}, {"$set": {"content": f"edited {run} {turn}"}}).matched_count:
        done["edited"][who] = f"edited {run} {turn}"
    if turn % 20 == 0:
        new = {"_id": f"new{run}-{turn}", "agent_id": "agent-orchard", "content": "new", "timestamp": at}
        rows.insert_one(new)
        done["inserted"].append(new["_id"])
    if turn % 100 == 50:
        rows.delete_one({"_id": f"d{turn // 100}"})
        done["deleted"].append(f"d{turn // 100}")
print(json.dumps(done))
"""


def start(address: str, name: str, turns: int, run: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", AGENT, address, name, CONVERSATION, str(turns), str(run)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    told = process.communicate(timeout=300)[0]
    assert process.returncode == 0
    return json.loads(told)


def check(after: dict[str, Any], told: dict[str, Any], counts: dict[str, int]) -> None:
    """None of the agent's acknowledged writes is lost, nothing deleted is back."""
    for name, times in told["touched"].items():
        counts[name] = counts.get(name, 0) + times
        assert after[name]["access_count"] == counts[name]
    for name, text in told["edited"].items():
        assert after[name]["content"] == text
    assert set(told["inserted"]) <= after.keys()
    assert not set(told["deleted"]) & after.keys()


def test_every_write_of_both_is_there_on_mongodb_trap_23_24(mongodb: str) -> None:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb)
    name = f"fallow-test-{uuid.uuid4().hex[:12]}"
    names = [f"{kind}{n}" for kind, count in (("t", 10), ("e", 10), ("q", 60), ("d", 4)) for n in range(count)]
    collection = client[name][CONVERSATION]
    try:
        collection.insert_many([record(one, days=90, x_custom={"kept": [one]}) for one in names])
        collection.insert_many([record(f"u{n}", importance=None, x_custom=n) for n in range(40)])
        counts: dict[str, int] = {}
        with open_provider(with_database(mongodb, name)) as provider:
            plan = planned(provider)
            assert {entry.record_id for entry in plan.entries} >= set(names)
            approve(provider, plan)
            agent = start(mongodb, name, 400, 1)
            apply_plan(provider, plan.plan_id, now=NOW)
            told = finish(agent)
            again = apply_plan(provider, plan.plan_id, now=NOW + 1)
            assert (again.state, again.failed, again.unknown) == ("Applied", {}, [])
            after = {row["_id"]: row for row in collection.find()}
            check(after, told, counts)
            hidden = {one for one, row in after.items() if row.get("retention_state") == "suppressed"}
            assert {f"q{n}" for n in range(60)} <= hidden
            assert all(after[one]["suppressed_by"] == plan.plan_id for one in hidden)

            agent = start(mongodb, name, 200, 2)
            restore_records(
                provider,
                plan_keys(provider, plan.plan_id),
                approved_by="Ada",
                reason="",
                now=NOW + HOUR,
                plan_id=plan.plan_id,
            )
            backfill_importance(provider, now=NOW + HOUR)
            told = finish(agent)
            after = {row["_id"]: row for row in collection.find()}
            check(after, told, counts)
            assert not [one for one, row in after.items() if row.get("retention_state") == "suppressed"]
            assert all(after[one]["x_custom"] == {"kept": [one]} for one in names if one in after)
            assert all(after[f"u{n}"]["importance_source"] == "heuristic" for n in range(40))
    finally:
        client.drop_database(name)
        client.close()
