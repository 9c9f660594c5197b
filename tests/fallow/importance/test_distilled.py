"""A model reads a sample, a regression rates the rest (SPEC §3.4-3.6): over real HTTP, on a real store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fallow.providers.model_answers import AnswersOnDisk
from fallow.providers.models import Endpoint, ModelClient

from fallow.importance.backfill import backfill_importance
from fallow.importance.budget import Budget
from fallow.importance.distilled import MIN_SAMPLE, DistilledReport, least_agreement, rate_by_sample
from fallow.importance.rating_run import RatedRecords, RunOptions, rate_by_model
from fallow.importance.regression import Rows, cross_validated, fit
from fallow.model.errors import SettingError
from fallow.model.record import PRIMARY_TYPES
from fallow.model.scope import Scope
from fallow.port.journal import content_of
from fallow.port.registry import open_provider
from tests.conftest import write_as_agent
from tests.fallow.small_stores import CONVERSATION, NOW, record
from tests.model_server import ModelServer, Row

WHERE = RatedRecords(Scope(), tuple(PRIMARY_TYPES))
TOPICS = ("orchard", "boat", "lathe", "choir")


def judging(rows: list[Row]) -> str:
    """A model that finds boats and lathes worth keeping, and the longer the text the more."""
    return json.dumps({"ratings": [{"id": row["id"], "rating": worth(row["text"])} for row in rows]})


def worth(text: str) -> int:
    return (6 if "boat" in text or "lathe" in text else 2) + min(3, len(text) // 40)


def rows(count: int, *, embedded: bool = True, **more: Any) -> list[dict[str, Any]]:
    dice = np.random.default_rng(5)
    axes = dice.normal(size=(len(TOPICS), 12))
    made = []
    for at in range(count):
        topic = int(dice.integers(len(TOPICS)))
        vector = (axes[topic] + 0.2 * dice.normal(size=12)).tolist()
        text = f"About the {TOPICS[topic]}, part {at}" + " and so on" * int(dice.integers(12))
        made.append(
            record(
                f"r{at:03}", importance=None, days=90 + at, content=text, embedding=vector if embedded else None, **more
            )
        )
    return made


class World:
    """A store of our own, and a way to run over it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "store", folder / "answers.sqlite3"

    def holds(self, *records: dict[str, Any]) -> None:
        write_as_agent(self.root, {CONVERSATION: list(records)})

    def stored(self) -> dict[str, dict[str, Any]]:
        files = (self.root / CONVERSATION).glob("*.json")
        return {path.stem: json.loads(path.read_text()) for path in files if path.name != "index.json"}

    def bytes(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(self.root.rglob("*.json"))}

    def run(self, server: ModelServer, sample: int = 80, *, model: str = "m", **options: Any) -> DistilledReport:
        answers = AnswersOnDisk(self.cache)
        try:
            where = Endpoint(model=model, base_url=server.url, api_key="k", first_delay=0.001)
            with open_provider(str(self.root)) as provider, ModelClient(where, dialects=answers) as client:
                chosen = RunOptions(**options)
                return rate_by_sample(
                    provider, client, chosen, sample, now=NOW, salt="salt", where=WHERE, answers=answers
                )
        finally:
            answers.close()

    def events(self) -> list[dict[str, Any]]:
        found = (json.loads(path.read_text()) for path in (self.root / "shared_memory").glob("*.json"))
        told = [content_of(row) for row in found if isinstance(row, dict) and row.get("content")]
        return [item for item in told if isinstance(item, dict) and "distilled" in json.dumps(item, default=str)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_sample_is_asked_about_and_the_rest_follows(world: World) -> None:
    world.holds(*rows(300), record("sure", importance=None, verified=True), record("no", importance=None, content="!"))
    with ModelServer(answer=judging) as server:
        report = world.run(server)
        assert sum(server.rated.values()) == 80
    assert (report.state, report.sample, report.taught, report.rated) == ("Rated", 80, 80, 302)
    assert report.by_source == {"llm": 80, "distilled": 220, "verified": 1, "heuristic": 1}
    assert report.cross_validated is not None
    assert report.cross_validated > 0.7 > report.floor
    pairs = []
    for name, row in world.stored().items():
        if row["importance_source"] == "llm":
            assert row["importance"] == worth(row["content"]) / 10
            assert "importance_sample" not in row
        elif row["importance_source"] == "distilled":
            assert (row["importance_model"], row["importance_sample"]) == ("m", 80)
            assert row["importance_rated_at"]
            assert row["importance"] == round(row["importance"], 2)
            pairs.append((row["importance"], worth(row["content"]) / 10))
        else:
            assert name in {"sure", "no"}
    assert np.corrcoef(np.array(pairs).T)[0, 1] > 0.85
    (event,) = world.events()
    assert "cross_validated" in json.dumps(event, default=str)


def test_without_embeddings_features_alone_are_learned_from(world: World) -> None:
    world.holds(*rows(300, embedded=False))
    lengths = lambda asked: json.dumps(  # noqa: E731
        {"ratings": [{"id": row["id"], "rating": 1 + min(9, len(row["text"]) // 20)} for row in asked]}
    )
    with ModelServer(answer=lengths) as server:
        report = world.run(server)
    assert report.state == "Rated"
    assert report.cross_validated is not None
    assert report.cross_validated > 0.6


def test_a_useless_model_is_refused_and_nothing_is_written(world: World) -> None:
    world.holds(*rows(300))
    before = world.bytes()
    with ModelServer() as server:  # rates by a hash of the text
        report = world.run(server)
    assert report.state == "NeedsAttention"
    assert "nothing was written" in report.problem
    assert report.cross_validated is not None
    assert report.cross_validated < report.floor
    assert (report.rated, world.bytes()) == (0, before)


def test_a_model_that_always_says_the_same_is_refused(world: World) -> None:
    world.holds(*rows(120))
    before = world.bytes()
    flat = lambda asked: json.dumps({"ratings": [{"id": row["id"], "rating": 5} for row in asked]})  # noqa: E731
    with ModelServer(answer=flat) as server:
        report = world.run(server)
    assert (report.state, world.bytes()) == ("NeedsAttention", before)


def test_a_budget_that_ends_early_refuses_and_what_was_paid_is_not_paid_again(world: World) -> None:
    world.holds(*rows(300))
    before = world.bytes()
    with ModelServer(answer=judging) as server:
        report = world.run(server, budget=Budget(max_calls=5))
        assert (report.state, report.taught, world.bytes()) == ("NeedsAttention", 40, before)
        assert "budget in calls" in report.problem
        report = world.run(server)
        assert (report.state, report.taught) == ("Rated", 80)
        assert set(server.rated.values()) == {1}


def test_a_run_killed_while_it_wrote_goes_on_with_the_same_sample(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fallow.importance import distilled

    world.holds(*rows(300))
    write, calls = distilled.write_ratings, []

    def dies(*arguments: Any, **more: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*arguments, **more)

    with ModelServer(answer=judging) as server:
        monkeypatch.setattr(distilled, "write_ratings", dies)
        with pytest.raises(KeyboardInterrupt):
            world.run(server)
        halfway = {name: row["importance"] for name, row in world.stored().items() if row.get("importance") is not None}
        assert 0 < len(halfway) < 300
        monkeypatch.setattr(distilled, "write_ratings", write)
        world.cache.unlink()  # even without the cache: what is stored teaches
        report = world.run(server)
        assert (report.state, report.sample, report.taught) == ("Rated", 80, 80)
        assert set(server.rated.values()) == {1}
        again = world.run(server)
        assert (again.state, again.rated) == ("NothingToDo", 0)
    after = {name: row["importance"] for name, row in world.stored().items()}
    assert len(after) == 300
    assert None not in after.values()
    assert halfway.items() <= after.items()


def test_a_stored_rating_is_replaced_only_where_asked_for_by_name_and_once_3_4(world: World) -> None:
    world.holds(*rows(200))
    with open_provider(str(world.root)) as provider:
        backfill_importance(provider, now=NOW)
    free = world.bytes()
    with ModelServer(answer=judging) as server:
        assert world.run(server).state == "NothingToDo"
        assert world.bytes() == free
        report = world.run(server, upgrade_heuristic=True)
        assert (report.state, report.upgraded, report.rated) == ("Rated", 200, 0)
        learned = world.bytes()
        # A regression never replaces a regression's, nor a model's; the heuristic replaces nobody's.
        assert world.run(server, upgrade_heuristic=True).state == "NothingToDo"
        with open_provider(str(world.root)) as provider:
            assert backfill_importance(provider, now=NOW).rated == 0
        assert world.bytes() == learned
        where = Endpoint(model="other", base_url=server.url, api_key="k", first_delay=0.001)
        with open_provider(str(world.root)) as provider, ModelClient(where) as client:
            assert rate_by_model(provider, client, RunOptions(), now=NOW, salt="s").state == "NothingToDo"
            done = rate_by_model(provider, client, RunOptions(upgrade_heuristic=True), now=NOW, salt="s")
            assert done.upgraded == 120
            again = rate_by_model(provider, client, RunOptions(upgrade_heuristic=True), now=NOW, salt="s")
            assert again.state == "NothingToDo"
    assert {row["importance_source"] for row in world.stored().values()} == {"llm"}


def test_another_models_ratings_do_not_teach(world: World) -> None:
    records = rows(300)
    for row in records[:100]:
        row.update(importance=0.9, importance_source="llm", importance_model="other")
    world.holds(*records)
    with ModelServer(answer=judging) as server:
        report = world.run(server)
        assert sum(server.rated.values()) == report.taught
    assert report.by_source == {"llm": report.taught, "distilled": 200 - report.taught}


def test_a_sample_too_small_to_learn_from_is_refused(world: World) -> None:
    world.holds(*rows(60))
    with ModelServer(answer=judging) as server:
        with pytest.raises(SettingError, match="teaches nothing"):
            world.run(server, MIN_SAMPLE - 1)
        assert server.requests == []


def test_the_regression_finds_a_plane_and_nothing_in_noise() -> None:
    dice = np.random.default_rng(3)

    def made(count: int) -> Rows:
        return Rows(dice.random(count), dice.normal(size=(count, 5)), dice.normal(size=(count, 8)) / 8)

    sample, others = made(200), made(300)

    def plane(rows: Rows) -> Any:
        return 0.3 + 0.2 * rows.heuristic + 0.1 * rows.features[:, 0] + rows.embeddings[:, 1]

    found = fit(sample, plane(sample)).predict(others)
    assert np.corrcoef(found, plane(others))[0, 1] > 0.97
    agreement = cross_validated(sample, plane(sample))
    assert agreement is not None
    assert agreement > 0.9
    useless = [cross_validated(made(100), dice.integers(1, 11, 100) / 10) or 0.0 for _ in range(20)]
    assert max(useless) < least_agreement(100)
    assert cross_validated(sample, np.full(200, 0.5)) is None
    # In noise the line over the heuristic is all that is left.
    noise = fit(sample, dice.random(200))
    assert float(np.abs(noise.weights).max()) < 0.01
