"""Pictures that say one thing each, as PNG, made without a browser."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fallow.plans.plan import RetentionPlan
from fallow.usecases.desk import Dot

#: Dots of what stays and of what goes that are drawn; more would be one blot and a large file.
MAX_DOTS: Final = 1500
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_STAYS: Final = "#b8bec8"
_GOES: Final = "#d1495b"


def thinned(dots: Sequence[Dot], room: int = MAX_DOTS) -> list[Dot]:
    """Every n-th dot, so that at most ``room`` are left; the same ones each time."""
    step = -(-len(dots) // room) if dots else 1
    return list(dots[::step])


def plan_picture(plan: RetentionPlan, dots: Sequence[Dot]) -> bytes:
    """Memories by age and importance; what would go in colour; the cut as a line. A PNG.

    The line is the importance below which a record that was never recalled, and whose recency is used up, falls
    under the cut. Below it and still grey is what is protected, too young, recalled, or over the plan's cap.
    """
    import vl_convert

    goes = [dot for dot in dots if dot.planned]
    stays = [dot for dot in dots if not dot.planned]
    drawn = thinned(stays) + thinned(goes)
    share = "" if len(drawn) == len(dots) else f"; {len(drawn):,} of {len(dots):,} are drawn"
    labels = {True: f"would be hidden ({len(goes):,})", False: f"stays ({len(stays):,})"}
    values = [{"age": round(dot.age_days), "importance": dot.importance, "what": labels[dot.planned]} for dot in drawn]
    cut = float(plan.document["coverage"]["effective_importance_cut"])
    return smaller(vl_convert.vegalite_to_png(_chart(values, [labels[False], labels[True]], cut, share)))


def _chart(values: Sequence[Mapping[str, Any]], labels: Sequence[str], cut: float, share: str) -> dict[str, Any]:
    colour = {"domain": list(labels), "range": [_STAYS, _GOES]}
    return {
        "width": 480,
        "height": 220,
        "title": {"text": f"What goes is old and low{share}", "fontSize": 12, "anchor": "start"},
        "layer": [
            {
                "data": {"values": list(values)},
                "mark": {"type": "circle", "size": 22, "opacity": 0.75},
                "encoding": {
                    "x": {"field": "age", "type": "quantitative", "title": "age, days", "scale": {"nice": True}},
                    "y": {
                        "field": "importance",
                        "type": "quantitative",
                        "title": "importance",
                        "scale": {"domain": [0, 1]},
                    },
                    "color": {
                        "field": "what",
                        "type": "nominal",
                        "title": None,
                        "scale": colour,
                        "legend": {"orient": "bottom"},
                    },
                },
            },
            {
                "data": {"values": [{"cut": cut}]},
                "mark": {"type": "rule", "color": "#222222", "strokeDash": [5, 3]},
                "encoding": {"y": {"field": "cut", "type": "quantitative"}},
            },
        ],
    }


def smaller(png: bytes) -> bytes:
    """The same picture in at most 256 colours and well compressed: a page that holds it stays light.

    What the renderer writes (8 bits, RGBA, rows unfiltered or by difference to the left) is written anew with a
    palette, five bits a channel; a PNG of another kind is handed back as it is.
    """
    import numpy as np

    chunks = _chunks(png)
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
    if (depth, kind) != (8, 6) or lines.size != height * (width * 4 + 1):
        return png
    lines = lines.reshape(height, width * 4 + 1)
    if set(np.unique(lines[:, 0]).tolist()) - {0, 1}:
        return png
    pixels = lines[:, 1:].reshape(height, width, 4).copy()
    left = lines[:, 0] == 1
    pixels[left] = np.cumsum(pixels[left], axis=1, dtype=np.uint8)
    opaque = pixels[..., 3:].astype(np.uint16)
    seen = (pixels[..., :3].astype(np.uint16) * opaque + 255 * (255 - opaque)) // 255
    coarse = (seen >> 3).astype(np.uint32)
    codes = coarse[..., 0] << 10 | coarse[..., 1] << 5 | coarse[..., 2]
    colours, places = np.unique(codes, return_inverse=True)
    if len(colours) > 256:
        return _written_as(png, chunks, lines.tobytes())
    palette = np.stack([colours >> 10 & 31, colours >> 5 & 31, colours & 31], axis=1) * 255 // 31
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = places.reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return _PNG + b"".join(
        _chunk(name, data)
        for name, data in (
            (b"IHDR", header),
            (b"PLTE", palette.astype(np.uint8).tobytes()),
            (b"IDAT", zlib.compress(rows.tobytes(), 9)),
            (b"IEND", b""),
        )
    )


def _written_as(png: bytes, chunks: Mapping[bytes, bytes], lines: bytes) -> bytes:
    again = b"".join(
        _chunk(name, data)
        for name, data in ((b"IHDR", chunks[b"IHDR"]), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    )
    return min(png, _PNG + again, key=len)


def _chunks(png: bytes) -> dict[bytes, bytes]:
    """A PNG's chunks by name; those of one name joined."""
    found: dict[bytes, bytes] = {}
    at = len(_PNG)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        name = png[at + 4 : at + 8]
        found[name] = found.get(name, b"") + png[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
