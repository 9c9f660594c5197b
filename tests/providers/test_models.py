"""The model client against a server that misbehaves over real HTTP (SPEC §3.6, TRAPS 5, 6)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fallow.providers.model_answers import AnswersOnDisk
from fallow.providers.models import Clock, Endpoint, ModelClient, Pace

from fallow.importance.prompt import ANSWER_SCHEMA, build_prompt
from fallow.model.errors import (
    FallowError,
    ModelAnswerError,
    ModelRefusedError,
    ModelRequestError,
    ModelUnavailableError,
    SettingError,
)
from tests.model_server import ModelServer, Step

SECRET = "sk-very-secret-key"
TEXT = "a memory nobody may see"
MESSAGES = build_prompt([("a", TEXT, "user")], purpose="", salt="s").messages


class FastClock:
    """A clock of which a minute passes in the blink of an eye; remembers what it was asked to wait."""

    def __init__(self, speed: float = 200.0) -> None:
        self._time, self._speed, self.slept = 0.0, speed, []
        self._lock = threading.Lock()

    def now(self) -> float:
        with self._lock:
            return self._time

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.slept.append(seconds)
            self._time += seconds

    def clock(self) -> Clock:
        return Clock(self.now, self.sleep)


def client(server: ModelServer, *, clock: FastClock | None = None, dialects=None, **options) -> ModelClient:
    options = {
        "model": "m",
        "base_url": server.url,
        "api_key": SECRET,
        "first_delay": 0.001,
        "timeout": 30.0,
        **options,
    }
    return ModelClient(Endpoint(**options), dialects=dialects, clock=(clock or FastClock()).clock())


def ask(model: ModelClient, messages=MESSAGES):
    return model.ask(messages, max_tokens=100, schema=ANSWER_SCHEMA)


def test_a_good_answer_comes_with_the_endpoints_own_count() -> None:
    with ModelServer() as server, client(server) as model:
        answer = ask(model)
        assert (answer.usage.calls, answer.usage.input_tokens, answer.usage.output_tokens) == (1, *server.paid_tokens)
        assert '"rating"' in answer.text
        request = server.requests[0]
        assert request["response_format"]["type"] == "json_schema"
        assert request["response_format"]["json_schema"]["strict"] is True
        assert request["temperature"] == 0
        assert server.headers[0]["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "2"},
        {"retry-after-ms": "2000"},
        {"retry-after": "Tue, 01 Dec 2026 00:00:02 GMT", "date": "Tue, 01 Dec 2026 00:00:00 GMT"},
    ],
)
def test_retry_after_is_waited_for_as_told_traps_6(headers: dict[str, str]) -> None:
    clock = FastClock()
    with ModelServer([Step(429, headers)] * 3) as server, client(server, clock=clock) as model:
        assert ask(model).text
        assert server.statuses == {429: 3, 200: 1}
        assert server.paid_calls == 1
    assert sum(clock.slept) >= 6.0


def test_a_busy_endpoint_is_waited_for_by_all_threads_together_traps_6() -> None:
    """40 rows of one call each, the first 30 answers 429: all answered, never more than eight in flight."""
    clock = FastClock()
    script = [Step(429, {"retry-after": "2"})] * 30
    with ModelServer(script, latency=0.005) as server, client(server, clock=clock, in_flight=8) as model:
        prompts = [build_prompt([(f"r{at}", f"text {at}", "user")], purpose="", salt="s").messages for at in range(40)]
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda messages: ask(model, messages), prompts))
        assert len(answers) == server.paid_calls == 40
        assert sum(answer.usage.calls for answer in answers) == 40
        assert server.statuses[429] == 30
        assert server.most_in_flight <= 8


def test_waiting_for_a_busy_endpoint_has_an_end() -> None:
    with (
        ModelServer([Step(429, {"retry-after-ms": "1"})] * 100_000) as server,
        client(server, patience=0.2) as model,
        pytest.raises(ModelUnavailableError, match="busy"),
    ):
        ask(model)


@pytest.mark.parametrize(
    "step", [Step(500), Step(502), Step(503), Step(408), Step(fault="drop"), Step(fault="html"), Step(fault="cut")]
)
def test_a_fault_is_tried_again_and_a_lasting_one_ends(step: Step) -> None:
    with ModelServer([step]) as server, client(server) as model:
        assert ask(model).text
        assert len(server.requests) == 2
    with ModelServer([step] * 50, forms=["text"], form_status=400) as server, client(server, attempts=3) as model:
        with pytest.raises(ModelUnavailableError) as raised:
            ask(model)
        assert SECRET not in str(raised.value)
        assert TEXT not in str(raised.value)


def test_an_answer_that_never_comes_is_told_as_unsettled() -> None:
    with (
        ModelServer([Step(fault="hang"), Step(fault="cut"), Step(500)]) as server,
        client(server, timeout=0.5) as model,
    ):
        assert ask(model).text
        assert model.unsettled == 2, "the timeout and the broken answer may have been paid, the 500 was not"


def test_nobody_listens() -> None:
    with ModelServer() as server:
        url = server.url
    with ModelClient(Endpoint(model="m", base_url=url, attempts=2, first_delay=0.001)) as model:
        with pytest.raises(ModelUnavailableError):
            ask(model)
        assert model.unsettled == 0


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Step(401, body={"error": {"code": "invalid_api_key", "message": f"bad {SECRET}"}}), ModelRefusedError),
        (Step(403), ModelRefusedError),
        (Step(402), ModelRefusedError),
        (Step(404, body={"error": {"code": "model_not_found", "message": "no such model"}}), ModelRefusedError),
        (Step(429, body={"error": {"code": "insufficient_quota", "message": "pay"}}), ModelRefusedError),
        (Step(400, body={"error": {"code": "context_length_exceeded", "message": TEXT}}), ModelRequestError),
    ],
)
def test_a_refusal_is_not_tried_again_and_quotes_nothing(step: Step, error: type[FallowError]) -> None:
    with ModelServer([step] * 5) as server, client(server) as model:
        with pytest.raises(error) as raised:
            ask(model)
        assert len(server.requests) == 1
        assert SECRET not in f"{raised.value} {raised.value!r} {model.endpoint!r}"
        assert TEXT not in str(raised.value)


@pytest.mark.parametrize("status", [400, 422, 500, 501])
@pytest.mark.parametrize("forms", [("json_object", "text"), ("text",)])
def test_the_best_form_that_an_endpoint_takes_is_found_and_remembered(status, forms, tmp_path: Path) -> None:
    answers = AnswersOnDisk(tmp_path / "a.sqlite3")
    with ModelServer(forms=forms, form_status=status) as server:
        with client(server, dialects=answers, attempts=1) as model:
            assert ask(model).text
            assert model.dialect.form == forms[0]
            before = len(server.requests)
            ask(model)
            assert len(server.requests) == before + 1
        if forms[0] == "json_object":
            assert '"additionalProperties"' in server.requests[-1]["messages"][0]["content"]
        asked = len(server.requests)
        with client(server, dialects=answers) as later:
            ask(later)
        assert len(server.requests) == asked + 1, "a later run knows the form already"
        with client(server, dialects=answers, model="other") as other:
            ask(other)
        assert len(server.requests) > asked + 2, "another model is another endpoint"
    answers.close()


def test_many_threads_find_the_form_once() -> None:
    with ModelServer(forms=["text"], latency=0.01) as server, client(server) as model:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: ask(model), range(16)))
        assert server.statuses[400] == 2


def test_a_fault_after_a_form_has_worked_does_not_give_it_up() -> None:
    with ModelServer() as server, client(server) as model:
        ask(model)
        server.script += [Step(500)] * 3
        ask(model)
        assert model.dialect.form == "json_schema"


def test_parameters_that_an_endpoint_refuses_are_left_out() -> None:
    def check(request) -> Step | None:
        if "max_tokens" in request:
            return Step(400, body={"error": {"message": "Unsupported parameter: use 'max_completion_tokens' instead"}})
        if "temperature" in request:
            return Step(400, body={"error": {"message": "'temperature' does not support 0 with this model"}})
        return None

    with ModelServer(check=check) as server, client(server) as model:
        assert ask(model).text
        assert len(server.requests) == 3
        assert model.dialect.form == "json_schema"
        ask(model)
        assert len(server.requests) == 4


@pytest.fixture
def clock() -> FastClock:
    return FastClock()


def test_requests_in_any_minute_stay_under_the_limit(clock: FastClock) -> None:
    pace, times = Pace(5, None, clock.clock()), []
    for _ in range(23):
        pace.enter(1)
        times.append(clock.now())
        clock.sleep(1.0)
    assert all(later - earlier >= 60.0 for earlier, later in zip(times, times[5:], strict=False))
    assert times[-1] < 60.0 * 5, "and no slower than need be"


def test_tokens_in_any_minute_stay_under_the_limit_by_what_was_really_used(clock: FastClock) -> None:
    pace, log = Pace(None, 1000, clock.clock()), []
    for _ in range(30):
        entry = pace.enter(400)
        log.append((clock.now(), 200))
        pace.leave(entry, 200)
    for start, _ in log:
        assert sum(used for at, used in log if start <= at < start + 60.0) <= 1000
    assert Pace(None, 100, clock.clock()).enter(5000), "a call larger than a minute goes out alone"


def test_text_for_one_turn_and_answers_cut_off_traps_5() -> None:
    with ModelServer([Step(fault="empty-length"), Step(answer=lambda _: "8")]) as server, client(server) as model:
        assert model.generate_text("rate this") == "8"
        assert [request["max_tokens"] for request in server.requests] == [1024, 2048]
        server.script += [Step(fault="empty-length")] * 9
        with pytest.raises(ModelAnswerError):
            model.generate_text("rate this")
        assert len(server.requests) == 5


@pytest.mark.parametrize(
    "options",
    [
        {"model": " "},
        {"base_url": "ftp://h"},
        {"base_url": "http://u:p@h/v1"},
        {"in_flight": 0},
        {"requests_per_minute": 0},
    ],
)
def test_endpoints_that_cannot_be(options) -> None:
    with pytest.raises(SettingError):
        Endpoint(**{"model": "m", **options})


def test_what_was_paid_outlives_the_process_and_holds_no_text(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.sqlite3"
    first = AnswersOnDisk(path)
    call = first.sent(8)
    assert first.lost() == [], "a call of a living process is not lost"
    first.answered(call, {"ab" * 32: 0.7})
    open_call = first.sent(5)
    first._connection.execute("UPDATE sent_calls SET pid = ? WHERE call = ?", (2**22 + 1, open_call))
    second = AnswersOnDisk(path)
    assert second.known(["ab" * 32, "cd" * 32]) == {"ab" * 32: 0.7}
    assert second.lost() == [5]
    assert second.lost() == []
    first.close()
    second.close()


def test_a_damaged_file_of_paid_answers_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "fallow").mkdir()
    (tmp_path / "fallow" / "model-answers.sqlite3").write_bytes(b"not a database" * 500)
    answers = AnswersOnDisk.of_user()
    assert answers is not None
    assert answers.known(["ab" * 32]) == {}
    answers.close()
