"""What a security scanner says of the product, and whose licences it rests on: each finding is explained here.

A finding that nobody explained fails, and so does an explanation of a finding that is gone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement

from tests.conftest import REPOSITORY

OWN_PROCESS = "our own interpreter or server, a list of arguments, no shell"
OWN_ADDRESS = "the scheme was checked to be http or https just before"
NO_VALUES = "only names of tables and columns stand in the text; every value is bound"

#: (file, bandit's rule): why it is no fault.
EXPLAINED = {
    ("data_contracts/compiler.py", "B506"): "the C form of the safe loader, else the safe loader",
    ("data_contracts/second_opinion.py", "B404"): OWN_PROCESS,
    ("data_contracts/second_opinion.py", "B603"): OWN_PROCESS,
    ("fallow/cli/serve.py", "B404"): OWN_PROCESS,
    ("fallow/cli/serve.py", "B603"): OWN_PROCESS,
    ("fallow/cli/serve.py", "B310"): OWN_ADDRESS,
    ("fallow/cli/server.py", "B310"): OWN_ADDRESS,
    ("fallow/cli/variable.py", "B310"): OWN_ADDRESS,
    ("fallow/cli/waiting.py", "B310"): OWN_ADDRESS,
    ("fallow/usecases/sample.py", "B311"): "a made-up year for a demo, reproducible by its seed",
    ("providers/model_answers.py", "B608"): "only question marks stand in the text; every value is bound",
    ("providers/notion_pages.py", "B101"): "for the type checker: the line before has seen to it",
    ("providers/oracle_statements.py", "B608"): NO_VALUES,
}

#: Licences under which the product may be used and passed on with its dependencies.
PERMISSIVE = re.compile(
    r"(?i)\b(MIT|MIT-0|BSD|0BSD|Apache|ISC|ISCL|PSF|Python Software Foundation|Unlicense|Zlib|CC0|UPL|MPL|"
    r"Mozilla Public License|HPND|CNRI)\b"
)
RESTRICTING = re.compile(r"(?i)\b(GPL\w*|AGPL\w*|LGPL\w*|General Public|SSPL|BUSL|Commons Clause|Proprietary)")
#: Dependencies whose licence needs a word.
CHOSEN = {
    "text-unidecode": "under the Artistic License, which it offers beside the GPL; through Prefect, by python-slugify",
}


def bandit() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "bandit", "-q", "-f", "json", "-r"]
    rooms = ["fallow", "providers", "data_contracts", "tasks", "flows", "deployments"]
    done = subprocess.run([*command, *rooms], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["metrics"]["_totals"]["loc"] > 10_000
    found: list[dict[str, Any]] = report["results"]
    return found


def test_every_finding_of_bandit_is_explained_and_none_is_high() -> None:
    found = bandit()
    unexplained = [
        f"{item['filename']}:{item['line_number']} {item['test_id']} {item['issue_text']}"
        for item in found
        if (item["filename"].removeprefix("./"), item["test_id"]) not in EXPLAINED
    ]
    assert unexplained == []
    assert [item for item in found if item["issue_severity"] == "HIGH"] == []
    there = {(item["filename"].removeprefix("./"), item["test_id"]) for item in found}
    assert sorted(set(EXPLAINED) - there) == [], "explained, and not found any more"


def licence(name: str) -> str:
    """A distribution's licence as it declares it."""
    about = distribution(name).metadata
    classified = [item for item in about.get_all("Classifier") or [] if item.startswith("License ::")]
    return about.get("License-Expression") or "; ".join(classified) or (about.get("License") or "none")[:200]


def dependencies() -> set[str]:
    """Every distribution that fallow with all its extras brings along, by walking what each requires."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    waiting, seen = [Requirement(item) for item in first], set()
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if (name, frozenset(wanted.extras)) in done:
            continue
        done.add((name, frozenset(wanted.extras)))
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # for another platform or Python
        seen.add(name)
        for item in map(Requirement, requires):
            extras = [*wanted.extras, ""]
            if item.marker is None or any(item.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(item)
    return seen


def test_every_dependency_has_a_licence_that_the_product_can_be_passed_on_with() -> None:
    names = dependencies()
    assert len(names) > 60
    assert {"cryptography", "polars", "prefect", "pymongo", "oracledb", "great-expectations"} <= names
    licences = {name: licence(name) for name in names - CHOSEN.keys()}
    wrong = {n: text for n, text in licences.items() if RESTRICTING.search(text) or not PERMISSIVE.search(text)}
    assert wrong == {}
    assert CHOSEN.keys() <= names, "explained, and not used any more"


def test_what_only_development_uses_is_no_dependency_of_the_product() -> None:
    """SecantusDB is under the GPL: a server for tests, never imported."""
    assert not {"secantusdb", "psycopg", "pytest", "bandit"} & dependencies()
