"""Rows in files: what is read fast is what is read carefully, and a change keeps every other byte."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from fallow.providers import filesystem_scan
from fallow.providers.filesystem_rows import (
    NotARowError,
    contradicts,
    decode_row,
    encode_row,
    replace_fields,
)
from fallow.providers.filesystem_scan import LARGE_COLUMNS, SMALL_COLUMNS, Columns, RecordReader, read_vector
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fallow.model.keys import MISSING
from fallow.model.record import DECISION_FIELDS, PLANNING_COLUMNS, PRIMARY_TYPES, read_record, schema
from fallow.model.values import holds, same_value

ZONE = ZoneInfo("America/New_York")
FIELDS = (
    *DECISION_FIELDS,
    "agent_id",
    "owner_agent_id",
    "memory_id",
    "user_id",
    "thread_id",
    "conversation_id",
    "role",
    "embedding",
    "x_custom",
    "id",
)

awkward = st.sampled_from(
    [
        "",
        "   ",
        "a\0b",
        "\ud800",
        "active",
        "SUPPRESSED",
        " sealed ",
        "true",
        "YES",
        "on",
        "1",
        "0.7",
        "12",
        "1e5",
        "123e-5",
        "nan",
        "NaN",
        "2026-03-01T02:12:00",
        "2026-03-01T02:12:00Z",
        "2026-03-01T02:12:00z",
        "2026-03-01 02:12:00.123456+05:30",
        " 2026-03-01T02:12:00+00:00 ",
        "0001-01-01T00:00:00+00:00",
        "9999-12-31T23:59:59-12:00",
        "2026-W10-1",
        "2026-13-45",
        "1774509333015",
        '{"timestamp": 1774509333, "retention_state": "sealed"}',
        ' \u00a0{"retention_state": "suppressed"}',
        '["a", "b"]',
        '[{"pinned": true}]',
        '{"pinned": "yes", "importance": 0.4, "tags": "verified"}',
        "{torn",
        0,
        1,
        -1,
        3.0,
        12,
        0.5,
        1.0,
        -0.0,
        1.2,
        2**53,
        2**53 + 2,
        2**70,
        -(2**70),
        1e308,
        math.nan,
        math.inf,
        -math.inf,
        1774509333,
        1774509333015,
        1e11,
        1e300,
        True,
        False,
        None,
        [],
        {},
    ]
)
values = st.recursive(
    awkward | st.text(max_size=6) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["pinned", "verified", "importance", "tags", "record_id", "_id", "timestamp", "source_ids"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)
plain = st.fixed_dictionaries(
    {"_id": st.just("r1")},
    optional={
        "agent_id": st.sampled_from(["a1", "a2", None]),
        "memory_id": st.sampled_from(["m1", "mémoire", None]),
        "timestamp": st.sampled_from(["2026-03-01T02:12:00+00:00", "2026-03-01T02:12:00", 1774509333.5, None]),
        "created_at": st.sampled_from(["2026-03-01T02:12:00Z", 17, None]),
        "last_accessed_at": st.sampled_from(["2026-04-01T02:12:00Z", None]),
        "access_count": st.integers(0, 9) | st.none(),
        "importance": st.floats(0, 1) | st.sampled_from([0, 1, None]),
        "pinned": st.sampled_from([True, False, None]),
        "retention_state": st.sampled_from(["active", "suppressed", "sealed", None]),
        "content": st.text(max_size=20),
        "metadata": st.sampled_from([None, {}, {"title": "t"}, {"pinned": True}]),
        "embedding": st.lists(st.floats(-1, 1), max_size=3) | st.none(),
    },
)
hostile = st.dictionaries(st.sampled_from(FIELDS), values, max_size=8)
rows = st.builds(lambda calm, wild: {**calm, **wild}, plain, hostile)
mutations = st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=2), st.integers(0, 2)), max_size=2)


def careful(data: bytes, memory_type: str) -> dict | str:
    """The slow way, on its own feet: the standard json on the whole file, then read_record."""
    try:
        row = json.loads(data.decode())
    except (ValueError, RecursionError):
        return "unreadable"
    if not isinstance(row, dict) or contradicts(row.get("_id"), "r1"):
        return "unreadable"
    record = read_record(row, memory_type, "r1", ZONE)
    return {name: getattr(record, name) for name in (*SMALL_COLUMNS, "text")}


def fast(folder: Path, data: bytes, memory_type: str, *, text: bool, twice: bool) -> dict | str:
    (folder / "r1.json").write_bytes(data)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        into = Columns()
        reader = RecordReader(memory_type, ZONE, text=text)
        if twice:  # what the reader learned from a row must not change how it reads it
            reader.read(descriptor, ["r1"], Columns())
        reader.read(descriptor, ["r1", "gone"], into)
    finally:
        os.close(descriptor)
    if into.unreadable:
        assert not into.rows
        return "unreadable"
    names = (*SMALL_COLUMNS, "text") if text else SMALL_COLUMNS
    frame = into.frame(names)
    assert frame.schema == pl.Schema({name: schema()[name] for name in names})
    [row] = frame.to_dicts()
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row=rows,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    mutations=mutations,
    memory_type=st.sampled_from(PRIMARY_TYPES),
    text=st.booleans(),
    twice=st.booleans(),
)
@example({"_id": "r1", "x": "\udcff"}, True, None, [], "summaries", False, False)
@example({"_id": "r1", "agent_id": 7, "source_id": 2**70}, True, None, [], "summaries", False, False)
@example({"_id": "r1", "embedding": [0.1, math.nan]}, True, None, [], "summaries", False, False)
@example({"_id": "r1", "attributes": [{"pinned": 1}]}, True, None, [], "entity_memory", False, False)
@example({"_id": "r1", "content": "cafe", "x": "caf"}, True, None, [(27, b"\xff", 1)], "summaries", False, False)
def test_reading_fast_is_reading_carefully(tmp_path, row, ascii_only, indent, mutations, memory_type, text, twice):
    """SPEC §1.2 and DESIGN §3: the short ways change nothing about what a record is."""
    data = json.dumps(row, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    for position, piece, cut in mutations:
        position %= len(data) + 1
        data = data[:position] + piece + data[position + cut :]
    expected = careful(data, memory_type)
    read = fast(tmp_path, data, memory_type, text=text, twice=twice)
    if isinstance(expected, dict) and not text:
        del expected["text"]
    assert read == expected
    if isinstance(expected, dict):
        row = decode_row(data)
        whole = read_record(row, memory_type, "r1", ZONE)
        assert {name: getattr(whole, name) for name in SMALL_COLUMNS} == {k: expected[k] for k in SMALL_COLUMNS}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b'{"_id": "r1", "content": "to', "torn"),
        (b"[1]", "root"),
        (b'"text"', "root"),
        (b'\xef\xbb\xbf{"_id": "r1"}', "torn or malformed"),
        (b'{"_id": "r1", "x": "\xff"}', "UTF-8"),
        (b'{"_id": "r1", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep"),
        ('{"_id": "r1"}'.encode("utf-16"), "UTF-8"),
    ],
)
def test_what_is_no_row_is_named_without_its_text(data, words):
    """SPEC §1.2, §14."""
    with pytest.raises(NotARowError) as caught:
        decode_row(data)
    assert words in str(caught.value)
    assert "r1" not in str(caught.value)


def test_json_values_compare_as_json_does():
    """A patch's requirements: true is not 1, null is not absence, NaN is itself."""
    assert same_value(1, 1.0)
    assert same_value(math.nan, float("nan"))
    assert same_value([1, {"a": None}], (1.0, {"a": None}))
    for left, right in [(True, 1), (False, 0), (None, 0), (None, False), ("1", 1), ([], {}), ([1], [True]), ("", None)]:
        assert not same_value(left, right)
        assert not same_value(right, left)
    assert not same_value({"a": 1}, {"a": 1, "b": None})
    assert holds({"a": None}, {"a": None, "b": MISSING})
    assert not holds({"a": None}, {"a": MISSING})
    assert not holds({}, {"a": None})


