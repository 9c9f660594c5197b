"""``fallow backfill-importance --mode llm`` from outside (SPEC §3.6, §16)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY, write_as_agent
from tests.fallow.small_stores import CONVERSATION, record
from tests.model_server import ModelServer, Step

KEY = "sk-key-of-the-test"


def fallow(store: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("FALLOW_", "MEMORIZZ_", "OPENAI_"))
    }
    command = [sys.executable, "-m", "fallow", "backfill-importance", "--store", str(store), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=REPOSITORY, env={**env, **environment}, timeout=120
    )


def store_of(folder: Path, rows: int = 20) -> Path:
    root = folder / "store"
    write_as_agent(
        root, {CONVERSATION: [record(f"r{at}", importance=None, content=f"secret text {at}") for at in range(rows)]}
    )
    return root


def settings(server: ModelServer) -> dict[str, str]:
    return {
        "FALLOW_MODEL_BASE_URL": server.url,
        "FALLOW_MODEL_API_KEY": KEY,
        "MEMORIZZ_IMPORTANCE_MODEL": "m",
        "FALLOW_MODEL_PRICES": '{"m": [1.0, 2.0]}',
    }


def test_an_estimate_then_a_budget_then_the_rest(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    with ModelServer() as server:
        done = fallow(store, "--mode", "llm", "--dry-run", "--json", **settings(server))
        assert done.returncode == 0, done.stderr
        estimate = json.loads(done.stdout)["estimate"]
        assert (estimate["rows"], estimate["calls"]) == (20, 3)
        assert estimate["cost"] > 0
        assert server.requests == []
        done = fallow(store, "--mode", "llm", "--max-calls", "1", "--json", **settings(server))
        report: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode, report["state"], report["rated"], report["left"]) == (0, "Rated", 8, 12)
        assert report["stopped"]
        done = fallow(store, "--order", "oldest", MEMORIZZ_IMPORTANCE_RATER="llm", **settings(server))
        assert done.returncode == 0, done.stderr
        assert "12 of 20 records rated" in done.stdout
        assert server.paid_calls == 3
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        for text in (done.stdout, done.stderr):
            assert KEY not in text
            assert "secret text" not in text


def test_a_useless_model_and_a_refused_key_exit_1(tmp_path: Path) -> None:
    store = store_of(tmp_path, 40)
    with ModelServer(answer=lambda rows: json.dumps({row["id"]: 5 for row in rows})) as server:
        done = fallow(store, "--mode", "llm", "--json", "--in-flight", "1", **settings(server))
        assert done.returncode == 1
        assert json.loads(done.stdout)["state"] == "NeedsAttention"
    with ModelServer([Step(401)]) as server:
        done = fallow(store, "--mode", "llm", "--purpose", "other", **settings(server))
        assert done.returncode == 1
        assert "refuses the key" in done.stderr
        assert KEY not in done.stderr


def test_batch_jobs_are_handed_in_and_collected(tmp_path: Path) -> None:
    store, cache = store_of(tmp_path), {"FALLOW_CACHE_DIR": str(tmp_path / "cache")}
    with ModelServer() as server:
        done = fallow(store, "--mode", "llm", "--batch", "--json", **settings(server), **cache)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["submitted"]["jobs"]) == 1
        server.work_off(server.jobs["batch-0"])
        done = fallow(store, "--mode", "llm", "--batch", **settings(server), **cache)
        assert done.returncode == 0, done.stderr
        assert "1 jobs collected: 20 texts rated" in done.stdout
        assert "by llm: 20" in done.stdout


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    for arguments, words, code in (
        (("--mode", "llm"), "no model is named", 1),
        (("--mode", "magic"), "must be one of", 1),
        (("--max-cost", "1"), "--max-cost is for a model", 2),
        (("--batch",), "--batch is for a model", 2),
        (("--upgrade-heuristic",), "--upgrade-heuristic is for a model", 2),
        (("--mode", "llm", "--model", "m", "--order", "best"), "--order", 2),
        (("--mode", "llm", "--model", "m", "--max-cost", "1"), "price", 1),
        (("--mode", "llm", "--model", "m", "--base-url", "nowhere"), "base_url", 1),
    ):
        done = fallow(store, *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_sample_is_read_and_a_useless_model_is_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path, 90)
    with ModelServer() as server:
        done = fallow(store, "--mode", "distilled", "--sample", "60", "--dry-run", "--json", **settings(server))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["estimate"]["calls"] == 8
        assert server.requests == []
        done = fallow(store, "--mode", "distilled", "--sample", "60", "--json", **settings(server))
        report: dict[str, Any] = json.loads(done.stdout)
        # The scripted model rates by a hash of the text.
        assert (done.returncode, report["state"], report["rated"], report["taught"]) == (1, "NeedsAttention", 0, 60)
        assert "nothing was written" in report["problem"]
        done = fallow(store, "--mode", "distilled", "--sample", "60", **settings(server))
        assert "agreement on records left out" in done.stdout
        for wrong, hint in (
            (("--mode", "distilled"), "--sample"),
            (("--sample", "60"), "--mode distilled"),
            (("--mode", "distilled", "--sample", "9"), "--sample 50"),
        ):
            done = fallow(store, *wrong, **settings(server))
            assert done.returncode in {1, 2}
            assert hint in done.stderr
