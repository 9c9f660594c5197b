"""History through batch jobs: handed in by one run, collected by another (SPEC §3.6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fallow.providers.model_answers import AnswersOnDisk

from fallow.importance.running import BatchBackfill, run_backfill, run_batch_backfill
from fallow.model.errors import ModelUnavailableError
from fallow.model.settings import resolve
from fallow.port.registry import open_provider
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, record
from tests.model_server import ModelServer, Row, Step, rating_of

PRICES = {"model.prices": {"m": [1.0, 2.0]}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FALLOW_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "store"
    twins = [record(f"t{at}", importance=None, content="memory number 3") for at in range(3)]
    plain = [record(f"r{at:02}", importance=None, content=f"memory number {at}") for at in range(30)]
    verified = record("v", importance=None, verified=True)
    write_as_agent(root, {CONVERSATION: [*plain, *twins, verified, record("e", importance=None, content=" ")]})
    return root


def settings(server: ModelServer, **options: Any) -> Any:
    return resolve({"importance.model": "m", "model.base_url": server.url, **PRICES, **options}, environ={})


def run(store: Path, server: ModelServer, **options: Any) -> BatchBackfill:
    with open_provider(str(store)) as provider:
        return run_batch_backfill(provider, settings(server, **options), now=NOW, key="k")


def ratings(store: Path) -> dict[str, Any]:
    files = (store / CONVERSATION).glob("*.json")
    rows = {path.stem: json.loads(path.read_text()) for path in files if path.name != "index.json"}
    return {name: row.get("importance") for name, row in rows.items()}


def expected(name: str) -> float:
    return rating_of(f"memory number {int(name[1:]) if name[0] == 'r' else 3}") / 10


def test_handed_in_polled_and_collected_by_later_runs(store: Path) -> None:
    with ModelServer() as server:
        first = run(store, server)
        assert (len(first.submitted.jobs), first.submitted.texts) == (1, 30)
        assert first.report.by_source == {"verified": 1, "heuristic": 1}, "what needs no model is not kept waiting"
        (job,) = server.jobs.values()
        lines = [json.loads(line) for line in server.files[job["input_file_id"]].splitlines()]
        assert {line["url"] for line in lines} == {"/v1/chat/completions"}
        assert all(line["body"]["response_format"]["type"] == "json_schema" for line in lines)
        second = run(store, server)
        assert (second.collected.waiting, second.submitted.jobs, second.report.rated) == (1, [], 0)
        server.work_off(job)
        third = run(store, server)
        assert (third.collected.jobs, third.collected.rated, third.report.by_source) == (1, 30, {"llm": 33})
        assert (third.collected.used.input_tokens, third.collected.used.output_tokens) == tuple(server.paid_tokens)
        full = (server.paid_tokens[0] * 1.0 + server.paid_tokens[1] * 2.0) / 1e6
        assert third.collected.cost == pytest.approx(full / 2), "a job costs half"
        assert first.submitted.cost >= third.collected.cost
        assert set(server.rated.values()) == {1}
        assert {name: value for name, value in ratings(store).items() if name[0] in "rt"} == {
            name: expected(name) for name in ratings(store) if name[0] in "rt"
        }
        last = run(store, server)
        assert (last.collected.jobs, last.submitted.jobs, last.state) == (0, [], "NothingToDo")
        assert server.requests == [], "no call was made beside the job"


def test_calls_that_failed_in_a_job_are_handed_in_again(store: Path) -> None:
    with ModelServer() as server:
        run(store, server)
        server.work_off(server.jobs["batch-0"], fail=["call-1"], status="expired")
        again = run(store, server)
        assert again.collected.unrated == {"no_answer": 8}
        assert again.submitted.texts == 8
        server.work_off(server.jobs["batch-1"])
        assert run(store, server).report.by_source == {"llm": 8}
        assert set(server.rated.values()) == {1}


def test_a_job_whose_submitter_died_is_found_and_not_paid_twice(store: Path) -> None:
    with ModelServer() as server:
        server.job_script = [Step(), Step(fault="drop")]
        with pytest.raises(ModelUnavailableError):
            run(store, server)
        assert len(server.jobs) == 1
        for _ in range(4):  # other jobs of this account, newer ones, so that finding it takes more than a page
            server.jobs[f"batch-{len(server.jobs)}"] = {
                **server.jobs["batch-0"],
                "id": f"batch-{len(server.jobs)}",
                "metadata": None,
            }
        waiting = run(store, server)
        assert (waiting.collected.waiting, waiting.submitted.jobs) == (1, [])
        server.work_off(server.jobs["batch-0"])
        assert run(store, server).report.by_source == {"llm": 33}
        assert len(server.jobs) == 5


def test_a_job_that_never_was_is_handed_in_again(store: Path) -> None:
    with ModelServer() as server:
        server.job_script = [Step(), Step(500)]
        with pytest.raises(ModelUnavailableError):
            run(store, server)
        again = run(store, server)
        assert (again.submitted.texts, len(server.jobs)) == (30, 1)


def test_a_budget_holds_for_what_is_handed_in(store: Path) -> None:
    with ModelServer() as server:
        some = run(store, server, **{"importance.max_calls": 2})
        assert (some.submitted.estimated.calls, some.submitted.texts) == (2, 16)
        assert some.submitted.stopped
        rest = run(store, server)
        assert rest.submitted.texts == 14


def test_what_a_job_did_not_rate_falls_back_and_is_not_paid_again(store: Path) -> None:
    def answer(rows: list[Row]) -> str:
        return json.dumps({row["id"]: 70 if row["text"].endswith("7") else rating_of(row["text"]) for row in rows})

    with ModelServer(answer=answer) as server:
        run(store, server)
        server.work_off(server.jobs["batch-0"])
        second = run(store, server)
        assert second.collected.unrated == second.report.fallbacks == {"out_of_range": 3}
        assert second.report.by_source == {"heuristic": 3, "llm": 30}
        assert second.submitted.jobs == []


def test_a_useless_model_gets_no_second_job(store: Path) -> None:
    with ModelServer(answer=lambda rows: json.dumps({row["id"]: 5 for row in rows})) as server:
        run(store, server, **{"importance.max_calls": 3})
        server.work_off(server.jobs["batch-0"])
        second = run(store, server)
        assert second.state == "NeedsAttention"
        assert second.submitted.jobs == []
        assert len(server.jobs) == 1


def test_ordinary_calls_go_on_where_a_job_left_off(store: Path) -> None:
    with ModelServer() as server:
        run(store, server, **{"importance.max_calls": 2})
        server.work_off(server.jobs["batch-0"])
        run(store, server, **{"importance.max_calls": 0})
        with open_provider(str(store)) as provider:
            report = run_backfill(provider, settings(server), now=NOW, key="k")
        assert report.state == "Rated"
        assert set(server.rated.values()) == {1}


def test_notes_of_jobs_hold_no_text(store: Path, tmp_path: Path) -> None:
    with ModelServer() as server:
        run(store, server)
    path = tmp_path / "cache" / "model-answers.sqlite3"
    held = b"".join(file.read_bytes() for file in path.parent.glob("model-answers*"))
    assert b"call-0" in held
    assert b"memory number" not in held
    AnswersOnDisk(path).close()
