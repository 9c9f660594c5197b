"""The automations of deployments/ on a real server: events of real flows reach a local webhook."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.flows.driving import ASK, EXPIRE, PLAN, answer, drive, plans_of, resume, start
from tests.prefect_server import PrefectServer, wait_until

SCRIPT = REPOSITORY / "deployments" / "automations.py"
NAMES = {
    "fallow: a plan awaits approval",
    "fallow: a plan expired",
    "fallow: a contract is broken",
    "fallow: a plan was applied",
}


class Hook:
    """A webhook on the loopback that keeps what it was sent."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                hook.received.append((self.path, body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def told(self, event: str, plan_id: str) -> Any:
        for path, body in self.received:
            if path == "/hook" and (found := json.loads(body))["event"] == event and found.get("plan_id") == plan_id:
                return found
        return None

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.close()


def run(server: PrefectServer, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=server.environment(**environment),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def automations(client: Any) -> dict[str, Any]:
    found = client.request("POST", "/automations/filter", json={"limit": 200}).json()
    return {item["name"]: item for item in found if item["name"].startswith("fallow: ")}


@pytest.mark.server
def test_a_webhook_is_told_of_plans_that_wait_expire_and_are_applied(
    prefect_server: PrefectServer, prefect_api: Any, hook: Hook, make_sample_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(prefect_server, FALLOW_WEBHOOK_URL=f"{hook.url}/hook")
    assert done.returncode == 0, done.stdout + done.stderr
    assert hook.url not in done.stdout + done.stderr
    try:
        assert set(automations(prefect_api)) == NAMES
        again = run(prefect_server, FALLOW_WEBHOOK_URL=f"{hook.url}/hook")
        assert again.stdout.count("updated") == len(NAMES)
        assert len(automations(prefect_api)) == len(NAMES)

        store = make_sample_store()
        run_id, state = start(prefect_api, PLAN, store=str(store), **ASK)
        assert state.name == "Suspended"
        (plan,) = plans_of(store)
        asked = wait_until(lambda: hook.told("fallow.plan.awaiting-approval", plan.plan_id), "the webhook hears of it")
        assert asked["planned"] == plan.planned
        assert asked["scope"] == "whole store"
        assert str(run_id) in asked["run"]
        assert resume(prefect_api, run_id, answer(plan)) == "ACCEPT"
        ended = drive(prefect_api, run_id)
        assert ended.name == "Applied", ended.message
        applied = wait_until(lambda: hook.told("fallow.plan.applied", plan.plan_id), "the webhook hears of the apply")
        assert applied["applied"] == plan.planned
        assert applied["approved_by"] == "Ada"

        lapsing = make_sample_store("lapsing")
        monkeypatch.setenv("FALLOW_RETENTION_EXPIRY_HOURS", "0.00001")
        _, state = start(prefect_api, PLAN, store=str(lapsing), **ASK)
        _, state = start(prefect_api, EXPIRE, store=str(lapsing))
        (late,) = plans_of(lapsing)
        assert late.state == "expired"
        assert wait_until(lambda: hook.told("fallow.plan.expired", late.plan_id), "the webhook hears of the expiry")
        everything = "\n".join(body for _, body in hook.received)
        assert "SECRET" not in everything
    finally:
        assert run(prefect_server, "--remove").returncode == 0
    assert automations(prefect_api) == {}


@pytest.mark.server
def test_a_slack_webhook_is_a_notification_and_its_messages_render(
    prefect_server: PrefectServer, prefect_api: Any
) -> None:
    """Slack's own host cannot be reached from a test: the block and the actions are held as the server has them."""
    address = "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
    done = run(prefect_server, FALLOW_SLACK_WEBHOOK_URL=address)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        made = automations(prefect_api)
        assert set(made) == NAMES
        assert {action["type"] for item in made.values() for action in item["actions"]} == {"send-notification"}
        block = prefect_api.request(
            "GET",
            "/block_types/slug/{slug}/block_documents/name/{name}",
            path_params={"slug": "slack-webhook", "name": "fallow-slack"},
        ).json()
        assert "XXXXXXXX" not in json.dumps(block), "the address is a secret of the block"
    finally:
        assert run(prefect_server, "--remove").returncode == 0


def test_the_templates_render_hostile_names_as_json() -> None:
    """What a webhook gets stays one JSON object, whatever an id holds."""
    from prefect.server.events.jinja_filters import all_filters
    from prefect.server.utilities.user_templates import register_user_template_filters, render_user_template_sync

    register_user_template_filters(all_filters)

    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import automations as script
    finally:
        sys.path.remove(str(SCRIPT.parent))
    hostile = 'a "quoted" {{ name }}\n\\end'
    for item in script.described():
        payload = dict.fromkeys(item["payload"], hostile) | {"broken": [hostile]}
        told = {"event": item["event"], "occurred": "2026-12-01", "payload": payload}
        rendered = json.loads(render_user_template_sync(script.payload_of(item), {"event": told, "flow_run": None}))
        assert rendered["event"] == item["event"]
        assert all(rendered[name] in (hostile, [hostile]) for name in item["payload"])
        assert "{{" not in render_user_template_sync(item["subject"], {"event": told})


def test_without_an_address_it_says_what_it_needs(tmp_path: Path) -> None:
    server = PrefectServer(tmp_path)
    done = run(server)
    assert done.returncode == 2
    assert "FALLOW_WEBHOOK_URL" in done.stdout
    assert run(server, "--nonsense").returncode == 2
