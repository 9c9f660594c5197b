"""The kit rejects every mutant, and no check that rejects one passes on it by accident (HOUSE: mutant providers)."""

from __future__ import annotations

from pathlib import Path

import pytest
from fallow.providers.conformance import CHECKS, run_check

from tests.providers.mutants import MUTANTS, Mutant, MutantBackend

#: Mutant by mutant, a check that finds it.
REJECTED_BY = {
    "DropsTheLastPage": "a_whole_life",
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


@pytest.mark.parametrize(
    ("mutant", "check"), REJECTED_BY.items(), ids=[" x ".join(item) for item in REJECTED_BY.items()]
)
def test_the_kit_rejects_it(mutant: str, check: str, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    assert run_check(CHECKS[check], MutantBackend(Mutant, tmp_path / "good")).verdict == "holds"
    assert run_check(CHECKS[check], MutantBackend(MUTANTS[mutant], tmp_path / "bad")).verdict == "fails"
