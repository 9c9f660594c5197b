"""The door that every argument passes before a store is touched (SPEC §1.5).

Whatever a caller gives, in Python, on the command line, as a flow's parameter or in the environment, is
read here or refused with a :class:`UsageError` that names the argument, what came and what is wanted.
Stored values are no arguments: fallow/model/times.py and record.py read those, and forgive more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from numbers import Integral, Real
from typing import Any, Final, TypeAlias
from uuid import UUID

from fallow.model.errors import UsageError
from fallow.model.keys import RecordKey, is_unicode
from fallow.model.record import PRIMARY_TYPES, TYPE_ALIASES
from fallow.model.times import to_microseconds, wall_clock

#: What a caller may give for an instant, and for an id, as far as a type can say it.
Time: TypeAlias = datetime | date | str | float
Id: TypeAlias = str | UUID

#: The years that a time given as an argument may lie in, microseconds: [1990, 2200).
EARLIEST: Final = to_microseconds(datetime(1990, 1, 1, tzinfo=UTC))
LATEST: Final = to_microseconds(datetime(2200, 1, 1, tzinfo=UTC))

_TIME: Final = "a datetime, a date, text such as 2026-12-01T02:00:00Z, or a number of seconds since 1970"
_YEARS: Final = "a time in the years 1990 to 2200"
_ID: Final = "an id: text that is not blank, a UUID or an ObjectId"
_FRAMES: Final[Mapping[str, str]] = {
    "polars": "frame.to_dicts()",
    "pandas": "frame.to_dict('records')",
    "pyarrow": "table.to_pylist()",
}


def refused(argument: str, value: Any, wanted: str, hint: str = "") -> UsageError:
    """The error that says which argument was refused, what came and what is wanted."""
    return UsageError(f"{argument} must be {wanted}, not {_came(value)}", hint=hint or "nothing was written")


def _came(value: Any) -> str:
    """What came, short: a text or a number as it is, of anything else its kind, for it may hold a memory."""
    kind = type(value).__name__
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:39] + "…")
    if isinstance(value, int) and value.bit_length() > 100:
        return "a number that is far too large"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)[:40]
    if isinstance(value, Real):
        return f"{str(value)[:40]} ({kind})"
    return f"a {kind}"


def instant(given: Any, argument: str = "now") -> int:
    """An instant in microseconds since the epoch; None is the current time.

    A naive datetime is UTC, a date its first moment. A number is seconds below 1e11, milliseconds below 1e14,
    microseconds from there, so that what fallow itself calls an instant is one.

    Raises:
        UsageError: no time, or none of the years 1990 to 2200.
    """
    now = None if given is None else _instant(given, argument)
    return wall_clock() if now is None else now


def instant_or_none(given: Any, argument: str) -> int | None:
    """As :func:`instant`; None stays None."""
    return None if given is None else _instant(given, argument)


def _instant(given: Any, argument: str) -> int:
    value = given
    if isinstance(value, str):
        value = _time_of_text(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time.min)
    if isinstance(value, datetime):
        try:
            found = to_microseconds(value if value.utcoffset() is not None else value.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            raise refused(argument, given, _YEARS) from None
    elif _is_number(value):
        found = _microseconds(value)
    else:
        raise refused(argument, given, _TIME)
    if not EARLIEST <= found < LATEST:
        raise refused(argument, given, _YEARS, hint="a number below 1e11 is seconds; a day is text: 20261201")
    return found


def _time_of_text(text: str) -> Any:
    """What a text says: a datetime, a number, or itself where it says no time."""
    bare = text.strip()
    if bare.isascii() and bare.isdigit() and len(bare) != len("20261201"):
        return int(bare[:30])
    try:
        return datetime.fromisoformat(bare.upper() if bare.endswith("z") else bare)
    except ValueError:
        return text


def _is_number(value: Any) -> bool:
    """Python's and numpy's numbers; a switch is none."""
    return isinstance(value, Real) and not _is_switch(value)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in {"bool", "bool_"}


def _microseconds(value: Any) -> int:
    number: int | float = int(value) if isinstance(value, Integral) else float(value)
    if not _finite(number):
        return 0  # of no year that counts
    factor = 1_000_000 if abs(number) < 1e11 else 1_000 if abs(number) < 1e14 else 1
    return round(number * factor)


def _finite(value: Any) -> bool:
    """Whether it is a number that a float can say."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def record_id(given: Any, argument: str = "record_id") -> str:
    """An id in its one text form (SPEC §1): text byte for byte as it is, a UUID or an ObjectId as its text.

    Raises:
        UsageError: a blank, a number, bytes, a switch, or anything else.
    """
    if isinstance(given, str):
        if not given.strip() or not is_unicode(given):
            raise refused(argument, given if is_unicode(given) else "…", _ID)
        return str(given)
    if type(given).__name__ in {"ObjectId", "UUID"}:
        return str(given).lower()
    raise refused(argument, given, _ID)


