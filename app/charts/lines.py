"""Values over versions or epochs: a chart with axes, and a sparkline without."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.charts.svg import Scale, accuracy_ticks, drawing, element, number, thinned, ticks

WIDTH, HEIGHT = 560, 290
LEFT, RIGHT, TOP, BOTTOM = 64, 22, 14, 40
MOST_LABELS = 9
SPARK_WIDTH, SPARK_HEIGHT, SPARK_MARGIN = 120, 36, 5
LEAST_ROOM = 0.02  # of a sparkline: two points of accuracy are no cliff


@dataclass(frozen=True)
class Series:
    """One line: a value for each place on the x axis, or None where there is none."""

    name: str
    values: Sequence[float | None]
    slot: int  # which colour
    band: Sequence[tuple[float, float] | None] = ()  # around each value; empty: none

    def points(self, at: Sequence[int]) -> list[tuple[int, float]]:
        pairs = zip(at, self.values, strict=True)
        return [(x, value) for x, value in pairs if value is not None]


@dataclass(frozen=True)
class _Plane:
    x: Scale
    y: Scale
    x_name: str
    format_value: Callable[[float], str]  # a value in words


def line_chart(
    title: str,
    x_name: str,
    at: Sequence[int],
    series: Sequence[Series],
    *,
    format_value: Callable[[float], str],
    shares: bool = False,
    hollow: Collection[int] = (),
) -> Markup:
    """Lines over the whole numbers `at`; the marks of those in `hollow` are rings.

    `shares` are values from 0 to 1, of which only the part in use is drawn; others begin at 0.
    """
    values = [value for line in series for _, value in line.points(at)]
    values += [end for line in series for ends in line.band if ends for end in ends]
    marks = accuracy_ticks(values) if shares else ticks(0.0, max(values, default=1.0))
    first, last = (at[0], at[-1]) if at else (0, 1)
    plane = _Plane(
        x=Scale(first, max(last, first + 1), LEFT + 14, WIDTH - RIGHT),
        y=Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP),
        x_name=x_name,
        format_value=format_value,
    )
    parts = [*_grid(plane, marks), *_labels(plane, at)]
    for line in series:
        parts += _band(plane, line, at)
    for line in series:
        parts += _line(plane, line, line.points(at), hollow)
    return drawing(WIDTH, HEIGHT, title, _description(plane, series, at), parts, class_="chart")


def _grid(plane: _Plane, marks: Sequence[float]) -> list[Markup]:
    parts = []
    for mark in marks:
        y = plane.y(mark)
        parts.append(element("line", class_="grid", x1=LEFT, x2=WIDTH, y1=y, y2=y))
        parts.append(_text(plane.format_value(mark), LEFT - 8, y + 4, "end"))
    return parts


def _labels(plane: _Plane, at: Sequence[int]) -> list[Markup]:
    below = HEIGHT - BOTTOM + 26
    numbers = thinned(at, MOST_LABELS)
    return [
        _text(plane.x_name, LEFT - 8, below, "end"),
        *(_text(str(i), plane.x(i), below, "middle") for i in numbers),
    ]


def _text(text: str, x: float, y: float, anchor: str) -> Markup:
    return element("text", text, class_="tick", x=x, y=y, text_anchor=anchor)


def _line(
    plane: _Plane, line: Series, points: Sequence[tuple[int, float]], hollow: Collection[int]
) -> list[Markup]:
    places = [(plane.x(i), plane.y(value)) for i, value in points]
    drawn = [element("polyline", class_=f"line s{line.slot}", points=_path(places))]
    for (i, value), (x, y) in zip(points, places, strict=True):
        title = element("title", f"{line.name}, {plane.x_name} {i}: {plane.format_value(value)}")
        ring = " hollow" if i in hollow else ""
        drawn.append(element("circle", title, class_=f"dot s{line.slot}{ring}", cx=x, cy=y, r=4))
    return drawn


def _band(plane: _Plane, line: Series, at: Sequence[int]) -> list[Markup]:
    """What lies between the ends around each value, as far as these are known."""
    ends = [(plane.x(i), *found) for i, found in zip(at, line.band, strict=False) if found]
    if len(ends) < 2:
        return []
    above = [(x, plane.y(high)) for x, _, high in ends]
    below = [(x, plane.y(low)) for x, low, _ in reversed(ends)]
    return [element("polygon", class_=f"spread s{line.slot}", points=_path([*above, *below]))]


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{number(x)},{number(y)}" for x, y in places)


def _description(plane: _Plane, series: Sequence[Series], at: Sequence[int]) -> str:
    def at_end(point: tuple[int, float]) -> str:
        return f"{plane.format_value(point[1])} at {plane.x_name} {point[0]}"

    lines = [(line.name, line.points(at)) for line in series]
    parts = [f"{name}: {at_end(p[0])}, {at_end(p[-1])}" for name, p in lines if p]
    return "; ".join(parts) or "no values yet"


def sparkline(title: str, about: str, values: Sequence[float]) -> Markup:
    """A line without axes, its last point marked."""
    high = max(values)
    low = min(*values, high - LEAST_ROOM)
    y = Scale(low, high, SPARK_HEIGHT - SPARK_MARGIN, SPARK_MARGIN)
    last = max(len(values) - 1, 1)
    x = Scale(0, last, SPARK_MARGIN, SPARK_WIDTH - SPARK_MARGIN)
    first = last + 1 - len(values)  # a single one stands at the end, where the newest does
    places = [(x(i), y(value)) for i, value in enumerate(values, start=first)]
    parts = [
        element("polyline", class_="line s0", points=_path(places)),
        element("circle", class_="dot s0", cx=places[-1][0], cy=places[-1][1], r=3.5),
    ]
    return drawing(SPARK_WIDTH, SPARK_HEIGHT, title, about, parts, class_="sparkline")
