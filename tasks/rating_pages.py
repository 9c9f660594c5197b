"""What people are shown of a backfill: its page and its plots (SPEC §3.6). Counts and ids, never a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fallow.showing.markdown import escaped, markdown_table

_NAMED: Final = 20
_COLOURS: Final[Mapping[str, str]] = {
    "llm": "#4c78a8",
    "heuristic": "#f58518",
    "verified": "#54a24b",
    "host": "#b279a2",
}


def rating_page(reports: Mapping[str, Sequence[Mapping[str, Any]]], seconds: float) -> str:
    """Every scope of every store: how it ended, rated by source, fallbacks, what was paid, what failed."""
    parts = ["# Importance"]
    for store, scopes in reports.items():
        parts.append(f"## `{escaped(store)}`")
        for report in scopes:
            parts.append(f"### {escaped(report['scope'])}: {report['state']}")
            if report["state"] == "Off":
                parts.append("Rating is off here: importance.mode.")
            elif report["state"] == "Estimated":
                parts.append(_estimate(report))
            else:
                parts.append(_report(report, seconds))
    return "\n\n".join(parts)


def _estimate(report: Mapping[str, Any]) -> str:
    rows = [
        (name.replace("_", " "), report[name])
        for name in (
            "rows",
            "verified",
            "empty_text",
            "paid_before",
            "same_text",
            "calls",
            "input_tokens",
            "output_tokens",
        )
    ]
    rows.append(("cost", "unknown: set model.prices" if report["cost"] is None else f"about {report['cost']:.4f}"))
    if report["minutes"] is not None:
        rows.append(("minutes at the set pace, at least", report["minutes"]))
    return "Nothing was paid.\n\n" + markdown_table(("estimated", ""), rows)


def _report(report: Mapping[str, Any], seconds: float) -> str:
    rows: list[tuple[str, Any]] = [("scanned", report["scanned"]), ("had a rating", report["already_rated"])]
    rows += [(f"rated by {source}", count) for source, count in report["by_source"].items()]
    rows += [(f"heuristic instead of the model: {why}", count) for why, count in report.get("fallbacks", {}).items()]
    for name, words in (
        ("raised", "verified, raised to 1.0"),
        ("upgraded", "the heuristic's rating replaced"),
        ("from_paid", "by an answer paid for before, or for the same text"),
        ("left", "not reached"),
        ("suspect", "suspect: stored as exactly 1.0 by a model"),
        ("calls", "calls"),
        ("input_tokens", "tokens in"),
        ("output_tokens", "tokens out"),
        ("unsettled_calls", "calls without an answer, perhaps paid"),
        ("lost_calls", "calls of a run that died, perhaps paid twice"),
    ):
        if report.get(name):
            rows.append((words, report[name]))
    if report.get("cost") is not None:
        rows.append(("cost", f"{report['cost']:.4f}"))
    if seconds > 0:
        rows.append(("rows/s", f"{report['rated'] / seconds:.1f}"))
    agreement = report.get("agreement") or {}
    if agreement.get("spearman") is not None:
        rows.append(("rank correlation with the heuristic", f"{agreement['spearman']:.2f} ({agreement['rows']} rows)"))
    if "collected" in report:
        collected, submitted = report["collected"], report["submitted"]
        rows += [("batch jobs collected", collected["jobs"]), ("texts that they rated", collected["rated"])]
        rows += [(f"not rated by their job: {why}", count) for why, count in collected["unrated"].items()]
        rows += [("batch jobs that wait", collected["waiting"] + len(submitted["jobs"]))]
        rows += [("texts handed in", submitted["texts"])]
        rows += [("cost of what was collected", f"{collected['cost']:.4f}")] if collected["cost"] is not None else []
    parts = [markdown_table(("", ""), rows)]
    parts += [f"**{escaped(report[name])}**" for name in ("problem", "stopped") if report.get(name)]
    for what in ("failed", "skipped"):
        for why, ids in report[what].items():
            named = ", ".join(f"`{escaped(one)}`" for one in ids[:_NAMED])
            parts.append(f"{what}, {escaped(why)}: {len(ids)}: {named}{', …' if len(ids) > _NAMED else ''}")
    if report.get("suspect_ids"):
        ids = report["suspect_ids"]
        named = ", ".join(f"`{escaped(one)}`" for one in ids[:_NAMED])
        parts.append(f"suspect: {named}{', …' if report['suspect'] > _NAMED else ''}")
    return "\n\n".join(parts)


def spread_picture(reports: Sequence[Mapping[str, Any]]) -> bytes | None:
    """How the new ratings spread, by source, as a PNG; None where there are none."""
    totals: dict[str, list[int]] = {}
    for report in reports:
        for source, tenths in report.get("distribution_by_source", {}).items():
            before = totals.get(source, [0] * len(tenths))
            totals[source] = [a + b for a, b in zip(before, tenths, strict=True)]
    bars = [
        {"from": at / 10, "to": (at + 1) / 10, "rows": count, "source": source}
        for source, tenths in totals.items()
        for at, count in enumerate(tenths)
        if count
    ]
    if not bars:
        return None
    return _png(
        {
            "width": 520,
            "height": 180,
            "data": {"values": bars},
            "mark": "bar",
            "encoding": {
                "x": {"field": "from", "type": "quantitative", "bin": "binned", "title": "importance"}
                | {"scale": {"domain": [0, 1]}},
                "x2": {"field": "to"},
                "y": {"field": "rows", "type": "quantitative", "stack": "zero", "title": "rows rated"},
                "color": _by_source(sorted(totals)),
            },
        }
    )


def _by_source(sources: Sequence[str]) -> dict[str, Any]:
    colours = [_COLOURS.get(source, "#9d9d9d") for source in sources]
    return {"field": "source", "type": "nominal", "scale": {"domain": list(sources), "range": colours}, "title": None}


def agreement_picture(pairs: Sequence[Sequence[float]], spearman: float | None) -> bytes | None:
    """Heuristic against model for a sample of rows, as a PNG; None where there are too few."""
    if len(pairs) < 3:
        return None
    title = "no rank correlation" if spearman is None else f"rank correlation {spearman:.2f}"
    axis = {"type": "quantitative", "scale": {"domain": [0, 1]}}
    return _png(
        {
            "width": 320,
            "height": 320,
            "title": f"{title}, {len(pairs)} rows",
            "data": {"values": [{"heuristic": a, "model": b} for a, b in pairs]},
            "mark": {"type": "circle", "opacity": 0.35, "color": "#4c78a8"},
            "encoding": {
                "x": {"field": "heuristic", "title": "heuristic", **axis},
                "y": {"field": "model", "title": "model", **axis},
            },
        }
    )


def _png(chart: Mapping[str, Any]) -> bytes:
    import vl_convert

    picture: bytes = vl_convert.vegalite_to_png(dict(chart))
    return picture
