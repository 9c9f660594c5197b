"""Plug-ins of this repository, imported from where they lie; a PostgreSQL server where one can be had."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY

for _project in sorted((REPOSITORY / "plugins").iterdir()):
    if str(_project) not in sys.path:
        sys.path.append(str(_project))


@pytest.fixture(scope="session")
def server() -> Iterator[object]:
    """A PostgreSQL server (:class:`tests.servers.postgresql.PostgreSQL`); skips where there is none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    from tests.servers.postgresql import postgresql

    with postgresql() as running:
        yield running
