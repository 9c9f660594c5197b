"""fallow doctor and the Prefect server: reachable, who may call it, what is deployed, who works (SPEC §16)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fallow.cli.operations import _DEPLOYED
from fallow.cli.server import look_at_server
from tests.prefect_server import PrefectServer, free_port


def states(found: list[tuple[str, str, str]]) -> dict[str, tuple[str, str]]:
    return {name: (state, detail) for name, state, detail in found}


@pytest.mark.server
def test_a_server_as_prefect_starts_it_is_warned_about(prefect_server: PrefectServer) -> None:
    """It asks nobody and answers any origin: any page in the operator's browser could resume a run."""
    found = states(look_at_server(prefect_server.api, None, _DEPLOYED))
    assert found["prefect server"][0] == "ok"
    assert found["prefect server"][1].startswith("version 3.9")
    assert found["prefect clock"][0] == "ok"
    assert found["prefect auth"][0] == "warning"
    assert found["prefect origins"][0] == "warning"
    assert found["deployments"][0] == "ok", found["deployments"]
    assert found["worker"][0] in {"ok", "warning"}
    missing = states(look_at_server(prefect_server.api, None, ("plan-retention/nobody",)))
    assert "plan-retention/nobody" in missing["deployments"][1]


@pytest.fixture
def strict() -> Iterator[str]:
    """A server that asks who calls, whose clock is an hour off, and that has nothing on it."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known = self.headers.get("Authorization") == "Basic bmFtZTpzZWNyZXQ="
            code = 401 if not known else 200 if self.path.endswith("/admin/version") else 404
            body = json.dumps("3.9.1" if code == 200 else {}).encode()
            self.send_response_only(code)
            self.send_header("Date", formatdate(3600, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/api"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_server_that_asks_is_not_warned_about_and_the_secret_stands_nowhere(strict: str) -> None:
    (only,) = look_at_server(strict, None, _DEPLOYED)
    assert only[1] == "error"
    assert "PREFECT_API_AUTH_STRING" in only[2]
    found = look_at_server(strict, "name:secret", _DEPLOYED)
    told = states(found)
    assert told["prefect auth"][0] == told["prefect origins"][0] == "ok"
    assert told["prefect clock"][0] == "warning"
    assert all(name in told["deployments"][1] for name in _DEPLOYED)
    assert "work-pool create" in told["worker"][1]
    assert "secret" not in str(found)


@pytest.mark.server
@pytest.mark.parametrize(
    ("entrypoint", "state"),
    [
        ("flows.check_drift:check_drift", "error"),
        ("fallow.flows.check_drift:check_drift", "ok"),
    ],
)
def test_a_deployment_from_before_the_one_import_name_is_an_error(
    prefect_server: PrefectServer, entrypoint: str, state: str
) -> None:
    """Its runs would fail in the worker with ModuleNotFoundError, at night."""
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(prefect_server.api) as client:
        (flow,) = [item for item in client.read_flows() if item.name == "check-drift"]
        made = client.create_deployment(flow_id=flow.id, name="from-before", entrypoint=entrypoint)
        told = states(look_at_server(prefect_server.api, None, ("check-drift/from-before",)))["deployments"]
        client.delete_deployment(made)
    assert told[0] == state
    assert ("check-drift/from-before" in told[1]) == (state == "error")


@pytest.mark.parametrize("address", [f"http://127.0.0.1:{free_port()}/api", "file:///etc/passwd"])
def test_a_server_that_is_not_there_is_an_error(address: str) -> None:
    (only,) = look_at_server(address, None, ())
    assert only[:2] == ("prefect server", "error")


def test_what_doctor_asks_for_is_what_is_deployed() -> None:
    import yaml

    from tests.prefect_server import PREFECT_YAML

    items = yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))["deployments"]
    flows = {item["entrypoint"].split(":")[1].replace("_", "-") + "/" + item["name"] for item in items}
    assert set(_DEPLOYED) == flows
