"""What we send and what the fake answers, against the types of Notion's own client (optional: notion_types.ts)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fallow.model.keys import RecordKey
from fallow.port.protocol import Patch
from tests.providers.notion_world import NOW, World, message, world

SCHEMA = "NOTION_CLIENT_SCHEMA"
#: The exported types of notion_types.ts.
NAMES = {
    *("QueryRequest", "CreateRequest", "UpdateRequest"),
    *("QueryAnswer", "PageAnswer", "SourceAnswer", "PropertyAnswer"),
}


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    named = os.environ.get(SCHEMA)
    if not named:
        pytest.skip(f"needs the schema of Notion's client: tests/providers/notion_types.ts says how; then set {SCHEMA}")
    schema: dict[str, Any] = json.loads(Path(named).read_text())
    return schema


def exercise(notion: World) -> None:
    """Every kind of request that the provider sends."""
    provider = notion.provider
    rows = [message(f"r{number}", name="x" if number else None) for number in range(120)]
    provider.insert("conversation_memory", rows)
    provider.insert("conversation_memory", [message("long", content="𝔘" * 60_000, timestamp=None)])
    provider.insert("knowledge_base", [{"_id": "k1", "content": "x"}])
    provider.insert("long_term_memory", [{"_id": "k2", "content": "x"}])
    provider.insert("semantic_cache", [{"_id": "q1", "query_text": "x"}])
    for _ in range(2):
        list(provider.scan("conversation_memory", ["record_id"]))
        notion.clock.time += 3600
    provider.fetch("knowledge_base", ["k1", "k2"])
    list(provider.find("conversation_memory", "long"))
    provider.patch([Patch(RecordKey("conversation_memory", "long"), {}, {"timestamp": "2026-01-01", "pinned": True})])
    provider.touch_many("conversation_memory", ["r1"], NOW)
    provider.purge_cache({"q1": {}})
    notion.open()
    notion.fake.query_cap = 125
    list(provider.find("conversation_memory", "r"))


def kinds(method: str, path: str) -> tuple[str | None, str]:
    if path.endswith("/query"):
        return "QueryRequest", "QueryAnswer"
    if "/properties/" in path:
        return None, "PropertyAnswer"
    if "/data_sources/" in path:
        return None, "SourceAnswer"
    return {"POST": "CreateRequest", "PATCH": "UpdateRequest", "GET": None}[method], "PageAnswer"


def test_requests_and_answers_are_what_the_official_types_say(definitions: dict[str, Any], tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with world(tmp_path) as notion:
        notion.fake.keep_answers = True
        exercise(notion)
    validators = {
        name: jsonschema.Draft7Validator({**definitions, "$ref": f"#/definitions/{name}"})
        for name in definitions["definitions"]
        if name in NAMES
    }
    seen: set[str] = set()
    problems: set[str] = set()
    for one in notion.fake.sent:
        if one.answer is None:
            continue
        asked, answered = kinds(one.method, one.path)
        for name, document in ((asked, one.body), (answered, one.answer)):
            if name is None:
                continue
            error = next(validators[name].iter_errors(document), None)
            seen.add(name)
            if error is not None:
                problems.add(f"{name}: {error.json_path} {error.message[:200]}")
    assert not problems
    assert seen == NAMES
