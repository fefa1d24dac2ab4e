"""The style sheet: text that can be read, light and dark; and classes that are used."""

import re
from itertools import product
from pathlib import Path

import pytest

import app

ROOT = Path(app.__file__).parent
STYLE = (ROOT / "static" / "style.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6});", part)) for part in STYLE.split("@media", 2)[:2]
)
READABLE = 4.5  # WCAG 2, level AA, for text
VISIBLE = 3.0  # and for the parts of a chart
TEXTS = ("text", "muted", "accent", "good", "bad")
GROUNDS = ("page", "surface", "sunken")


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_what_it_is_defined_to_be() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(theme: dict[str, str]) -> None:
    colours = LIGHT | theme
    for text, ground in product(TEXTS, GROUNDS):
        assert contrast(colours[text], colours[ground]) >= READABLE, (text, ground)
    assert contrast(colours["on-accent"], colours["accent"]) >= READABLE
    for ground in ("warning", "danger"):
        assert contrast(colours["text"], colours[ground]) >= READABLE, ground


def on_surface(tint: str, opacity: float, surface: str) -> str:
    """The colour that a shade of cells has: `tint` as three numbers, over the surface."""
    ground = [int(surface[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = zip(map(int, tint.split(",")), ground, strict=True)
    return "#" + "".join(f"{round(opacity * a + (1 - opacity) * b):02x}" for a, b in mixed)


@pytest.mark.parametrize(("theme", "number"), [(LIGHT, 0), (DARK, 1)], ids=["light", "dark"])
def test_figures_in_shaded_cells_can_be_read(theme: dict[str, str], number: int) -> None:
    colours = LIGHT | theme
    tints = dict(re.findall(r"--heat-(\w+): ([\d, ]+);", STYLE.split("@media", 2)[number]))
    shades = re.findall(r"background: rgb\(var\(--heat-(\w+)\), ([\d.]+)\)", STYLE)
    assert len(shades) == 20
    for name, opacity in shades:
        shade = on_surface(tints[name], float(opacity), colours["surface"])
        assert contrast(colours["text"], shade) >= READABLE, (name, opacity)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_of_charts_can_be_seen(theme: dict[str, str]) -> None:
    colours = LIGHT | theme
    for slot in (0, 4, 6, 7):  # validation, test, loss, what was kept
        assert contrast(colours[f"s{slot}"], colours["surface"]) >= VISIBLE, slot


def test_both_themes_have_the_same_colours_of_series() -> None:
    slots = {f"s{number}" for number in range(8)}
    assert slots <= LIGHT.keys()
    assert slots <= DARK.keys()
    assert len({LIGHT[slot] for slot in slots}) == len({DARK[slot] for slot in slots}) == 8
