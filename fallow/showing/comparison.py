"""Policies side by side, as a picture (SPEC §16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fallow.model.errors import UsageError


def picture(document: Mapping[str, Any], suffix: str) -> bytes:
    """A comparison's document as a plot: the share of questions that keep their answer over the share hidden.

    Args:
        suffix: ``.svg`` or ``.png``.

    Raises:
        UsageError: the library that draws is not installed.
    """
    try:
        import vl_convert
    except ImportError:
        raise UsageError(
            "plots need vl-convert-python", hint="pip install 'fallow[prefect]', or leave out --plot"
        ) from None
    values = [
        {"hidden": 100 * share, "kept": kept, "policy": item["policy"]}
        for item in document["policies"]
        for share, kept in zip(document["hidden"], item["kept"], strict=True)
    ]
    spec = {
        "width": 460,
        "height": 300,
        "data": {"values": values},
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": {"field": "hidden", "type": "quantitative", "title": "records hidden, %"},
            "y": {
                "field": "kept",
                "type": "quantitative",
                "title": "later questions that keep their answer",
                "scale": {"zero": False},
            },
            "color": {"field": "policy", "type": "nominal", "title": None, "sort": None},
        },
    }
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    drawn: bytes = vl_convert.vegalite_to_png(spec)
    return drawn
