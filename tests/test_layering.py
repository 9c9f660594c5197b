"""Which room may touch what (HOUSE.md): imports, clocks, environment, network."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

CORE = sorted(path for path in (REPOSITORY / "fallow").rglob("*.py") if "cli" not in path.parts)
#: Libraries that talk to the world, or drive the pipeline: none of the core's business.
OUTSIDE = {
    "prefect",
    "pymongo",
    "pymongoarrow",
    "oracledb",
    "notion_client",
    "openai",
    "httpx",
    "requests",
    "socket",
    "urllib.request",
    "http",
    "subprocess",
    "sqlite3",
    "great_expectations",
    "asyncio",
}
CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def faults(source: str, name: str) -> list[str]:
    """What a core module does that it may not."""
    tree = ast.parse(source)
    found = [f"imports {module}" for module in imported(tree) if {module, module.split(".")[0]} & OUTSIDE]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in CLOCKS and name != "times.py":
                found.append(f"asks the clock: {node.value.id}.{node.attr}")
            if (node.value.id, node.attr) in {("os", "environ"), ("os", "getenv")} and name != "settings.py":
                found.append("reads the environment")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "print"}:
            found.append(f"calls {node.func.id}")
    return found


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_core_has_no_clock_no_environment_and_no_world_of_its_own(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8"), path.name) == []


@pytest.mark.parametrize(
    "source",
    [
        "import prefect.flows",
        "from httpx import get",
        "import os\nos.environ.get('A')",
        "import time\ntime.time()",
        "from datetime import datetime\ndatetime.now()",
        "open('x')",
        "print('x')",
    ],
)
def test_the_check_above_can_fail(source: str) -> None:
    assert faults(source, "somewhere.py")


def test_imports_point_one_way() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


LOADED = """
import sys
sys.argv = ["fallow", *{arguments!r}]
from fallow.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"prefect", "great_expectations", "pandas", "pyarrow", "openai", "pymongo", "oracledb", "notion_client",
         "altair", "yaml", "scipy", "sqlalchemy", "fastapi"}}
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
