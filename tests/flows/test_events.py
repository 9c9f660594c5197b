"""What a run tells: one event and one log line with the same numbers, ids and no text (issue of observability)."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fallow.flows.outcomes import counts_of, log_line

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("forget-plan-1", "forget-plan-1"),
        ("agent a", '"agent a"'),
        ('say "so"\nand=more', '"say \\"so\\"\\nand=more"'),
        (3, "3"),
        ("", '""'),
        ({"recalled": 2}, '"{\\"recalled\\": 2}"'),
    ],
)
def test_a_log_line_is_one_line_of_pairs(value: Any, written: str) -> None:
    line = log_line("fallow.plan.applied", {"value": value})
    assert line == f"event=fallow.plan.applied value={written}"
    assert "\n" not in line
    if not isinstance(value, str) or "\n" not in value:
        pairs = dict(pair.split("=", 1) for pair in shlex.split(line))
        assert pairs["value"] == (value if isinstance(value, str) else json.dumps(value))


def test_counts_hold_numbers_and_no_ids() -> None:
    report = {
        "applied": 2,
        "already": 1,
        "skipped": {"recalled": ["r1", "r2"]},
        "failed": {},
        "unknown": ["r3"],
        "left_out": ["r4"],
        "approved_by": "Ada",
    }
    counts = counts_of(report)
    assert counts["skipped"] == {"recalled": 2}
    assert (counts["applied"], counts["unknown"], counts["left_out"]) == (2, 1, 1)
    assert not re.search(r"r[1-4]", json.dumps(counts))


def events_in(path: Path) -> set[str]:
    return set(re.findall(r"fallow\.[a-z]+\.[a-z][a-z-]+", path.read_text(encoding="utf-8")))


def test_every_event_stands_in_the_docs() -> None:
    named = {
        "fallow.importance.rated",
        "fallow.cache.purged",
        "fallow.reflection.finished",
        "fallow.contracts.breach",
    }
    written = set().union(
        *(events_in(path) for room in ("flows", "tasks") for path in (REPOSITORY / room).glob("*.py"))
    )
    assert named <= written
    page = (REPOSITORY / "docs" / "observability.md").read_text(encoding="utf-8")
    for event in named | {
        "fallow.reflection.scheduled",
        "fallow.plan.awaiting-approval",
        "fallow.plan.applied",
    }:
        assert event in page, event
