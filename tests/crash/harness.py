"""Kills work in the middle, runs it again, and looks at the store from outside (SPEC §8.2).

What must hold afterwards is read from the raw files, without fallow's own reading.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fallow.acting.deciding import decide
from fallow.model.settings import ApprovalConfig
from fallow.port.registry import open_provider
from tests.conftest import REPOSITORY, write_as_agent
from tests.crash.child import NOW, WORK
from tests.fallow.small_stores import CONVERSATION, planned, record

RECORDS = 10
PLANNED_KEYS = [(CONVERSATION, f"r{n}") for n in range(RECORDS)] + [("summaries", "s0"), ("summaries", "s1")]
SUPPRESSION = {"suppressed_by", "suppressed_at", "suppression_reason", "suppression_approver", "suppression_note"}


def make_store(root: Path) -> None:
    """A store with one approved plan over twelve records of two types, beside records that are not in it."""
    rows = [record(f"r{n}", days=90 + n, embedding=[0.5, n / 10], x_custom={"n": [n]}) for n in range(RECORDS)]
    rows += [record("kept", days=3), record("pinned", pinned=True)]
    summaries = [record(f"s{n}", days=200 + n) for n in range(2)]
    write_as_agent(root, {CONVERSATION: rows, "summaries": summaries, "shared_memory": []})
    with open_provider(str(root)) as provider:
        plan = planned(provider, as_of=NOW)
        approval = {"approval": ApprovalConfig(), "count": len(plan.entries), "reason": "spring"}
        decide(provider, plan.plan_id, verdict="approved", approved_by="Ada", now=NOW, **approval)


def start(work: str, root: Path, *options: str) -> subprocess.Popen[str]:
    """The work in a process of its own, past its imports."""
    command = [sys.executable, "-m", "tests.crash.child", work, str(root), *options]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    child = subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def finish(child: subprocess.Popen[str]) -> str:
    """Waits for a process and gives what it still said."""
    with child:
        said, _ = child.communicate(timeout=120)
    return said


def duration(work: str, root: Path) -> tuple[float, int]:
    """How long the work takes undisturbed, in seconds, and how many points it passes."""
    child = start(work, root)
    began = time.monotonic()
    said = finish(child)
    assert child.returncode == 0
    return time.monotonic() - began, int(said)


def kill_after(work: str, root: Path, seconds: float) -> bool:
    """Kills the work that long after its start; whether it was still at it."""
    child = start(work, root)
    time.sleep(seconds)
    child.kill()
    finish(child)
    return child.returncode != 0


def kill_at(work: str, root: Path, point: int) -> bool:
    """The work dies at that point of its way; whether it came so far."""
    child = start(work, root, "--die-at", str(point))
    finish(child)
    return child.returncode != 0


def run_again(work: str, root: Path) -> None:
    """The same work to its end, in this process."""
    with open_provider(str(root)) as provider:
        WORK[work](provider, NOW + 1_000_000)


def rows_of(root: Path, memory_type: str) -> dict[str, dict[str, Any]]:
    """Raw rows by file name; a torn file fails the caller."""
    files = [path for path in (root / memory_type).glob("*.json") if path.name != "index.json"]
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def violations(root: Path, before: dict[str, dict[str, dict[str, Any]]], done: Sequence[str]) -> list[str]:
    """Everything that is not as it must be once ``done`` (``apply``, then perhaps ``restore``) has ended."""
    found: list[str] = []
    state = "active" if done[-1] == "restore" else "suppressed"
    for memory_type in (CONVERSATION, "summaries"):
        rows = rows_of(root, memory_type)
        if rows.keys() != before[memory_type].keys():
            found.append(f"{memory_type}: other records than before")
        for record_id, row in rows.items():
            old = before[memory_type][record_id]
            if (memory_type, record_id) not in PLANNED_KEYS:
                if row != old:
                    found.append(f"{record_id}: not in the plan, and changed")
                continue
            if row.get("retention_state") != state:
                found.append(f"{record_id}: {row.get('retention_state')}")
            if any(row.get(name) != value for name, value in old.items() if name != "retention_state"):
                found.append(f"{record_id}: another field changed")
            if not row.keys() >= SUPPRESSION:
                found.append(f"{record_id}: audit fields are missing")
    control = rows_of(root, "shared_memory")
    contents = [json.loads(row["content"]) for row in control.values()]
    kinds: Counter[tuple[str, str, str]] = Counter()
    for content in contents:
        if content.get("record_type") == "memory_history_change":
            source = "restore" if content["source"] == "forgetting:unsuppress" else "apply"
            kinds[source, content["memory_type"], content["target_record_id"]] += 1
    for work in ("apply", "restore"):
        for memory_type, record_id in PLANNED_KEYS:
            number = kinds.pop((work, memory_type, record_id), 0)
            if number != (work in done):
                found.append(f"{record_id}: {number} journal entries of {work}")
    found += [f"a journal entry too many: {kind}" for kind in kinds]
    events = Counter(content.get("event_type") for content in contents if content.get("event_type"))
    if events != {"forgetting_planned": 1, "memory_forgotten": 1}:
        found.append(f"events: {dict(events)}")
    ended = [content["payload"] for content in contents if content.get("event_type") == "memory_forgotten"]
    if [payload["tombstoned"] for payload in ended] != [len(PLANNED_KEYS)]:
        found.append("the event has another number")
    heads = {content["target_record_id"] for content in contents if content.get("record_type") == "memory_history_head"}
    if heads != {record_id for _, record_id in PLANNED_KEYS}:
        found.append("heads")
    for memory_type in (CONVERSATION, "summaries", "shared_memory"):
        index = json.loads((root / memory_type / "index.json").read_text(encoding="utf-8"))["items"]
        if index.keys() != rows_of(root, memory_type).keys():
            found.append(f"{memory_type}: the index lists other records than there are")
        # A killed process leaves temp files of its own, which agents ignore and a later run sweeps away.
        temps = {path.name for path in (root / memory_type).glob(".fallow-*.tmp")}
        left = {path.name for path in (root / memory_type).iterdir() if path.suffix != ".json"} - temps
        if left:
            found.append(f"{memory_type}: {left} left behind")
    return found
