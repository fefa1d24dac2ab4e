"""A network's parameters in the order of its layers, grouped as its modules are."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Group(Generic[Item]):
    """What belongs to one block of the network."""

    name: str
    items: Sequence[Item]


def block_of(parameter: str) -> str:
    """blocks.2.0.conv.weight is in blocks.2, head.fc.weight in head."""
    parts = parameter.split(".")
    numbered = next((i for i, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: numbered + 1])


def layer_of(parameter: str, depth: int | None = None) -> str:
    """The module that has this parameter, or one that contains that, `depth` names deep."""
    parts = parameter.split(".")
    return ".".join(parts[:-1][:depth] or parts)


def in_blocks(items: Iterable[Item], name: Callable[[Item], str]) -> list[Group[Item]]:
    """Neighbours of the same block together."""
    grouped = groupby(items, key=lambda item: block_of(name(item)))
    return [Group(block, list(members)) for block, members in grouped]


def depth_for(parameters: Sequence[str], most: int) -> int | None:
    """How deep modules may be told apart so that there are at most so many; None: all the way."""
    if len({layer_of(name) for name in parameters}) <= most:
        return None
    deepest = max(name.count(".") for name in parameters)
    for depth in range(deepest, 1, -1):
        if len({layer_of(name, depth) for name in parameters}) <= most:
            return depth
    return 1
