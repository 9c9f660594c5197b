"""A store that LangGraph itself makes and fills, on a database of its own."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from fallow_langgraph.mapping import StoreMapping
from fallow_langgraph.provider import LangGraphProvider
from langgraph.store.postgres import PostgresStore

from fallow.model.arguments import instant
from tests.servers.postgresql import PostgreSQL

NOW = instant("2026-12-01T00:00:00Z")
DIMENSIONS = 16


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Vectors that are alike where words are: the same on every machine."""
    vectors = []
    for text in texts:
        vector = [0.01] * DIMENSIONS
        for word in text.lower().split():
            vector[hashlib.sha256(word.encode()).digest()[0] % DIMENSIONS] += 1.0
        vectors.append(vector)
    return vectors


@dataclass
class World:
    """A database that LangGraph has set up, and ways into it."""

    server: PostgreSQL
    name: str

    @property
    def address(self) -> str:
        return self.server.address(self.name)

    @property
    def uri(self) -> str:
        return self.server.uri(self.name)

    @property
    def index(self) -> Any:
        """LangGraph's index of vectors, where the server has pgvector."""
        return {"dims": DIMENSIONS, "embed": embed, "fields": ["content"]} if self.server.vectors else None

    @contextmanager
    def langgraph(self, **options: Any) -> Iterator[PostgresStore]:
        """LangGraph's own store."""
        with PostgresStore.from_conn_string(self.address, index=self.index, **options) as store:
            yield store

    def open(self, mapping: StoreMapping | None = None) -> LangGraphProvider:
        """fallow's provider of it."""
        return LangGraphProvider(self.address, mapping=mapping)

    def run(self, statement: str, binds: Any = None) -> list[tuple[Any, ...]]:
        """SQL past everybody."""
        with psycopg.connect(self.address, autocommit=True) as connection:
            cursor = connection.execute(statement, binds)
            return cursor.fetchall() if cursor.description else []

    def age(self, days: int = 90) -> None:
        """All rows become so old, as if LangGraph had put them then."""
        ago = f"interval '{days} days'"
        self.run(f"update store set created_at = created_at - {ago}, updated_at = updated_at - {ago}")

    def bytes(self) -> dict[tuple[str, str], Any]:
        """Every row that LangGraph shows, with its vectors, as PostgreSQL sends them."""
        rows = self.run("select prefix, key, store::text from store")
        found: dict[tuple[str, str], Any] = {(prefix, key): [text] for prefix, key, text in rows}
        if self.server.vectors:
            columns = "prefix, key, field_name, vector_send(embedding), created_at, updated_at"
            for prefix, key, *rest in self.run(f"select {columns} from store_vectors order by 1, 2, 3"):
                found[prefix, key].append([bytes(item) if isinstance(item, memoryview) else item for item in rest])
        return found


@contextmanager
def world(server: PostgreSQL) -> Iterator[World]:
    """A database with LangGraph's tables."""
    with server.database(f"agent_{uuid.uuid4().hex[:12]}") as name:
        made = World(server, name)
        with made.langgraph() as store:
            store.setup()
        yield made
