"""A scripted OpenAI-compatible server: real HTTP on loopback, its own count of what it was paid for.

In a test: ``with ModelServer(...) as server: Endpoint(base_url=server.url, ...)``. As a process of its own
(for kill tests and benchmarks): ``python tests/model_server.py --latency 0.05``; prints its port.

A script is a list of steps, taken in the order in which requests arrive; after its end every request is
answered well. A step is a status with headers, a fault by name, or a function from the rows to the text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: A row as the prompt shows it: id, role, text.
Row = dict[str, str]
Answerer = Callable[[list[Row]], str]


def rating_of(text: str) -> int:
    """What the scripted model thinks of a text: from its hash, or after ``rate=`` where the text says so."""
    said = re.search(r"rate=(\d+)", text)
    return int(said[1]) if said else hashlib.sha256(text.encode("utf-8", "replace")).digest()[0] % 10 + 1


def well(rows: list[Row]) -> str:
    """The answer of a model that does as it is told."""
    return json.dumps({"ratings": [{"id": row["id"], "rating": rating_of(row["text"])} for row in rows]})


def rows_of(request: dict[str, Any]) -> list[Row]:
    """The rows of a request, read the way a program would: the one JSON block."""
    user = next(message["content"] for message in request["messages"] if message["role"] == "user")
    match = re.fullmatch(r"<memories-([0-9a-f]{8})>\n(.*)\n</memories-\1>", user, re.DOTALL)
    return [] if match is None else json.loads(match[2])


@dataclass(frozen=True)
class Step:
    """What to do with one request.

    ``fault``: ``hang`` (no answer until the server stops), ``cut`` (the connection breaks in the body),
    ``html`` (200 with a page), ``empty-length`` (no text, finish_reason length), ``drop`` (closed at once).
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    fault: str = ""
    answer: Answerer | None = None
    finish: str = "stop"


