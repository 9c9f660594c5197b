"""What a data contract says of a store, as far as a decision rests on it (SPEC §13)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fallow.model.errors import ContractBreachError

if TYPE_CHECKING:
    from fallow.port.reading import StoreView


@dataclass(frozen=True, slots=True)
class ContractResult:
    """What data contracts found in a store, as far as a decision rests on it (SPEC §13).

    Attributes:
        summary: for the plan's document: the state, counts by rule, the contracts' hash; no text.
        quarantined: by memory type, records that break a rule of severity must: they stay out of plans.
        refusals: what no longer holds of the store as a whole, as (memory type or None for all, sentence).
    """

    summary: Mapping[str, Any] = field(default_factory=dict)
    quarantined: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refusals: tuple[tuple[str | None, str], ...] = ()

    def refuse(self, memory_types: Collection[str]) -> None:
        """Raises where a broken rule over the whole store concerns one of these types.

        Raises:
            ContractBreachError: with every such sentence.
        """
        found = [says for name, says in self.refusals if name is None or name in memory_types]
        if found:
            raise ContractBreachError(
                f"the store breaks its contract: {'; '.join(found)}",
                hint="fallow contracts shows it; where the store is right as it is: fallow contracts --accept NAME",
            )


#: Holds a store that was read against its contracts: what a caller of the core hands in.
ContractGate = Callable[["StoreView"], ContractResult]
