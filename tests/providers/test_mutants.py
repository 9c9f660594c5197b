"""The kit rejects every mutant, and no check that rejects one passes on it by accident (HOUSE: mutant providers)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fallow.providers.conformance import CHECKS, run_check

from fallow.model.errors import StoreUnreadableError
from fallow.port.protocol import Batch, Capabilities
from tests.providers.mutants import (
    MUTANTS,
    HasNoWord,
    HidesTheRestored,
    Mutant,
    MutantBackend,
    ReadBackend,
    ReadStore,
    ShowsTheSuppressed,
)

#: Mutant by mutant, a check that finds it.
REJECTED_BY = {
    "DropsTheLastPage": "a_whole_life",
    "StopsAt1000": "a_listing_has_no_cap",
    "StopsAt10000": "a_listing_has_no_cap",
    "RepeatsARow": "a_recall_counts",
    "HidesWhatIsUnreadable": "unreadable_records_are_reported",
    "SwallowsAnError": "a_changed_value_refuses",
    "IgnoresTheCondition": "a_changed_value_refuses",
    "IgnoresAbsence": "a_field_that_came_refuses",
    "JsonOnlyEquality": "native_values_live_a_whole_life",
    "OverwritesTheRecord": "patch_keeps_unknown_fields",
    "RevivesTheDeleted": "gone_is_not_created",
    "OneBadStopsAll": "a_bad_value_fails_alone",
    "OutcomesOutOfOrder": "outcomes_are_in_order",
    "InsertsTwice": "inserting_twice_is_once",
    "TouchesTheSuppressed": "recalls_are_refused",
    "CountsOnce": "a_recall_twice_counts_twice",
    "PurgesUnconditionally": "a_purge_removes_what_it_names",
    "FindsWithoutPrefix": "a_prefix_is_where_ids_begin",
    "FetchesOnlyTheFirst": "scan_agrees_with_fetch",
    "TheSameForACopy": "identity_tells_stores_apart",
    "NaiveTimesInUtc": "naive_times_have_their_zone",
}


def test_there_are_enough_of_them_and_each_is_listed() -> None:
    assert len(MUTANTS) >= 12
    assert REJECTED_BY.keys() == MUTANTS.keys()
    assert set(REJECTED_BY.values()) <= set(CHECKS)


@pytest.fixture(scope="module")
def holds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bool]:
    """Whether a check holds of what has no bug, found out once a check."""

    @functools.cache
    def without_bug(check: str) -> bool:
        return run_check(CHECKS[check], MutantBackend(Mutant, tmp_path_factory.mktemp("good"))).verdict == "holds"

    return without_bug


@pytest.mark.parametrize(
    ("mutant", "check"), REJECTED_BY.items(), ids=[" x ".join(item) for item in REJECTED_BY.items()]
)
def test_the_kit_rejects_it(mutant: str, check: str, holds: Callable[[str], bool], tmp_path: Path) -> None:
    assert holds(check)
    assert run_check(CHECKS[check], MutantBackend(MUTANTS[mutant], tmp_path)).verdict == "fails"


class Refuses(Mutant):
    """A provider that says where it was cut short, as SPEC §1.4 asks: no mutant of the list."""

    def scan(self, memory_type: str, columns: Sequence[str]) -> Iterator[Batch]:
        for batch in self.good.scan(memory_type, columns):
            yield Batch(batch.frame.head(1_000))
            raise StoreUnreadableError("the listing ends at 1,000 rows", hint="split it")


class DeclaresNothing(Mutant):
    """A provider whose kind would rather not be asked."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.good.capabilities, listing_rows=999)


def test_a_listing_that_is_cut_short_may_raise(tmp_path: Path) -> None:
    """TRAPS 66, SPEC §1.4."""
    assert run_check(CHECKS["a_listing_has_no_cap"], MutantBackend(Refuses, tmp_path)).verdict == "holds"


def test_no_kind_declares_itself_out_of_a_long_listing(tmp_path: Path) -> None:
    result = run_check(CHECKS["a_listing_has_no_cap"], MutantBackend(DeclaresNothing, tmp_path))
    assert result.verdict == "fails"
    assert "999" in result.detail


@pytest.mark.parametrize(
    ("reader", "verdict", "said"),
    [
        (ReadStore, "holds", ""),
        (ShowsTheSuppressed, "fails", "whether agents see the suppressed one and the other"),
        (HidesTheRestored, "fails", "whether agents see both after the restore"),
        (HasNoWord, "fails", "a reader of conversations"),
    ],
)
def test_the_agents_own_reader_is_asked(reader: type[ReadStore], verdict: str, said: str, tmp_path: Path) -> None:
    """SPEC §12: agents' code that still shows, or never shows again, is rejected."""
    result = run_check(CHECKS["agents_see_what_is_kept"], ReadBackend(reader, tmp_path))
    assert result.verdict == verdict
    assert said in result.detail


def test_without_a_reader_the_agents_are_not_asked(tmp_path: Path) -> None:
    result = run_check(CHECKS["agents_see_what_is_kept"], MutantBackend(Mutant, tmp_path))
    assert result.verdict == "not applicable"
