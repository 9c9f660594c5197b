"""The one door on top: thin commands, everything heavy imported inside them (SPEC §16)."""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code; the console script and ``python -m fallow`` call it."""
    from fallow.cli.app import run

    return run(arguments)
