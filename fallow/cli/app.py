"""The command line's frame: the app, its output, its errors and exit codes (SPEC §14, §16).

With ``--json`` stdout is exactly one JSON document and everything human goes to stderr; without it people
read stdout. A failure a user can cause is one line and exit 1 (2 for wrong usage); a bug says where it
happened and nothing of what it saw, unless FALLOW_DEBUG asks for the traceback.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from fallow.model.arguments import id_or_none, record_ids
from fallow.model.errors import FallowError, UsageError

if TYPE_CHECKING:
    from fallow.model.scope import Scope
    from fallow.model.settings import Settings
    from fallow.port.protocol import Provider


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"fallow {version('fallow')}")
        raise typer.Exit


class Grouped(typer.core.TyperGroup):
    """The commands in help by what one is doing (SPEC §16)."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Writes each group under its own head, in the order of its table."""
        from fallow.cli.commands import GROUPS

        for title, names in GROUPS.items():
            lines = [(name, self.commands[name].get_short_help_str(limit=400)) for name, _ in names]
            with formatter.section(title):
                formatter.write_dl(lines)


app = typer.Typer(
    name="fallow",
    cls=Grouped,
    help="Governed, reversible forgetting for agent memory: rate, plan, approve, apply, restore.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def main(
    version: Annotated[  # acts by itself, before any command
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Governed, reversible forgetting for agent memory: rate, plan, approve, apply, restore."""


Store = Annotated[
    str | None,
    typer.Option("--store", help="A path, file:///…, mongodb://…/db, oracle://…, notion://…", envvar="FALLOW_STORE"),
]
AgentId = Annotated[str | None, typer.Option("--agent-id", help="Only this agent's records.")]
MemoryId = Annotated[list[str] | None, typer.Option("--memory-id", help="Only this memory; may be repeated.")]
UserId = Annotated[str | None, typer.Option("--user-id", help="Only this user's records.")]
ThreadId = Annotated[str | None, typer.Option("--thread-id", help="Only this thread's records.")]
AsOf = Annotated[str | None, typer.Option("--as-of", help="The instant of the decision, ISO 8601; default now.")]
Json = Annotated[bool, typer.Option("--json", help="Exactly one JSON document on stdout.")]
ApprovedBy = Annotated[str, typer.Option("--approved-by", help="The human who decides.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the journal.")]
LeaveOut = Annotated[
    list[str] | None, typer.Option("--leave-out", help="[TYPE:]ID of a planned record to spare; may be repeated.")
]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Sign with the private key in this file (fallow operator keygen).")
]
Signature = Annotated[str | None, typer.Option("--signature", help="An approval that was signed elsewhere.")]
SignatureOnly = Annotated[
    bool, typer.Option("--signature-only", help="Print the signed approval, for the form; record nothing.")
]
Count = Annotated[int | None, typer.Option("--count", help="The number of records planned, before leave-outs.")]


def open_store(store: str | None, options: Mapping[str, Any] | None = None) -> Provider:
    """The store that ``--store`` or FALLOW_STORE names, with the naive zones that settings give."""
    from fallow.model.settings import resolve
    from fallow.port.registry import open_provider

    if not store or not store.strip():
        raise UsageError("no store is named", hint="pass --store or set FALLOW_STORE")
    return open_provider(store, resolve(options, variable=settings_variable()).naive_timezone)


def settings_of(provider: Provider, agent_id: str | None, options: Mapping[str, Any] | None = None) -> Settings:
    """Resolved settings for an agent; what was found but not used is said on stderr."""
    from fallow.usecases.planner import settings_for

    settings = settings_for(provider, agent_id, options, variable=settings_variable())
    for problem in settings.problems:
        note(f"setting not used: {problem}")
    return settings


_VARIABLE: dict[str, Mapping[str, Any]] = {}


def settings_variable() -> Mapping[str, Any]:
    """The Prefect variable ``fallow_settings``, read over HTTP once a run where PREFECT_API_URL is set (SPEC §6.1)."""
    if "value" not in _VARIABLE:
        address = os.environ.get("PREFECT_API_URL", "").strip()
        if not address:
            return {}
        from fallow.cli.variable import read_variable

        value, problem = read_variable(address, os.environ.get("PREFECT_API_AUTH_STRING"))
        if problem:
            note(f"the Prefect variable fallow_settings was not read: {problem}")
        _VARIABLE["value"] = value
    return _VARIABLE["value"]


def stop_switch(settings: Settings) -> Callable[[], str | None]:
    """Says before every chunk of an apply why it is to stop: the stop file, and fallow_stop where Prefect is near.

    A server that is named and does not answer stops as well: nobody can say that the switch is off.
    """
    from fallow.acting.configured_files import stop_file_says
    from fallow.model.settings import STOP_VARIABLE, stop_value_says

    address = os.environ.get("PREFECT_API_URL", "").strip()

    def says() -> str | None:
        why = stop_file_says(str(settings.get("apply.stop_file")))
        if why is not None or not address:
            return why
        from fallow.cli.variable import read_value

        value, problem = read_value(address, os.environ.get("PREFECT_API_AUTH_STRING"), STOP_VARIABLE)
        return f"the variable {STOP_VARIABLE} cannot be read: {problem}" if problem else stop_value_says(value)

    return says


def scope_of(
    agent_id: str | None,
    memory_id: Sequence[str] | None,
    user_id: str | None,
    thread_id: str | None,
    unowned: bool = False,
) -> Scope:
    """The scope that the options name."""
    from fallow.model.scope import Scope

    return Scope(
        agent_id=id_or_none(agent_id, "--agent-id"),
        memory_ids=record_ids(memory_id, "--memory-id") if memory_id else None,
        user_id=id_or_none(user_id, "--user-id"),
        thread_id=id_or_none(thread_id, "--thread-id"),
        unowned=unowned,
    )


def emit(document: Mapping[str, Any]) -> None:
    """The one JSON document of a run, on stdout."""
    sys.stdout.write(json.dumps({"schema_version": 1, **document}, ensure_ascii=False, allow_nan=False) + "\n")


def say(text: str = "") -> None:
    """A line for people, on stdout; only where there is no ``--json``."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line for people, on stderr."""
    sys.stderr.write(f"fallow: {text}\n")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """A table on stdout; in a pipe a row a line, complete, tabs between the cells, and its title on stderr.

    On a terminal it is as wide as that (COLUMNS, where it is set), or wider where an id would be cut or wrapped.
    """
    from fallow.showing.tables import narrowest, piped, shown

    if not sys.stdout.isatty():
        note(title)
        sys.stdout.write(piped(columns, rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    cells = [shown(columns, row) for row in rows]
    for at, name in enumerate(columns):
        whole = not any(" " in row[at].strip() for row in cells)
        grid.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=whole)
    for row in cells:
        grid.add_row(*map(Text, row))
    width = max(shutil.get_terminal_size().columns, narrowest(columns, cells))
    console = Console(file=sys.stdout, width=width, height=len(rows) + 2, highlight=False)
    console.print(grid)


def _commands() -> None:
    """Imports the modules whose commands the app shows; their heavy imports are inside the commands."""
    from fallow.cli import commands

    commands.register(app)


def _failure(error: FallowError, as_json: bool) -> int:
    if as_json:
        emit({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
    note(f"{error.message}{f' — {error.hint}' if error.hint else ''}")
    return error.exit_code


def run(arguments: list[str] | None = None) -> int:
    """Parses, runs, and turns whatever happened into output and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    _VARIABLE.clear()
    _commands()
    command: Any = typer.main.get_command(app)
    return _guarded(lambda: command.main(args=arguments, prog_name="fallow", standalone_mode=False), as_json)


def _guarded(call: Callable[[], Any], as_json: bool) -> int:
    try:
        result = call()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except FallowError as error:
        return _failure(error, as_json)
    except KeyboardInterrupt:
        note("stopped; run it again to continue where it was")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        show = getattr(error, "format_message", None)
        if callable(show):  # wrong usage, as the option parser says it
            if as_json:
                emit({"error": {"code": "usage", "message": str(show()), "hint": "fallow --help"}})
            note(f"{show()} — see --help")
            return 2
        if type(error).__name__ == "Abort":
            note("stopped")
            return 130
        if os.environ.get("FALLOW_DEBUG"):
            traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        return _failure(
            FallowError(
                f"an error in fallow itself: {where}", hint="set FALLOW_DEBUG=1 for the traceback, and report it"
            ),
            as_json,
        )
