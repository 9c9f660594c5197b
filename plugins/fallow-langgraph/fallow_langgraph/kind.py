"""What LangGraph's store says of itself to fallow; no driver is imported here."""

from __future__ import annotations

from collections.abc import Mapping

from fallow.port.kinds import StoreKind, StoreSetting
from fallow.port.protocol import Capabilities, Provider
from fallow.port.scratch import Backend, Gap, NotHeldError


def _open(uri: str, naive_timezone: Mapping[str, str]) -> Provider:
    from fallow_langgraph.provider import LangGraphProvider

    return LangGraphProvider.from_uri(uri, naive_timezone)


def _scratch(uri: str) -> Backend:
    from fallow_langgraph.connecting import address
    from fallow_langgraph.scratch import LangGraphBackend

    return LangGraphBackend(address(uri))


LANGGRAPH = StoreKind(
    name="langgraph",
    schemes=("langgraph+postgresql",),
    open=_open,
    capabilities=Capabilities(kind="langgraph", batch_size=1000),
    address="langgraph+postgresql://user@host:5432/database",
    docs="LangGraph's long-term memory on PostgreSQL; conditional writes in one transaction a chunk.",
    settings=(StoreSetting("FALLOW_LANGGRAPH", "a path to the mapping of namespaces, or the mapping as JSON"),),
    install="fallow-langgraph",
    packages=("psycopg",),
    scratch=_scratch,
    gaps={
        "the_old_type_name_is_read": Gap("LangGraph's stores know no types, so no older names of them", NotHeldError),
    },
)
