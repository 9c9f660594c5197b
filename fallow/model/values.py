"""Values as stores hold them: when two are the same, and the one rendering that hashes are made of (SPEC §6.6, §12).

A store may hold what JSON has no word for: dates, ObjectIds, UUIDs and other bytes, decimals, NaN, and types
of its driver that nobody here knows by name. Everything compared is compared by :func:`same_value`, and
everything hashed is rendered by :func:`plain`, so that a record which can be planned can also be written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from fallow.model.keys import MISSING, canonical_id
from fallow.model.times import iso, parse_time, to_microseconds

_MAX_COUNT: Final = 2**53
#: Whole numbers from here on are no number of any store but one.
_MAX_PLAIN: Final = 2**64


def same_value(left: Any, right: Any) -> bool:
    """Whether a store would hold both as one value.

    JSON values as JSON has them: true is not 1, null is not absence, NaN equals NaN, 1 equals 1.0. Dates are the
    same where the instant is (a naive one is UTC). Anything else is the same where type and value are; an
    ObjectId is not the text of its digits, a date not its ISO text.
    """
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, int | float | Decimal) and isinstance(right, int | float | Decimal):
        return bool(left == right) or (_is_nan(left) and _is_nan(right))
    if isinstance(left, str) or isinstance(right, str):
        return type(left) is type(right) and left == right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same_value(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, datetime) and isinstance(right, datetime):
        return _aware(left) == _aware(right)
    return left is right or (type(left) is type(right) and bool(left == right))


def holds(row: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether each named field of a row still is exactly what was expected, or still absent (:data:`MISSING`)."""
    return all(
        name not in row if value is MISSING else name in row and same_value(row[name], value)
        for name, value in expected.items()
    )


def plain(value: Any) -> Any:
    """A value as JSON can say it, the same for every store that holds it; null members of objects are left out."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) >= _MAX_PLAIN:
        return hex(value)  # no float holds it, and its decimal digits may be too many to write
    if isinstance(value, int | float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value == int(value) and abs(value) < _MAX_COUNT else value
    return plain_native(value)


def plain_native(value: Any) -> Any:
    """What JSON has no word for, as JSON: dates as ISO text in UTC, ids as their text, decimals as numbers.

    A decimal that no float holds keeps its digits as text; other bytes are hex digits; a type that is not known
    here is its own representation, or its name where that would say where in memory it lies.
    """
    if isinstance(value, datetime | date) or type(value).__name__ in {"DatetimeMS", "Timestamp"}:
        instant = parse_time(value)
        return iso(instant) if instant is not None else repr(value)
    if type(value).__name__ in {"Decimal", "Decimal128"}:
        return _decimal(str(value))
    if (text := canonical_id(value)) is not None:
        return text
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def _decimal(text: str) -> Any:
    try:
        exact = Decimal(text)
        number = float(exact)
    except (InvalidOperation, OverflowError, ValueError):
        return text
    if not math.isfinite(number) or Decimal(repr(number)) != exact:
        return text.lower()
    return plain(number)


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _aware(value: datetime) -> int:
    return to_microseconds(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
