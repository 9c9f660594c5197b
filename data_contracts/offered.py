"""What the entry point ``shipped`` of ``fallow.contracts`` gives: gate, checks, what they remember (SPEC §13)."""

from __future__ import annotations

from fallow.data_contracts.checking import check_contracts, gate, refusal
from fallow.data_contracts.compiler import contracts
from fallow.data_contracts.parity import compare_stores
from fallow.data_contracts.remembering import last_failures, record_check
from fallow.data_contracts.second_opinion import ask_great_expectations

__all__ = [
    "ask_great_expectations",
    "check_contracts",
    "compare_stores",
    "contracts",
    "gate",
    "last_failures",
    "record_check",
    "refusal",
]