keys = st.sampled_from(["a", "b", "é", 'q"', "retention_state", "content", "\\", "x y", "{", "n"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(['"}', "[,", "\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
finite = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@settings(max_examples=300, deadline=None)
@given(
    members=st.lists(st.tuples(keys, json_values), max_size=6),
    changes=st.dictionaries(keys, finite.filter(lambda value: value != "\ud800"), max_size=4),
    ascii_only=st.booleans(),
    style=st.sampled_from([(", ", ": ", ""), (",", ":", ""), (",\n\t", " : ", "\n  "), (" ,\r\n", ":\t", " ")]),
)
def test_a_change_keeps_every_other_byte(members, changes, ascii_only, style):
    """SPEC §8.1: only the named keys change; NaN, doubled fields, spacing and escapes stay as they were."""
    comma, colon, edge = style
    try:
        pieces = [
            (json.dumps(name, ensure_ascii=ascii_only) + colon + json.dumps(value, ensure_ascii=ascii_only)).encode()
            for name, value in members
        ]
        for value in changes.values():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    data = (edge + "{" + edge).encode() + comma.encode().join(pieces) + (edge + "}" + edge).encode()
    before = json.loads(data)
    changed = replace_fields(data, changes)
    assert same_value(json.loads(changed), {**before, **changes})
    last = {name: number for number, (name, _) in enumerate(members)}
    position = 0
    for number, (name, _) in enumerate(members):
        if not (name in changes and last[name] == number):
            position = changed.index(pieces[number], position) + len(pieces[number])
    assert replace_fields(data, {}) == data
    if not changes.keys() - before.keys():
        assert changed.startswith((edge + "{" + edge).encode())
        assert changed.endswith((edge + "}" + edge).encode())


def test_a_value_that_json_cannot_say_is_refused():
    for value in (math.nan, math.inf, "\ud800", object(), {1, 2}):
        with pytest.raises(ValueError):
            replace_fields(b'{"a": 1}', {"b": value})


def test_new_rows_carry_their_id_twice_and_unescaped_text():
    """STORES.md: both `_id` and `id`, UTF-8 unescaped."""
    assert encode_row({"content": "café 日本"}, "r1") == '{"content": "café 日本", "_id": "r1", "id": "r1"}'.encode()


def test_vectors_are_lists_of_numbers_or_nothing():
    assert read_vector([1, 0.5]).tolist() == [1.0, 0.5]
    assert math.isnan(read_vector([math.nan, 1])[0])
    assert read_vector([1e300]).tolist() == [math.inf]
    for value in (None, "[1]", [True], ["1"], [None], {}, [10**400]):
        assert read_vector(value) is None


class Traced(dict):
    """Remembers which of its fields were asked for."""

    def __init__(self, *args: object, **fields: object) -> None:
        super().__init__(*args, **fields)
        self.asked: set[str] = set()

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name) -> bool:
        self.asked.add(name)
        return super().__contains__(name)


def test_every_field_that_reading_asks_for_is_decoded():
    """The short way decodes a fixed list of fields: what read_record asks for must be in it."""
    for memory_type in PRIMARY_TYPES:
        row, metadata, content = Traced(), Traced(), Traced()
        row["metadata"], row["content"] = metadata, content
        read_record(row, memory_type, "r1", ZONE)
        known = {*filesystem_scan._READ_FIELDS, *filesystem_scan._TEXT_FIELDS}
        assert row.asked <= known, row.asked - known
        assert metadata.asked <= filesystem_scan._TELLING
        assert row.asked >= {"content", "metadata", "importance", "attributes"}


def test_scans_fill_every_column_of_the_schema():
    assert {*SMALL_COLUMNS, *LARGE_COLUMNS} == set(schema())
    assert set(PLANNING_COLUMNS) <= set(SMALL_COLUMNS)


def test_naive_zone_only_moves_creation_times(tmp_path):
    """SPEC §1.1: access times are UTC wherever the agent ran."""
    data = b'{"_id": "r1", "timestamp": "2026-03-01T02:12:00", "last_accessed_at": "2026-03-01T02:12:00"}'
    read = fast(tmp_path, data, "summaries", text=False, twice=False)
    utc = read_record(json.loads(data), "summaries", "r1", UTC)
    assert read["created_at"] == utc.created_at + 5 * 3600 * 1_000_000
    assert read["last_accessed_at"] == utc.last_accessed_at