def id_or_none(given: Any, argument: str) -> str | None:
    """As :func:`record_id`; None, left out, means no restriction."""
    return None if given is None else record_id(given, argument)


def several(given: Any, argument: str, wanted: str = "several texts") -> list[Any]:
    """An iterable's items, read once. Empty means none.

    Raises:
        UsageError: one text or one bytes, which would fall into letters; a mapping, a frame, or nothing to iterate.
    """
    if isinstance(given, str | bytes | bytearray):
        raise refused(argument, given, wanted, hint=f"write [{_came(given)}]")
    if isinstance(given, Mapping) or _frame(given) or not isinstance(given, Iterable):
        raise refused(argument, given, wanted)
    return list(given)


def record_ids(given: Any, argument: str = "record_ids") -> tuple[str, ...]:
    """Ids, each once, in their order. An empty list is none, never all.

    Raises:
        UsageError: as :func:`several` and :func:`record_id`.
    """
    return tuple(dict.fromkeys(record_id(one, argument) for one in several(given, argument, "a list of ids")))


def ids_or_none(given: Any, argument: str) -> tuple[str, ...] | None:
    """As :func:`record_ids`; None, left out, means no restriction."""
    return None if given is None else record_ids(given, argument)


def record_key(given: Any, argument: str = "records") -> RecordKey:
    """A record's memory type and id, as a RecordKey or the pair that one is.

    Raises:
        UsageError: no pair, a type that is not primary, or no id.
    """
    if isinstance(given, tuple) and len(given) == 2:
        return RecordKey(memory_type(given[0], argument), record_id(given[1], argument))
    raise refused(argument, given, "RecordKey(memory_type, record_id)")


def record_keys(given: Any, argument: str = "records") -> tuple[RecordKey, ...]:
    """Records' keys, each once, in their order. Raises as :func:`several` and :func:`record_key`."""
    if isinstance(given, RecordKey):
        raise refused(argument, given, "a list of RecordKeys", hint="write [RecordKey(…)]")
    wanted = "a list of RecordKeys"
    return tuple(dict.fromkeys(record_key(one, argument) for one in several(given, argument, wanted)))


def typed_id(given: Any, argument: str) -> RecordKey:
    """``TYPE:ID`` as a record's key, the way that command lines and flows write one.

    Raises:
        UsageError: not of that form, or a type that is not primary.
    """
    kind, colon, name = given.strip().partition(":") if isinstance(given, str) else ("", "", "")
    if not colon or not name.strip():
        raise refused(argument, given, "TYPE:ID, such as knowledge_base:kb-17")
    return RecordKey(memory_type(kind, argument), record_id(name, argument))


def left_out(given: Any, argument: str = "leave_out") -> tuple[str | RecordKey, ...]:
    """Records to leave out, as RecordKeys, ids or ``TYPE:ID``. Raises as :func:`record_keys`."""
    if isinstance(given, RecordKey):
        raise refused(argument, given, "a list of ids", hint="write [RecordKey(…)]")
    return tuple(
        record_key(one, argument) if isinstance(one, tuple) else record_id(one, argument)
        for one in several(given, argument, "a list of ids")
    )