class ModelServer:
    """The server, in threads of this process.

    Args:
        script: steps for the first requests.
        latency: seconds that each good answer takes.
        forms: response formats that the server takes; another is answered with ``form_status``.
        form_status: 400 as gateways do, 500 as llama.cpp does.
        answer: how good answers are made.
        check: a function of the request that may return a step of its own, before the script is asked.
    """

    def __init__(
        self,
        script: Sequence[Step] = (),
        *,
        latency: float = 0.0,
        forms: Sequence[str] = ("json_schema", "json_object", "text"),
        form_status: int = 400,
        answer: Answerer = well,
        check: Callable[[dict[str, Any]], Step | None] | None = None,
    ) -> None:
        self.script, self.latency, self.forms, self.form_status = list(script), latency, tuple(forms), form_status
        self.answer, self.check = answer, check
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        #: Completed and sent: what the account is billed for.
        self.paid_calls = 0
        self.paid_tokens = [0, 0]
        self.rated: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.most_in_flight = 0
        #: Seconds from each request's arrival to its answer, summed.
        self.busy = 0.0
        self.files: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.job_script: list[Step] = []
        self._in_flight = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def parse_request(self) -> bool:
                self.began = time.perf_counter()
                return super().parse_request()

            def do_POST(self) -> None:
                server._serve(self)

            def do_GET(self) -> None:
                server._get(self)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def counts(self) -> dict[str, Any]:
        """The server's own account."""
        return {
            "paid_calls": self.paid_calls,
            "input_tokens": self.paid_tokens[0],
            "output_tokens": self.paid_tokens[1],
            "rows": self.rated.total(),
            "texts": len(self.rated),
            "most_in_flight": self.most_in_flight,
            "busy": self.busy,
        }

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        began: float = handler.began  # type: ignore[attr-defined]
        with self._lock:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            if handler.path.endswith("/chat/completions"):
                self._chat(handler, json.loads(raw))
            else:
                self._job(handler, raw)
        finally:
            with self._lock:
                self._in_flight -= 1
                self.busy += time.perf_counter() - began

    def _step(self, request: dict[str, Any]) -> Step:
        form = request.get("response_format", {"type": "text"})["type"]
        checked = self.check(request) if self.check is not None else None
        if checked is not None:
            return checked
        if form not in self.forms:
            return Step(self.form_status, body={"error": {"message": f"response_format {form} is not supported"}})
        return self.script.pop(0) if self.script else Step()

    def _chat(self, handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        with self._lock:
            self.requests.append(request)
            self.headers.append({name.lower(): value for name, value in handler.headers.items()})
            self.times.append(time.monotonic())
            step = self._step(request)
        if step.fault == "hang":
            self._stopping.wait(60)
            handler.close_connection = True
            return
        if step.fault == "drop":
            handler.close_connection = True
            return
        if step.status != 200:
            self._send(handler, step.status, step.body or {"error": {"message": "scripted"}}, step.headers)
            return
        rows = rows_of(request)
        text = (step.answer or self.answer)(rows)
        finish = step.finish
        if step.fault == "empty-length":
            text, finish = "", "length"
        if self.latency:
            time.sleep(self.latency)
        tokens = [sum(len(message["content"]) for message in request["messages"]) // 4, len(text) // 4]
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
            "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
        }
        if step.fault == "html":
            self._send(handler, 200, None, {"content-type": "text/html"}, b"<html>gateway</html>")
            return
        with self._lock:
            self.paid_calls += 1
            self.paid_tokens[0] += tokens[0]
            self.paid_tokens[1] += tokens[1]
            self.rated.update(row["text"] for row in rows)
        if step.fault == "cut":
            raw = json.dumps(body).encode()
            handler.send_response(200)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(raw)))
            handler.end_headers()
            handler.wfile.write(raw[: len(raw) // 2])
            handler.close_connection = True
            return
        self._send(handler, 200, body, step.headers)

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.partition("?")
        if path.endswith("/content"):
            name = path.split("/")[-2]
            self._send(handler, 200, None, {"content-type": "application/jsonl"}, self.files[name])
        elif path.endswith("/batches"):
            jobs = list(reversed(self.jobs.values()))
            after = re.search(r"after=([\w-]+)", query)
            start = 1 + [job["id"] for job in jobs].index(after[1]) if after else 0
            page = jobs[start : start + 2]
            more = start + 2 < len(jobs)
            self._send(handler, 200, {"object": "list", "data": page, "has_more": more}, {})
        elif "/batches/" in path:
            job = self.jobs.get(path.rsplit("/", 1)[1])
            self._send(handler, *((200, job, {}) if job else (404, {"error": {"message": "no such batch"}}, {})))
        else:
            self._send(handler, 200, self.counts(), {})

    def _job(self, handler: BaseHTTPRequestHandler, raw: bytes) -> None:
        """Files and batch jobs: a job waits until the test calls :meth:`work_off`."""
        with self._lock:
            step = self.job_script.pop(0) if self.job_script else Step()
        if handler.path.endswith("/files"):
            name = f"file-{len(self.files)}"
            self.files[name] = re.search(rb'filename="[^"]*"\r\n.*?\r\n\r\n(.*)\r\n--', raw, re.DOTALL)[1]  # type: ignore[index]
            body: dict[str, Any] = {"id": name, "object": "file", "bytes": 1, "created_at": 0, "filename": "f"}
            self._send(handler, 200, {**body, "purpose": "batch", "status": "processed"}, {})
            return
        if step.status != 200:
            self._send(handler, step.status, step.body or {"error": {"message": "scripted"}}, step.headers)
            return
        job = {**json.loads(raw), "id": f"batch-{len(self.jobs)}", "object": "batch", "status": "in_progress"}
        self.jobs[job["id"]] = {**job, "created_at": 0, "output_file_id": None, "error_file_id": None}
        if step.fault == "drop":
            handler.close_connection = True
            return
        self._send(handler, 200, self.jobs[job["id"]], {})

    def work_off(self, job: dict[str, Any], *, fail: Sequence[str] = (), status: str = "completed") -> None:
        """Answers a job's calls, but those named in ``fail``, and ends it."""
        out: list[str] = []
        errors: list[str] = []
        for line in self.files[job["input_file_id"]].splitlines():
            call = json.loads(line)
            if call["custom_id"] in fail:
                response = {"status_code": 500, "body": {"error": {"message": "scripted"}}}
                errors.append(json.dumps({"custom_id": call["custom_id"], "response": response}))
                continue
            rows = rows_of(call["body"])
            text = self.answer(rows)
            tokens = [sum(len(message["content"]) for message in call["body"]["messages"]) // 4, len(text) // 4]
            self.paid_calls += 1
            self.paid_tokens = [a + b for a, b in zip(self.paid_tokens, tokens, strict=True)]
            self.rated.update(row["text"] for row in rows)
            body = {
                "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
            }
            out.append(json.dumps({"custom_id": call["custom_id"], "response": {"status_code": 200, "body": body}}))
        for name, lines in (("output_file_id", out), ("error_file_id", errors)):
            if lines:
                job[name] = f"file-{len(self.files)}"
                self.files[job[name]] = "\n".join(reversed(lines)).encode()
        job["status"] = status

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        body: dict[str, Any] | None,
        headers: dict[str, str],
        raw: bytes | None = None,
    ) -> None:
        data = json.dumps(body).encode() if raw is None else raw
        with self._lock:
            self.statuses[status] += 1
        handler.send_response_only(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.0)
    options = parser.parse_args()
    with ModelServer(latency=options.latency) as server:
        print(server.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
