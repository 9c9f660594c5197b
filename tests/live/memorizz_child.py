"""What MemoRizz itself does on a store: run by an interpreter that has MemoRizz installed, never by fallow's own.

python memorizz_child.py STORE COMMAND [ARGUMENTS as JSON]; prints one JSON document as its last line.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def opened(store: str) -> Any:
    if store.startswith("mongodb://"):
        from memorizz.memory_provider.mongodb import MongoDBConfig, MongoDBProvider

        head, _, options = store.partition("?")
        base, _, name = head.rpartition("/")
        return MongoDBProvider(
            MongoDBConfig(uri=f"{base}/?{options}", db_name=name, lazy_vector_indexes=True, embedding_provider=None)
        )
    from memorizz.memory_provider import FileSystemConfig, FileSystemProvider

    return FileSystemProvider(FileSystemConfig(root_path=store))


def events(provider: Any, agent: str, plan_id: str | None = None) -> Any:
    from memorizz.learning.control_plane import LearningControlPlane
    from memorizz.learning.store import LearningControlPlaneStore

    store = LearningControlPlaneStore(provider, agent_id=agent)
    types = sorted(str(getattr(event.event_type, "value", event.event_type)) for event in store.list_events())
    found: dict[str, Any] = {"events": types}
    for kind in ("forgetting_planned", "memory_forgotten"):
        found[kind] = types.count(kind)
    if plan_id is not None:
        report = LearningControlPlane(provider, agent_id=agent, config=True).get_forgetting_plan(plan_id)
        found["plan"] = {"plan_id": report.plan_id, "candidates": sorted(item.target_id for item in report.candidates)}
    return found


def apply(provider: Any, agent: str, memory: str) -> Any:
    from memorizz.learning.control_plane import LearningControlPlane
    from memorizz.learning.retention import RetentionConfig

    plane = LearningControlPlane(provider, agent_id=agent, config=True)
    planner = plane.retention_planner(config=RetentionConfig(enabled=True))
    report = planner.plan(memory_ids=[memory])
    done = planner.apply(report, approved_by="ann", reason="old")
    return {"plan_id": report.plan_id, "applied": done.tombstoned, "errors": list(done.errors)}


def unsuppress(provider: Any, agent: str, record_id: str) -> Any:
    from memorizz.enums.memory_type import MemoryType
    from memorizz.learning.control_plane import LearningControlPlane

    plane = LearningControlPlane(provider, agent_id=agent, config=True)
    return plane.unsuppress_memory(record_id, MemoryType.CONVERSATION_MEMORY, approved_by="zoe", reason="needed")


def main() -> None:
    store, command, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
    call = {"events": events, "apply": apply, "unsuppress": unsuppress}[command]
    print(json.dumps(call(opened(store), **arguments)))


if __name__ == "__main__":
    main()
