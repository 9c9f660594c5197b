"""Reflection by a model over real HTTP, from the command line (SPEC §5.1, §5.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fallow.port.reflections import covered_ids, read_reflections
from fallow.port.registry import open_provider
from tests.cli.test_commands import document
from tests.conftest import write_as_agent
from tests.fallow.test_reflection import points, talk
from tests.model_server import ModelServer, Step


def answering(request: dict[str, Any]) -> Step:
    """One point over all rows of the request's window."""
    (message,) = [item["content"] for item in request["messages"] if item["role"] == "user"]
    return Step(answer=lambda _: points()(message))


def test_a_model_reflects_and_a_failing_one_moves_nothing_5_3(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_as_agent(store, {"conversation_memory": talk(60, 0.5), "summaries": [], "shared_memory": []})
    with ModelServer(check=lambda _: Step(answer=lambda _: "n/a")) as server:
        arguments = ("reflect", "--store", store, "--model", "small", "--base-url", server.url)
        failed = document(*arguments, code=5)
        assert (failed["state"], failed["reached"][0]["failures"]) == ("Partial", 1)
        assert failed["reached"][0]["covered"] == 0
    with ModelServer(check=answering) as server:
        told = document("reflect", "--store", store, "--model", "small", "--base-url", server.url, "--dry-run")
        assert (told["reached"][0]["accumulated"], server.paid_calls) == (30.0, 0)
        told = document(*arguments[:-1], server.url)
        assert (told["state"], told["reached"][0]["covered"], server.paid_calls) == ("Reflected", 60, 2)
        assert {request["model"] for request in server.requests} == {"small"}
    with open_provider(str(store)) as provider:
        reflections = read_reflections(provider)
        assert sorted(name for row in reflections.values() for name in covered_ids(row)) == [
            f"r{n:03d}" for n in range(60)
        ]
        assert {row["metadata"]["method"] for row in reflections.values()} == {"llm"}
        assert {row["importance"] for row in reflections.values()} == {0.8}
    assert "what r0" not in json.dumps(told)
