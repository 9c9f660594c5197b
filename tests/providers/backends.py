"""The kinds of store that the conformance kit runs on in tests: one factory each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fallow.providers.conformance.kit import Fault, Gap
from fallow.providers.conformance.scratch import FilesystemBackend
from fallow.providers.conformance.scratch_mongodb import MongoDBBackend
from fallow.providers.conformance.scratch_oracle import OracleBackend, OracleStore
from fallow.providers.gaps import GAPS
from fallow.providers.notion_pages import page_properties

from fallow.model.keys import Row
from fallow.port.protocol import Provider
from tests.providers import notion_fake
from tests.providers.notion_world import World, world

TYPES = (
    "conversation_memory",
    "knowledge_base",
    "long_term_memory",
    "entity_memory",
    "summaries",
    "shared_memory",
    "semantic_cache",
)


class NotionStore:
    """A data source of the fake workspace; its native side edits pages as people and agents do."""

    def __init__(self, made: World) -> None:
        self.world = made

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        provider: Provider = self.world.open(naive_timezone=naive_timezone, patience=2, timeout=2)
        return provider

    def seed(self, memory_type: str, rows: Sequence[Row]) -> None:
        for row in rows:
            self.world.fake.add_page(self.world.source, page_properties(row, memory_type))
        self.world.clock.time += 3600

    def change(self, memory_type: str, record_id: str, fields: Mapping[str, Any]) -> None:
        self.world.rewrite(record_id, **fields)

    def remove(self, memory_type: str, record_id: str) -> None:
        for page in self._pages(memory_type):
            if self.world.fake.text(page, "Memorizz ID") == record_id:
                self.world.fake.trash_page(page)

    def _pages(self, memory_type: str) -> list[str]:
        return [
            page_id
            for page_id, page in self.world.fake.pages.items()
            if page["properties"]["Memory type"]["name"] == memory_type and not page["in_trash"]
        ]

    def stored(self, memory_type: str) -> dict[str, dict[str, bytes]]:
        found: dict[str, dict[str, bytes]] = {}
        for page in self._pages(memory_type):
            text = self.world.fake.text(page, "Memorizz metadata")
            try:
                data = json.loads(text)["data"]
            except ValueError:
                data = {"": text}
            fields = {name: json.dumps(value, sort_keys=True).encode() for name, value in data.items()}
            fields["Content"] = self.world.fake.text(page, "Content").encode()
            found[self.world.fake.text(page, "Memorizz ID")] = fields
        return found

    def natives(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "an epoch time": {"last_accessed_at": 1_780_000_000},
            "a large whole number": {"metadata": {"x": 2**60}},
            "numbers beside text": {"metadata": {"x": [1, 1.5, None, "1"]}},
        }

    def double(self, memory_type: str, record_id: str) -> None:
        self.world.twin(record_id)

    def spoil(self, memory_type: str, record_id: str) -> None:
        self.world.write_metadata(record_id, '{"format": "memorizz.notion.v1", "da')

    @contextmanager
    def fault(self, kind: Fault) -> Iterator[None]:
        made = {
            "down": [notion_fake.Fault("drop", times=10_000)],
            "denied": [notion_fake.Fault("error", status=401, code="unauthorized", times=10_000)],
            "read_only": [
                notion_fake.Fault("error", "PATCH", status=403, code="restricted_resource", times=10_000),
                notion_fake.Fault("error", "POST", "pages$", status=403, code="restricted_resource", times=10_000),
            ],
            "cut": [notion_fake.Fault("cut", "POST", "query", skip=1, times=10_000)],
        }
        before, self.world.fake.faults = self.world.fake.faults, made[kind]
        try:
            yield
        finally:
            self.world.fake.faults = before


class NotionBackend:
    name = "notion"
    faults = frozenset({"down", "denied", "read_only", "cut"})
    secrets = (notion_fake.TOKEN,)

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    @property
    def gaps(self) -> Mapping[str, Gap]:
        return GAPS["notion"]

    @contextmanager
    def store(self) -> Iterator[NotionStore]:
        self._count += 1
        with world(self._folder / str(self._count), TYPES) as made:
            yield NotionStore(made)


class StandinStore(OracleStore):
    """Scratch tables in the stand-in, which can be broken and hold two rows of one id."""

    standin: Any = None

    @contextmanager
    def fault(self, kind: Fault) -> Iterator[None]:
        self.standin.fault = kind
        try:
            yield
        finally:
            self.standin.fault = ""


class StandinBackend(OracleBackend):
    """The kit on what stands in for Oracle (tests/servers/oracle_standin.py), or on ORACLE_DSN where it is set."""

    faults = frozenset({"down", "denied", "read_only", "slow", "cut", "old"})

    def __init__(self, standin: Any) -> None:
        super().__init__(standin.pool, "MEMORIZZ")
        self._standin = standin
        self.secrets = (standin.PASSWORD,)

    def made(self, prefix: str) -> StandinStore:
        store = StandinStore(self._pool, self._schema, prefix)
        store.standin = self._standin
        return store


def backend(name: str, folder: Path, mongodb: str = "", oracle: Any = None) -> Any:
    """The backend of that name, working beneath the folder."""
    if name == "oracle":
        named = os.environ.get("ORACLE_DSN")
        return OracleBackend.at(named) if named else StandinBackend(oracle)
    if name == "mongodb":
        return MongoDBBackend(mongodb)
    return {"filesystem": FilesystemBackend, "notion": NotionBackend}[name](folder)
