"""Records as Notion pages hold them (STORES.md, Notion): pages to rows, rows to properties, and the limits.

The record is JSON in the property "Memorizz metadata"; what a person reads stands in "Content"; managed
properties repeat some fields, and an agent refuses a page on which they disagree. So does fallow: such a
page is unreadable, because nobody can say which of its two answers was meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from fallow.providers.notion_calls import MAX_REQUEST

from fallow.model.keys import Row, canonical_id, is_unicode
from fallow.model.record import TYPE_ALIASES
from fallow.model.times import from_microseconds, parse_time

METADATA: Final = "Memorizz metadata"
CONTENT: Final = "Content"
RECORD_ID: Final = "Memorizz ID"
MEMORY_TYPE: Final = "Memory type"
TITLE: Final = "Name"
TIMESTAMP: Final = "Timestamp"
EVENT_TIME: Final = "Event time"
FORMAT: Final = "memorizz.notion.v1"

#: Managed text properties and the field each repeats.
MANAGED: Final[Mapping[str, str]] = {
    "Memory ID": "memory_id",
    "User ID": "user_id",
    "Thread ID": "thread_id",
    "Namespace": "namespace",
    "Agent ID": "agent_id",
    "Record type": "record_type",
    "Status": "status",
    "Application ID": "application_id",
    "Trace memory ID": "trace_memory_id",
    "Session ID": "session_id",
}
#: Every property that a memory data source has, with its type.
PROPERTIES: Final[Mapping[str, str]] = {
    TITLE: "title",
    RECORD_ID: "rich_text",
    MEMORY_TYPE: "select",
    CONTENT: "rich_text",
    METADATA: "rich_text",
    **dict.fromkeys(MANAGED, "rich_text"),
    TIMESTAMP: "rich_text",
    EVENT_TIME: "date",
}

#: UTF-16 units in one segment of text, units in one property, and segments in one request's property.
SEGMENT: Final = 2_000
MAX_PROPERTY: Final = 180_000
MAX_SEGMENTS: Final = 100
#: A page shows this many segments of a property; more are read at the property's own endpoint.
INLINE_SEGMENTS: Final = 25

#: The first of these that a record has is what a person reads: it stands in Content.
_DISPLAY: Final = (
    "content",
    "text",
    "summary",
    "instruction",
    "instructions",
    "description",
    "query_text",
    "query",
    "attributes",
    "name",
)
#: Never stored in Notion.
_UNSTORED: Final = frozenset({"embedding", "score"})

_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoder = msgspec.json.Decoder()


class TooLargeError(Exception):
    """A row that Notion cannot hold; the message says which limit, without any of its text."""


class NotStorableError(Exception):
    """A value that JSON or Notion cannot say."""


@dataclass(slots=True)
class Page:
    """A page of the data source, read.

    Attributes:
        memory_type: the canonical type, from the property that agents list by.
        record_id: from "Memorizz ID"; of a page that has none, ``page:`` and the page's id.
        row: the record, or None where ``problem`` says why there is none.
        metadata: the text of "Memorizz metadata", as it is stored.
    """

    page_id: str
    created: str
    edited: str
    memory_type: str
    record_id: str
    in_trash: bool
    row: Row | None
    problem: str
    metadata: str

    @property
    def rank(self) -> tuple[str, str]:
        """The order in which pages with one id came to be, the same for everybody who looks."""
        return (self.created, self.page_id)


#: Gives a property's whole text from its own endpoint: (page id, property id).
LongText = Callable[[str, str], str]


def read_page(page: Mapping[str, Any], long_text: LongText) -> Page:
    """A page object of the API as a record, or with the reason why it is none.

    Raises:
        ValueError: no page object, or one without properties: the integration may not read content.
    """
    properties = page.get("properties")
    page_id = page.get("id")
    if not isinstance(properties, Mapping) or not isinstance(page_id, str) or "last_edited_time" not in page:
        raise ValueError("a page without its properties")
    in_trash = bool(page.get("in_trash", page.get("archived", False)))
    texts: dict[str, str] = {}

    def text(name: str) -> str:
        if name not in texts:
            texts[name] = _text_of(properties.get(name), page_id, long_text)
        return texts[name]

    select = (properties.get(MEMORY_TYPE) or {}).get("select") or {}
    listed = str(select.get("name") or "")
    memory_type = TYPE_ALIASES.get(listed, listed)
    record_id = text(RECORD_ID)
    result = Page(
        page_id=page_id,
        created=str(page.get("created_time") or ""),
        edited=str(page["last_edited_time"]),
        memory_type=memory_type,
        record_id=record_id or f"page:{page_id}",
        in_trash=in_trash,
        row=None,
        problem="",
        metadata="",
    )
    if in_trash:
        result.problem = "in the trash"
        return result
    result.metadata = text(METADATA)
    try:
        result.row = _read_row(result, listed, record_id, text)
    except _UnreadableError as error:
        result.problem = str(error)
    return result


class _UnreadableError(Exception):
    pass


def _text_of(value: Any, page_id: str, long_text: LongText) -> str:
    if not isinstance(value, Mapping):
        return ""
    items = value.get("rich_text") if value.get("type") == "rich_text" else value.get("title")
    if not isinstance(items, list):
        return ""
    if len(items) >= INLINE_SEGMENTS:
        return long_text(page_id, str(value.get("id")))
    return plain_text(items)


def plain_text(items: Iterable[Any]) -> str:
    """The text of rich text items."""
    return "".join(str(item.get("plain_text") or "") for item in items if isinstance(item, Mapping))


def _decode(text: str, what: str) -> Any:
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        # Python's writer, which agents use, also writes bare NaN and Infinity.
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _UnreadableError(f"{what} is torn or malformed JSON" if text else f"{what} is empty") from None


def _read_row(page: Page, listed: str, record_id: str, text: Callable[[str], str]) -> Row:
    envelope = _decode(page.metadata, f"'{METADATA}'")
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise _UnreadableError(f"'{METADATA}' has another format than {FORMAT}")
    data, named = envelope.get("data"), envelope.get("id")
    if not isinstance(data, dict) or not isinstance(named, str) or not is_record_id(named):
        raise _UnreadableError(f"'{METADATA}' holds no record")
    if named != record_id or any(
        data.get(key) is not None and canonical_id(data[key]) != named for key in ("_id", "id")
    ):
        raise _UnreadableError("its ids disagree")
    if envelope.get("memory_type") != listed:
        raise _UnreadableError("its memory types disagree")
    for name, field in MANAGED.items():
        if not _agrees(text(name), data.get(field)):
            raise _UnreadableError(f"'{name}' disagrees with the record's {field}")
    if not _same_instant(text(TIMESTAMP), data.get("timestamp")):
        raise _UnreadableError(f"'{TIMESTAMP}' disagrees with the record's timestamp")
    row: Row = dict(data)
    display, aliases = envelope.get("display_field"), envelope.get("display_aliases") or ()
    if display is not None:
        if not isinstance(display, str) or not isinstance(aliases, list | tuple):
            raise _UnreadableError(f"'{METADATA}' holds no record")
        content: Any = text(CONTENT)
        if envelope.get("display_json"):
            content = _decode(content, f"'{CONTENT}'")
        row.update({str(name): content for name in (display, *aliases)})
    row["_id"] = named
    return row


def _shown(value: Any) -> str:
    """A field as its managed property shows it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _agrees(shown: str, value: Any) -> bool:
    return shown == _shown(value) or (value is not None and not isinstance(value, str) and shown == str(value))


