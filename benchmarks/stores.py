"""Made-up filesystem stores of any size for measuring, about 9 kB a record, in the layout that agents write."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path

import numpy as np

from fallow.model.arguments import instant
from fallow.model.times import MICROSECONDS_PER_DAY, iso

#: The instant that the stores are planned for.
NOW = instant("2026-12-01T00:00:00Z")
MIX = {
    "conversation_memory": 0.70,
    "knowledge_base": 0.15,
    "entity_memory": 0.05,
    "summaries": 0.05,
    "workflow_memory": 0.05,
}
_WORDS = [
    "the",
    "user",
    "asked",
    "about",
    "orchard",
    "plums",
    "frost",
    "barn",
    "ladder",
    "price",
    "weather",
    "decided",
    "always",
    "order",
    "naïve",
    "日本",
    "thanks",
    "ok",
]


def make_store(root: Path, records: int) -> None:
    """Writes a store of that many records; the same for the same number."""
    chance = random.Random(11)
    vectors = np.random.default_rng(11).normal(size=(512, 384)).round(6).tolist()
    texts = [json.dumps(vector) for vector in vectors]
    for name in ("shared_memory", "agents", "semantic_cache"):
        (root / name).mkdir(parents=True)
    (root / ".index-lock.sqlite3").touch()
    earlier: list[str] = []
    for memory_type, share in MIX.items():
        folder = root / memory_type
        folder.mkdir()
        items = {}
        for _ in range(round(records * share)):
            name = str(uuid.UUID(int=chance.getrandbits(128), version=4))
            words = " ".join(chance.choices(_WORDS, k=chance.randint(8, 60)))
            row = {
                "_id": name,
                "id": name,
                "content": words,
                "role": chance.choice(["user", "assistant"]),
                "agent_id": f"agent-{chance.randrange(3)}",
                "memory_id": f"memory-{chance.randrange(20)}",
                "user_id": f"user-{chance.randrange(50)}",
                "timestamp": iso(NOW - round(chance.uniform(0, 400) * MICROSECONDS_PER_DAY)),
                "access_count": chance.choice([0, 0, 0, 1, 4]),
            }
            if chance.random() < 0.6:
                row["importance"] = round(chance.random(), 2)
            if memory_type == "summaries" and earlier:
                row["source_message_ids"] = chance.sample(earlier, min(3, len(earlier)))
            body = json.dumps(row, ensure_ascii=False)
            (folder / f"{name}.json").write_text(
                f'{body[:-1]}, "embedding": {chance.choice(texts)}}}', encoding="utf-8"
            )
            items[name] = {
                "id": name,
                "agent_id": row["agent_id"],
                "memory_id": row["memory_id"],
                "has_embedding": True,
            }
            if len(earlier) < 50_000:
                earlier.append(name)
        (folder / "index.json").write_text(json.dumps({"version": 1, "items": items}), encoding="utf-8")
