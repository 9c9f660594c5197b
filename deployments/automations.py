"""Makes the automations of deployments/automations.yaml on a Prefect server, and the blocks that they call.

    FALLOW_SLACK_WEBHOOK_URL=… FALLOW_WEBHOOK_URL=… python deployments/automations.py
    python deployments/automations.py --remove

PREFECT_API_URL (and PREFECT_API_AUTH_STRING) name the server. The addresses are secrets: they are read from the
environment, kept in the server's blocks, and never printed. Run again, everything is brought up to date; an address
that is no longer given keeps its block and loses its action.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import yaml
from prefect.blocks.core import Block
from prefect.blocks.notifications import SlackWebhook
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.actions import CallWebhook, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from pydantic import SecretStr

FILE = Path(__file__).with_name("automations.yaml")
WEBHOOK, SLACK = "fallow-webhook", "fallow-slack"
KEYS = {"name", "event", "subject", "message", "payload"}


def described() -> list[dict[str, Any]]:
    """What the file describes.

    Raises:
        ValueError: a key is missing or unknown.
    """
    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    for item in found:
        if set(item) != KEYS:
            raise ValueError(f"{item.get('name', '?')}: its keys are {sorted(item)}, not {sorted(KEYS)}")
    return found


def payload_of(item: Mapping[str, Any]) -> str:
    """The template of what a webhook is sent: one JSON object, with a `text` that chat systems show."""
    parts = ['"event": {{ event.event|tojson }}', '"occurred": {{ event.occurred|string|tojson }}']
    parts += [f'"{name}": {{{{ event.payload.{name}|tojson }}}}' for name in item["payload"]]
    parts.append('"run": {{ flow_run|ui_url|tojson }}')
    return "{" + ", ".join(parts) + "}"


def automation_of(item: Mapping[str, Any], blocks: Mapping[str, UUID]) -> AutomationCore:
    """One automation: this event, once each, calls every block there is."""
    actions: list[Any] = []
    if WEBHOOK in blocks:
        actions.append(CallWebhook(block_document_id=blocks[WEBHOOK], payload=payload_of(item)))
    if SLACK in blocks:
        actions.append(SendNotification(block_document_id=blocks[SLACK], subject=item["subject"], body=item["message"]))
    return AutomationCore(
        name=item["name"],
        description="made by deployments/automations.py",
        trigger=EventTrigger(expect={item["event"]}, posture=Posture.Reactive, threshold=1),
        actions=actions,
    )


def blocks_for(environment: Mapping[str, str]) -> dict[str, UUID]:
    """Saves a block for each address that is given; their ids."""
    wanted: dict[str, Block] = {}
    if address := environment.get("FALLOW_WEBHOOK_URL", "").strip():
        wanted[WEBHOOK] = Webhook(url=SecretStr(address))
    if address := environment.get("FALLOW_SLACK_WEBHOOK_URL", "").strip():
        wanted[SLACK] = SlackWebhook(url=SecretStr(address))
    return {name: cast("UUID", block.save(name, overwrite=True)) for name, block in wanted.items()}


def deploy(blocks: Mapping[str, UUID]) -> list[str]:
    """Creates or replaces every automation; what was done."""
    done = []
    with get_client(sync_client=True) as client:
        for item in described():
            wanted = automation_of(item, blocks)
            there = existing(client, item["name"])
            body = wanted.model_dump(mode="json", exclude={"owner_resource"})
            if there:
                client.request("PUT", "/automations/{id}", path_params={"id": there[0]}, json=body)
            else:
                client.request("POST", "/automations/", json=body)
            done.append(f"{'updated' if there else 'created'} {item['name']}")
    return done


def remove() -> list[str]:
    """Deletes the automations of this file; the blocks stay."""
    done = []
    with get_client(sync_client=True) as client:
        for item in described():
            for known in existing(client, item["name"]):
                client.request("DELETE", "/automations/{id}", path_params={"id": known})
                done.append(f"deleted {item['name']}")
    return done


def existing(client: Any, name: str) -> list[str]:
    """The ids of the automations of this name."""
    answer = client.request("POST", "/automations/filter", json={"automations": {"name": {"any_": [name]}}})
    return [str(found["id"]) for found in answer.json()]


def main(arguments: list[str]) -> int:
    """The command."""
    if arguments not in ([], ["--remove"]):
        print(__doc__)
        return 2
    if arguments:
        done = remove()
    else:
        blocks = blocks_for(os.environ)
        if not blocks:
            print("name an address: FALLOW_WEBHOOK_URL, FALLOW_SLACK_WEBHOOK_URL or both")
            return 2
        done = [*(f"saved the block {name}" for name in blocks), *deploy(blocks)]
    print("\n".join(done))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
