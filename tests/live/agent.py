"""An agent in a process of its own, by the habits that STORES.md measured.

    python tests/live/agent.py STORE TYPE < order.json

The order names what to do: ``turns``, ``touch`` and ``edit`` (ids, in turn), ``insert`` (how many new rows),
``delete`` (ids), ``think`` (seconds between reading and writing). Prints ``ready``, works, and then one line
of what it did and what happened to it. It knows nothing of fallow: read, change, temp file, rename, without
the lock; then the lock for the index, with a timeout of five seconds.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


class Agent:
    """One agent on one memory type of a filesystem store."""

    def __init__(self, root: Path, memory_type: str, think: float) -> None:
        self.root, self.folder, self.think = root, root / memory_type, think
        self.touched: Counter[str] = Counter()
        self.edited: Counter[str] = Counter()
        self.inserted: list[str] = []
        self.lock_failures = 0
        self.missing = 0

    def replace(self, path: Path, data: Any) -> None:
        temp = path.with_suffix(".agent.tmp")
        temp.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
        temp.replace(path)

    def index(self, record_id: str, entry: dict[str, Any] | None) -> None:
        connection = sqlite3.connect(self.root / ".index-lock.sqlite3", timeout=5, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            path = self.folder / "index.json"
            index = json.loads(path.read_text(encoding="utf-8"))
            if entry is None:
                index["items"].pop(record_id, None)
            else:
                index["items"][record_id] = {**index["items"].get(record_id, {}), **entry}
            self.replace(path, index)
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            self.lock_failures += 1
        finally:
            connection.close()

    def change(self, record_id: str, turn: int, touch: bool) -> None:
        path = self.folder / f"{record_id}.json"
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.missing += 1
            return
        if touch:
            row["access_count"] = int(row.get("access_count") or 0) + 1
            row["last_accessed_at"] = "2026-12-01T00:00:00+00:00"
            self.touched[record_id] += 1
        else:
            row["x_edits"] = int(row.get("x_edits") or 0) + 1
            self.edited[record_id] += 1
        time.sleep(self.think)
        self.replace(path, row)
        self.index(record_id, {"id": record_id, "timestamp": turn})

    def insert(self, number: int) -> None:
        record_id = f"new-{os.getpid()}-{number}"
        row = {"_id": record_id, "id": record_id, "content": f"news {number}", "timestamp": time.time()}
        self.replace(self.folder / f"{record_id}.json", row)
        self.index(record_id, {"id": record_id})
        self.inserted.append(record_id)

    def delete(self, record_id: str) -> None:
        (self.folder / f"{record_id}.json").unlink(missing_ok=True)
        self.index(record_id, None)


def main() -> None:
    order = json.load(sys.stdin)
    agent = Agent(Path(sys.argv[1]), sys.argv[2], float(order.get("think", 0)))
    touch, edit, doomed = order.get("touch", []), order.get("edit", []), list(order.get("delete", []))
    turns, inserts, reborn = int(order["turns"]), int(order.get("insert", 0)), 0
    print("ready", flush=True)
    for turn in range(turns):
        changed = [*touch, *edit]
        record_id = changed[turn % len(changed)]
        agent.change(record_id, turn, record_id in touch)
        if len(agent.inserted) < inserts * (turn + 1) // turns:
            agent.insert(turn)
        if doomed and turn >= turns // 2:
            agent.delete(doomed.pop())
        if turn > turns // 2 + len(order.get("delete", [])):
            reborn += sum((agent.folder / f"{name}.json").exists() for name in order.get("delete", []))
    told = {
        "touched": agent.touched,
        "edited": agent.edited,
        "inserted": agent.inserted,
        "lock_failures": agent.lock_failures,
        "missing": agent.missing,
        "reborn": reborn,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
