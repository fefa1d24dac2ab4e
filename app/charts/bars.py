"""Small bars beside numbers in tables, and shades for numbers in cells."""

from markupsafe import Markup

from app.charts.svg import element

SHADES = 10


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
