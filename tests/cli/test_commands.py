"""The command line from outside: help, one JSON document, exit codes, one clear line (SPEC §14, §16)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fallow.cli.app import app
from fallow.cli.commands import register
from fallow.model.errors import FallowError
from fallow.port.registry import open_provider
from tests.conftest import REPOSITORY, write_as_agent
from tests.fallow.small_stores import CONVERSATION, days_ago, record, tree

SECRET = "hunter2-secret"
TEXT = "the gate code is 4711"


def fallow(*arguments: Any, **environ: str) -> subprocess.CompletedProcess[str]:
    """A fallow process, as a person starts it."""
    command = [sys.executable, "-m", "fallow", *map(str, arguments)]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, env={**os.environ, **environ}, check=False
    )


def document(*arguments: Any, code: int = 0, **environ: str) -> dict[str, Any]:
    """What a command says with --json: exactly one JSON document on stdout."""
    done = fallow(*arguments, "--json", **environ)
    assert done.returncode == code, (done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0])
    assert found["schema_version"] == 1
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten records that the defaults find eligible today, and one that is pinned; texts and a name to look for."""
    root = tmp_path / "store"
    rows = [record(f"r{n}", days=200 + n, content=TEXT) for n in range(10)] + [record("pinned", days=300, pinned=True)]
    write_as_agent(root, {CONVERSATION: rows, "shared_memory": []})
    return root


def names() -> list[str]:
    register(app)
    return sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_every_command_has_help_and_stands_in_the_docs_16() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    documented = re.findall(r"^## fallow ([a-z-]+)$", text, flags=re.MULTILINE)
    assert sorted(documented) == names()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert command.help, name
        for option in command.params:
            assert getattr(option, "help", None), f"{name} {option.name}"
        section = text.split(f"## fallow {name}\n")[1].split("\n## ")[0]
        for option in command.params:
            for flag in option.opts:
                if flag.startswith("--") and flag not in {"--store", "--json", "--agent-id", "--memory-id"}:
                    assert flag in section or flag in {"--user-id", "--thread-id"}, f"{name}: {flag} is not in the docs"


def test_from_plan_to_restore_on_the_command_line_16(store: Path) -> None:
    at = ("--store", store)
    rated = document("backfill-importance", *at)
    assert (rated["rated"], rated["already_rated"]) == (0, 11)
    plan = document("retention-plan", *at, "--detailed-exitcode", "--requested-by", "Ada", code=10)
    assert (plan["counts"]["planned"], plan["counts"]["protected"]["pinned"]) == (10, 1)
    assert document("plans", *at)["plans"][0]["state"] == "planned"
    shown = document("show", plan["plan_id"], *at)
    assert shown["entries"] == plan["entries"]
    who = ("--approved-by", "Grace", "--reason", "spring")
    refused = document("retention-apply", plan["plan_id"], *who, *at, code=1)
    assert "--count" in refused["error"]["hint"]
    done = document("retention-apply", plan["plan_id"], *who, "--count", 10, "--leave-out", "r3", *at)
    assert (done["applied"], done["left_out"], done["state"]) == (9, ["r3"], "Applied")
    again = document("retention-apply", plan["plan_id"], *who, "--count", 10, "--leave-out", "r3", *at)
    assert (again["applied"], again["already"]) == (0, 9)
    hidden = document("suppressed", *at)
    assert hidden["count"] == 9
    assert set(hidden["records"][0]) >= {"record_id", "memory_type", "suppressed_by", "suppressed_at", "approver"}
    told = document("explain", "r1", *at)
    assert told["retention_state"] == "suppressed"
    one = document("unsuppress", "r1", "--memory-type", CONVERSATION, "--approved-by", "Grace", *at)
    assert one["restored"] == ["r1"]
    rest = document("restore", "--plan", plan["plan_id"], "--approved-by", "Grace", *at)
    assert (rest["applied"], rest["already"]) == (8, 1)
    assert document("suppressed", *at)["count"] == 0
    touched = document("touch", "r1", "r9", "never", "--memory-type", CONVERSATION, *at)
    assert (touched["touched"], touched["gone"]) == (["r1", "r9"], ["never"])
    assert document("retention-plan", *at, "--detailed-exitcode")["counts"]["planned"] == 0