def memory_type(given: Any, argument: str = "memory_type") -> str:
    """A primary memory type, old names included (SPEC §1).

    Raises:
        UsageError: a type that is never decided on, or none at all.
    """
    name = given.strip() if isinstance(given, str) else ""
    name = TYPE_ALIASES.get(name, name)
    if name not in PRIMARY_TYPES:
        raise refused(
            argument, given, "a memory type that can be suppressed", hint=f"one of {', '.join(PRIMARY_TYPES)}"
        )
    return name


def memory_types(given: Any, argument: str = "memory_types") -> tuple[str, ...]:
    """Memory types, each once, in SPEC §1's order. Raises as :func:`several` and :func:`memory_type`."""
    named = {memory_type(one, argument) for one in several(given, argument, "a list of memory types")}
    return tuple(name for name in PRIMARY_TYPES if name in named)


def rows(given: Any, argument: str = "candidates") -> list[Any]:
    """Rows, read once: an iterable of mappings, of (source, row) pairs where those are meant.

    Raises:
        UsageError: one row, a frame, a text, or nothing to iterate.
    """
    wanted = "an iterable of rows, each a mapping"
    if isinstance(given, Mapping):
        raise refused(argument, given, wanted, hint="one row is written [row]")
    library = _frame(given)
    if library:
        raise refused(argument, given, wanted, hint=f"write {_FRAMES[library]}")
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Iterable):
        raise refused(argument, given, wanted)
    return list(given)


def mappings(given: Any, argument: str) -> Sequence[Mapping[str, Any]]:
    """As :func:`rows`, and every one is a mapping.

    Raises:
        UsageError: as :func:`rows`, or for the first that is no mapping.
    """
    found = rows(given, argument)
    for number, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise refused(f"{argument}[{number}]", row, "a mapping")
    return found


def _frame(value: Any) -> str:
    """The library whose frame, lazy frame, series or table this is; empty where it is none."""
    library = type(value).__module__.partition(".")[0]
    return library if library in _FRAMES and hasattr(type(value), "columns") else ""


def switch(given: Any, argument: str) -> bool:
    """True or False, Python's or numpy's.

    Raises:
        UsageError: anything else, "no" and 0 included.
    """
    if not _is_switch(given):
        raise refused(argument, given, "True or False")
    return bool(given)


def number(given: Any, argument: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number in [low, high].

    Raises:
        UsageError: no number, NaN, infinite, or outside.
    """
    bounds = "a finite number" + (f" from {low:g} to {high:g}" if math.isfinite(low) and math.isfinite(high) else "")
    if not _is_number(given) or not _finite(given) or not low <= given <= high:
        raise refused(argument, given, bounds)
    return float(given)


def count(given: Any, argument: str, low: int = 0) -> int:
    """A whole number, ``low`` or more.

    Raises:
        UsageError: no number, a fraction, or less.
    """
    if not _is_number(given) or not isinstance(given, Integral) or given < low:
        raise refused(argument, given, f"a whole number, {low} or more")
    return int(given)


def count_or_none(given: Any, argument: str, low: int = 0) -> int | None:
    """As :func:`count`; None, left out, means no limit."""
    return None if given is None else count(given, argument, low)


def text(given: Any, argument: str) -> str:
    """A text, which may be empty.

    Raises:
        UsageError: anything else.
    """
    if not isinstance(given, str):
        raise refused(argument, given, "text")
    return str(given)


def text_or_none(given: Any, argument: str) -> str | None:
    """As :func:`text`; None stays None."""
    return None if given is None else text(given, argument)


def address(given: Any, argument: str = "uri") -> str:
    """A store's address: text, or a path.

    Raises:
        UsageError: blank, or anything else.
    """
    value = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(value, str):
        raise refused(argument, given, "a store's address: a path, or text such as mongodb://host/db")
    if not value.strip():
        raise UsageError("no store is named", hint="pass --store or set FALLOW_STORE")
    return value
