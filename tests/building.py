"""Wheels and source distributions as setuptools builds them, beside the checkout and without fetching anything."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.conftest import REPOSITORY

_CALL = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def copy_of_the_checkout(target: Path) -> Path:
    """Every tracked file: building leaves its traces there."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in done.stdout.split("\0"):
        if name and (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, target / name)
    return target


def build(kind: Literal["wheel", "sdist"], source: Path, target: Path) -> Path:
    """Builds the project in ``source`` into ``target``, by the backend that its pyproject names; the file."""
    target.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _CALL, f"build_{kind}", str(target.resolve())]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]
