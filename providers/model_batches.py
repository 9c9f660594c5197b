"""OpenAI's batch endpoint as a second way to a model (SPEC §3.6): files of calls, answered within a day."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import openai
import stamina
from fallow.providers.models import ModelClient

from fallow.importance.asking import Answer
from fallow.importance.batch_run import BatchCall, JobState
from fallow.importance.prompt import ANSWER_SCHEMA
from fallow.model.errors import ModelUnavailableError

T = TypeVar("T")

#: Where a job that has been handed in is looked for among the latest.
_LATEST: Final = 300
_MARKER: Final = "fallow"
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})


class BatchJobs:
    """Jobs at a client's endpoint (:class:`fallow.importance.batch_run.Jobs`)."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client
        self._openai = client.openai

    @property
    def name(self) -> str:
        """The model's name."""
        return self._client.name

    @property
    def address(self) -> str:
        """Endpoint and model."""
        return self._client.address

    def submit(self, calls: Sequence[BatchCall], marker: str) -> str:
        """Uploads the calls and begins a job over them."""
        lines = [
            json.dumps(
                {
                    "custom_id": call.name,
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": self._client.request(call.messages, call.max_tokens, ANSWER_SCHEMA),
                }
            )
            for call in calls
        ]
        content = "\n".join(lines).encode()
        upload = self._tried(lambda: self._openai.files.create(file=("fallow.jsonl", content), purpose="batch"))
        # Not tried again after a fault: it may have been taken. The marker finds it.
        job = self._once(
            lambda: self._openai.batches.create(
                input_file_id=upload.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={_MARKER: marker},
            )
        )
        return str(job.id)

    def find(self, marker: str) -> str | None:
        """Looks through the latest jobs."""
        seen = 0
        after: str | None = None
        while seen < _LATEST:
            more = {"after": after} if after else {}
            page = self._tried(lambda more=more: self._openai.batches.list(limit=100, **more))  # type: ignore[misc]
            for job in page.data:
                if isinstance(job.metadata, Mapping) and job.metadata.get(_MARKER) == marker:
                    return str(job.id)
            if not page.data or not page.has_more:
                return None
            seen += len(page.data)
            after = str(page.data[-1].id)
        return None

    def state(self, job: str) -> JobState:
        """Where a job stands."""
        found = self._retrieve(job)
        if found is None:
            return "gone"
        return "ended" if found.status in _ENDED else "waiting"

    def answers(self, job: str) -> Iterator[tuple[str, Answer | None]]:
        """The output and error files of a job, line by line; what cannot be read is no answer."""
        found = self._retrieve(job)
        for name in (found.output_file_id, found.error_file_id) if found is not None else ():
            if name:
                content = self._tried(lambda name=name: self._openai.files.content(name).content)  # type: ignore[misc]
                for line in content.splitlines():
                    answer = self._answer(line)
                    if answer is not None:
                        yield answer

    def _answer(self, line: bytes) -> tuple[str, Answer | None] | None:
        try:
            item = json.loads(line)
            name, response = str(item["custom_id"]), item.get("response") or {}
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        if response.get("status_code") != 200:
            return name, None
        return name, self._client.read_body(response.get("body"))

    def _retrieve(self, job: str) -> Any:
        def ask() -> Any:
            try:
                return self._openai.batches.retrieve(job)
            except openai.NotFoundError:
                return None

        return self._tried(ask)

    def _tried(self, call: Callable[[], T]) -> T:
        """As :meth:`_once`, again after what may pass."""
        for attempt in stamina.retry_context(on=ModelUnavailableError, attempts=4, timeout=600, wait_max=30):
            with attempt:
                return self._once(call)
        raise AssertionError("stamina ended without an attempt")

    def _once(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except openai.APIStatusError as error:
            raise self._client.settled(error) from None
        except openai.APIConnectionError:
            raise ModelUnavailableError(
                f"{self._client.where} did not answer about a batch job", hint="try again later"
            ) from None
