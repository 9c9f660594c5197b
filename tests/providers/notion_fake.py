"""A Notion that runs on loopback: the endpoints that fallow uses, with state, limits and faults.

What it answers was compared with the schemas of Notion's own client; what it refuses follows Notion's
documented limits. One :class:`FakeNotion` is one workspace; :meth:`FakeNotion.serve` puts it on a port.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = "ntn_fake0secret0of0the0tests"
API_VERSION = "2026-03-11"
USER = {"object": "user", "id": "00000000-0000-4000-8000-000000000001"}
INLINE = 25
TEXTS = (
    "Memorizz ID",
    "Content",
    "Memorizz metadata",
    "Memory ID",
    "User ID",
    "Thread ID",
    "Namespace",
    "Agent ID",
    "Record type",
    "Status",
    "Timestamp",
    "Application ID",
    "Trace memory ID",
    "Session ID",
)


class SteppingClock:
    """A clock that a sleep moves on at once: waits are counted, never waited."""

    def __init__(self, start: float = 1_795_000_000.0) -> None:
        self.time = start
        self.slept: list[float] = []
        self._guard = threading.Lock()

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        with self._guard:
            self.slept.append(seconds)
            self.time += seconds


class ApiError(Exception):
    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def invalid(message: str) -> ApiError:
    return ApiError(400, "validation_error", message)


@dataclass
class Fault:
    """What goes wrong, and where.

    kind: ``error`` answers with ``status`` and does nothing, ``error_after`` does it first; ``cut`` sends half
    of the answer's text after doing it; ``drop`` ends the connection before, ``drop_after`` after doing it; ``slow``
    waits ``seconds`` first; ``alter`` gives the answer to ``change``; ``before`` calls ``change`` with nothing first.
    """

    kind: str
    method: str = ".*"
    path: str = ""
    skip: int = 0
    times: int = 1
    status: int = 502
    code: str = "service_unavailable"
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    change: Callable[..., Any] | None = None

    def meets(self, method: str, path: str) -> bool:
        if self.times <= 0 or not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Sent:
    method: str
    path: str
    body: Any
    status: int = 0
    answer: Any = None


def plain(items: Any) -> str:
    return "".join(item["plain_text"] for item in items or [])


def rich(text: str) -> dict[str, Any]:
    style = dict.fromkeys(("bold", "italic", "strikethrough", "underline", "code"), False)
    return {
        "type": "text",
        "text": {"content": text, "link": None},
        "annotations": {**style, "color": "default"},
        "plain_text": text,
        "href": None,
    }


class FakeNotion:
    def __init__(self) -> None:
        self.sources: dict[str, dict[str, Any]] = {}
        self.pages: dict[str, dict[str, Any]] = {}
        self.faults: list[Fault] = []
        self.sent: list[Sent] = []
        self.clock: Callable[[], float] = time.time
        #: Requests a second and at once; None for no limit.
        self.rate: float | None = None
        self.burst = 10.0
        self.query_cap = 10_000
        #: For how many queries a page is shown as it was before its last writing.
        self.lag = 0
        #: Whether what was answered is kept beside what was sent.
        self.keep_answers = False
        self.queries = 0
        self._tokens, self._filled = self.burst, 0.0

    # State, for tests

    def create_source(self, types: tuple[str, ...] = ()) -> str:
        source_id = str(uuid.uuid4())
        options = [
            {"id": f"o{i}", "name": name, "color": "default", "description": None} for i, name in enumerate(types)
        ]
        properties: dict[str, Any] = {
            "Name": {"id": "title", "name": "Name", "type": "title", "description": None, "title": {}},
            "Memory type": {"id": "p%3A%7C", "name": "Memory type", "type": "select", "description": None},
            "Event time": {"id": "p%3Adt", "name": "Event time", "type": "date", "description": None, "date": {}},
        }
        properties["Memory type"]["select"] = {"options": options}
        for number, name in enumerate(TEXTS):
            kind = {"id": f"p%3A{number:02d}", "name": name, "type": "rich_text", "description": None}
            properties[name] = {**kind, "rich_text": {}}
        self.sources[source_id] = {
            "id": source_id,
            "properties": properties,
            "title": [rich("memories")],
            "parent": {"type": "database_id", "database_id": str(uuid.uuid4())},
            "database_parent": {"type": "page_id", "page_id": str(uuid.uuid4())},
            "created_time": self.minute(),
            "last_edited_time": self.minute(),
        }
        return source_id

    def load(self, source: dict[str, Any], pages: list[dict[str, Any]]) -> str:
        """A data source and its pages as the API showed them."""
        self.sources[source["id"]] = source
        for page in pages:
            properties = {name: value[value["type"]] for name, value in page["properties"].items()}
            self._put({**page, "properties": properties, "source": page["parent"]["data_source_id"]})
        return str(source["id"])

    def add_page(self, source_id: str, properties: dict[str, Any]) -> str:
        """A page as another integration would create it, past all faults and limits."""
        return str(self._create({"parent": {"data_source_id": source_id}, "properties": properties})["id"])

    def edit_page(self, page_id: str, properties: dict[str, Any]) -> None:
        """An edit by somebody else."""
        self._update(page_id, {"properties": properties})

    def trash_page(self, page_id: str) -> None:
        self._update(page_id, {"in_trash": True})

    def text(self, page_id: str, name: str) -> str:
        return plain(self.pages[page_id]["properties"].get(name))

    def page_ids(self, record_id: str) -> list[str]:
        return [page_id for page_id in self.pages if self.text(page_id, "Memorizz ID") == record_id]

    def writes(self) -> list[Sent]:
        return [one for one in self.sent if one.method == "PATCH" or one.path == "/v1/pages"]

    def minute(self) -> str:
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:00.000Z")

    # Pages

    def _put(self, page: dict[str, Any]) -> None:
        before = self.pages.get(page["id"])
        page.setdefault("seq", len(self.pages))
        page["before"] = {**before, "before": None} if before else None
        page["shown_from"] = self.queries + self.lag
        self.pages[page["id"]] = page

    def _shown(self) -> Iterator[dict[str, Any]]:
        for page in self.pages.values():
            shown = page if self.queries > page["shown_from"] or not self.lag else page["before"]
            if shown is not None:
                yield shown

    def _source(self, source_id: Any) -> dict[str, Any]:
        source = self.sources.get(_uuid(source_id))
        if source is None:
            raise ApiError(404, "object_not_found", f"Could not find data source with ID: {source_id}.")
        return source

    def _page(self, page_id: Any) -> dict[str, Any]:
        page = self.pages.get(_uuid(page_id))
        if page is None:
            raise ApiError(404, "object_not_found", f"Could not find page with ID: {page_id}.")
        return page

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        source = self._source((body.get("parent") or {}).get("data_source_id"))
        now = self.minute()
        page = {
            "id": str(uuid.uuid4()),
            "source": source["id"],
            "created_time": now,
            "last_edited_time": now,
            "in_trash": False,
            "properties": {},
        }
        self._set(page, source, body.get("properties"))
        self._put(page)
        return self._show(page)

    def _update(self, page_id: Any, body: dict[str, Any]) -> dict[str, Any]:
        old = self._page(page_id)
        trash = body.get("in_trash", body.get("archived"))
        if old["in_trash"] and trash is not False:
            raise invalid("Can't edit block that is archived. You must unarchive the block before editing.")
        page = {**old, "properties": dict(old["properties"]), "last_edited_time": self.minute()}
        self._set(page, self.sources[page["source"]], body.get("properties"))
        if trash is not None:
            page["in_trash"] = bool(trash)
        self._put(page)
        return self._show(page)

    def _set(self, page: dict[str, Any], source: dict[str, Any], properties: dict[str, Any] | None) -> None:
        for key, value in (properties or {}).items():
            name, spec = _property(source, key)
            kind = spec["type"]
            if not isinstance(value, dict) or kind not in value:
                raise invalid(f"body failed validation: body.properties.{key}.{kind} should be defined.")
            page["properties"][name] = _stored(kind, value[kind], spec, f"body.properties.{key}.{kind}")

    def _show(self, page: dict[str, Any]) -> dict[str, Any]:
        source = self.sources[page["source"]]
        properties = {}
        for name, spec in source["properties"].items():
            kind, value = spec["type"], page["properties"].get(name)
            if kind in ("rich_text", "title"):
                value = (value or [])[:INLINE]
            properties[name] = {"id": spec["id"], "type": kind, kind: value}
        return {
            "object": "page",
            "id": page["id"],
            "created_time": page["created_time"],
            "last_edited_time": page["last_edited_time"],
            "created_by": USER,
            "last_edited_by": USER,
            "cover": None,
            "icon": None,
            "parent": {
                "type": "data_source_id",
                "data_source_id": source["id"],
                "database_id": source["parent"]["database_id"],
            },
            "in_trash": page["in_trash"],
            "archived": page["in_trash"],
            "is_archived": page["in_trash"],
            "is_locked": False,
            "properties": properties,
            "url": "https://www.notion.so/" + page["id"].replace("-", ""),
            "public_url": None,
        }

    # Endpoints

    def get_source(self, body: Any, request: Request) -> dict[str, Any]:
        source = self._source(request.path_params["id"])
        flags = dict.fromkeys(("is_inline", "in_trash", "archived"), False)
        users = {"created_by": USER, "last_edited_by": USER, "icon": None, "cover": None}
        shown = {name: source[name] for name in source if name != "url"}
        return {"object": "data_source", "description": [], **flags, **users, **shown, "url": "x", "public_url": None}

    def query(self, body: Any, request: Request) -> dict[str, Any]:
        source = self._source(request.path_params["id"])
        unknown = set(body) - {"filter", "sorts", "start_cursor", "page_size", "in_trash", "result_type"}
        if unknown:
            raise invalid(f"body failed validation: body.{min(unknown)} should be not present")
        if body.get("start_cursor") is None:
            self.queries += 1
        _check_filter(body.get("filter"))
        rows = [
            page
            for page in self._shown()
            if page["source"] == source["id"]
            and page["in_trash"] == bool(body.get("in_trash"))
            and _matches(page, source, body.get("filter"))
        ]
        for order in reversed(body.get("sorts") or [{"timestamp": "created_time", "direction": "descending"}]):
            rows.sort(
                key=lambda page: (page[order["timestamp"]], page["seq"]), reverse=order["direction"] == "descending"
            )
        capped, rows = len(rows) > self.query_cap, rows[: self.query_cap]
        start, cursor = 0, body.get("start_cursor")
        if cursor is not None:
            places = [page["id"] for page in rows]
            if cursor not in places:
                raise invalid(f"The start_cursor provided is invalid: {cursor}")
            start = places.index(cursor)
        answer, following = _listing(rows, start, body.get("page_size", 100))
        answer["results"] = [self._show(page) for page in answer["results"]]
        answer["next_cursor"] = None if following is None else rows[following]["id"]
        answer |= {"type": "page_or_data_source", "page_or_data_source": {}}
        if capped and following is None:
            reason = "query_result_limit_reached"
            answer["request_status"] = {"type": "incomplete", "incomplete_reason": reason}
        return answer

    def create_page(self, body: Any, request: Request) -> dict[str, Any]:
        return self._create(body)

    def get_page(self, body: Any, request: Request) -> dict[str, Any]:
        return self._show(self._page(request.path_params["id"]))

    def patch_page(self, body: Any, request: Request) -> dict[str, Any]:
        return self._update(request.path_params["id"], body)

    def page_property(self, body: Any, request: Request) -> dict[str, Any]:
        page = self._page(request.path_params["id"])
        name, spec = _property(self.sources[page["source"]], request.path_params["property"])
        kind, value = spec["type"], page["properties"].get(name)
        item = {"object": "property_item", "id": spec["id"], "type": kind}
        if kind not in ("rich_text", "title"):
            return {**item, kind: value}
        start, size = request.query_params.get("start_cursor", "0"), request.query_params.get("page_size", "100")
        answer, following = _listing([{**item, kind: piece} for piece in value or []], int(start), int(size))
        answer["next_cursor"] = None if following is None else str(following)
        described = {"id": spec["id"], "next_url": None, "type": kind, kind: {}}
        return {**answer, "type": "property_item", "property_item": described}

    # Serving

    async def _answer(self, endpoint: Callable[[Any, Request], Any], request: Request) -> Response:
        raw = await request.body()
        method, path = request.method, request.url.path
        log = Sent(method, path, None)
        self.sent.append(log)
        fault = next((one for one in self.faults if one.meets(method, path)), None)
        kind = fault.kind if fault else ""
        try:
            self._admit(request, raw)
            log.body = _json(raw)
            if fault and kind == "error":
                raise ApiError(fault.status, fault.code, "injected", fault.headers)
            if kind == "drop":
                return _Dropped()
            if fault and kind == "slow":
                await asyncio.sleep(fault.seconds)
            if fault and fault.change and kind == "before":
                fault.change()
            answer = endpoint(log.body or {}, request)
            if fault and kind == "error_after":
                raise ApiError(fault.status, fault.code, "injected after commit", fault.headers)
            if kind == "drop_after":
                return _Dropped()
            if fault and fault.change and kind == "alter":
                answer = fault.change(answer)
            log.status = 200
            log.answer = answer if self.keep_answers else None
            if kind == "cut":
                text = json.dumps(answer)
                return Response(text[: len(text) // 2], media_type="application/json")
            return JSONResponse(answer)
        except ApiError as error:
            log.status = error.status
            document = {"object": "error", "status": error.status, "code": error.code, "message": error.message}
            return JSONResponse({**document, "request_id": str(uuid.uuid4())}, error.status, headers=error.headers)

    def _admit(self, request: Request, raw: bytes) -> None:
        if len(raw) > 500_000:
            raise invalid("Request body too large")
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise ApiError(401, "unauthorized", "API token is invalid.")
        if request.headers.get("notion-version") != API_VERSION:
            raise ApiError(400, "missing_version", "Notion-Version header should be defined.")
        if self.rate is not None:
            now = self.clock()
            self._tokens = min(self.burst, self._tokens + (now - self._filled) * self.rate)
            self._filled = now
            if self._tokens < 1:
                wait = max(1, round((1 - self._tokens) / self.rate))
                raise ApiError(429, "rate_limited", "You have been rate limited.", {"Retry-After": str(wait)})
            self._tokens -= 1

    def app(self) -> Starlette:
        def route(path: str, method: str, endpoint: Callable[[Any, Request], Any]) -> Route:
            async def answer(request: Request) -> Response:
                return await self._answer(endpoint, request)

            return Route(path, answer, methods=[method])

        return Starlette(
            routes=[
                route("/v1/data_sources/{id}", "GET", self.get_source),
                route("/v1/data_sources/{id}/query", "POST", self.query),
                route("/v1/pages", "POST", self.create_page),
                route("/v1/pages/{id}", "GET", self.get_page),
                route("/v1/pages/{id}", "PATCH", self.patch_page),
                route("/v1/pages/{id}/properties/{property:path}", "GET", self.page_property),
            ]
        )

    @contextmanager
    def serve(self) -> Iterator[str]:
        """The workspace on a free port of loopback: its base URL."""
        # Named TCP, or asyncio leaves the delay of small packets on.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", 0))
            config = uvicorn.Config(
                self.app(),
                log_level="critical",
                access_log=False,
                lifespan="off",
                ws="none",
                loop="asyncio",
                http="h11",
            )
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                thread.join(10)


class _Dropped(Response):
    """No answer: half of a status line's response, and the connection ends."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        raise ApiError(400, "invalid_json", "Error parsing JSON body.") from None


