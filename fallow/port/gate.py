"""What a data contract says of a store, as far as a decision rests on it (SPEC §13)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from fallow.model.errors import ContractBreachError
from fallow.port.parts import part

if TYPE_CHECKING:
    from fallow.port.protocol import Provider
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


#: Holds a store that was read against its contracts, where a caller has its own way to.
ContractGate = Callable[["StoreView"], ContractResult]


@cache
def contracts() -> Any:
    """The data contracts that are installed: the module behind the entry point ``shipped`` of ``fallow.contracts``.

    Raises:
        ProviderMissingError: none are registered.
    """
    return part("fallow.contracts", "shipped")


def check_store(provider: Provider, view: StoreView, as_of: int) -> ContractResult:
    """Holds a store that was read against the installed data contracts (SPEC §13).

    It is part of every judgement (SPEC §6.10), in the library as on the command line. Writes nothing.

    Raises:
        ProviderMissingError: no contracts are registered: nothing is planned without them.
    """
    found: ContractResult = contracts().gate(provider, view, as_of=as_of)
    return found
