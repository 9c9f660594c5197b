"""Where a provider of ours does less than the kit asks, with the reason and the error that shows it.

A gap belongs to the store, not to our taste: what its layout or its interface cannot do. Each is strict:
once the check passes, the run fails until the gap is taken out. The support matrix in the docs is made
from the kit's results and these reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from providers.conformance.kit import Gap, NotHeldError

#: By capability kind, then by check.
GAPS: Final[Mapping[str, Mapping[str, Gap]]] = {
    "filesystem": {},
    "mongodb": {},
    "oracle": {},
    "notion": {},
}

__all__ = ["GAPS", "Gap", "NotHeldError"]
