"""Rows in files: decoding, comparing, and changing fields with every other byte kept (STORES.md, DESIGN §3, §5)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from fallow.model.keys import Row, canonical_id
from fallow.model.times import iso, to_microseconds


class NotARowError(Exception):
    """A file's bytes are no record; the message says why, without any of its text."""


_decoder = msgspec.json.Decoder()
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SPACE: Final = re.compile(rb"[ \t\n\r]*")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,}\]]+")


def decode_row(data: bytes) -> Row:
    """A record file's object.

    What msgspec refuses is read once more by the standard json: Python writes bare NaN and Infinity, and
    one of them must not hide a record.

    Raises:
        NotARowError: no JSON, not UTF-8, or no object.
    """
    try:
        row = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        row = decode_leniently(data)
    if not isinstance(row, dict):
        raise NotARowError("the file's root is no object")
    return row


def decode_leniently(data: bytes) -> Any:
    """JSON as Python's own writer produces it, with NaN and infinities.

    Raises:
        NotARowError: not even that.
    """
    try:
        return json.loads(data.decode())
    except UnicodeDecodeError:
        raise NotARowError("not valid UTF-8") from None
    except RecursionError:
        raise NotARowError("nested too deeply") from None
    except ValueError:
        raise NotARowError("torn or malformed JSON" if data else "the file is empty") from None


def contradicts(stored_id: Any, record_id: str) -> bool:
    """Whether a row's ``_id`` names another record than its file does; absent and null say nothing."""
    return stored_id is not None and canonical_id(stored_id) != record_id


def encode_value(value: Any) -> bytes:
    """A value as the agents write it: UTF-8, unescaped.

    Raises:
        ValueError: not finite, not valid Unicode, or no JSON value.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except TypeError as error:
        raise ValueError("no JSON value") from error


def encode_row(row: Mapping[str, Any], record_id: str) -> bytes:
    """A new row's file, with its id under both names (STORES.md).

    Raises:
        ValueError: a value that JSON cannot say.
    """
    return encode_value({**row, "_id": record_id, "id": record_id})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(to_microseconds(value))
    text = canonical_id(value)
    if text is None:
        raise TypeError
    return text


class _Member:
    """Where one top-level field stands in a file: its name, and the spans of name and value."""

    __slots__ = ("begin", "end", "name", "start")

    def __init__(self, name: str, begin: int, start: int, end: int) -> None:
        self.name = name
        self.begin = begin
        self.start = start
        self.end = end


def replace_fields(data: bytes, changes: Mapping[str, Any]) -> bytes:
    """The file with these top-level fields set; every other byte of it stays as it was.

    Args:
        data: a file that :func:`decode_row` reads.
        changes: new values by field; of a doubled field the one that counts, the last, is set.

    Raises:
        ValueError: a value that JSON cannot say.
    """
    members, closing = _members(data)
    spans = {member.name: member for member in members}
    edits: list[tuple[int, int, bytes]] = []
    added: list[bytes] = []
    for name, value in changes.items():
        encoded = encode_value(value)
        member = spans.get(name)
        if member is None:
            added.append(encode_value(name) + b": " + encoded)
        else:
            edits.append((member.start, member.end, encoded))
    if added:
        if members:
            lead = _SPACE.match(data, _before(data, members[-1].begin))
            between = b"," + (lead.group() if lead and len(members) > 1 else b" ")
            edits.append((members[-1].end, members[-1].end, between + between.join(added)))
        else:
            edits.append((closing, closing, b", ".join(added)))
    pieces: list[bytes] = []
    position = 0
    for start, end, piece in sorted(edits, key=lambda edit: edit[:2]):
        pieces += (data[position:start], piece)
        position = end
    pieces.append(data[position:])
    return b"".join(pieces)


def _before(data: bytes, begin: int) -> int:
    """Where the white space in front of a field begins."""
    while data[begin - 1 : begin] in (b" ", b"\t", b"\n", b"\r"):
        begin -= 1
    return begin


def _members(data: bytes) -> tuple[list[_Member], int]:
    """The top-level fields in order, and where the object closes.

    msgspec says where a value ends; where it refuses the file, or a doubled name hides a value, the
    brackets are counted.
    """
    raw: dict[str, msgspec.Raw] | None
    try:
        raw = _fields_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raw = None
    position = _skip(data, _skip(data, 0) + 1)
    members: list[_Member] = []
    while data[position : position + 1] == b'"':
        matched = _STRING.match(data, position)
        if matched is None:
            raise ValueError("a field's name does not end")
        name = json.loads(matched.group())
        start = _skip(data, _skip(data, matched.end()) + 1)
        value = bytes(raw[name]) if raw is not None and name in raw else b""
        end = start + len(value) if value and data.startswith(value, start) else _end_of_value(data, start)
        after = _skip(data, end)
        if data[after : after + 1] not in (b",", b"}"):
            end = _end_of_value(data, start)
            after = _skip(data, end)
        members.append(_Member(name, position, start, end))
        if data[after : after + 1] != b",":
            return members, after
        position = _skip(data, after + 1)
    return members, position


def _skip(data: bytes, position: int) -> int:
    matched = _SPACE.match(data, position)
    return matched.end() if matched else position


def _end_of_value(data: bytes, start: int) -> int:
    first = data[start : start + 1]
    if first == b'"':
        matched = _STRING.match(data, start)
    elif first in (b"{", b"["):
        depth = 0
        for token in _TOKEN.finditer(data, start):
            opening = token.group()[:1]
            if opening in (b"{", b"["):
                depth += 1
            elif opening in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    return token.end()
        matched = None
    else:
        matched = _SCALAR.match(data, start)
    if matched is None:
        raise ValueError("a field's value does not end")
    return matched.end()


def is_finite(value: Any) -> bool:
    """Whether a number can stand in a vector."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
