"""A connection lost at every request of an apply, one at a time: the end state is right, the report true (SPEC §8)."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient

from fallow.acting.apply import ApplyReport, apply_plan
from fallow.acting.restore import plan_keys, restore_records
from fallow.model.errors import FallowError
from fallow.port.registry import open_provider
from tests.fallow.small_stores import CONVERSATION, NOW, planned, record
from tests.fallow.test_applying import approve
from tests.servers.mongodb import with_database
from tests.servers.wire_proxy import WireProxy, wire_proxy

RECORDS = 5


@pytest.fixture(scope="module")
def proxy(mongodb: str) -> Iterator[WireProxy]:
    parts = urlsplit(mongodb)
    if parts.username or "ssl" in mongodb or "tls" in mongodb or "," in parts.netloc:
        pytest.skip("the proxy stands before one plain server")
    with wire_proxy(parts.hostname or "127.0.0.1", parts.port or 27017) as made:
        yield made


class Trial:
    """A database with an approved plan, reached through the proxy."""

    def __init__(self, mongodb: str, proxy: WireProxy) -> None:
        self.client: MongoClient[dict[str, Any]] = MongoClient(mongodb)
        self.name = f"fallow-test-{uuid.uuid4().hex[:12]}"
        self.database = self.client[self.name]
        self.database[CONVERSATION].insert_many([record(f"r{n}", x_custom=[n]) for n in range(RECORDS)])
        self.database.create_collection("shared_memory")
        self.proxy = proxy
        self.address = f"mongodb://127.0.0.1:{proxy.port}/{self.name}?directConnection=true"
        with open_provider(with_database(mongodb, self.name)) as provider:
            plan = planned(provider)
            approve(provider, plan)
        self.plan_id = plan.plan_id

    def apply(self, now: int) -> ApplyReport | FallowError:
        try:
            with open_provider(self.address) as provider:
                return apply_plan(provider, self.plan_id, now=now)
        except FallowError as error:
            return error

    def restore(self, now: int) -> None:
        with open_provider(self.address) as provider:
            keys = plan_keys(provider, self.plan_id)
            restore_records(provider, keys, approved_by="Bob", reason="", now=now, plan_id=self.plan_id)

    def suppressed(self) -> set[str]:
        return {row["_id"] for row in self.database[CONVERSATION].find({"retention_state": "suppressed"})}

    def wrong(self) -> list[str]:
        """What is not as it must be once everything has ended."""
        contents = [json.loads(row["content"]) for row in self.database["shared_memory"].find()]
        journal = [item["target_record_id"] for item in contents if item.get("record_type") == "memory_history_change"]
        events = [item["event_type"] for item in contents if item.get("event_type") == "memory_forgotten"]
        heads = [item for item in contents if item.get("record_type") == "memory_history_head"]
        found = [] if self.suppressed() == {f"r{n}" for n in range(RECORDS)} else ["suppressed"]
        found += [] if sorted(journal) == [f"r{n}" for n in range(RECORDS)] else [f"journal {sorted(journal)}"]
        found += [] if len(events) == 1 and len(heads) == RECORDS else ["events or heads"]
        kept = [row["x_custom"] for row in self.database[CONVERSATION].find().sort("_id")]
        return found + ([] if kept == [[n] for n in range(RECORDS)] else ["other fields"])

    def drop(self) -> None:
        self.client.drop_database(self.name)
        self.client.close()


def requests_of_an_apply(mongodb: str, proxy: WireProxy) -> int:
    trial = Trial(mongodb, proxy)
    try:
        proxy.arm(0, 0, "before")
        report = trial.apply(NOW)
        assert isinstance(report, ApplyReport)
        assert (report.applied, trial.wrong()) == (RECORDS, [])
        return proxy.count
    finally:
        trial.drop()


@pytest.mark.parametrize("mode", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2], ids=["once", "and the driver's own retry"])
def test_a_connection_lost_at_every_request_one_at_a_time_e(mongodb: str, proxy: WireProxy, mode, times) -> None:
    total = requests_of_an_apply(mongodb, proxy)
    assert total > 10
    problems: list[str] = []
    step = 1 if times == 2 else 3
    for place in range(1, total + 1, step):
        trial = Trial(mongodb, proxy)
        try:
            proxy.arm(place, times, mode)
            first = trial.apply(NOW)
            proxy.arm(0, 0, "before")
            if isinstance(first, ApplyReport):
                if first.state == "Applied" and len(trial.suppressed()) != RECORDS:
                    problems.append(f"{place}: says Applied")
                told = first.applied + first.already + len(first.unknown) + sum(map(len, first.failed.values()))
                if told != RECORDS or first.skipped:
                    problems.append(f"{place}: {first.to_json()}")
            second = trial.apply(NOW + 1)
            if not isinstance(second, ApplyReport) or second.state != "Applied":
                problems.append(f"{place}: the second run: {second}")
            problems += [f"{place}: {item}" for item in trial.wrong()]
        finally:
            trial.drop()
    assert not problems


def test_a_restore_that_lost_its_answer_is_completed(mongodb: str, proxy: WireProxy) -> None:
    trial = Trial(mongodb, proxy)
    try:
        proxy.arm(0, 0, "before")
        trial.apply(NOW)
        for place in (2, 4, 6, 8):
            proxy.arm(place, 2, "after")
            with contextlib.suppress(FallowError):
                trial.restore(NOW + place)
        proxy.arm(0, 0, "before")
        trial.restore(NOW + 20)
        assert trial.suppressed() == set()
    finally:
        trial.drop()
