"""Writes docs/support-matrix.md from what the conformance kit finds on every kind of store that can run here.

python docs/support_matrix.py          runs the kit (two minutes) and writes the page
python docs/support_matrix.py --check  the same, and exit 1 if the page is not current

Needs a checkout with the test group: the servers behind the stores are those of the tests.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "support-matrix.md"
sys.path.insert(0, str(DOCS.parent))

from fallow.providers.conformance import CHECKS, GAPS, run  # noqa: E402

#: What stood behind each column when the kit ran.
BEHIND = {
    "filesystem": "a folder",
    "mongodb": "SecantusDB, a server that speaks MongoDB's protocol",
    "notion": "a stand-in of Notion's API, checked against its published types",
    "oracle": "a stand-in that runs our SQL on PostgreSQL; no database of Oracle's",
}
MARK = {"holds": "yes", "gap": "gap", "not applicable": "–", "fails": "FAILS", "gap closed": "GAP CLOSED"}
INTRO = """# Support matrix

What the conformance kit (`fallow conformance`, [Add a provider](providers.md)) found on each kind of store. Nothing
here is typed by hand: `python docs/support_matrix.py` runs the kit and writes this page.

- **yes**: the check holds.
- **gap**: it does not, which is declared below with its reason. A gap that closes fails the run.
- **–**: it does not apply, as where a fault cannot be brought about in that store, or a power is optional and absent.
"""

Verdicts = Mapping[str, str]


@contextmanager
def backends() -> Iterator[dict[str, Any]]:
    """Every backend that can run here, by name."""
    from tests.providers.backends import backend
    from tests.servers.mongodb import mongodb_server
    from tests.servers.oracle_standin import oracle_standin

    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        for name in ("filesystem", "notion", "mongodb"):
            (folder / name).mkdir()
        address = running.enter_context(mongodb_server(folder / "mongodb"))
        standin = running.enter_context(oracle_standin())
        yield {
            "filesystem": backend("filesystem", folder / "filesystem"),
            "mongodb": backend("mongodb", folder, address),
            "oracle": backend("oracle", folder, "", standin),
            "notion": backend("notion", folder / "notion"),
        }


def verdicts(backend: Any) -> dict[str, str]:
    """The kit's verdict by check."""
    return {result.check.name: result.verdict for result in run(backend)}


def page(found: Mapping[str, Verdicts]) -> str:
    """The page, from the verdicts of every backend."""
    names = list(BEHIND)
    lines = [INTRO, "| Store | Ran on | Holds | Gaps | Does not apply |", "|---|---|---|---|---|"]
    for name in names:
        counts = [sum(1 for verdict in found[name].values() if verdict == kind) for kind in MARK]
        lines.append(f"| {name} | {BEHIND[name]} | {counts[0]} | {counts[1]} | {counts[2]} |")
    for room in dict.fromkeys(check.room for check in CHECKS.values()):
        lines += ["", f"## {room[:1].upper()}{room[1:]}", "", f"| The check | {' | '.join(names)} |"]
        lines.append("|---|" + "---|" * len(names))
        lines += [row(check.name, found) for check in CHECKS.values() if check.room == room]
    lines += ["", "## Declared gaps", "", "| Store | The check | Why |", "|---|---|---|"]
    for name in names:
        lines += [f"| {name} | {cell(CHECKS[check].holds)} | {cell(gap.reason)} |" for check, gap in GAPS[name].items()]
    return "\n".join(lines) + "\n"


def row(check: str, found: Mapping[str, Verdicts]) -> str:
    """One check's row."""
    return f"| {cell(CHECKS[check].holds)} | " + " | ".join(MARK[found[name][check]] for name in BEHIND) + " |"


def cell(text: str) -> str:
    """A sentence within a table."""
    return text.replace("|", "\\|")


def main(arguments: Iterable[str]) -> int:
    """The command."""
    with backends() as every:
        found = {name: verdicts(backend) for name, backend in every.items()}
    text = page(found)
    if "--check" in arguments:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not current:
            print(f"docs/{PAGE.name} is not current: python docs/support_matrix.py writes it")
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote docs/{PAGE.name}")
    bad = [
        f"{name}: {check}" for name, each in found.items() for check, verdict in each.items() if MARK[verdict].isupper()
    ]
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
