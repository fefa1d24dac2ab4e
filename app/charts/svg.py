"""SVG as text: elements that escape whatever they are given, scales, and small bars.

Colours come from classes, which the style sheet knows in light and dark; nothing has a style of its
own, so that pages can forbid inline styles.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Attribute = str | float | None

STEPS = (1, 2, 2.5, 5, 10)
SMALLEST = 1e-6  # differences that no drawing shows

SHADES = 10


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """One element. `class_` is class, `text_anchor` text-anchor; None leaves an attribute out."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{tag}{named}/>")  # noqa: S704 - escaped above
    inner = "".join(escape(child) for child in children)
    return Markup(f"<{tag}{named}>{inner}</{tag}>")  # noqa: S704


def drawing(
    width: float,
    height: float,
    title: str,
    about: str,
    children: Iterable[str],
    **attributes: Attribute,
) -> Markup:
    """A drawing with a name and a description, for those who do not see it."""
    return element(
        "svg",
        element("title", title),
        element("desc", about),
        *children,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        **attributes,
    )


def number(value: float) -> str:
    """Two decimals are less than any screen shows."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else number(value)


@dataclass(frozen=True)
class Scale:
    """Maps the values from `low` to `high` to places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round values that enclose everything from `low` to `high`."""
    about = max(abs(low), abs(high), SMALLEST)
    spread = high - low
    step = _round_up(spread / count if spread > SMALLEST * max(about, 1.0) else about)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(i * step, 10) for i in range(first, last + 1)]


def accuracy_ticks(values: Iterable[float]) -> list[float]:
    """The same for shares: never below 0 or above 1, and never less than a tenth."""
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    return ticks(max(0.0, min(low, high - 0.1)), min(1.0, max(high, 0.1)))


def thinned(values: Sequence[int], most: int) -> Sequence[int]:
    """At most so many of them, evenly spaced, the last one included."""
    step = max(1, math.ceil(len(values) / most))
    return values[::-1][::step][::-1]


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(s for s in STEPS if s * power >= step - 1e-12)


def bar(share: float, slot: int = 0) -> Markup:
    """How much of the whole, or of the largest. The number stands beside it, so it has no name."""
    width = 100 * min(max(share, 0.0), 1.0)
    drawn = element("rect", class_=f"s{slot}", width=width, height=8)
    return element(
        "svg",
        drawn,
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        class_="bar",
        aria_hidden="true",
    )


def shade(share: float | None, hue: str = "good") -> str:
    """The class of a cell that is the more coloured the larger its share."""
    return "" if share is None else f"{hue}-{round(SHADES * min(max(share, 0.0), 1.0))}"
