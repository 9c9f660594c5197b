"""Budgets in calls, tokens and money (SPEC §3.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallow.importance.budget import Budget, Ledger, Price, Usage, price_of
from fallow.model.errors import SettingError


def test_calls_tokens_and_money_each_stop_a_run() -> None:
    call = Usage(1, 900, 100)
    price = Price(1.0, 10.0)
    for budget, name, fits in (
        (Budget(max_calls=2), "calls", 2),
        (Budget(max_tokens=3000), "tokens", 3),
        (Budget(max_cost=0.0038), "cost", 2),
        (Budget(max_calls=0), "calls", 0),
    ):
        ledger = Ledger(budget, price)
        for _ in range(fits):
            assert ledger.exhausted_by(call) == ""
            ledger.reserve(call)
            ledger.settle(call, Usage(1, 900, 100))
        assert ledger.exhausted_by(call) == name


def test_what_is_in_flight_counts_too() -> None:
    ledger = Ledger(Budget(max_calls=1))
    ledger.reserve(Usage(1, 10, 10))
    assert ledger.exhausted_by(Usage(1, 10, 10)) == "calls"
    ledger.settle(Usage(1, 10, 10), Usage())
    assert ledger.exhausted_by(Usage(1, 10, 10)) == ""


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 100), st.floats(0, 1)), max_size=40), st.integers(0, 3000)
)
def test_a_token_budget_is_never_passed_while_estimates_are_from_above(calls, limit: int) -> None:
    ledger = Ledger(Budget(max_tokens=limit))
    for tokens_in, tokens_out, share in calls:
        call = Usage(1, tokens_in, tokens_out)
        if not ledger.exhausted_by(call):
            ledger.reserve(call)
            ledger.settle(call, Usage(1, int(tokens_in * share), int(tokens_out * share)))
    assert ledger.spent.tokens <= limit
    assert ledger.reserved == Usage()


def test_prices_are_for_a_million_tokens_and_found_by_the_models_name() -> None:
    prices = {"gpt-4o": Price(2.5, 10), "gpt-4o-mini": Price(0.15, 0.6)}
    assert price_of("gpt-4o-mini-2024-07-18", prices) == Price(0.15, 0.6)
    assert price_of("gpt-4o", prices) == Price(2.5, 10)
    assert price_of("gpt-4omega", prices) is None
    assert Price(2.0, 8.0).of(1_000_000, 500_000) == 6.0


def test_money_needs_a_price_and_limits_are_numbers() -> None:
    with pytest.raises(SettingError, match="price"):
        Ledger(Budget(max_cost=1.0))
    assert Ledger(Budget(max_calls=1)).cost is None
    for bad in ({"max_calls": -1}, {"max_cost": float("nan")}, {"max_tokens": True}):
        with pytest.raises(SettingError):
            Budget(**bad)