def test_approve_and_reject_record_a_decision_and_touch_no_record_16(store: Path) -> None:
    at = ("--store", store)
    plan_id = document("retention-plan", *at, "--publish")["plan_id"]
    before = tree(store / CONVERSATION)
    approved = document("approve", plan_id, "--approved-by", "Ada", "--count", 10, *at, FALLOW_APPROVERS="Ada,Bob")
    assert (approved["decision"], approved["standing"]) == ("approved", "claimed")
    assert document("reject", plan_id, "--approved-by", "Bob", *at, code=1)["error"]["code"]
    other = document("retention-plan", *at, "--max-candidates", 3)["plan_id"]
    assert document("reject", other, "--approved-by", "Bob", "--reason", "no", *at)["decision"] == "rejected"
    assert document("retention-apply", other, "--approved-by", "Ada", *at, code=1)
    assert tree(store / CONVERSATION) == before


BAD: dict[str, tuple[list[str], int, str]] = {
    "no store": (["retention-plan", "--store", "{tmp}/nowhere"], 1, "nowhere"),
    "a file for a store": (["retention-plan", "--store", "{tmp}/file"], 1, "file"),
    "no store named": (["retention-plan"], 2, "FALLOW_STORE"),
    "unknown scheme": (["plans", "--store", "ftp://x/y"], 1, "ftp"),
    "no such plan": (["show", "forget-plan-" + "0" * 28, "--store", "{store}"], 1, "forget-plan-"),
    "no plan id": (["retention-apply", "../../etc", "--approved-by", "Ada", "--store", "{store}"], 1, "plan id"),
    "blank approver": (["retention-apply", "{plan}", "--approved-by", "  ", "--store", "{store}"], 1, "approver"),
    "unknown approver": (["approve", "{plan}", "--approved-by", "Mallory", "--store", "{store}"], 1, "Mallory"),
    "wrong count": (["approve", "{plan}", "--approved-by", "Ada", "--count", "3", "--store", "{store}"], 1, "3"),
    "left out, not planned": (
        ["approve", "{plan}", "--approved-by", "Ada", "--count", "10", "--leave-out", "x9", "--store", "{store}"],
        1,
        "x9",
    ),
    "no such record": (["explain", "never", "--store", "{store}"], 1, "never"),
    "no such type": (["touch", "r1", "--memory-type", "agents", "--store", "{store}"], 2, "agents"),
    "no time": (["retention-plan", "--as-of", "soon", "--store", "{store}"], 2, "soon"),
    "out of range": (["retention-plan", "--min-retention", "7", "--store", "{store}"], 1, "min_retention"),
    "no number": (["retention-plan", "--grace-days", "many", "--store", "{store}"], 2, "grace"),
    "no such option": (["retention-plan", "--skip-confirmation"], 2, "skip-confirmation"),
    "no such command": (["forget"], 2, "forget"),
    "no approver": (["retention-apply", "{plan}", "--store", "{store}"], 2, "approved-by"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_clear_line_and_nothing_is_written_14(store: Path, tmp_path: Path, name: str) -> None:
    arguments, code, word = BAD[name]
    (tmp_path / "file").write_text("x")
    plan = document("retention-plan", "--store", store)["plan_id"]
    named = [item.format(tmp=tmp_path, store=store, plan=plan) for item in arguments]
    before = tree(tmp_path)
    done = fallow(*named, FALLOW_APPROVERS="Ada", FALLOW_STORE="")
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, done.stderr
    assert word in lines[0]
    assert done.stdout == ""
    told = json.loads(fallow(*named, "--json", FALLOW_APPROVERS="Ada", FALLOW_STORE="").stdout)
    assert set(told["error"]) == {"code", "message", "hint"}
    assert tree(tmp_path) == before


AS_NOBODY = """
import contextlib, io, os, sys
from fallow.cli.app import run
# Once on another store, so that everything is imported that another user may not read.
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    assert run([*sys.argv[2:-1], sys.argv[1]]) == 0
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(run(sys.argv[2:]))
"""


def as_nobody(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """A fallow process of a user whom file permissions bind: root stops being root after the imports."""
    store = Path(arguments[-1])
    command = [sys.executable, "-c", AS_NOBODY, str(store.with_name("another")), *map(str, arguments)]
    environ = {**os.environ, "XDG_CACHE_HOME": str(store.with_name("cache"))}
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=environ, check=False)


@pytest.fixture
def open_folder(store: Path) -> Iterator[Path]:
    """The store in a folder that another user can get to; a second one beside it."""
    base = Path(tempfile.mkdtemp(prefix="fallow-test-"))
    base.chmod(0o755)
    shutil.copytree(store, base / "store")
    shutil.copytree(store, base / "another")
    yield base / "store"
    shutil.rmtree(base)


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-that-name/x", "a\0b", "{tmp}/loop", "file:///a%00b", " "])
def test_an_address_that_no_folder_can_have_is_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(FallowError):
        open_provider(name.format(tmp=tmp_path))


def test_a_folder_that_cannot_be_read_is_no_empty_store_1_4(open_folder: Path) -> None:
    folder = open_folder / CONVERSATION
    folder.chmod(0o000)
    done = as_nobody("retention-plan", "--json", "--store", open_folder)
    folder.chmod(0o755)
    assert done.returncode == 1
    assert CONVERSATION in json.loads(done.stdout)["error"]["message"]
    assert not list((open_folder / "shared_memory").glob("fallow-*"))


def test_a_record_that_cannot_be_read_is_reported_1_2(open_folder: Path) -> None:
    for path in open_folder.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    open_folder.chmod(0o777)
    (open_folder / CONVERSATION / "r4.json").chmod(0o000)
    done = as_nobody("retention-plan", "--json", "--store", open_folder)
    # One file of a store that denies reading: either it is named as unreadable, or the run says why it ended.
    told = json.loads(done.stdout)
    if done.returncode == 0:
        assert told["counts"]["protected"]["unreadable"] == 1
    else:
        assert "r4" in told["error"]["message"] or CONVERSATION in told["error"]["message"]


def test_a_store_that_is_read_only_is_one_clear_line(open_folder: Path) -> None:
    before = tree(open_folder)
    done = as_nobody("retention-plan", "--json", "--store", open_folder)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["hint"]
    assert tree(open_folder) == before


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = ["fallow", *sys.argv[2:]]
from fallow.cli.app import run
sys.exit(run())
"""


def test_a_disk_that_is_full_at_the_write_leaves_nothing_half_written(store: Path) -> None:
    """A limit on the size of files stands for a full disk: writes end with an error in the middle."""
    plan_id = document("retention-plan", "--store", store)["plan_id"]
    before = tree(store)
    arguments = ["retention-apply", plan_id, "--approved-by", "Ada", "--count", "10", "--json", "--store", str(store)]
    command = [sys.executable, "-c", LIMITED, "300", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode in {1, 5}, done.stderr
    assert len(done.stdout.splitlines()) == 1
    after = tree(store)
    assert {name: after[name] for name in before} == before
    for data in after.values():
        json.loads(data)
    assert document(*arguments[:-3], "--store", store)["applied"] == 10


def test_a_torn_record_is_counted_and_left(store: Path) -> None:
    (store / CONVERSATION / "r1.json").write_text('{"_id": "r1", "cont')
    plan = document("retention-plan", "--store", store)
    assert (plan["counts"]["protected"]["unreadable"], plan["counts"]["planned"]) == (1, 9)
    assert (store / CONVERSATION / "r1.json").read_text() == '{"_id": "r1", "cont'


def test_three_refusals_leave_nothing_behind_trap_36(store: Path) -> None:
    plan_id = document("retention-plan", "--store", store)["plan_id"]
    before = tree(store)
    for approver, identifier in (("  ", plan_id), ("Mallory", plan_id), ("Ada", plan_id[:-2] + "zz")):
        done = fallow(
            "retention-apply", identifier, "--approved-by", approver, "--store", store, FALLOW_APPROVERS="Ada"
        )
        assert done.returncode == 1
    assert tree(store) == before
    assert document("reject", plan_id, "--approved-by", "Ada", "--store", store)["decision"] == "rejected"
    assert document("retention-apply", plan_id, "--approved-by", "Ada", "--count", 10, "--store", store, code=1)


def test_no_text_and_no_secret_in_any_output_14(store: Path) -> None:
    environ = {"FALLOW_ORACLE_PASSWORD": SECRET, "NOTION_TOKEN": SECRET, "MEMORIZZ_API_KEY": SECRET}
    plan_id = document("retention-plan", "--store", store)["plan_id"]
    runs: list[tuple[Any, ...]] = [
        ("retention-plan", "--store", store),
        ("retention-plan", "--json", "--store", store),
        ("show", plan_id, "--json", "--store", store),
        ("retention-apply", plan_id, "--approved-by", "Ada", "--count", 10, "--json", "--store", store),
        ("suppressed", "--store", store),
        ("explain", "r1", "--store", store),
        ("explain", "r1", "--json", "--store", store),
        ("backfill-importance", "--json", "--store", store),
        ("settings", "--json"),
        ("doctor", "--json", "--store", store),
        ("plans", "--store", f"mongodb://user:{SECRET}@127.0.0.1:1/db?serverSelectionTimeoutMS=100"),
        ("plans", "--store", f"mongodb://user:{SECRET}@[::bad/db"),
        ("plans", "--store", f"oracle://user:{SECRET}@127.0.0.1:1/x"),
        ("plans", "--store", "notion://0123456789abcdef0123456789abcdef?base_url=http://notion.invalid"),
        ("plans", "--store", "mongodb://127.0.0.1:1/db?serverSelectionTimeoutMS=100", "--json"),
    ]
    for arguments in runs:
        done = fallow(*arguments, **environ, FALLOW_DEBUG="")
        assert done.returncode in {0, 1, 2}, (arguments, done.stderr)
        assert SECRET not in done.stdout + done.stderr, arguments
        assert TEXT not in done.stdout + done.stderr, arguments


def test_a_store_that_is_read_in_doctor_says_how_it_stands(store: Path) -> None:
    told = document("doctor", "--store", store)
    assert told["checks"]
    assert {check["state"] for check in told["checks"]} <= {"ok", "info", "warning", "error"}


def test_the_demo_runs_every_step(tmp_path: Path) -> None:
    told = document("demo", "--directory", tmp_path / "demo")
    assert told["apply"]["applied"] > 0
    assert told["restore"]["applied"] == told["apply"]["applied"]
    done = fallow("demo")
    assert done.returncode == 0
    assert "Nothing was deleted" in done.stdout
    assert fallow("demo", "--directory", tmp_path / "demo").returncode == 2


def test_the_demo_can_stop_at_the_store(tmp_path: Path) -> None:
    told = document("demo", "--directory", tmp_path / "memory", "--store-only")
    assert told["store"]["rows"]["conversation_memory"] > 100
    assert document("plans", "--store", tmp_path / "memory")["count"] == 0
    assert document("retention-plan", "--store", tmp_path / "memory", "--min-retention", "0.25")["entries"]
    for wrong in (("--store-only",), ("--serve", "--json"), ("--serve", "--store-only", "--directory", tmp_path / "x")):
        assert fallow("demo", *wrong).returncode == 2
    assert not (tmp_path / "x").exists()


def test_settings_say_where_each_came_from_6_1(store: Path) -> None:
    agents = [{"_id": "a1", "agent_id": "a1", "retrieval_policy": {"retention": {"min_retention": "0.4"}}}]
    write_as_agent(store, {"agents": agents})
    environ = {"MEMORIZZ_RETENTION_MIN_SCORE": "0.3", "MEMORIZZ_RETENTION_GRACE_DAYS": "soon"}
    told = document("settings", "--agent-id", "a1", "--store", store, **environ)
    assert told["settings"]["retention.min_retention"] | {"environment": ""} == {
        "value": 0.4,
        "origin": "agent",
        "environment": "",
    }
    assert told["settings"]["retention.grace_days"]["origin"] == "default"
    assert any("MEMORIZZ_RETENTION_GRACE_DAYS" in problem for problem in told["problems"])


def test_purge_cache_says_what_it_would_remove(store: Path) -> None:
    rows = [{"_id": "old", "query": "q", "timestamp": days_ago(9)}, {"_id": "q2", "query": "q"}]
    write_as_agent(store, {"semantic_cache": rows})
    assert document("purge-cache", "--dry-run", "--store", store)["expired"] == ["old"]
    assert document("purge-cache", "--store", store)["removed"] == ["old"]
    with open_provider(str(store)) as provider:
        assert [row["_id"] for row in provider.find("semantic_cache")] == ["q2"]


def test_the_shell_completes_commands_and_options_16() -> None:
    """As the scripts that --show-completion prints ask for it."""
    for words, position, expected in (
        ("fallow retention-", "1", "retention-plan"),
        ("fallow plans --st", "2", "--store"),
    ):
        environment = {**os.environ, "_FALLOW_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
        command = [str(Path(sys.executable).with_name("fallow"))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert expected in done.stdout.split(), done.stdout + done.stderr