def _uuid(value: Any) -> str:
    try:
        return str(uuid.UUID(str(value)))
    except ValueError:
        raise invalid(f"path failed validation: should be a valid uuid, instead was `{value}`.") from None


def _property(source: dict[str, Any], key: str) -> tuple[str, dict[str, Any]]:
    for name, spec in source["properties"].items():
        if key in (name, spec["id"], unquote(spec["id"])) or unquote(key) == spec["id"]:
            return name, spec
    raise invalid(f"{key} is not a property that exists.")


def _stored(kind: str, value: Any, spec: dict[str, Any], where: str) -> Any:
    if kind in ("rich_text", "title"):
        return _segments(value, where)
    if kind == "select" and value is not None:
        options = spec["select"]["options"]
        option = next((one for one in options if one["name"] == value.get("name")), None)
        if option is None:
            option = {"id": uuid.uuid4().hex[:4], "name": value.get("name"), "color": "default", "description": None}
            options.append(option)
        return {name: option[name] for name in ("id", "name", "color")}
    if kind == "date" and value is not None:
        found = re.fullmatch(r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d)[^Z+-]*(Z|[+-]\d\d:\d\d)?)?", value["start"])
        if not found:
            raise invalid(f"body failed validation: {where}.start should be a valid ISO 8601 date string")
        day, minute, offset = found.groups()
        offset = "+00:00" if offset in (None, "Z") else offset
        start = f"{day}T{minute}:00.000{offset}" if minute else day
        return {"start": start, "end": None, "time_zone": None}
    return value