def _same_instant(shown: str, value: Any) -> bool:
    instant = parse_time(value)
    if instant is None:
        return True
    stored = parse_time(shown)
    return stored is not None and abs(stored - instant) <= 1_000


def is_record_id(text: str) -> bool:
    """Whether the id can stand in a page's "Memorizz ID" and be asked for there."""
    return bool(text) and is_unicode(text) and units(text) <= SEGMENT


def units(text: str) -> int:
    """The text's length as Notion counts it: in UTF-16 units."""
    return len(text) + sum(character > "\uffff" for character in text)


def segments(text: str) -> list[str]:
    """The text in pieces of at most :data:`SEGMENT` UTF-16 units, never cut inside a surrogate pair."""
    if len(text) * 2 <= SEGMENT:
        return [text] if text else []
    pieces: list[str] = []
    start = taken = 0
    for position, character in enumerate(text):
        size = 2 if character > "\uffff" else 1
        if taken + size > SEGMENT:
            pieces.append(text[start:position])
            start, taken = position, 0
        taken += size
    pieces.append(text[start:])
    return pieces


def rich_text(text: str, name: str) -> list[dict[str, Any]]:
    """The text as a property's rich text.

    Raises:
        TooLargeError: more than a property holds.
    """
    pieces = segments(text)
    if len(pieces) > MAX_SEGMENTS or units(text) > MAX_PROPERTY:
        raise TooLargeError(f"'{name}' would have {units(text)} characters, Notion holds {MAX_PROPERTY} a property")
    return [{"type": "text", "text": {"content": piece}} for piece in pieces]


def check_request(body: Mapping[str, Any]) -> None:
    """Refuses a request that is larger than Notion takes, before it is sent.

    Raises:
        TooLargeError: it is.
    """
    size = len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_REQUEST:
        raise TooLargeError(f"the request would have {size} bytes, Notion takes {MAX_REQUEST}")


def encode_value(value: Any) -> bytes:
    """A value as the agents write it: compact, keys sorted, unescaped.

    Raises:
        NotStorableError: not finite, not valid Unicode, or no JSON value.
    """
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"), default=_plain
        )
        return text.encode()
    except (TypeError, ValueError, RecursionError):
        raise NotStorableError("a value is no finite JSON value") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        instant = parse_time(value)
        if instant is not None:
            return from_microseconds(instant).isoformat()
    text = canonical_id(value)
    if text is None:
        raise TypeError
    return text


