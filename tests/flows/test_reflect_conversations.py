"""The flow that summarises conversations, against a real server (SPEC §5, §15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fallow.flows.reflect_conversations import reflect_conversations
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from fallow.port.reflections import read_reflections
from fallow.port.registry import open_provider
from tests.conftest import write_as_agent
from tests.fallow.test_reflection import talk

pytestmark = pytest.mark.server


def run(store: Path, **parameters: Any) -> Any:
    return reflect_conversations(store=str(store), return_state=True, **parameters)


def reflections(store: Path) -> int:
    with open_provider(str(store)) as provider:
        return len(read_reflections(provider))


def test_the_flow_ends_as_what_it_did_15(prefect_api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    write_as_agent(store, {"conversation_memory": talk(60, 0.5), "shared_memory": []})

    state = run(store)
    assert (state.name, state.type.value, reflections(store)) == ("NothingToDo", "COMPLETED", 0)
    assert "off" in state.message

    # Without a model, and extracts not allowed: a failure each time, and attention after the third.
    names = [run(store, force=True).name for _ in range(3)]
    assert names == ["NothingToDo", "NothingToDo", "NeedsAttention"]
    assert reflections(store) == 0

    monkeypatch.setenv("MEMORIZZ_REFLECTION_ENABLED", "true")
    monkeypatch.setenv("FALLOW_REFLECTION_EXTRACTIVE", "true")
    state = run(store, dry_run=True)
    assert (state.name, reflections(store)) == ("NothingToDo", 0)
    state = run(store)
    assert (state.name, state.type.value, reflections(store)) == ("Reflected", "COMPLETED", 2)
    assert "2 summaries over 60 rows" in state.message
    assert run(store).name == "NothingToDo"

    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=["reflections"]))
    pages = [item.data for item in prefect_api.read_artifacts(artifact_filter=wanted) if str(store) in item.data]
    assert len(pages) == 6
    assert any("| 60 | 60 | 2 |" in page for page in pages)
    assert not [page for page in pages if "what r0" in page]
