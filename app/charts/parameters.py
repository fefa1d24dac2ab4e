"""A network's parameters in the order of its layers: grouped as its modules are, and what a method
measured of each, and chose by.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from markupsafe import Markup

from app.charts.svg import Scale, drawing, element, number

Item = TypeVar("Item")

WIDTH, HEIGHT = 960, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 60, 14, 30
CHARACTER = 7.0  # width of one in a label
LEAST_BLOCK = 4.0  # width of one that is marked off
MOST_MARKS = 400


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


@dataclass(frozen=True)
class Scored:
    """One parameter tensor: its score, and how much of it was taken over."""

    name: str
    size: int
    score: float
    transferred: float


def score_chart(
    name: str, parameters: Sequence[Scored], threshold: float | None, symbol: str
) -> Markup:
    """A stem for each parameter, in the order of the layers; a threshold is a line across."""
    shown = [0.0 if threshold is None else threshold, *(p.score for p in parameters)]
    unit = max(1.0, *map(abs, shown))  # most scores lie between -1 and 1
    low = next(mark for mark in (-0.1, -0.5, -1.0) if mark * unit <= min(shown))
    y = Scale(low * unit, unit, HEIGHT - BOTTOM, TOP)
    x = Scale(-0.5, len(parameters) - 0.5, LEFT, WIDTH - RIGHT)
    parts = [*_grid(y, unit), *_blocks(parameters, x), *_stems(name, parameters, x, y)]
    if threshold is not None:
        parts += _threshold(threshold, symbol, y)
    title = f"{name.capitalize()} of each parameter"
    description = _description(name, parameters, threshold)
    return drawing(WIDTH, HEIGHT, title, description, parts, class_="chart wide")


def _description(name: str, parameters: Sequence[Scored], threshold: float | None) -> str:
    taken = sum(p.transferred > 0 for p in parameters)
    above = f" with {name} above the threshold {threshold:.3f}" if threshold is not None else ""
    return f"{taken} of {len(parameters)} parameter tensors were transferred{above}"


def _grid(y: Scale, unit: float) -> list[Markup]:
    parts = []
    for mark in (-unit, -unit / 2, 0.0, unit / 2, unit):
        if mark >= y.low:
            zero = " zero" if mark == 0 else ""
            place = y(mark)
            line = {"x1": LEFT, "x2": WIDTH - RIGHT, "y1": place, "y2": place}
            parts.append(element("line", class_=f"grid{zero}", **line))
            label = f"{mark:.3g}".replace("-", "−")
            parts.append(
                element("text", label, class_="tick", x=LEFT - 8, y=place + 4, text_anchor="end")
            )
    return parts


def _blocks(parameters: Sequence[Scored], x: Scale) -> list[Markup]:
    """Where each block begins, and its name where there is room for it."""
    parts, begin = [], 0
    for group in in_blocks(parameters, lambda p: p.name):
        left, right = x(begin - 0.5), x(begin + len(group.items) - 0.5)
        begin += len(group.items)
        if right - left > LEAST_BLOCK:
            line = {"x1": left, "x2": left, "y1": TOP, "y2": HEIGHT - BOTTOM}
            parts.append(element("line", class_="block", **line))
        if len(group.name) * CHARACTER < right - left:
            middle, below = (left + right) / 2, HEIGHT - BOTTOM + 18
            parts.append(
                element("text", group.name, class_="tick", x=middle, y=below, text_anchor="middle")
            )
    return parts


def _stems(name: str, parameters: Sequence[Scored], x: Scale, y: Scale) -> list[Markup]:
    if len(parameters) > MOST_MARKS:
        return _comb(parameters, x, y)
    radius = min(4.5, max(1.2, 0.4 * (x(1) - x(0))))
    parts = []
    for i, p in enumerate(parameters):
        place, height = x(i), y(p.score)
        parts.append(
            element(
                "g",
                element("title", _label(name, p)),
                element("line", x1=place, x2=place, y1=y(0), y2=height),
                element("circle", cx=place, cy=height, r=radius),
                class_=_kind(p),
            )
        )
    return parts


def _comb(parameters: Sequence[Scored], x: Scale, y: Scale) -> list[Markup]:
    """Stems alone, all of a kind in one path: marks would outweigh the rest of the page."""
    paths: dict[str, list[str]] = {"left": [], "taken": []}
    for i, p in enumerate(parameters):
        paths[_kind(p)].append(f"M{number(x(i))} {number(y(0))}V{number(y(p.score))}")
    return [element("path", class_=kind, d="".join(parts)) for kind, parts in paths.items()]


def _kind(parameter: Scored) -> str:
    return "taken" if parameter.transferred > 0 else "left"


def _label(name: str, parameter: Scored) -> str:
    share = parameter.transferred
    fate = "transferred" if share == 1 else f"{share:.0%} transferred" if share else "kept"
    return f"{parameter.name}: {name} {parameter.score:.3f}, {fate}"


def _threshold(threshold: float, symbol: str, y: Scale) -> list[Markup]:
    place, label = y(threshold), f"{symbol} {threshold:.3f}".strip()
    return [
        element("line", class_="threshold", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place),
        element("text", label, class_="threshold", x=WIDTH - RIGHT + 5, y=place + 4),
    ]