def _object(fields: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(encode_value(name) + b":" + value for name, value in sorted(fields.items())) + b"}"


def page_properties(row: Mapping[str, Any], memory_type: str) -> dict[str, Any]:
    """All properties of a new record's page.

    Raises:
        TooLargeError, NotStorableError: Notion cannot hold it.
    """
    record_id = row["_id"]
    stored = {name: value for name, value in row.items() if name not in _UNSTORED}
    stored.update({"_id": record_id, "id": record_id})
    display = next((name for name in _DISPLAY if stored.get(name) is not None), None)
    shown, as_json = _display_text(stored.pop(display) if display is not None else "")
    envelope = {
        "format": FORMAT,
        "id": record_id,
        "memory_type": memory_type,
        "data": stored,
        "display_field": display,
        "display_json": as_json,
        "display_aliases": [],
    }
    name = row.get("name")
    title = name if isinstance(name, str) and name.strip() else f"{memory_type}: {record_id}"
    texts = {
        RECORD_ID: record_id,
        CONTENT: shown,
        METADATA: encode_value(envelope).decode(),
        **_managed_texts(row),
    }
    if not all(is_unicode(text) for text in (*texts.values(), title)):
        raise NotStorableError("a text is no valid Unicode")
    return {
        TITLE: {"title": rich_text(_cut(title), TITLE)},
        MEMORY_TYPE: {"select": {"name": memory_type}},
        EVENT_TIME: _event_time(row),
        **{name: {"rich_text": rich_text(text, name)} for name, text in texts.items()},
    }


def _display_text(value: Any) -> tuple[str, bool]:
    return (value, False) if isinstance(value, str) else (encode_value(value).decode(), True)


def _cut(title: str) -> str:
    return segments(title)[0] if title else title


def _managed_texts(row: Mapping[str, Any]) -> dict[str, str]:
    instant = parse_time(row.get("timestamp"))
    stamp = "" if instant is None else from_microseconds(instant).isoformat(timespec="microseconds")
    return {**{name: _shown(row.get(field)) for name, field in MANAGED.items()}, TIMESTAMP: stamp}


def _event_time(row: Mapping[str, Any]) -> dict[str, Any]:
    instant = parse_time(row.get("timestamp"))
    if instant is None:
        return {"date": None}
    return {"date": {"start": from_microseconds(instant).isoformat(timespec="seconds")}}


def changed_properties(page: Page, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What to send so that the page's record has these fields: every other field of it keeps its bytes.

    Always "Memorizz metadata"; another property only where it repeats a field that is among the changes
    and gets another text by it.

    Raises:
        TooLargeError, NotStorableError: Notion cannot hold it.
    """
    assert page.row is not None
    if not changes.keys().isdisjoint({"_id", "id", *_UNSTORED}):
        raise NotStorableError("ids and embeddings are not changed here")
    encoded = {name: encode_value(value) for name, value in changes.items()}
    envelope, data = _fields(page.metadata)
    plain = _decode(page.metadata, METADATA)
    display, aliases = plain.get("display_field"), list(plain.get("display_aliases") or ())
    properties: dict[str, Any] = {}
    for alias in [name for name in aliases if name in changes or display in changes]:
        aliases.remove(alias)
        data[alias] = encode_value(page.row[alias])
        envelope["display_aliases"] = encode_value(aliases)
    if display in encoded:
        del encoded[display]
        shown, as_json = _display_text(changes[display])
        envelope["display_json"] = encode_value(as_json)
        properties[CONTENT] = {"rich_text": rich_text(shown, CONTENT)}
    data.update(encoded)
    envelope["data"] = _object(data)
    text = _object(envelope).decode()
    if not is_unicode(text):
        raise NotStorableError("a text is no valid Unicode")
    properties[METADATA] = {"rich_text": rich_text(text, METADATA)}
    after = {**page.row, **changes}
    before_texts = _managed_texts(page.row)
    for name, shown in _managed_texts(after).items():
        if shown != before_texts[name]:
            properties[name] = {"rich_text": rich_text(shown, name)}
    if TIMESTAMP in properties:
        properties[EVENT_TIME] = _event_time(after)
    return properties


def _fields(metadata: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The envelope's and the data's fields with the bytes of their values."""
    try:
        envelope = {name: bytes(raw) for name, raw in _raw_fields.decode(metadata).items()}
        return envelope, {name: bytes(raw) for name, raw in _raw_fields.decode(envelope["data"]).items()}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        plain = json.loads(metadata)
        return _encoded(plain), _encoded(plain["data"])


def _encoded(fields: Mapping[str, Any]) -> dict[str, bytes]:
    """As stored, bare NaN and infinities included: another writer's values are not ours to judge."""
    return {
        name: json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
        for name, value in fields.items()
    }
