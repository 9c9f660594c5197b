"""Which room may touch what (HOUSE.md): imports, clocks, environment, network."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

CORE = sorted(path for path in (REPOSITORY / "fallow").rglob("*.py") if "cli" not in path.parts)
#: Libraries that talk to the world, or drive the pipeline: none of the core's business.
OUTSIDE = {
    "aiohttp",
    "asyncio",
    "great_expectations",
    "http",
    "httpx",
    "multiprocessing",
    "notion_client",
    "openai",
    "oracledb",
    "prefect",
    "pyarrow",
    "pymongo",
    "pymongoarrow",
    "requests",
    "shutil",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "urllib.request",
    "urllib3",
}
#: What tells the time, what reads the environment, what reaches files: by the name's end, whatever it is called on.
CLOCKS = {"now", "utcnow", "today", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
ENVIRONMENT = {"environ", "environb", "getenv"}
FILES = {"read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "scandir", "listdir"}
#: The one room for each.
HOMES = {
    "clock": "fallow/model/times.py",
    "environment": "fallow/model/settings.py",
    "files": "fallow/acting/configured_files.py",
}


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Modules, and names taken from modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, name.name) for name in node.names)


def faults(source: str, name: str) -> list[str]:
    """What a core module does that it may not."""
    tree = ast.parse(source)
    found = []
    for module, taken in imported(tree):
        if {module, module.split(".")[0], f"{module}.{taken}"} & OUTSIDE:
            found.append(f"imports {module} {taken}")
        if module == "time" and name != HOMES["clock"]:
            found.append("imports time")
        if module == "os" and taken in ENVIRONMENT:
            found.append("reads the environment")
    # An instant is an argument: the clock stands in for one that the caller left out, nowhere else.
    allowed = {
        id(node.body)
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp) and ast.unparse(node.test) == "now is None" and ast.unparse(node.orelse) == "now"
    }
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            asked = node in called or ast.unparse(node.value).split(".")[-1] in {"datetime", "date", "time"}
            if node.attr in CLOCKS and asked and name != HOMES["clock"]:
                found.append(f"asks the clock: {ast.unparse(node)}")
            if node.attr in ENVIRONMENT and name != HOMES["environment"]:
                found.append("reads the environment")
            if node.attr in FILES and (name != HOMES["files"] or node.attr != "read_text"):
                found.append(f"reaches files: {ast.unparse(node)}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"open", "print", "input"}:
                found.append(f"calls {node.func.id}")
            if node.func.id == "wall_clock" and id(node) not in allowed:
                found.append("asks the clock without having been left to")
    return found


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_core_has_no_clock_no_environment_and_no_world_of_its_own(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8"), path.relative_to(REPOSITORY).as_posix()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import prefect.flows",
        "from httpx import get",
        "from urllib import request",
        "def f():\n    import pymongo",
        "import os\nos.environ.get('A')",
        "from os import environ",
        "import os as system\nsystem.getenv('A')",
        "import time\ntime.time()",
        "from time import time",
        "from datetime import datetime\ndatetime.now()",
        "import datetime as d\nd.datetime.now(d.UTC)",
        "from datetime import date\ndate.today()",
        "from datetime import datetime\nclock = datetime.now",
        "from fallow.model.times import wall_clock\ndef f(now): return now or wall_clock()",
        "open('x')",
        "from pathlib import Path\nPath('x').read_text()",
        "print('x')",
    ],
)
def test_the_check_above_can_fail(source: str) -> None:
    assert faults(source, "fallow/somewhere.py")


def linked(folder: Path, copied: str | None = None) -> Path:
    """The package as it is installed, as .ci/tree links it; one room copied, so that something can be planted there."""
    script = (REPOSITORY / ".ci" / "tree").read_text(encoding="utf-8")
    (rooms,) = re.findall(r"^for room in ([\w ]+); do", script, re.M)
    (folder / "fallow").mkdir(parents=True)
    homes = {path.name: path for path in (REPOSITORY / "fallow").iterdir() if path.name != "__pycache__"}
    homes |= {room: REPOSITORY / room for room in rooms.split()}
    for name, home in homes.items():
        if name == copied:
            shutil.copytree(home, folder / "fallow" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / "fallow" / name).symlink_to(home)
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    return folder


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environ)


def test_imports_point_one_way(tmp_path: Path) -> None:
    done = lint_imports(linked(tmp_path / "tree"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
    assert len(re.findall(r"KEPT", done.stdout)) == 5


#: (where, what is planted there): one for each boundary, and every kind of import.
PLANTED = [
    ("model/times.py", "import fallow.port.protocol"),
    ("model/record.py", "from fallow.judgement import score"),
    ("port/protocol.py", "from fallow.plans.plan import PlanEntry"),
    ("port/registry.py", "def f():\n    from fallow.usecases.planner import RetentionPlanner"),
    ("judgement/score.py", "from fallow.usecases.forecast import forecast"),
    ("judgement/policy.py", "import fallow.acting.apply"),
    ("plans/plan.py", "import fallow.providers.filesystem"),
    ("acting/apply.py", "from fallow.data_contracts import checking"),
    ("acting/restore.py", "from fallow.showing import words"),
    ("importance/rater.py", "import fallow.tasks.rating"),
    ("ranking/scoring.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fallow.usecases.explain"),
    ("reflection/reflecting.py", "import fallow.cli.app"),
    ("usecases/planner.py", "from fallow.providers.filesystem import FilesystemProvider"),
    ("usecases/explain.py", "from fallow import showing"),
    ("usecases/planning.py", "import fallow.data_contracts.frames"),
    ("showing/__init__.py", "import fallow.tasks.pages"),
    ("tasks/pages.py", "import fallow.flows.plan_retention"),
    ("flows/outcomes.py", "import fallow.cli.app"),
    ("flows/plan_retention.py", "import fallow.providers.mongodb"),
    ("providers/snapshot.py", "import fallow.tasks.reading"),
    ("providers/filesystem.py", "from fallow.acting import apply"),
    ("providers/mongodb.py", "def f():\n    import fallow.judgement.protection"),
    ("providers/notion.py", "import fallow.data_contracts.checking"),
    ("data_contracts/__init__.py", "import fallow.providers.snapshot"),
    ("data_contracts/compiler.py", "from fallow.usecases import planning"),
    ("model/times.py", "def f():\n    from fallow.flows import plan_retention"),
    ("a_room_nobody_placed.py", "import fallow.model"),
]


@pytest.mark.parametrize(("module", "line"), PLANTED, ids=[f"{module}: {line}" for module, line in PLANTED])
def test_imports_the_wrong_way_are_found(tmp_path: Path, module: str, line: str) -> None:
    tree = linked(tmp_path / "tree", copied=module.split("/")[0])
    with (tree / "fallow" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"BROKEN|exhaustive|not listed|Undeclared", done.stdout + done.stderr, re.I)


LOADED = """
import sys
sys.argv = ["fallow", *{arguments!r}]
from fallow.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"prefect", "great_expectations", "pandas", "pyarrow", "openai", "pymongo", "oracledb", "notion_client",
         "altair", "scipy", "sqlalchemy", "fastapi"}}
print("LOADED", sorted(heavy & {{name.partition(".")[0] for name in sys.modules}}))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["retention-plan", "--json"], ["retention-plan", "--help"]])
def test_the_command_line_loads_nothing_heavy(sample_store: Path, arguments: list[str]) -> None:
    arguments = [*arguments, "--store", str(sample_store)] if "--json" in arguments else arguments
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(arguments=arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "LOADED []"


def test_importing_fallow_loads_no_polars_and_no_numpy() -> None:
    code = "import fallow, sys; print(sorted({'polars', 'numpy', 'msgspec', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
