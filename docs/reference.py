"""Writes the reference pages that follow from code: docs/cli.md, docs/settings.md and docs/api.md.

python docs/reference.py          writes them
python docs/reference.py --check  exit 1 if they are not current
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

import fallow
from fallow.cli.app import app
from fallow.cli.commands import register
from fallow.model.settings import SETTINGS

DOCS = Path(__file__).resolve().parent

EXAMPLES = {
    "demo": "fallow demo --directory ./orchard",
    "retention-plan": "fallow retention-plan --agent-id agent-orchard --min-retention 0.2",
    "approve": "fallow approve forget-plan-… --approved-by Ada --reason spring --leave-out 42 --count 120",
    "reject": "fallow reject forget-plan-… --approved-by Ada --reason 'too much'",
    "retention-apply": "fallow retention-apply forget-plan-… --approved-by Ada --count 120",
    "plans": "fallow plans",
    "show": "fallow show forget-plan-… --json",
    "suppressed": "fallow suppressed --memory-id orchard-main",
    "unsuppress": "fallow unsuppress 42 --memory-type conversation_memory --approved-by Grace",
    "review": "fallow review --approved-by Ada",
    "restore": "fallow restore --plan forget-plan-… --approved-by Grace --reason 'needed after all'",
    "explain": "fallow explain 42",
    "backfill-importance": "fallow backfill-importance --dry-run",
    "reflect": "fallow reflect --dry-run",
    "touch": "fallow touch 42 43 --memory-type conversation_memory",
    "purge-cache": "fallow purge-cache --dry-run",
    "operator": "fallow operator keygen --key ada.pem",
    "hold": "fallow hold add --memory-id orchard-main --owner Grace --reason 'case 17' --until 2027-06-01",
    "certificate": "fallow certificate forget-plan-… --out certificate.json",
    "verify": "fallow verify certificate.json",
    "drift": "fallow drift --detailed-exitcode",
    "repair-events": "fallow repair-events",
    "effect": "fallow effect forget-plan-…",
    "rater-report": "fallow rater-report --agent-id agent-orchard",
    "forecast": "fallow forecast",
    "policy": "fallow policy compare --agent-id agent-orchard --plot policies.svg",
    "settings": "fallow settings --agent-id agent-orchard",
    "doctor": "fallow doctor",
    "contracts": "fallow contracts",
    "parity": "fallow parity --store ./memory --store ./memory",
    "conformance": "fallow conformance --store ./memory",
    "serve": "fallow serve --store ./memory",
}

CLI_INTRO = """# The command line

`fallow COMMAND [--store URI] [--json]`. The store is a path, `file:///…`, `mongodb://…/db`,
`oracle://user@host:port/service?schema=S` or `notion://<data source id>`; `FALLOW_STORE` is the default.

With `--json`, stdout is exactly one JSON document with `schema_version`, and everything for people goes to
stderr. A failure is one line that says what was wrong, where, and what to do next.

| Exit | Means |
|---|---|
| 0 | done |
| 1 | something was wrong; nothing is half-written |
| 2 | wrong usage |
| 3 | the plan is stale or has expired |
| 4 | `contracts`: a must is broken |
| 5 | partly done: some records failed, each named |
| 6 | the stop switch is on: what is written is journalled, applying again goes on |
| 10 | `retention-plan --detailed-exitcode`: there are candidates; `drift --detailed-exitcode`: there is drift |

This page follows from the code: `python docs/reference.py` writes it.
"""


def cli() -> str:
    """docs/cli.md."""
    register(app)
    pages = [CLI_INTRO]
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        lines = [f"## fallow {name}", "", str(command.help).strip(), "", "```sh", EXAMPLES[name], "```", ""]
        lines += ["| Option | |", "|---|---|"]
        for option in command.params:
            label = ", ".join(f"`{flag}`" for flag in option.opts) if option.opts[0].startswith("-") else option.name
            need = " (required)" if option.required else ""
            text = " ".join(str(option.help or "").split()).replace("|", "\\|")
            lines.append(f"| {label}{need} | {text} |")
        pages.append("\n".join(lines) + "\n")
    return "\n".join(pages)


SETTINGS_INTRO = """# Settings

Each is taken from the first of: command option or flow parameter, the agent's own record
(`retrieval_policy`), the Prefect variable `fallow_settings`, the environment, the default. A value that
cannot be used is reported by name and passed over. `fallow settings` shows what holds and where it came from;
a plan carries the values that it was made with.

This page follows from the code: `python docs/reference.py` writes it.

| Setting | Default | Environment | Agent's record | |
|---|---|---|---|---|
"""


def settings() -> str:
    """docs/settings.md."""
    rows = []
    for name, item in SETTINGS.items():
        agent = f"`retrieval_policy.{'.'.join(item.agent)}`" if item.agent else ""
        default = ", ".join(map(str, item.default)) if isinstance(item.default, tuple) else item.default
        rows.append(f"| `{name}` | {default} | `{item.env}` | {agent} | {item.meaning} |")
    return SETTINGS_INTRO + "\n".join(rows) + "\n"


API_INTRO = """# Python

`from fallow import …`: these names are stable, typed, and load on first use. Everything else is ours to change.
[The agent loop](agent-loop.md) shows them at work. (As a site, this page holds their signatures and what they
mean; in the repository, read their docstrings.)

This page follows from the code: `python docs/reference.py` writes it.

"""


def api() -> str:
    """docs/api.md: every public name, for mkdocstrings to fill in."""
    homes = sorted(fallow._HOMES.items(), key=lambda item: item[0].lower())
    return API_INTRO + "\n".join(f"::: {home}.{name}\n" for name, home in homes)


PAGES = {"cli.md": cli, "settings.md": settings, "api.md": api}


def main() -> int:
    stale = [name for name, page in PAGES.items() if current(name) != page()]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/{name} is not current: python docs/reference.py writes it")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


def current(name: str) -> str:
    """A page as it stands; empty where there is none."""
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