def _segments(items: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(items, list):
        raise invalid(f"body failed validation: {where} should be an array")
    if len(items) > 100:
        raise invalid(f"body failed validation: {where}.length should be ≤ `100`, instead was `{len(items)}`.")
    stored = []
    for number, item in enumerate(items):
        text = (item.get("text") or {}).get("content")
        if not isinstance(text, str):
            raise invalid(f"body failed validation: {where}[{number}].text.content should be defined")
        if len(text.encode("utf-16-le")) // 2 > 2000:
            raise invalid(f"body failed validation: {where}[{number}].text.content.length should be ≤ `2000`.")
        if text:
            stored.append(rich(text))
    return stored


def _check_filter(condition: Any, depth: int = 0) -> None:
    if not isinstance(condition, dict):
        return
    for joint in ("and", "or"):
        if joint in condition:
            if depth > 1:
                raise invalid("body failed validation: body.filter is nested too deeply")
            if not 1 <= len(condition[joint]) <= 100:
                raise invalid(f"body failed validation: body.filter.{joint}.length should be ≤ `100`.")
            for part in condition[joint]:
                _check_filter(part, depth + 1)


def _matches(page: dict[str, Any], source: dict[str, Any], condition: Any) -> bool:
    if condition is None:
        return True
    if "and" in condition:
        return all(_matches(page, source, part) for part in condition["and"])
    if "or" in condition:
        return any(_matches(page, source, part) for part in condition["or"])
    if "timestamp" in condition:
        name = condition["timestamp"]
        [(operator, value)] = condition[name].items()
        if operator != "on_or_after":
            raise invalid(f"body.filter.{name}.{operator} is not known to this fake")
        return datetime.fromisoformat(page[name]) >= datetime.fromisoformat(value)
    name, spec = _property(source, condition.get("property", ""))
    [kind] = set(condition) - {"property", "type"}
    if kind != spec["type"]:
        raise invalid(f"database property {spec['type']} does not match filter {kind}")
    [(operator, wanted)] = condition[kind].items()
    value = page["properties"].get(name)
    if kind == "select":
        if wanted not in [option["name"] for option in spec["select"]["options"]]:
            raise invalid(f'select option "{wanted}" not found for property "{name}"')
        return operator == "equals" and bool(value) and value["name"] == wanted
    text = plain(value).casefold()
    if operator == "equals":
        return text == wanted.casefold()
    if operator == "starts_with":
        return text.startswith(wanted.casefold())
    raise invalid(f"body.filter.{kind}.{operator} is not known to this fake")


def _listing(items: list[Any], start: int, size: Any) -> tuple[dict[str, Any], int | None]:
    if not isinstance(size, int) or not 1 <= size <= 100:
        raise invalid(f"body failed validation: body.page_size should be ≤ `100`, instead was `{size}`.")
    more = start + size < len(items)
    answer = {"object": "list", "results": items[start : start + size], "next_cursor": None, "has_more": more}
    return answer, (start + size if more else None)
