"""Writes docs/structure.md and its drawing from the imports of the code as it stands.

python docs/structure.py          writes both
python docs/structure.py --check  exit 1 if they are not current
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
PAGE = DOCS / "structure.md"
DRAWING = DOCS / "images" / "structure.svg"
#: Rooms that the repository keeps beside the core, and what came in by entry point alone.
BESIDE = ("data_contracts", "flows", "providers", "tasks")
PLUGGED = ("providers", "data_contracts")
WIDTH, ROW, BOX, HIGH = 980, 92, 132, 40
INTRO = """# How the code is built

Made by `python docs/structure.py` from the imports in the code; `lint-imports` holds the layers, and a test plants a
wrong import at each border and sees it refused. A room imports only what lies below it. Nobody imports providers or
the data contracts: they come in by entry point, as anyone's would.

![The rooms and their imports](images/structure.svg)
"""


def layers() -> list[list[str]]:
    """The rooms by layer, the topmost first, as pyproject.toml holds them."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    found = next(item["layers"] for item in contracts if item["type"] == "layers")
    return [[name.strip().removeprefix("fallow.") for name in line.replace("|", ":").split(":")] for line in found]


def _modules() -> Iterator[tuple[str, Path]]:
    for folder in sorted((REPOSITORY / "fallow").iterdir()):
        if folder.is_dir() and (folder / "__init__.py").is_file():
            yield from ((folder.name, path) for path in sorted(folder.rglob("*.py")))
    for name in BESIDE:
        yield from ((name, path) for path in sorted((REPOSITORY / name).rglob("*.py")))


def edges() -> dict[str, set[str]]:
    """By room, the other rooms that its modules import."""
    found: dict[str, set[str]] = {}
    for room, path in _modules():
        mine = found.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                parts = (name or "").split(".")
                if parts[0] == "fallow" and len(parts) > 1 and parts[1] != room:
                    mine.add(parts[1])
    rooms = set(found)
    return {room: targets & rooms for room, targets in found.items()}


def _purposes() -> dict[str, str]:
    said: dict[str, str] = {}
    for room, path in _modules():
        if path.name == "__init__.py" and path.parent.name == room:
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            said[room] = " ".join(text.split("\n\n")[0].split())
    return said


def page(imports: Mapping[str, set[str]]) -> str:
    """The page: a table of rooms, the topmost first."""
    purposes = _purposes()
    lines = [INTRO, "| Room | What is in it | Imports |", "|---|---|---|"]
    for layer in [*layers(), list(PLUGGED)]:
        for room in layer:
            lines.append(f"| `fallow.{room}` | {purposes.get(room, '')} | {', '.join(sorted(imports.get(room, ())))} |")
    return "\n".join(lines) + "\n"


def drawing(imports: Mapping[str, set[str]]) -> str:
    """The rooms as boxes, layer under layer, and a line for each import between rooms."""
    rows = layers()
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        wide = WIDTH - 180
        for column, room in enumerate(row):
            place[room] = ((column + 0.5) * wide / len(row), 20 + number * ROW)
    for number, room in enumerate(PLUGGED):
        place[room] = (WIDTH - 80, 20 + (len(rows) - 4 + number) * ROW)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="Rooms of fallow, each importing only what lies below it">'
    )
    out = [head, f'<rect width="{WIDTH}" height="{len(rows) * ROW}" fill="white"/>']
    for room, targets in sorted(imports.items()):
        for target in sorted(targets):
            if room in place and target in place:
                (x1, y1), (x2, y2) = place[room], place[target]
                colour = "#b9770e" if room in PLUGGED else "#9aa5b1"
                out.append(
                    f'<line x1="{x1:.0f}" y1="{y1 + HIGH:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{colour}"/>'
                    if y1 != y2
                    else f'<path d="M{x1:.0f},{y1 + HIGH:.0f} Q{(x1 + x2) / 2:.0f},{y1 + HIGH + 26:.0f} '
                    f'{x2:.0f},{y2 + HIGH:.0f}" fill="none" stroke="{colour}" stroke-dasharray="3 3"/>'
                )
    for room, (x, y) in place.items():
        out.append(
            f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="5" fill="#eef2f6" '
            f'stroke="#44546a"/><text x="{x:.0f}" y="{y + 25:.0f}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> int:
    imports = edges()
    wanted = {PAGE: page(imports), DRAWING: drawing(imports)}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} is not current: python docs/structure.py writes it")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
