"""Times MemoRizz's own apply and suppressed view on a filesystem store, for a ratio; run by a Python that has it.

peer_apply.py STORE RECORDS    -> two JSON lines
"""

import json
import logging
import sys
import time

logging.disable(logging.WARNING)
from memorizz.learning.retention import RetentionConfig, RetentionPlanner  # noqa: E402
from memorizz.memagent.utils.context_dedup import RetrievalScoring  # noqa: E402
from memorizz.memory_provider.filesystem import FileSystemConfig, FileSystemProvider  # noqa: E402

NOW = 1_796_000_000.0
provider = FileSystemProvider(FileSystemConfig(root_path=sys.argv[1], use_faiss=False))
config = RetentionConfig(enabled=True, max_candidates=int(sys.argv[2]))
planner = RetentionPlanner(provider, agent_id="", config=config, scoring=RetrievalScoring())
plan = planner.plan(now=NOW)


def tell(piece: str, began: tuple[float, float], **more: int) -> None:
    """One JSON line: CPU and wall seconds since ``began``."""
    cpu, wall = time.process_time() - began[0], time.perf_counter() - began[1]
    print(json.dumps({"piece": piece, "cpu_s": round(cpu, 3), "wall_s": round(wall, 3), **more}))


start = time.process_time(), time.perf_counter()
planner.apply(plan, approved_by="Ada", reason="timing")
tell("peer's apply", start, applied=len(plan.candidates))
start = time.process_time(), time.perf_counter()
hidden = planner.suppressed()
tell("peer's suppressed", start, suppressed=len(hidden))
