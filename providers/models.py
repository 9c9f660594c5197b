"""Asking a model over any OpenAI-compatible endpoint (DESIGN §8): at its pace, in its dialect, again where that helps.

Endpoints differ in what they can promise about an answer's form. The best form is tried first and the next
one where it is refused: a JSON schema; any JSON object, with the schema in the prompt; plain text. What an
endpoint takes is remembered. Whether a call is sent again follows from the class of its failure: a busy
endpoint says how long to wait and is waited for, a faulty or silent one is tried a few times, a refusal never.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import openai
import stamina

from fallow.importance.asking import Answer, Finish
from fallow.importance.budget import Usage
from fallow.importance.prompt import estimated_tokens
from fallow.model.errors import (
    ModelAnswerError,
    ModelRefusedError,
    ModelRequestError,
    ModelUnavailableError,
    SettingError,
)
from fallow.model.times import to_microseconds

Form = Literal["json_schema", "json_object", "text"]
_FORMS: Final[tuple[Form, ...]] = ("json_schema", "json_object", "text")
#: Faults in a row in a form that has never worked, before the next form is tried (llama.cpp answers 500).
_FAULTS_BEFORE_NEXT_FORM: Final = 2
_REFUSALS_BY_FAULT: Final = frozenset({500, 502, 503})
_WINDOW: Final = 60.0
#: No single wait that an endpoint asks for is honoured beyond this, in seconds.
_LONGEST_WAIT: Final = 600.0
#: 429 with one of these is no pace but an empty purse.
_NO_CREDIT: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as the client sees it, in seconds; tests pass their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is asked and how hard.

    Attributes:
        model: the model's name there.
        base_url: the endpoint's address, up to and with ``/v1``.
        api_key: the key; blank for endpoints that want none. Never in an error or a log.
        in_flight: calls out at once.
        requests_per_minute: calls started in any minute; None is no limit of ours.
        tokens_per_minute: tokens in and out in any minute; None is no limit of ours.
        timeout: seconds until a call counts as unanswered.
        attempts: how often a faulty or silent endpoint is asked the same, the first time included.
        patience: seconds that one call may wait for a busy endpoint in all.
        first_delay: seconds before the second attempt after a fault; it doubles, with jitter.

    Raises:
        SettingError: a value that cannot be used.
    """

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key: str = ""
    in_flight: int = 8
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    timeout: float = 60.0
    attempts: int = 4
    patience: float = 900.0
    first_delay: float = 0.5

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise SettingError("no model is named", hint="set MEMORIZZ_IMPORTANCE_MODEL or pass --model")
        parts = urlsplit(self.base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise SettingError("the model's base_url is not an http address", hint="such as http://127.0.0.1:8080/v1")
        if parts.username or parts.password:
            raise SettingError("the model's base_url holds a password", hint="give the key apart from the address")
        for name in ("in_flight", "attempts"):
            if not 1 <= getattr(self, name) <= 256:
                raise SettingError(f"the model's {name} must be 1 to 256")
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"the model's {name} must be at least 1")

    def __repr__(self) -> str:
        return f"Endpoint(model={self.model!r}, base_url={self.base_url!r})"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an endpoint wants to be asked. ``proven``: an answer came this way."""

    form: Form = "json_schema"
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    proven: bool = False

    @classmethod
    def of(cls, remembered: Mapping[str, Any]) -> Dialect:
        """As it was remembered; the first to try where that says nothing usable."""
        if remembered.get("form") not in _FORMS or remembered.get("limit") not in {
            "max_tokens",
            "max_completion_tokens",
        }:
            return cls()
        return cls(remembered["form"], remembered["limit"], remembered.get("temperature") is not False, True)


class Dialects(Protocol):
    """Where dialects are kept between runs."""

    def dialect(self, endpoint: str) -> Mapping[str, Any]:
        """What is remembered of an endpoint."""
        ...

    def remember(self, endpoint: str, dialect: Mapping[str, Any]) -> None:
        """Keeps it."""
        ...


class Pace:
    """Requests and tokens in any minute, and the waits that the endpoint asked for; shared by all threads."""

    def __init__(self, requests: int | None, tokens: int | None, clock: Clock) -> None:
        self._requests, self._tokens, self._clock = requests, tokens, clock
        self._lock = threading.Lock()
        self._log: deque[list[float]] = deque()
        self._in_window = 0.0
        self._resume_at = 0.0

    def pause(self, seconds: float) -> None:
        """Nobody sends anything for so long."""
        with self._lock:
            self._resume_at = max(self._resume_at, self._clock.now() + seconds)

    def enter(self, tokens: int) -> list[float]:
        """Waits until a call of about so many tokens may go out; returns its entry for :meth:`leave`."""
        # A call larger than a minute's tokens goes out alone rather than never.
        needed = min(float(tokens), float(self._tokens)) if self._tokens is not None else 0.0
        while True:
            with self._lock:
                now = self._clock.now()
                while self._log and self._log[0][0] <= now - _WINDOW:
                    self._in_window -= self._log.popleft()[1]
                wait = self._resume_at - now
                if self._requests is not None and len(self._log) >= self._requests:
                    wait = max(wait, self._log[0][0] + _WINDOW - now)
                if self._tokens is not None and self._log and self._in_window + needed > self._tokens:
                    wait = max(wait, self._log[0][0] + _WINDOW - now)
                if wait <= 0:
                    entry = [now, needed]
                    if self._requests is not None or self._tokens is not None:
                        self._log.append(entry)
                        self._in_window += needed
                    return entry
            self._clock.sleep(wait)

    def leave(self, entry: list[float], tokens: int) -> None:
        """The call used so many tokens."""
        if self._tokens is None:
            return
        with self._lock:
            if any(one is entry for one in self._log):
                self._in_window += tokens - entry[1]
                entry[1] = float(tokens)


class _BusyError(Exception):
    """429: the endpoint did nothing and said how long to wait."""


class _FaultError(Exception):
    """A fault that may pass. ``sent``: the endpoint may have done the work all the same."""

    def __init__(self, what: str, *, sent: bool, status: int = 0) -> None:
        super().__init__(what)
        self.sent, self.status = sent, status


class ModelClient:
    """One model at one endpoint (:class:`fallow.importance.asking.Model`); threads share it.

    Args:
        endpoint: where and how hard.
        dialects: where the endpoint's dialect is kept; None keeps it in this object alone.
        clock: time; tests pass their own.
    """

    def __init__(self, endpoint: Endpoint, *, dialects: Dialects | None = None, clock: Clock = Clock()) -> None:
        self.endpoint, self._dialects, self._clock = endpoint, dialects, clock
        self.openai = openai.OpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key.strip() or "none",
            max_retries=0,
            timeout=openai.Timeout(endpoint.timeout, connect=min(10.0, endpoint.timeout)),
        )
        self._pace = Pace(endpoint.requests_per_minute, endpoint.tokens_per_minute, clock)
        self._slots = threading.Semaphore(endpoint.in_flight)
        self._lock = threading.Lock()
        self._discovery = threading.Lock()
        self.address = f"{endpoint.base_url.rstrip('/')} {endpoint.model}"
        self._dialect = Dialect.of(dialects.dialect(self.address)) if dialects is not None else Dialect()
        self._faults_in_form = 0
        self._unsettled = 0
        #: Once the endpoint refuses everything, nothing more is sent.
        self._refusal: ModelRefusedError | None = None

    @property
    def name(self) -> str:
        """The model's name at its endpoint."""
        return self.endpoint.model

    @property
    def in_flight(self) -> int:
        """How many calls may be out at once."""
        return self.endpoint.in_flight

    @property
    def unsettled(self) -> int:
        """Calls that were sent and whose answer never came, or could not be read: they may have been paid for."""
        return self._unsettled

    @property
    def dialect(self) -> Dialect:
        """How the endpoint is asked now."""
        return self._dialect

    def close(self) -> None:
        """Lets go of connections."""
        self.openai.close()

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate_text(self, prompt: str, *, max_tokens: int = 1024) -> str:
        """The model's answer to one prompt, as text.

        Raises:
            ModelAnswerError: it was empty or cut off, three times.
            ModelRefusedError, ModelRequestError, ModelUnavailableError: as :meth:`ask`.
        """
        for attempt in range(3):
            answer = self.ask([{"role": "user", "content": prompt}], max_tokens=max_tokens << attempt)
            if answer.text.strip() and answer.finish != "length":
                return answer.text
        raise ModelAnswerError(
            f"the answers of {self.where} are empty or cut off", hint="a larger max_tokens, or another model"
        )

    def ask(
        self, messages: Sequence[Mapping[str, str]], *, max_tokens: int, schema: Mapping[str, Any] | None = None
    ) -> Answer:
        """One answer, after the pace, the waits and the retries that the endpoint needs.

        Raises:
            ModelRefusedError: no request will be answered (key, model, credit).
            ModelRequestError: this one will not.
            ModelUnavailableError: it was tried long enough.
        """
        if schema is None or self._proven():
            return self._tried(messages, max_tokens, schema)
        # The first call finds the endpoint's dialect; the others wait for it rather than ask eight times.
        with self._discovery:
            if not self._proven():
                return self._tried(messages, max_tokens, schema)
        return self._tried(messages, max_tokens, schema)

    def _proven(self) -> bool:
        return self._dialect.proven

    def _tried(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int, schema: Mapping[str, Any] | None
    ) -> Answer:
        faults = 0

        def again(error: Exception) -> bool | float:
            nonlocal faults
            if isinstance(error, _BusyError):
                return 0.0  # the pace does the waiting, for all threads
            if isinstance(error, _FaultError):
                # While the endpoint's form is being looked for, a 500 may be its way to refuse one.
                searching = schema is not None and not self._proven() and self._dialect.form != "text"
                faults += not (searching and error.status in _REFUSALS_BY_FAULT)
                return faults < self.endpoint.attempts
            return False

        first = self.endpoint.first_delay
        try:
            for attempt in stamina.retry_context(
                on=again,
                attempts=None,
                timeout=self.endpoint.patience,
                wait_initial=first,
                wait_max=max(first, 30.0),
                wait_jitter=first,
            ):
                with attempt:
                    return self._once(messages, max_tokens, schema)
        except _BusyError:
            raise ModelUnavailableError(
                f"{self.where} stayed busy for {self.endpoint.patience:g} s",
                hint="lower in_flight or set requests_per_minute and tokens_per_minute",
            ) from None
        except _FaultError as error:
            raise ModelUnavailableError(
                f"{self.where} failed {faults} times, at last with {error}", hint="try again later"
            ) from None
        raise AssertionError("stamina ended without an attempt")

    def _once(self, messages: Sequence[Mapping[str, str]], max_tokens: int, schema: Mapping[str, Any] | None) -> Answer:
        while True:
            dialect = self._dialect
            request = self._request(dialect, messages, max_tokens, schema)
            asked = sum(estimated_tokens(message["content"]) for message in request["messages"])
            with self._slots:
                if self._refusal is not None:
                    raise ModelRefusedError(self._refusal.message, hint=self._refusal.hint)
                entry = self._pace.enter(asked + max_tokens)
                try:
                    # Not chat.completions.create: checking and copying each message takes as long as sending it.
                    raw = self.openai.post(
                        "/chat/completions", cast_to=openai.HttpxBinaryResponseContent, body=request
                    ).content
                except openai.APIStatusError as error:
                    self._pace.leave(entry, 0)
                    if self._adapted(dialect, error, schema):
                        continue
                    failure = self._failure(error)
                    if isinstance(failure, ModelRefusedError):
                        self._refusal = failure
                    raise failure from None
                except openai.APITimeoutError as error:
                    connected = type(error.__cause__).__name__ not in {"ConnectTimeout", "PoolTimeout"}
                    raise self._fault("no answer in time", sent=connected) from None
                except openai.APIConnectionError as error:
                    connected = type(error.__cause__).__name__ != "ConnectError"
                    raise self._fault("a broken connection", sent=connected) from None
            answer = self._read(raw, request["messages"])
            self._pace.leave(entry, answer.usage.tokens)
            if schema is not None:
                self._prove(dialect)
            return answer

    def _request(
        self,
        dialect: Dialect,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int,
        schema: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        sent = [dict(message) for message in messages]
        request: dict[str, Any] = {"model": self.endpoint.model, "messages": sent, dialect.limit: max_tokens}
        if dialect.temperature:
            request["temperature"] = 0
        if schema is None or dialect.form == "text":
            return request
        if dialect.form == "json_schema":
            form = {"name": "ratings", "strict": True, "schema": dict(schema)}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        else:
            request["response_format"] = {"type": "json_object"}
            sent[0]["content"] += "\n\nThe answer's JSON schema:\n" + json.dumps(schema)
        return request

    def _adapted(self, dialect: Dialect, error: openai.APIStatusError, schema: Mapping[str, Any] | None) -> bool:
        """Whether the endpoint is to be asked otherwise and at once."""
        said = _said(error).lower()
        changed: Dialect | None = None
        with self._lock:
            if self._dialect != dialect:
                return self._dialect.form != dialect.form or error.status_code in {400, 422}
            if error.status_code in {400, 422} and "max_completion_tokens" in said and dialect.limit == "max_tokens":
                changed = replace(dialect, limit="max_completion_tokens")
            elif error.status_code in {400, 422} and "temperature" in said and dialect.temperature:
                changed = replace(dialect, temperature=False)
            elif schema is not None and dialect.form != "text":
                about_form = any(word in said for word in ("response_format", "schema", "grammar", "json"))
                refused = error.status_code in {400, 404, 415, 422, 501} and (about_form or not dialect.proven)
                if error.status_code in _REFUSALS_BY_FAULT and not dialect.proven:
                    self._faults_in_form += 1
                    refused = self._faults_in_form >= _FAULTS_BEFORE_NEXT_FORM
                if refused and not _whole_refusal(error, said):
                    following = _FORMS[_FORMS.index(dialect.form) + 1]
                    changed = replace(dialect, form=following, proven=False)
                    self._faults_in_form = 0
            if changed is None:
                return False
            self._dialect = changed
        return True

    def _prove(self, dialect: Dialect) -> None:
        if dialect.proven:
            return
        with self._lock:
            if self._dialect != dialect:
                return
            self._dialect = replace(dialect, proven=True)
        if self._dialects is not None:
            self._dialects.remember(self.address, asdict(self._dialect))

    def request(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int, schema: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """A call's body, in the endpoint's dialect as far as it is known."""
        return self._request(self._dialect, messages, max_tokens, schema)

    def settled(self, error: openai.APIStatusError) -> Exception:
        """A status as an error for people."""
        failure = self._failure(error)
        if isinstance(failure, _BusyError | _FaultError):
            return ModelUnavailableError(f"{self.where} failed with {failure}", hint="try again later")
        return failure

    def read_body(self, body: Any) -> Answer | None:
        """A chat completion's body; None where it is none."""
        try:
            return _answer_of(body, 0)
        except (KeyError, IndexError, TypeError):
            return None

    def _read(self, content: bytes, messages: Sequence[Mapping[str, str]]) -> Answer:
        try:
            body = json.loads(content)
            return _answer_of(body, sum(estimated_tokens(message["content"]) for message in messages))
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            raise self._fault("an answer that is none", sent=True) from None

    def _fault(self, what: str, *, sent: bool) -> _FaultError:
        if sent:
            with self._lock:
                self._unsettled += 1
        return _FaultError(what, sent=sent)

    def _failure(self, error: openai.APIStatusError) -> Exception:
        """What a status means, with the endpoint's own short code and never its text (it may quote ours)."""
        status, code = error.status_code, _code(error)
        what = f"HTTP {status}" + (f" {code}" if code else "")
        if status == 429 and code not in _NO_CREDIT:
            self._pace.pause(self._wait_of(error.response.headers))
            return _BusyError(what)
        if status in {401, 403}:
            return ModelRefusedError(f"{self.where} refuses the key ({what})", hint="check the key and its rights")
        if status == 429 or status == 402:
            return ModelRefusedError(f"{self.where} has no credit left ({what})", hint="raise the account's limit")
        if status == 404:
            return ModelRefusedError(
                f"{self.where} is not there ({what})", hint="check the model's name and the base_url"
            )
        if status in {408, 409} or status >= 500:
            return _FaultError(what, sent=False, status=status)
        return ModelRequestError(f"{self.where} refuses a request ({what})")

    def _wait_of(self, headers: Mapping[str, str]) -> float:
        """Seconds that the endpoint asks to wait; a second where it says nothing usable."""
        for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
            value = headers.get(name, "").strip()
            try:
                seconds = float(value) * scale
            except ValueError:
                try:
                    until = to_microseconds(parsedate_to_datetime(value)) / 1e6
                    here = to_microseconds(parsedate_to_datetime(headers["date"])) / 1e6
                except (ValueError, KeyError, TypeError):
                    continue
                seconds = until - here
            if math.isfinite(seconds) and seconds >= 0:
                return min(seconds, _LONGEST_WAIT)
        return max(1.0, self.endpoint.first_delay)

    @property
    def where(self) -> str:
        """Model and host, for errors."""
        return f"model '{self.endpoint.model[:80]}' at {urlsplit(self.endpoint.base_url).hostname}"


def _said(error: openai.APIStatusError) -> str:
    """The endpoint's own words about a refusal: read for what to change, never shown."""
    return error.response.text[:4000]


def _code(error: openai.APIStatusError) -> str:
    code = str(error.code or "")
    return code if len(code) <= 40 and code.replace("_", "").isalnum() and code.isascii() else ""


def _whole_refusal(error: openai.APIStatusError, said: str) -> bool:
    """Whether the refusal is plainly about something else than the answer's form."""
    if error.status_code == 404:
        return "model" in said and "response_format" not in said
    return _code(error) in {"context_length_exceeded", "content_filter", "model_not_found"}


def _answer_of(body: Any, asked_tokens: int) -> Answer:
    choice = body["choices"][0]
    message = choice["message"]
    text = _text_of(message.get("content") if isinstance(message, Mapping) else None)
    finish: Finish = "length" if choice.get("finish_reason") == "length" else "stop"
    if choice.get("finish_reason") == "content_filter" or (
        isinstance(message, Mapping) and message.get("refusal") and not text.strip()
    ):
        finish = "refusal"
    counted = body.get("usage")
    counted = counted if isinstance(counted, Mapping) else {}
    usage = Usage(
        1,
        _count(counted.get("prompt_tokens"), asked_tokens),
        _count(counted.get("completion_tokens"), estimated_tokens(text)),
    )
    return Answer(text, finish, usage)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _count(value: Any, otherwise: int) -> int:
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if usable else otherwise
