"""One text for one value: what is hashed, signed and compared across hosts (SPEC §6.7)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

DECIMALS: Final = 9


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: keys sorted, no white space, floats with 9 decimals, no NaN.

    Raises:
        ValueError: the value holds a NaN or an infinity.
    """
    return json.dumps(_fixed(value), sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def _fixed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _fixed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_fixed(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a plan holds no NaN and no infinity")
        return f"{value + 0.0:.{DECIMALS}f}"
    return value


def sha256(text: str) -> str:
    """The SHA-256 of a text in UTF-8, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def cut(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters; what was cut is marked."""
    return text if len(text) <= limit else text[: limit - 2].rstrip() + " …"
