"""What the tests of the Notion store share: a workspace on loopback, a clock that never waits, and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fallow.providers.notion import NotionProvider
from fallow.providers.notion_calls import Clock

from fallow.model.arguments import instant
from tests.providers.notion_fake import TOKEN, FakeNotion, SteppingClock

NOW = instant("2026-12-01T00:00:00Z")
TYPES = ("conversation_memory", "knowledge_base", "summaries", "semantic_cache")


def message(record_id: str, **fields: Any) -> dict[str, Any]:
    """A conversation row that is old and worth little."""
    return {
        "_id": record_id,
        "role": "user",
        "content": f"the text of {record_id}",
        "memory_id": "m1",
        "agent_id": "a1",
        "timestamp": "2026-06-01T08:00:00+00:00",
        "importance": 0.1,
        **fields,
    }


class World:
    """A workspace with one data source, its provider, and what tests look at."""

    def __init__(self, fake: FakeNotion, source: str, url: str, folder: Path, clock: SteppingClock) -> None:
        self.fake, self.source, self.url, self.folder, self.clock = fake, source, url, folder, clock
        self._opened: list[NotionProvider] = []
        self.provider = self.open()

    def open(self, **options: Any) -> NotionProvider:
        """Another provider of the same store; closed with the world."""
        clock = Clock(self.clock.now, self.clock.sleep)
        given = {"base_url": self.url, "folder": self.folder, "clock": clock, **options}
        self._opened.append(NotionProvider(self.source, TOKEN, **given))
        return self._opened[-1]

    def close(self) -> None:
        for provider in self._opened:
            provider.close()

    def page(self, record_id: str) -> str:
        [page_id] = self.fake.page_ids(record_id)
        return page_id

    def envelope(self, record_id: str) -> dict[str, Any]:
        envelope: dict[str, Any] = json.loads(self.fake.text(self.page(record_id), "Memorizz metadata"))
        return envelope

    def rewrite(self, record_id: str, **data: Any) -> None:
        """Another writer changes fields of a record, at once."""
        envelope = self.envelope(record_id)
        envelope["data"].update(data)
        self.write_metadata(record_id, json.dumps(envelope, sort_keys=True, ensure_ascii=False, separators=(",", ":")))

    def write_metadata(self, record_id: str, text: str) -> None:
        items = [{"text": {"content": text[start : start + 1000]}} for start in range(0, len(text), 1000)]
        self.fake.edit_page(self.page(record_id), {"Memorizz metadata": {"rich_text": items}})

    def twin(self, record_id: str) -> str:
        """A second page with everything of a record's page."""
        page = self.fake.pages[self.page(record_id)]
        kinds = {name: spec["type"] for name, spec in self.fake.sources[self.source]["properties"].items()}
        return self.fake.add_page(
            self.source, {name: {kinds[name]: value} for name, value in page["properties"].items() if value}
        )


@contextmanager
def world(folder: Path, types: tuple[str, ...] = TYPES) -> Iterator[World]:
    fake, clock = FakeNotion(), SteppingClock()
    fake.clock = clock.now
    with fake.serve() as url:
        made = World(fake, fake.create_source(types), url, folder, clock)
        try:
            yield made
        finally:
            made.close()
