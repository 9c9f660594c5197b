"""What a run may spend, and what it has spent (SPEC §3.6): calls, tokens and money.

A call is paid for when it returns, so its cost is reserved before it is sent: the estimate of its input and
all the output it may produce. What does not fit beside what is spent and reserved is not sent. The bill
then counts what the endpoint itself reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fallow.model.errors import SettingError

#: What a half-priced batch costs against calls that are answered at once.
BATCH_DISCOUNT = 0.5


@dataclass(frozen=True, slots=True)
class Price:
    """Money for a million tokens in and out, in the currency of the price list."""

    input: float = 0.0
    output: float = 0.0

    def of(self, input_tokens: int, output_tokens: int) -> float:
        """What this many tokens cost."""
        return (input_tokens * self.input + output_tokens * self.output) / 1_000_000


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The model's price by its full name, else by the longest listed name that it begins with; None if unknown."""
    named = [name for name in prices if model == name or model.startswith((f"{name}-", f"{name}:"))]
    return prices[max(named, key=len)] if named else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one run; None is no limit.

    Raises:
        SettingError: a limit that is no number of at least zero, or a money limit without a price.
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_tokens", "max_cost"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not math.isfinite(value) or value < 0):
                raise SettingError(f"{name} must be a number of at least 0")


@dataclass(slots=True)
class Usage:
    """Calls that were answered, and the tokens that the endpoint counted for them."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, other: Usage) -> None:
        """Adds another count to this one."""
        self.calls += other.calls
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens

    @property
    def tokens(self) -> int:
        """In and out together."""
        return self.input_tokens + self.output_tokens


@dataclass(slots=True)
class Ledger:
    """Spent and reserved, held against a budget. One thread uses it.

    ``price`` None means that money is not counted; a budget in money then cannot be kept.
    """

    budget: Budget = field(default_factory=Budget)
    price: Price | None = None
    spent: Usage = field(default_factory=Usage)
    reserved: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        if self.budget.max_cost is not None and self.price is None:
            raise SettingError(
                "a limit in money needs the model's price",
                hint='set importance.prices, such as {"the-model": [0.15, 0.60]} for a million tokens in and out',
            )

    @property
    def cost(self) -> float | None:
        """What was spent in money, or None where there is no price."""
        return None if self.price is None else self.price.of(self.spent.input_tokens, self.spent.output_tokens)

    def exhausted_by(self, call: Usage) -> str:
        """Which limit this call would break, with what is spent and in flight; empty if it fits."""
        total = Usage()
        for part in (self.spent, self.reserved, call):
            total.add(part)
        if self.budget.max_calls is not None and total.calls > self.budget.max_calls:
            return "calls"
        if self.budget.max_tokens is not None and total.tokens > self.budget.max_tokens:
            return "tokens"
        if self.budget.max_cost is not None and self.price is not None:
            cost = self.price.of(total.input_tokens, total.output_tokens)
            if cost > self.budget.max_cost * (1 + 1e-12):
                return "cost"
        return ""

    def reserve(self, call: Usage) -> None:
        """Counts a call as in flight."""
        self.reserved.add(call)

    def settle(self, call: Usage, used: Usage) -> None:
        """A call in flight has ended: its reservation goes, what it used is spent."""
        self.reserved.add(Usage(-call.calls, -call.input_tokens, -call.output_tokens))
        self.spent.add(used)
