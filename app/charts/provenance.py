"""The provenance map: every layer coloured by the sources that its parameters came from."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from app.charts.parameters import Group, depth_for, in_blocks, layer_of
from app.charts.svg import drawing, element

COLOURS = 7  # that most eyes can tell apart; what is beyond them shares the last, grey
OTHERS = COLOURS
MOST_LAYERS = 250
BAND_WIDTH = 1000
LEAST_WIDTH = 0.012  # of a band


@dataclass(frozen=True)
class Contributor:
    """A source, or all the small ones together, and its part of the model."""

    name: str
    share: float
    slot: int  # its colour


@dataclass(frozen=True)
class Layer:
    """One module's parameters: how many, and the share of each colour in them."""

    name: str
    size: int
    shares: Mapping[int, float]  # slot: share


@dataclass(frozen=True)
class Row:
    """A part of the map: one block, or several small ones."""

    name: str
    layers: Sequence[Layer]
    band: Markup


def contributors(totals: Mapping[str, float], names: Mapping[str, str]) -> dict[str, Contributor]:
    """A colour for each source of `totals`; `names` are those of all, in order of arrival.

    A source keeps its colour from version to version, as far as there are enough of them. Those
    with the smallest shares have to share one.
    """
    largest = sorted(totals, key=lambda key: -totals[key])
    alone = largest if len(largest) <= COLOURS else largest[: COLOURS - 1]
    slots = _slots([*names, *(key for key in alone if key not in names)], alone)
    return {
        key: Contributor(names.get(key, key[:12]), totals[key], slots.get(key, OTHERS))
        for key in [*slots, *(key for key in largest if key not in slots)]
    }


def _slots(arrived: Sequence[str], wanted: Collection[str]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for place, key in enumerate(arrived):
        if key in wanted:
            free = (slot % COLOURS for slot in range(place, place + COLOURS))
            slots[key] = next(slot for slot in free if slot not in slots.values())
    return slots


def layers(
    sizes: Mapping[str, int], shares: Mapping[str, Mapping[str, float]], slots: Mapping[str, int]
) -> list[Layer]:
    """The parameters of each module together; of a deep network, those of larger modules."""
    depth = depth_for(list(sizes), MOST_LAYERS)
    grouped = groupby(sizes, key=lambda name: layer_of(name, depth))
    return [_layer(name, list(members), sizes, shares, slots) for name, members in grouped]


def _layer(
    name: str,
    members: Sequence[str],
    sizes: Mapping[str, int],
    shares: Mapping[str, Mapping[str, float]],
    slots: Mapping[str, int],
) -> Layer:
    size = sum(sizes[member] for member in members)
    mixed: dict[int, float] = {}
    for member in members:
        for key, share in shares.get(member, {}).items():
            mixed[slots[key]] = mixed.get(slots[key], 0.0) + share * sizes[member] / max(size, 1)
    return Layer(name, size, dict(sorted(mixed.items())))


def provenance_rows(found: Sequence[Layer], names: Mapping[int, str]) -> list[Row]:
    """The map: a band for each block of the network, divided among its layers."""
    blocks = in_blocks(found, lambda layer: f"{layer.name}.weight")
    return [Row(_name(row), layers, _band(layers, names)) for row, layers in _joined(blocks)]


def _joined(blocks: Sequence[Group[Layer]]) -> Iterator[tuple[list[Group[Layer]], list[Layer]]]:
    """Neighbouring blocks of a single layer, such as a stem and its norm, share a row."""
    for single, row in groupby(blocks, key=lambda block: len(block.items) == 1):
        for together in [list(row)] if single else ([block] for block in row):
            yield together, [layer for block in together for layer in block.items]


def _name(row: Sequence[Group[Layer]]) -> str:
    return row[0].name if len(row) == 1 else f"{row[0].name} – {row[-1].name}"


def _band(found: Sequence[Layer], names: Mapping[int, str]) -> Markup:
    """Layers as wide as the root of their size: the smallest can still be seen."""
    roots = [max(layer.size, 1) ** 0.5 for layer in found]
    least = LEAST_WIDTH * sum(roots)
    widths = [max(root, least) for root in roots]
    scale, left, cells = BAND_WIDTH / sum(widths), 0.0, []
    for layer, width in zip(found, widths, strict=True):
        cells.append(_cell(layer, left, width * scale, names))
        left += width * scale
    return element(
        "svg", *cells, viewBox=f"0 0 {BAND_WIDTH} 1", preserveAspectRatio="none", class_="band"
    )


def _cell(layer: Layer, left: float, width: float, names: Mapping[int, str]) -> Markup:
    parts, top = [element("title", _label(layer, names))], 0.0
    for slot, share in layer.shares.items():
        place = {"x": left, "y": top, "width": width, "height": share}
        parts.append(element("rect", class_=f"s{slot}", **place))
        top += share
    return element("g", *parts)


def _label(layer: Layer, names: Mapping[int, str]) -> str:
    shares = ", ".join(f"{names[slot]} {share:.0%}" for slot, share in layer.shares.items())
    return f"{layer.name}: {shares or 'unknown'} ({layer.size:,} parameters)"


def share_bar(title: str, parts: Sequence[Contributor]) -> Markup:
    """One bar for the whole model, divided among its sources."""
    drawn, left = [], 0.0
    for part in parts:
        width = 1000 * part.share
        name = element("title", f"{part.name}: {part.share:.1%}")
        drawn.append(element("rect", name, class_=f"s{part.slot}", x=left, width=width, height=20))
        left += width
    about = ", ".join(f"{part.name} {part.share:.1%}" for part in parts)
    return drawing(1000, 20, title, about, drawn, class_="share-bar", preserveAspectRatio="none")
