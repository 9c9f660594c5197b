"""One data set in every store: identical plan id, apply report, suppressed list and restore (SPEC §12)."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fallow.providers.filesystem import FilesystemProvider
from pymongo import MongoClient

from fallow.model.keys import Row
from fallow.model.times import MICROSECONDS_PER_DAY, iso
from fallow.port.protocol import Provider
from fallow.port.registry import open_provider
from tests.providers.backends import backend
from tests.providers.notion_world import NOW, world
from tests.providers.test_notion_parity import life
from tests.servers.mongodb import with_database


def data_set(seed: int = 11) -> dict[str, list[Row]]:
    """Records with values that every store can hold, owned, of all five types, some of everything that protects."""
    chance = random.Random(seed)

    def name(kind: str, number: int) -> str:
        # UUID text: what goes by a RAW key on Oracle has no other ids.
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}-{number:03d}"))

    def row(kind: str, number: int, **more: Any) -> Row:
        fields: Row = {
            "_id": name(kind, number),
            "agent_id": f"agent-{number % 2}",
            "memory_id": f"memory-{number % 3}",
            "user_id": "maren" if number % 4 else None,
            "timestamp": iso(NOW - round(chance.uniform(1, 300) * MICROSECONDS_PER_DAY) // 1_000_000 * 1_000_000),
            "importance": round(chance.uniform(0, 0.7), 2) if number % 5 else None,
            "access_count": chance.choice([0, 0, 0, 2, 9]),
            "content": f"{kind} {number} sagt: naïve 日本 — “x”",
        }
        fields |= {"last_accessed_at": iso(NOW - 40 * MICROSECONDS_PER_DAY)} if number % 7 == 0 else {}
        return {name: value for name, value in {**fields, **more}.items() if value is not None}

    rows = {kind: [row(kind, n) for n in range(12)] for kind in ("knowledge_base", "workflow_memory")}
    rows["conversation_memory"] = [row("conversation_memory", n, role="user", thread_id=f"t{n % 3}") for n in range(60)]
    rows["conversation_memory"][1] |= {"pinned": True}
    rows["conversation_memory"][2] |= {"verified": True}
    rows["conversation_memory"][3] |= {"retention_state": "sealed"}
    rows["summaries"] = [
        row("summaries", n, source_message_ids=[name("conversation_memory", n * 4 + 4)]) for n in range(6)
    ]
    rows["entity_memory"] = [row("entity_memory", n, content=None, name=f"Entity {n}") for n in range(6)]
    rows["entity_memory"][1] |= {"attributes": [{"name": "x", "value": "y", "pinned": True}]}
    return rows


def lived(provider: Provider) -> dict[str, Any]:
    for memory_type, rows in data_set().items():
        assert {outcome.status for outcome in provider.insert(memory_type, rows)} == {"applied"}
    return life(provider)


@contextmanager
def filesystem(folder: Path, request: pytest.FixtureRequest) -> Iterator[Provider]:
    root = folder / "files"
    (root / "agents").mkdir(parents=True)
    with FilesystemProvider(root) as provider:
        yield provider


@contextmanager
def notion(folder: Path, request: pytest.FixtureRequest) -> Iterator[Provider]:
    with world(folder / "notion") as made:
        yield made.provider


@contextmanager
def mongo(folder: Path, request: pytest.FixtureRequest) -> Iterator[Provider]:
    mongodb: str = request.getfixturevalue("mongodb")
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb)
    name = f"fallow-test-{uuid.uuid4().hex[:12]}"
    client[name].create_collection("conversation_memory")
    try:
        with open_provider(with_database(mongodb, name)) as provider:
            yield provider
    finally:
        client.drop_database(name)
        client.close()


@contextmanager
def oracle(folder: Path, request: pytest.FixtureRequest) -> Iterator[Provider]:
    named = os.environ.get("ORACLE_DSN")
    made = backend("oracle", folder, oracle=None if named else request.getfixturevalue("oracle"))
    with made.store() as scratch:
        scratch.seed("workflow_memory", [])
        with scratch.open() as provider:
            yield provider


@pytest.mark.parametrize("other", [notion, mongo, oracle], ids=["notion", "mongodb", "oracle"])
def test_every_store_lives_the_same_life_12(tmp_path: Path, request: pytest.FixtureRequest, other: Any) -> None:
    with filesystem(tmp_path, request) as provider:
        ours = lived(provider)
    with other(tmp_path, request) as provider:
        theirs = lived(provider)
    assert len(ours["entries"]) > 15
    assert ours["report"]["applied"] == len(ours["entries"]) - 1
    assert theirs == ours
