"""What can be chosen by name: our own declarations, and those of other installed packages."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from grasp_core.errors import Unloadable

T = TypeVar("T")


class Declarations(MutableMapping[str, T]):
    """Ours, then what packages declare under an entry point's group; of the same name, ours.

    Packages are looked for when something is first asked for, not when this is made: one of them
    may be what imports us, before it has declared anything. One that cannot be loaded, or is
    something else, is a warning then, and is left out; asking for it by name raises Unloadable.
    """

    def __init__(self, group: str, declaration: type[T], ours: Mapping[str, T]) -> None:
        self._group = group
        self._declaration = declaration
        self._ours = ours

    @cached_property
    def _all(self) -> dict[str, T | Unloadable]:
        entries = [e for e in entry_points(group=self._group) if e.name not in self._ours]
        return {**self._ours, **{e.name: _try_load(e, self._declaration) for e in entries}}

    def forget(self) -> None:
        """Look for packages again when something is next asked for."""
        self.__dict__.pop("_all", None)

    def __getitem__(self, name: str) -> T:
        found = self._all[name]
        if isinstance(found, Unloadable):
            raise Unloadable(found.message, hint=found.hint) from found.__cause__
        return found

    def __setitem__(self, name: str, declaration: T) -> None:
        self._all[name] = declaration

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, found in self._all.items() if not isinstance(found, Unloadable))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _try_load(entry: EntryPoint, declaration: type[T]) -> T | Unloadable:
    try:
        return _load(entry, declaration)
    except Unloadable as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        return error


def _load(entry: EntryPoint, declaration: type[T]) -> T:
    package = entry.dist.name if entry.dist else "a package"
    try:
        found = entry.load()
    except Exception as error:  # whatever a stranger's module raises
        raise Unloadable(
            f"{entry.name!r} of {package} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"repair or uninstall {package}",
        ) from error
    if not isinstance(found, declaration):
        raise Unloadable(
            f"{entry.value} of {package} is no {declaration.__name__}",
            hint=f"its entry point in {entry.group} must name one",
        )
    return found
