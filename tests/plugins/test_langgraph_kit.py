"""The conformance kit on LangGraph's store, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="psycopg is not installed")

import psycopg
from fallow.providers.conformance import CHECKS, run_check
from fallow.providers.conformance.kit import Fault
from fallow_langgraph.provider import LangGraphProvider
from fallow_langgraph.scratch import MAPPING, LangGraphBackend, LangGraphStore
from psycopg.conninfo import make_conninfo

from fallow.port.protocol import Provider
from tests.servers.postgresql import PostgreSQL

PASSWORD = "s3cret-of-postgresql"


class FaultyStore(LangGraphStore):
    """A scratch store that can be broken."""

    broken: str = ""

    def open(self, naive_timezone: Mapping[str, str] | None = None) -> Provider:
        said = {"denied": {"user": "nobody_may"}, "read_only": {"user": "may_read"}}.get(self.broken, {})
        conninfo = make_conninfo(self.conninfo, password=PASSWORD, **said)
        patience = 0.4 if self.broken == "slow" else 20
        return LangGraphProvider(conninfo, naive_timezone, mapping=MAPPING, patience=patience)

    @contextmanager
    def fault(self, kind: Fault) -> Iterator[None]:
        with psycopg.connect(self._server, autocommit=True) as owner:
            held: psycopg.Connection[Any] | None = None
            if kind == "down":
                owner.execute(f'alter database "{self.name}" allow_connections false')
                owner.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (self.name,))
            if kind == "read_only":
                with self.native() as inside:
                    inside.execute("grant select on all tables in schema public to may_read")
            if kind == "slow":
                held = psycopg.connect(self.conninfo)
                held.execute("lock table store in access exclusive mode")
            self.broken = kind
            try:
                yield
            finally:
                self.broken = ""
                if held is not None:
                    held.close()
                owner.execute(f'alter database "{self.name}" allow_connections true')


class FaultyBackend(LangGraphBackend):
    """The same with every fault that a server can be put into here."""

    faults = frozenset({"down", "denied", "read_only", "slow"})
    secrets = (PASSWORD,)
    made = FaultyStore


@pytest.fixture(scope="module")
def backend(server: PostgreSQL) -> FaultyBackend:
    server.run("create role nobody_may login")
    server.run("create role may_read login")
    return FaultyBackend(server.address())


@pytest.mark.parametrize("name", CHECKS)
def test_langgraph_conforms(name: str, backend: FaultyBackend) -> None:
    result = run_check(CHECKS[name], backend)
    assert result.good, result.detail
    if result.verdict == "not applicable":
        pytest.skip(result.detail)
