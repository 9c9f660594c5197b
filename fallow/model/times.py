"""Reading times as stores hold them, into microseconds since the epoch, UTC (SPEC §1.1).

Inside fallow an instant is an ``int``: microseconds since 1970-01-01T00:00:00Z. Integers compare,
subtract and serialise the same on every host; the host's own TZ is never consulted.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fallow.model.errors import SettingError

MICROSECONDS_PER_HOUR = 3_600_000_000
MICROSECONDS_PER_DAY = 24 * MICROSECONDS_PER_HOUR
#: Times up to this far after ``as_of`` are clock skew between hosts, not breaches.
FUTURE_TOLERANCE = 5 * 60 * 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MIN = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MAX = (datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH) // _MICROSECOND
#: Drivers' own types by name: a date outside Python's years, an internal timestamp, decimals.
_FROM_DRIVER: Final[Mapping[str, Callable[[Any], Any]]] = {
    "DatetimeMS": lambda value: _of_milliseconds(int(value)),
    "Timestamp": lambda value: value.as_datetime() if hasattr(value, "as_datetime") else value.to_pydatetime(),
    "Decimal": str,
    "Decimal128": str,
}
_NUMERIC = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,3})?\Z", re.ASCII)


def to_microseconds(value: datetime) -> int:
    """An aware datetime as microseconds since the epoch.

    Raises:
        ValueError: the datetime is naive; decide its zone first.
    """
    if value.tzinfo is None:
        raise ValueError("a naive datetime has no instant")
    return (value - _EPOCH) // _MICROSECOND


def from_microseconds(value: int) -> datetime:
    """Microseconds since the epoch as an aware UTC datetime."""
    return _EPOCH + timedelta(microseconds=value)


def iso(value: int) -> str:
    """An instant as fallow writes it: ISO 8601, UTC, ``Z``, with fractions only where there are any."""
    return from_microseconds(value).isoformat().replace("+00:00", "Z")


def parse_time(value: Any, naive_zone: tzinfo = UTC) -> int | None:
    """An instant from whatever a store holds, or ``None`` where it cannot be one (SPEC §1.1).

    Accepts ISO 8601 with any offset or ``Z``, naive ISO (read in ``naive_zone``), epoch seconds or
    milliseconds as number or text (a number of magnitude 1e11 or more is milliseconds), and datetimes.
    Booleans, NaN, infinities and instants outside years 1 to 9999 are not times. Never raises.
    """
    if isinstance(value, str):
        text = value.strip()
        if _NUMERIC.match(text):
            return _from_number(float(text))
        try:
            return _from_datetime(datetime.fromisoformat(text.upper() if text.endswith("z") else text), naive_zone)
        except ValueError:
            return None
    if isinstance(value, bool) or value is None:
        return None
    if (driver := _FROM_DRIVER.get(type(value).__name__)) is not None:
        return parse_time(driver(value), naive_zone)
    if isinstance(value, int | float):
        try:
            return _from_number(float(value))
        except OverflowError:
            return None
    if isinstance(value, datetime):
        return _from_datetime(value, naive_zone)
    if isinstance(value, date):
        return _from_datetime(datetime(value.year, value.month, value.day), naive_zone)  # noqa: DTZ001
    return None


def _of_milliseconds(value: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return None


def _from_number(number: float) -> int | None:
    if not math.isfinite(number):
        return None
    microseconds = number * 1_000 if abs(number) >= 1e11 else number * 1_000_000
    if not _MIN <= microseconds <= _MAX:
        return None
    return round(microseconds)


def _from_datetime(value: datetime, naive_zone: tzinfo) -> int | None:
    try:
        aware = value if value.tzinfo is not None else value.replace(tzinfo=naive_zone)
        instant = to_microseconds(aware)
    except (ValueError, OverflowError):
        return None
    return instant if _MIN <= instant <= _MAX else None


def zone(name: str) -> tzinfo:
    """The time zone of that IANA name; ``UTC`` needs no database.

    Raises:
        SettingError: no such zone.
    """
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingError(
            f"FALLOW_NAIVE_TIMEZONE: there is no time zone '{name[:40]}'",
            hint="use an IANA name such as Europe/Paris",
        ) from None


def wall_clock() -> int:
    """Now, in microseconds: for the public edges whose ``now`` or ``as_of`` was not given; nothing below them asks."""
    return time.time_ns() // 1000
