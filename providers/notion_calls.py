"""Calling the Notion API: at its pace, again where that is safe, and with errors that say what to do.

Notion allows three requests a second for one integration, whichever process sends them, so the pace is
kept in a small locked file that all processes of this user share. What may be sent again follows from
the call: a reading always, a writing only where Notion says that it did nothing (429). A writing whose
answer was lost raises :class:`LostAnswerError`, and the caller settles it by reading.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import httpx
from notion_client import Client
from notion_client.errors import HTTPResponseError, NotionClientErrorBase, RequestTimeoutError

from fallow.model.errors import (
    FallowError,
    StoreBusyError,
    StoreNotFoundError,
    StoreUnreadableError,
    StoreUnwritableError,
)

try:
    import fcntl
except ImportError:  # pragma: no cover - not on POSIX: the pace holds within the process alone
    fcntl = None  # type: ignore[assignment]

#: The version of the API whose requests and answers this code knows.
API_VERSION: Final = "2026-03-11"
#: What Notion allows one integration on average, and how many requests may come at once after a pause.
REQUESTS_PER_SECOND: Final = 3.0
BURST: Final = 3
#: A request larger than this, in bytes, is not sent.
MAX_REQUEST: Final = 440_000

#: Answers of servers or gateways in trouble: what was asked may have been done, and may work next time.
_PASSING: Final = frozenset({500, 502, 503, 504, 520, 522, 524, 529})
_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 30.0
#: No single wait that Notion asks for is honoured beyond this, in seconds.
_LONGEST_WAIT: Final = 600.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as the provider sees it; tests pass their own."""

    #: Seconds since the epoch: processes of one machine share it.
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


class LostAnswerError(Exception):
    """A writing was sent and its answer never came, or came from a gateway: it may have been done."""


class ConflictError(Exception):
    """Notion did not do a writing because another one was in the way (409)."""


class NotThereError(Exception):
    """Notion knows no such page, or does not show it to this integration (404)."""


class RefusedError(Exception):
    """Notion refused a request for what was in it; the message is its status and code, never its text."""


class SharedPace:
    """At most so many requests a second, over all processes that share a file.

    Args:
        path: the file, holding the time up to which requests are already promised; None keeps the pace
            within this object alone, as happens where the file cannot be written.
        per_second: requests a second in the long run.
        burst: requests that may come at once after a pause.
    """

    def __init__(
        self,
        path: Path | None,
        clock: Clock,
        *,
        per_second: float = REQUESTS_PER_SECOND,
        burst: int = BURST,
    ) -> None:
        self.per_second = per_second
        self._path = path
        self._clock = clock
        self._interval = 1.0 / per_second
        self._tolerance = (burst - 1) * self._interval
        self._promised = 0.0
        self._guard = threading.Lock()

    def take(self) -> None:
        """Waits until a request may be sent."""
        with self._guard, self._shared():
            now = self._clock.now()
            self._promised = max(self._promised, now)
            wait = self._promised - self._tolerance - now
            self._promised += self._interval
        if wait > 0:
            self._clock.sleep(wait)

    def hold_off(self, seconds: float) -> None:
        """Nobody who shares this pace sends anything for that long: Notion asked for it."""
        with self._guard, self._shared():
            until = self._clock.now() + min(seconds, _LONGEST_WAIT) + self._tolerance
            self._promised = max(self._promised, until)

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """The promised time as all processes know it, locked; written back afterwards."""
        descriptor = self._open()
        if descriptor is None:
            yield
            return
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._promised = _sane(os.pread(descriptor, 64, 0), self._clock.now())
            yield
            text = f"{self._promised:.6f}\n".ljust(32).encode()
            os.pwrite(descriptor, text, 0)
        finally:
            os.close(descriptor)

    def _open(self) -> int | None:
        if self._path is None:
            return None
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError:
            self._path = None
            return None


def _sane(text: bytes, now: float) -> float:
    """A promised time read from the file; one that is torn or beyond any wait of ours counts as none."""
    try:
        promised = float(text)
    except ValueError:
        return 0.0
    return promised if promised <= now + _LONGEST_WAIT + 60 else 0.0


def pace_file(folder: Path | None, token: str) -> Path | None:
    """The file in which all processes that use this token keep their common pace; its name does not tell the token."""
    if folder is None:
        return None
    return folder / f"notion-pace-{sha256(b'fallow notion pace ' + token.encode()).hexdigest()[:16]}"


