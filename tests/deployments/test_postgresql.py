"""Prefect's server on PostgreSQL, as compose.yaml has it: the approval outlives the server (SPEC §7, DESIGN §6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows.driving import ASK, PLAN, answer, drive, hidden, plans_of, resume, start
from tests.prefect_server import PrefectServer, client_of

pytestmark = [pytest.mark.server, pytest.mark.long]


class OnPostgreSQL(PrefectServer):
    """The server with compose's database setting."""

    database = ""

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(PREFECT_SERVER_DATABASE_CONNECTION_URL=self.database, **more)


def test_an_approval_on_postgresql_outlives_the_server(tmp_path: Path, oracle: Any, make_sample_store: Any) -> None:
    """The database is Debian's PostgreSQL, started for the Oracle stand-in, in a database of its own."""
    import psycopg
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

    with psycopg.connect(oracle.address, autocommit=True) as connection:
        connection.execute("create role prefect login")
        connection.execute("create database prefect owner prefect")
        host, port = connection.info.host, connection.info.port
    server = OnPostgreSQL(tmp_path / "prefect")
    server.database = f"postgresql+asyncpg://prefect@{host}:{port}/prefect"
    own = {PREFECT_API_URL: server.api, PREFECT_HOME: server.home, PREFECT_LOGGING_TO_API_ENABLED: False}
    store = make_sample_store()
    try:
        server.start()
        server.deploy()
        with temporary_settings(own), client_of(server) as client:
            run_id, state = start(client, PLAN, store=str(store), **ASK)
            assert state.name == "Suspended"
            (plan,) = plans_of(store)
            server.kill()
            server.start()
            assert resume(client, run_id, answer(plan)) == "ACCEPT"
            assert drive(client, run_id).name == "Applied"
        assert len(hidden(store)) == plan.planned
        with psycopg.connect(host=host, port=port, user="prefect", dbname="prefect") as connection:
            (runs,) = connection.execute("select count(*) from flow_run").fetchone()
        assert runs >= 1, "the runs are in PostgreSQL"
        assert not list(server.home.glob("*.db")), "and in no SQLite file"
    finally:
        server.stop()
