"""From a folder of record files to frames, fast: 100k records in about two CPU seconds (DESIGN §3).

Planning needs some thirty of a record's fields and neither its text nor its embedding, so msgspec decodes
only those. Most records are plain: every field of the type that agents write. Those go straight into
columns; any other is given to :func:`fallow.model.record.read_record`, and what msgspec refuses to the standard
json. The three ways give the same record: what a field means is decided in one place only, and a
differential test holds the short way to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fallow.providers import filesystem_files as files
from fallow.providers.filesystem_rows import NotARowError, contradicts, decode_leniently
from fallow.providers.snapshot import snapshot_schema

from fallow.model.keys import Row, is_unicode
from fallow.model.record import CITING_FIELDS, DECISION_FIELDS, SUPERSEDING_FIELDS, read_record, read_text, schema
from fallow.model.times import parse_time

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

#: Rows in a frame; fewer where each row carries a vector.
BATCH_ROWS: Final = 10_000
BATCH_VECTORS: Final = 2_000
#: Columns that are not kept between scans.
LARGE_COLUMNS: Final = frozenset({"text", "embedding"})
#: All other columns, in the order in which the hot loop writes them: one pass over the files fills them all.
SMALL_COLUMNS: Final = (
    "record_id",
    "agent_id",
    "memory_id",
    "user_id",
    "thread_id",
    "created_at",
    "last_accessed_at",
    "access_count",
    "importance",
    "importance_source",
    "pinned",
    "verified",
    "retention_state",
    "suppressed_by",
    "unsuppressed_at",
    "summary_id",
    "citations",
    "supersedes",
    "breaches",
    "role",
)

#: Fields that only make up a record's text.
_TEXT_FIELDS: Final = frozenset(
    {
        "text",
        "summary",
        "instruction",
        "instructions",
        "name",
        "description",
        "relations",
        "steps",
        "outcome",
        "user_query",
        "query_text",
        "query",
    }
)
_SCOPE_FIELDS: Final = (
    "agent_id",
    "owner_agent_id",
    "memory_id",
    "user_id",
    "thread_id",
    "conversation_id",
    "role",
)
_READ_FIELDS: Final = tuple(dict.fromkeys((*_SCOPE_FIELDS, *DECISION_FIELDS)))
#: In a metadata object, any of these may mean something.
_TELLING: Final = frozenset(DECISION_FIELDS)

#: Conditions of a write that say nothing about the record itself.
_UNREAD_FIELDS: Final = frozenset({"suppressed_from", "unsuppressed_by"})

_Text = str | None
_Time = str | int | float | None
#: The fields of plain records and their types, in the order in which the hot loop unpacks them.
_PLAIN_FIELDS: Final[tuple[tuple[str, Any], ...]] = (
    ("agent_id", _Text),
    ("memory_id", _Text),
    ("user_id", _Text),
    ("thread_id", _Text),
    ("timestamp", _Time),
    ("created_at", _Time),
    ("last_accessed_at", _Time),
    ("access_count", int | None),
    ("importance", float | int | None),
    ("importance_source", _Text),
    ("pinned", bool | None),
    ("verified", bool | None),
    ("retention_state", _Text),
    ("suppressed_by", _Text),
    ("summary_id", _Text),
    ("role", _Text),
    ("metadata", Any),
)
_PLAIN_NAMES: Final = frozenset(name for name, _ in _PLAIN_FIELDS)
_ID: Final = ("id_", Any, msgspec.field(name="_id", default=None))
_ABSENT: Final = msgspec.Raw(b"")
_CONTENT: Final = ("content", msgspec.Raw, _ABSENT)
_ATTRIBUTES: Final = ("attributes", msgspec.Raw, _ABSENT)
_RARE_NAMES: Final = tuple(
    name
    for name in _READ_FIELDS
    if name not in {*_PLAIN_NAMES, *_TEXT_FIELDS, *_UNREAD_FIELDS, "content", "attributes"}
)
_PlainRow = msgspec.defstruct(
    "_PlainRow",
    [
        _ID,
        _CONTENT,
        _ATTRIBUTES,
        *((name, kind, None) for name, kind in _PLAIN_FIELDS),
        *((name, Any, None) for name in _RARE_NAMES),
    ],
    gc=False,
)
_AnyRow = msgspec.defstruct(
    "_AnyRow",
    [
        _ID,
        _CONTENT,
        _ATTRIBUTES,
        *((name, Any, None) for name in _READ_FIELDS if name not in {*_TEXT_FIELDS, "content", "attributes"}),
    ],
    gc=False,
)
_TextRow = msgspec.defstruct(
    "_TextRow",
    [_ID, *((name, Any, None) for name in dict.fromkeys((*_READ_FIELDS, *_TEXT_FIELDS)))],
    gc=False,
)
_ContentRow = msgspec.defstruct("_ContentRow", [_CONTENT], gc=False)
_EmbeddingRow = msgspec.defstruct("_EmbeddingRow", [("embedding", msgspec.Raw, _ABSENT)], gc=False)
_FIRST_RARE: Final = 3 + len(_PLAIN_FIELDS)
_NO_RARE: Final = (None,) * len(_RARE_NAMES)
#: Rare fields that only cite; what supersedes goes the careful way.
_CITES: Final = tuple(name in CITING_FIELDS and name not in SUPERSEDING_FIELDS for name in _RARE_NAMES)

_REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_COUNT: Final = 2**53
_STATES: Final = {None: "active", "active": "active", "suppressed": "suppressed", "sealed": "sealed"}
_KNOWN_TEXTS_LIMIT: Final = 200_000


class Columns:
    """Records on their way into a frame, column by column, with the files they came from."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.texts: list[str] = []
        self.vectors: list[Vector | None] = []
        #: (record id, reason, file status) of what is no record.
        self.unreadable: list[tuple[str, str, os.stat_result]] = []
        self.statuses: list[os.stat_result] = []

    def frame(self, columns: Sequence[str]) -> pl.DataFrame:
        """The rows as a frame with exactly these columns."""
        import polars as pl

        by_name: dict[str, Sequence[Any]] = dict(
            zip(SMALL_COLUMNS, zip(*self.rows, strict=True), strict=True)
            if self.rows
            else ((name, ()) for name in SMALL_COLUMNS)
        )
        by_name["text"] = self.texts
        by_name["embedding"] = [None if vector is None else pl.Series(vector) for vector in self.vectors]
        return self._frame_of(by_name, columns)

    def versions(self, folder: str) -> pl.DataFrame:
        """Everything read, records and not, with the versions of the files: what a snapshot keeps."""
        import polars as pl

        types = snapshot_schema()
        rows = self.frame(SMALL_COLUMNS)
        ids = rows["record_id"].to_list() + [stem for stem, _, _ in self.unreadable]
        statuses = self.statuses + [status for _, _, status in self.unreadable]
        files_read = pl.DataFrame(
            {
                "folder": [folder] * len(ids),
                "mtime_ns": [files.modified_ns(status) for status in statuses],
                "size": [status.st_size for status in statuses],
                "inode": [status.st_ino for status in statuses],
                "reason": [None] * rows.height + [reason for _, reason, _ in self.unreadable],
            },
            schema={name: types[name] for name in ("folder", "mtime_ns", "size", "inode", "reason")},
        )
        odd = pl.DataFrame({"record_id": ids[rows.height :]}, schema={"record_id": pl.String()})
        whole = pl.concat([rows, odd], how="diagonal").hstack(files_read)
        return whole.select(list(types))

    @staticmethod
    def _frame_of(by_name: dict[str, Sequence[Any]], columns: Sequence[str]) -> pl.DataFrame:
        import polars as pl

        types = schema()
        return pl.DataFrame(
            [
                _texts_series(name, by_name[name])
                if types[name] == pl.List(pl.String)
                else pl.Series(name, by_name[name], dtype=types[name], strict=True)
                for name in columns
            ]
        )


