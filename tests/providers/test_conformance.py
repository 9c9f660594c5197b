"""The kit on every provider: all of them do the same, but for declared gaps (SPEC §12)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fallow.providers.conformance import CHECKS, GAPS, run_check

from tests.providers.backends import backend

BACKENDS = ("filesystem", "notion", "mongodb", "oracle")


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("kind", BACKENDS)
def test_conformance(kind: str, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """SPEC §12: one suite, every provider; a declared gap must fail as declared."""
    address = request.getfixturevalue("mongodb") if kind == "mongodb" else ""
    oracle = request.getfixturevalue("oracle") if kind == "oracle" and not os.environ.get("ORACLE_DSN") else None
    result = run_check(CHECKS[name], backend(kind, tmp_path, address, oracle))
    if not result.good:
        raise AssertionError(f"{kind}: {result.check.holds}: {result.detail}") from result.error


def test_every_gap_belongs_to_a_check() -> None:
    assert [(kind, name) for kind, gaps in GAPS.items() for name in gaps if name not in CHECKS] == []
