"""What comes in by entry point: no room of the core knows the stores, the contracts or the model client by name."""

from __future__ import annotations

from typing import Any

from fallow.model.errors import ProviderMissingError


def part(group: str, name: str, *, install: str = "") -> Any:
    """The object that an entry point names.

    Args:
        group: the entry point group, such as ``fallow.contracts``.
        name: its name there.
        install: what pip is told to get what it needs, such as ``fallow[models]``.

    Raises:
        ProviderMissingError: nothing is registered under that name, or a package that it needs is not installed.
    """
    # Imported where it is needed: an agent host that only ranks does not pay for it.
    from importlib.metadata import entry_points

    found = list(entry_points(group=group, name=name))
    if not found:
        raise ProviderMissingError(
            f"nothing is registered as '{name}' in {group}", hint="install fallow again: its entry points are gone"
        )
    try:
        return found[0].load()
    except ModuleNotFoundError as error:
        raise ProviderMissingError(
            f"'{name}' of {group} needs the package '{error.name}'",
            hint=f"pip install '{install or 'fallow'}'",
        ) from error
