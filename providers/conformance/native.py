"""Checks of native values: what a store holds and JSON has no word for is compared as the store compares it (SPEC §12).

Which values there are only the store's kind can say: a scratch store that has any gives them by ``natives``.
"""

from __future__ import annotations

from typing import Any, Final

from fallow.providers.conformance.kit import Bench, check, expect, expect_equal
from fallow.providers.conformance.rows import (
    KNOWLEDGE,
    NOW,
    expect_unchanged,
    fetched,
    note,
    record_id,
    scanned,
    statuses,
)
from fallow.providers.conformance.writing import RESTORATION, SUPPRESSION, key

from fallow.model.keys import MISSING
from fallow.model.record import requirements
from fallow.model.values import same_value
from fallow.port.protocol import Patch, Provider, Touching

NATIVE: Final = "native values"
#: What rating sets (SPEC §3.5).
_RATING: Final = {"importance": 0.4, "importance_source": "heuristic"}


def _seed(bench: Bench) -> dict[str, dict[str, Any]]:
    """A record for each native value of the store, the value in the fields that its kind names."""
    natives: dict[str, dict[str, Any]] = dict(bench.store.natives())  # type: ignore[attr-defined]
    expect(natives, "the store names no native value")
    bench.store.seed(KNOWLEDGE, [note("plain"), *(note(name, **fields) for name, fields in natives.items())])
    return natives


def _write(provider: Provider, name: str, changes: dict[str, Any], what: str) -> None:
    row = fetched(provider, KNOWLEDGE, record_id(name))
    [outcome] = provider.patch([Patch(key(name, KNOWLEDGE), requirements(row), changes)])
    expect_equal(outcome.status, "applied", f"{what} a record with {name}")


@check(
    "a record with any native value is listed, rated, suppressed and restored, and keeps every value",
    needs=("native_values",),
    room=NATIVE,
)
def native_values_live_a_whole_life(bench: Bench) -> None:
    natives = _seed(bench)
    before = bench.store.stored(KNOWLEDGE)
    with bench.open() as provider:
        listed = scanned(provider, KNOWLEDGE, "retention_state")
        expect_equal(set(listed), {record_id(name) for name in ("plain", *natives)}, "the records listed")
        for name in natives:
            once = fetched(provider, KNOWLEDGE, record_id(name))
            again = fetched(provider, KNOWLEDGE, record_id(name))
            expect(same_value(once, again), f"a record with {name}, read twice, is not the same")
            if once.get("importance", MISSING) in (MISSING, None):
                _write(provider, name, _RATING, "rating")
            _write(provider, name, dict(SUPPRESSION), "suppressing")
            _write(provider, name, dict(RESTORATION), "restoring")
    named = {record_id(name): {*SUPPRESSION, *RESTORATION, *_RATING} for name in natives}
    expect_unchanged(before, bench.store.stored(KNOWLEDGE), named)


@check("a recall counts on a record with any native value", needs=("native_values", "touching"), room=NATIVE)
def native_values_are_touched(bench: Bench) -> None:
    natives = _seed(bench)
    with bench.open() as provider:
        expect(isinstance(provider, Touching), "the provider does not reinforce")
        names = [record_id(name) for name in natives]
        outcomes = provider.touch_many(KNOWLEDGE, names, NOW)  # type: ignore[attr-defined]
        expect_equal(statuses(outcomes), ["applied"] * len(names), f"the outcomes for {', '.join(natives)}")
        times = scanned(provider, KNOWLEDGE, "last_accessed_at")
        late = [name for name in natives if (times[record_id(name)]["last_accessed_at"] or 0) < NOW]
        expect(not late, f"last_accessed_at is before the recall for {', '.join(late)}")


@check("a native value that changed, or went, refuses the patch", needs=("native_values",), room=NATIVE)
def a_native_change_refuses(bench: Bench) -> None:
    natives = _seed(bench)
    with bench.open() as provider:
        for name, fields in natives.items():
            row = fetched(provider, KNOWLEDGE, record_id(name))
            for other, values in natives.items():
                if set(values) != set(fields) or same_value(values, fields):
                    continue
                bench.store.change(KNOWLEDGE, record_id(name), values)
                now = fetched(provider, KNOWLEDGE, record_id(name))
                if all(same_value(now.get(field), row.get(field)) for field in fields):
                    continue  # two spellings that the store itself holds as one value
                [outcome] = provider.patch([Patch(key(name, KNOWLEDGE), requirements(row), SUPPRESSION)])
                expect_equal(outcome.status, "changed", f"the outcome where {name} became {other}")
            bench.store.change(KNOWLEDGE, record_id(name), fields)
            [outcome] = provider.patch([Patch(key(name, KNOWLEDGE), requirements(row), SUPPRESSION)])
            expect_equal(outcome.status, "applied", f"the outcome where {name} is as it was read again")
