"""What other installed packages add, by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from grasp_core.errors import ConfigError

T = TypeVar("T")


def load_plugins(group: str, declaration: type[T]) -> dict[str, T]:
    """What packages declare under a group, by name.

    Raises ConfigError, with the package, for one that cannot be loaded or is something else.
    """
    return {entry.name: _load(entry, declaration) for entry in entry_points(group=group)}


def _load(entry: EntryPoint, declaration: type[T]) -> T:
    package = entry.dist.name if entry.dist else "a package"
    try:
        found = entry.load()
    except Exception as error:  # whatever a stranger's module raises
        raise ConfigError(
            f"{entry.name!r} of {package} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"repair or uninstall {package}",
        ) from error
    if not isinstance(found, declaration):
        raise ConfigError(
            f"{entry.value} of {package} is no {declaration.__name__}",
            hint=f"its entry point in {entry.group} must name one",
        )
    return found
