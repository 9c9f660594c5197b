"""The conformance kit: what every provider must do, run by pytest and by operators (SPEC §12, HOUSE).

A :class:`~fallow.providers.conformance.kit.Backend` gives scratch stores of one kind and a native way into them;
:func:`~fallow.providers.conformance.kit.run` runs the checks. Declared gaps are in
:mod:`fallow.providers.gaps`.
"""

from __future__ import annotations

from fallow.providers.conformance import control, faults, native, reading, writing
from fallow.providers.conformance.kit import (
    CHECKS,
    Backend,
    Bench,
    Check,
    ConformanceError,
    Gap,
    NotHeldError,
    Result,
    Store,
    run,
    run_check,
)
from fallow.providers.gaps import GAPS

#: The modules whose checks make up the kit, in the order of the contract.
ROOMS = (reading, writing, native, control, faults)

__all__ = [
    "CHECKS",
    "GAPS",
    "ROOMS",
    "Backend",
    "Bench",
    "Check",
    "ConformanceError",
    "Gap",
    "NotHeldError",
    "Result",
    "Store",
    "run",
    "run_check",
]
