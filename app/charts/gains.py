"""How much better something is than what it is measured against: bars from zero, with intervals."""

from collections.abc import Iterable

from markupsafe import Markup

from app.charts.svg import Scale, element
from grasp_core.report import Difference

WIDTH, HEIGHT = 200, 24
MARGIN = 6  # that the ends of intervals do not touch the frame
LEAST = 0.005  # half of the scale, at least: so small differences are no towers


def reach(gains: Iterable[Difference | None]) -> float:
    """The half of a scale around zero that shows all of them, intervals included."""
    known = [gain for gain in gains if gain is not None]
    ends: list[float] = [end for gain in known for end in (gain.mean, *(gain.interval or ()))]
    return max([LEAST, *map(abs, ends)])


def gain_bar(gain: Difference, half: float, slot: int = 0) -> Markup:
    """The number stands beside it, so it has no name."""
    x = Scale(-half, half, MARGIN, WIDTH - MARGIN)
    zero, end, middle = x(0.0), x(gain.mean), HEIGHT / 2
    left, width = min(zero, end), abs(end - zero)
    parts = [
        element("line", class_="grid zero", x1=zero, x2=zero, y1=0, y2=HEIGHT),
        element("rect", class_=f"s{slot}", x=left, y=middle - 6, width=width, height=12),
    ]
    if gain.interval is not None:
        low, high = map(x, gain.interval)
        parts += [
            element("line", class_="whisker", x1=low, x2=high, y1=middle, y2=middle),
            element("line", class_="whisker", x1=low, x2=low, y1=middle - 4, y2=middle + 4),
            element("line", class_="whisker", x1=high, x2=high, y1=middle - 4, y2=middle + 4),
        ]
    view = f"0 0 {WIDTH} {HEIGHT}"
    return element("svg", *parts, viewBox=view, class_="gain", aria_hidden="true")
