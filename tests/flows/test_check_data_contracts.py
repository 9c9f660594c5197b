"""The flow that holds stores against their contracts, against a real server (SPEC §13, §15)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fallow.flows.check_data_contracts import check_data_contracts
from fallow.flows.plan_retention import plan_retention
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from fallow.model.times import wall_clock
from fallow.plans.storage import list_plans
from fallow.port.registry import open_provider
from tests.cli.test_commands import document
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, record

pytestmark = pytest.mark.server


def write(root: Path, number: int) -> None:
    rows = [
        record(f"r{n:03d}", days=300, role="user", thread_id="t", content="nobody may read this") for n in range(number)
    ]
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})


def page(api: Any, key: str) -> Any:
    found = api.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return max(found, key=lambda item: item.created).data


def test_a_check_shows_rules_trend_and_second_opinion_and_a_breach_stops_the_night_13(
    prefect_api: Any, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    write(root, 120)
    state = check_data_contracts(store=str(root), return_state=True)
    assert state.type.value == "COMPLETED", state.message
    text = page(prefect_api, "data-contracts")
    assert "rules counted alike, 0 differently, 0 not answered" in text
    assert "first check" in text
    assert "nobody may read this" not in text
    raw = text.partition("Its own answer: `")[2].partition("`")[0]
    assert "conversation_memory" in json.loads(Path(raw).read_text())
    rows = json.loads(page(prefect_api, "data-contracts-rules"))
    assert len(rows) > 250
    assert rows[0]["failures"] > 0 == rows[-1]["failures"]

    for n in range(40):
        (root / CONVERSATION / f"r{n:03d}.json").unlink()
    state = check_data_contracts(store=str(root), second_opinion=False, return_state=True)
    assert (state.name, state.type.value) == ("ContractBreach", "FAILED")
    assert "no more than a fifth vanishes" in state.message
    assert "**No scope may be planned.**" in page(prefect_api, "data-contracts")

    state = plan_retention(store=str(root), whole_store=True, force=True, return_state=True)
    assert (state.name, state.type.value) == ("ContractBreach", "FAILED")
    with open_provider(str(root)) as provider:
        assert list_plans(provider, wall_clock()) == []

    document("contracts", "--store", root, "--accept", "Ada")
    state = check_data_contracts(store=str(root), second_opinion=False, return_state=True)
    assert state.type.value == "COMPLETED", state.message


def test_every_configured_store_is_checked_and_one_that_cannot_be_read_is_a_breach(
    prefect_api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", 3)
    write(tmp_path / "b", 3)
    target = tmp_path / "b" / CONVERSATION
    for path in target.iterdir():
        path.unlink()
    target.rmdir()
    target.write_text("a file where a folder was")
    monkeypatch.setenv("FALLOW_STORES", f"{tmp_path / 'nowhere'} {tmp_path / 'a'} {tmp_path / 'b'}")
    state = check_data_contracts(second_opinion=False, return_state=True)
    assert state.name == "ContractBreach"
    assert "Every listing comes to its end" in state.message
    assert "nowhere could not be checked" in state.message
    text = page(prefect_api, "data-contracts")
    assert f"## {tmp_path / 'a'}".replace("_", "\\_") in text