class NotionCalls:
    """One integration's way to the API.

    Args:
        token: its secret; in no error, log or representation.
        base_url: where the API is; only a loopback address may be without TLS.
        pace: shared with every other process that uses the token.
        patience: seconds for which one reading is tried again before the store counts as busy.
        timeout: seconds to wait for one answer.
    """

    def __init__(
        self,
        token: str,
        *,
        base_url: str,
        pace: SharedPace,
        clock: Clock,
        patience: float = 300.0,
        timeout: float = 60.0,
    ) -> None:
        self.pace = pace
        self._clock = clock
        self._patience = patience
        self.sent = 0
        logger = logging.Logger("fallow.notion", level=logging.CRITICAL)
        logger.addHandler(logging.NullHandler())
        loopback = httpx.URL(base_url).host in {"127.0.0.1", "::1", "localhost"}
        # Notion's messages quote what was sent, so nothing of the client's own logging goes anywhere; and
        # its own retries are off: they do not keep the shared pace.
        self._client = Client(
            client=httpx.Client(trust_env=not loopback),
            auth=token,
            base_url=base_url,
            notion_version=API_VERSION,
            timeout_ms=int(timeout * 1000),
            retry=False,
            logger=logger,
            log_level=logging.CRITICAL,
        )

    def __repr__(self) -> str:
        return "NotionCalls()"

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def read(self, method: str, path: str, *, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        """The answer to a request that changes nothing: sent again until it comes or patience ends.

        Raises:
            NotThereError, RefusedError: Notion says so.
            StoreBusyError: patience ended.
            StoreUnreadableError, StoreNotFoundError: it will not get better by waiting.
        """
        deadline = self._clock.now() + self._patience
        attempt = 0
        while True:
            try:
                return self._send(method, path, body, query)
            except (_RateLimitedError, LostAnswerError, ConflictError, _NotSentError) as error:
                wait = error.wait if isinstance(error, _RateLimitedError) else None
                self._wait(attempt, wait, deadline, error)
            except _DeniedError:
                raise StoreUnreadableError(
                    "Notion does not let this integration read",
                    hint="give it the capability to read content, and share the database with it",
                ) from None
            attempt += 1

    def write(self, method: str, path: str, body: Any) -> Any:
        """The answer to a request that changes something: sent again only where it certainly was not done.

        Raises:
            ConflictError, NotThereError, RefusedError: it was not done.
            LostAnswerError: it may have been done; read before deciding anything.
            StoreBusyError: it was not done, and patience ended.
        """
        deadline = self._clock.now() + self._patience
        attempt = 0
        while True:
            try:
                return self._send(method, path, body, None)
            except (_RateLimitedError, _NotSentError) as error:
                self._wait(attempt, error.wait if isinstance(error, _RateLimitedError) else None, deadline, error)
            except _DeniedError:
                raise StoreUnwritableError(
                    "Notion does not let this integration write",
                    hint="give it the capabilities to update and insert content",
                ) from None
            attempt += 1

    def back_off(self, attempt: int) -> None:
        """The wait before a caller's own next attempt: doubling, without the pace's file."""
        self._clock.sleep(min(_FIRST_DELAY * 2**attempt, _LONGEST_DELAY))

    def _wait(self, attempt: int, asked: float | None, deadline: float, cause: Exception) -> None:
        delay = min(_FIRST_DELAY * 2**attempt, _LONGEST_DELAY) if asked is None else asked
        if self._clock.now() + delay > deadline:
            what = (
                "is rate-limiting this integration"
                if isinstance(cause, _RateLimitedError)
                else f"did not answer ({cause})"
            )
            raise StoreBusyError(f"Notion {what}", hint="nothing was decided on it; try again later") from None
        if isinstance(cause, _RateLimitedError):
            # The next request waits in take(), as those of every other process do.
            self.pace.hold_off(delay)
        else:
            self._clock.sleep(delay)

    def _send(self, method: str, path: str, body: Any, query: Mapping[str, Any] | None) -> Any:
        self.pace.take()
        self.sent += 1
        try:
            answer = self._client.request(path, method, query=dict(query or {}) or None, body=body)
        except RequestTimeoutError:
            raise LostAnswerError("timed out") from None
        except HTTPResponseError as error:
            raise _of_status(error, self._clock.now()) from None
        except NotionClientErrorBase as error:
            raise RefusedError(str(error.code)) from None
        except (httpx.ConnectError, httpx.ProxyError) as error:
            raise _NotSentError(type(error).__name__) from None
        except (httpx.HTTPError, ValueError) as error:
            # Cut off in the middle, or no JSON: what was asked may have been done.
            raise LostAnswerError(type(error).__name__) from None
        if not isinstance(answer, dict):
            raise LostAnswerError("no object in the answer")
        return answer


class _NotSentError(Exception):
    """No connection was made."""


class _DeniedError(Exception):
    """The integration lacks a capability (403)."""


class _RateLimitedError(Exception):
    def __init__(self, wait: float | None) -> None:
        super().__init__("rate limited")
        self.wait = wait


def _of_status(error: HTTPResponseError, now: float) -> Exception:
    """Which of our errors an answer means. Its text is not taken over: it can quote what was sent."""
    status = error.status
    reason = f"{status} {getattr(error.code, 'value', error.code)}"
    if status == 429:
        return _RateLimitedError(_retry_after(error.headers.get("retry-after"), now))
    if status == 409:
        return ConflictError(reason)
    if status in _PASSING:
        return LostAnswerError(reason)
    if status == 404:
        return NotThereError(reason)
    if status == 401:
        return StoreUnreadableError("Notion does not accept the token", hint="check NOTION_TOKEN: expired or mistyped")
    if status == 403:
        return _DeniedError(reason)
    return RefusedError(reason)


def _retry_after(value: str | None, now: float) -> float | None:
    """Seconds that Notion asked to wait: a number, or an HTTP date."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except (TypeError, ValueError):
            return None
    return min(max(0.0, seconds), _LONGEST_WAIT)


def not_found(data_source_id: str) -> FallowError:
    """There is no such data source for this integration."""
    return StoreNotFoundError(
        f"Notion shows no data source {data_source_id} to this integration",
        hint="copy the data source id from the database's settings, and share the database with the integration",
    )