def _texts_series(name: str, lists: Sequence[tuple[str, ...]]) -> pl.Series:
    """A column of lists of ids: joined here and split by Polars, which takes Python lists one by one otherwise.

    No id and no breach holds a NUL or is empty.
    """
    import polars as pl

    joined = pl.Series(name, ["\0".join(texts) if texts else None for texts in lists], dtype=pl.String)
    parts = joined.str.split("\0")
    return parts if joined.null_count() == 0 else parts.fill_null(pl.Series([[]], dtype=pl.List(pl.String)))


class RecordReader:
    """Reads record files of one memory type into :class:`Columns`.

    Args:
        memory_type: the canonical type.
        naive_zone: the zone of its naive creation times.
        text: fill ``texts`` too.
        vectors: fill ``vectors`` too.
    """

    def __init__(self, memory_type: str, naive_zone: tzinfo, *, text: bool = False, vectors: bool = False) -> None:
        self._memory_type = memory_type
        self._zone = naive_zone
        self._text = text
        self._vectors = vectors
        self._entity = memory_type == "entity_memory"
        self._plain = msgspec.json.Decoder(_PlainRow)
        self._any = msgspec.json.Decoder(_AnyRow)
        self._with_text = msgspec.json.Decoder(_TextRow)
        self._content = msgspec.json.Decoder(_ContentRow)
        self._string = msgspec.json.Decoder(str)
        self._embedding = msgspec.json.Decoder(_EmbeddingRow)
        self._floats = msgspec.json.Decoder(list[float])
        self._texts: set[str | None] = {None}

    def read(self, folder: int, stems: Iterable[str], into: Columns) -> None:
        """Reads these files of a folder; one that is gone by now is left out.

        Raises:
            StoreUnreadableError: a file is there and cannot be read.
        """
        text, vectors = self._text, self._vectors
        read_file, opens, fstat, reads, closes = files.read_file, os.open, os.fstat, os.read, os.close
        flags, is_regular = files.READ_FLAGS, stat.S_ISREG
        for stem in stems:
            name = stem + files.SUFFIX
            try:
                # files.read_file in place: the call alone would cost a tenth of the scan.
                descriptor = opens(name, flags, dir_fd=folder)
                try:
                    status = fstat(descriptor)
                    size = status.st_size
                    data = reads(descriptor, size + 1)
                finally:
                    closes(descriptor)
                if len(data) != size or not is_regular(status.st_mode):
                    data, status = read_file(folder, name)
            except FileNotFoundError:
                continue
            except OSError:
                try:
                    data, status = read_file(folder, name)
                except FileNotFoundError:
                    continue
                except files.OddFileError:
                    self._refuse(folder, stem, "no regular file", into)
                    continue
                except OSError as error:
                    raise files.unreadable(f"{self._memory_type}/{name}", error) from error
            except files.OddFileError:
                self._refuse(folder, stem, "no regular file", into)
                continue
            try:
                self._add(stem, data, into)
                if text:
                    into.texts.append(self._text_of(data))
                if vectors:
                    into.vectors.append(self._vector_of(data))
            except NotARowError as refusal:
                into.unreadable.append((stem, str(refusal), status))
            else:
                into.statuses.append(status)

    def _refuse(self, folder: int, stem: str, reason: str, into: Columns) -> None:
        try:
            status = os.stat(stem + files.SUFFIX, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        into.unreadable.append((stem, reason, status))

    def _add(self, stem: str, data: bytes, into: Columns) -> None:
        """The short way for a plain record, the careful one for any other."""
        if not data.isascii():
            _check_utf8(data)
        try:
            row = self._plain.decode(data)
        except msgspec.ValidationError:
            self._add_record(self._unusual(stem, data), stem, into)
            return
        except _REFUSED:
            self._add_record(self._lenient(stem, data), stem, into)
            return
        values = msgspec.structs.astuple(row)
        (
            stored_id,
            content,
            attributes,
            agent_id,
            memory_id,
            user_id,
            thread_id,
            timestamp,
            created,
            accessed,
            count,
            importance,
            source,
            pinned,
            verified,
            state,
            suppressed_by,
            summary_id,
            role,
            metadata,
        ) = values[:_FIRST_RARE]
        if stored_id != stem and contradicts(stored_id, stem):
            raise NotARowError("its _id names another record")
        known = self._texts
        if not (
            agent_id in known and memory_id in known and user_id in known and thread_id in known and summary_id in known
        ):
            self._learn(agent_id, memory_id, user_id, thread_id, summary_id)
        rare = values[_FIRST_RARE:]
        cited = () if rare == _NO_RARE else _plain_citations(rare, stem)
        if (
            cited is not None
            and agent_id in known
            and memory_id in known
            and user_id in known
            and thread_id in known
            and summary_id in known
            and state in _STATES
            and (metadata is None or (type(metadata) is dict and _TELLING.isdisjoint(metadata)))
            and not _may_be_object(content)
            and not (self._entity and _may_pin(attributes))
            and (count is None or 0 <= count <= _MAX_COUNT)
            and (importance is None or 0.0 <= importance <= 1.0)
        ):
            # None of these three is a breach or absent by accident: a value that does not parse goes the careful way.
            created_at = self._instant(created if timestamp is None else timestamp, self._zone)
            accessed_at = self._instant(accessed, UTC)
            if created_at != _UNREAD and accessed_at != _UNREAD:
                into.rows.append(
                    (
                        stem,
                        agent_id,
                        memory_id,
                        user_id,
                        thread_id,
                        created_at,
                        accessed_at,
                        count or 0,
                        None if importance is None else importance + 0.0,
                        source,
                        pinned is True,
                        verified is True,
                        _STATES[state],
                        suppressed_by,
                        None,
                        summary_id,
                        cited,
                        (),
                        (),
                        role,
                    )
                )
                return
        self._add_record(_row_of(row, self._entity), stem, into)

    def _instant(self, value: Any, naive_zone: tzinfo) -> int | None:
        """A time as parse_time reads it, None where there is none, _UNREAD where the careful way must decide."""
        if value is None:
            return None
        if type(value) is str and value[4:5] == "-":
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                return _UNREAD
            if moment.tzinfo is not None and 1 < moment.year < 9999:
                return (moment - _EPOCH) // _MICROSECOND
        instant = parse_time(value, naive_zone)
        return _UNREAD if instant is None else instant

    def _learn(self, *texts: str | None) -> None:
        """Remembers scope ids that are plain text, so that the next record with them is plain."""
        if len(self._texts) > _KNOWN_TEXTS_LIMIT:
            self._texts.clear()
            self._texts.add(None)
        self._texts.update(text for text in texts if text is not None and text.strip() and is_unicode(text))

    def _unusual(self, stem: str, data: bytes) -> Row:
        """The read fields of a record with values of other types than agents write."""
        try:
            row: Any = self._any.decode(data)
        except _REFUSED:
            return self._lenient(stem, data)
        if contradicts(row.id_, stem):
            raise NotARowError("its _id names another record")
        return _row_of(row, self._entity)

    def _lenient(self, stem: str, data: bytes) -> Row:
        row = decode_leniently(data)
        if not isinstance(row, dict):
            raise NotARowError("the file's root is no object")
        if contradicts(row.get("_id"), stem):
            raise NotARowError("its _id names another record")
        return row

    def _text_of(self, data: bytes) -> str:
        """The text of a record that was added: its content where that is plain text, else as read_record finds it."""
        try:
            content: msgspec.Raw = getattr(self._content.decode(data), "content")  # noqa: B009 (made by defstruct)
            # Long enough for a character; no object in text, and nothing escaped or blank at its start.
            if len(content) > 2 and memoryview(content)[0] == 0x22 and not _may_be_object(content):
                return str(self._string.decode(content))
            fields = self._with_text.decode(data)
            row = {name: value for name in fields.__struct_fields__ if (value := getattr(fields, name)) is not None}
        except _REFUSED:
            row = decode_leniently(data)
        return read_text(row)

    def _vector_of(self, data: bytes) -> Vector | None:
        """The embedding of a record that was added, as :func:`read_vector` reads it."""
        import numpy as np

        try:
            raw: msgspec.Raw = getattr(self._embedding.decode(data), "embedding")  # noqa: B009 (made by defstruct)
            if len(raw) and memoryview(raw)[0] == 0x5B:
                with np.errstate(over="ignore"):
                    return np.array(self._floats.decode(raw), dtype=np.float64).astype(np.float32)
            return None
        except _REFUSED:
            return read_vector(decode_leniently(data).get("embedding"))

    def _add_record(self, row: Row, stem: str, into: Columns) -> None:
        record = read_record(row, self._memory_type, stem, self._zone)
        into.rows.append(tuple(getattr(record, name) for name in SMALL_COLUMNS))


#: Stands for a time that the short way does not decide; no instant is that early.
_UNREAD: Final = -(2**63)


def _check_utf8(data: bytes) -> None:
    """Skipped text is not looked at by msgspec, so bytes that are no UTF-8 are found here."""
    try:
        data.decode()
    except UnicodeDecodeError:
        raise NotARowError("not valid UTF-8") from None


def _plain_citations(rare: tuple[Any, ...], stem: str) -> tuple[str, ...] | None:
    """The ids that a record cites, where its only rare fields are ids and lists of ids; None where there are others.

    As :func:`fallow.model.record.read_record` reads them.
    """
    found: set[str] = set()
    for citing, value in zip(_CITES, rare, strict=True):
        if value is None:
            continue
        if not citing:
            return None
        kind = type(value)
        if kind is str:
            if value.lstrip()[:1] == "[":
                return None
            found.add(value)
        elif kind is list and all(type(item) is str for item in value):
            found.update(value)
        else:
            return None
    found.discard("")
    found.discard(stem)
    return tuple(sorted(found)) if is_unicode("".join(found)) else None


def _may_be_object(content: msgspec.Raw) -> bool:
    """Whether ``content`` is an object, or text that may hold one, and so may say more than text."""
    view = memoryview(content)
    if not view:
        return False
    first = view[0]
    if first == 0x22:
        # Text whose first character is a brace, white space of any kind, or escaped.
        second = view[1]
        return second == 0x7B or second == 0x5C or second <= 0x20 or second >= 0x80
    return first == 0x7B


def _may_pin(attributes: msgspec.Raw) -> bool:
    data = bytes(attributes)
    return b"pinned" in data or b"\\" in data


def _row_of(row: Any, entity: bool) -> Row:
    """The read fields as a row; content and attributes are decoded only where they can matter."""
    fields: Row = {}
    for name in row.__struct_fields__[3:]:
        value = getattr(row, name)
        if value is not None:
            fields[name] = value
    if _may_be_object(row.content):
        fields["content"] = _decode_raw(row.content)
    if entity and _may_pin(row.attributes):
        fields["attributes"] = _decode_raw(row.attributes)
    return fields


def _decode_raw(raw: msgspec.Raw) -> Any:
    data = bytes(raw)
    try:
        return msgspec.json.decode(data)
    except _REFUSED:
        return decode_leniently(data)


def read_vector(value: Any) -> Vector | None:
    """An embedding as 32-bit floats, or None where it is no list of numbers; NaN stays what it is."""
    import numpy as np

    if not isinstance(value, list) or not all(type(item) is float or type(item) is int for item in value):
        return None
    try:
        with np.errstate(over="ignore"):
            return np.array(value, dtype=np.float64).astype(np.float32)
    except OverflowError:
        return None
