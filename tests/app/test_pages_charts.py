"""Charts: values at their places, names escaped, and told to those who do not see them."""

from collections.abc import Sequence
from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup

from app.charts import (
    Scored,
    Series,
    bar,
    contributors,
    layers,
    line_chart,
    provenance_rows,
    score_chart,
    shade,
    share_bar,
    sparkline,
)
from app.charts.parameters import block_of, depth_for, layer_of
from app.charts.provenance import COLOURS, MOST_LAYERS, OTHERS
from app.charts.svg import Scale, accuracy_ticks, element, thinned, ticks

HOSTILE = """<script>alert("1" & '2')</script>"""


def parsed(drawing: Markup) -> Element:
    return ElementTree.fromstring(str(drawing))


def classed(root: Element, name: str) -> list[Element]:
    return [node for node in root.iter() if name in node.get("class", "").split()]


def titles(root: Element) -> list[str]:
    return [node.text or "" for node in root.iter("title")]


# Elements


def test_whatever_an_element_is_given_is_escaped() -> None:
    drawn = parsed(element("text", HOSTILE, element("tspan", "&"), class_=HOSTILE, text_anchor="x"))
    assert drawn.text == HOSTILE
    assert drawn.attrib == {"class": HOSTILE, "text-anchor": "x"}
    assert [child.text for child in drawn] == ["&"]


def test_what_is_none_is_left_out_and_numbers_are_short() -> None:
    assert element("rect", x=1 / 3, y=2.0, width=None) == '<rect x="0.33" y="2"/>'


# Scales


def test_a_scale_maps_its_ends_to_its_ends() -> None:
    scale = Scale(2.0, 4.0, 100.0, 0.0)
    assert [scale(value) for value in (2.0, 3.0, 4.0)] == [100.0, 50.0, 0.0]


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
@example(0.0, 1.6e-12)
@example(0.0, 1.1e-6)
def test_ticks_enclose_all_values_at_equal_distances(low: float, length: float) -> None:
    high = low + length
    found = ticks(low, high)
    steps = [after - before for before, after in pairwise(found)]
    slack = 1e-6 * max(abs(low), abs(high), 1.0)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 8
    assert steps == pytest.approx([steps[0]] * len(steps))


@given(st.lists(st.floats(0, 1)))
def test_accuracies_are_drawn_between_0_and_1(values: list[float]) -> None:
    found = accuracy_ticks(values)
    assert 0.0 <= found[0] <= min(values, default=0.0) + 1e-9
    assert max(values, default=1.0) - 1e-9 <= found[-1] <= 1.0
    assert found[-1] - found[0] >= 0.1 - 1e-9


def test_labels_are_thinned_and_the_last_stays() -> None:
    assert thinned([1, 2, 3], 9) == [1, 2, 3]
    some = thinned(range(1, 101), 9)
    assert len(some) <= 9
    assert some[-1] == 100


# Lines


def chart(values: Sequence[float | None], **options: bool | set[int]) -> Element:
    line = Series("validation", values, 0)
    at = range(1, len(values) + 1)
    show = "{:.2f}".format
    return parsed(line_chart("Accuracy", "version", at, [line], format_value=show, **options))  # type: ignore[arg-type]


def test_a_line_has_a_mark_for_each_value_and_higher_ones_stand_higher() -> None:
    root = chart([0.5, None, 0.9, 0.7], shares=True, hollow={4})
    dots = classed(root, "dot")
    heights = [float(dot.get("cy", "")) for dot in dots]
    places = [float(dot.get("cx", "")) for dot in dots]
    assert len(dots) == 3
    assert heights[1] < heights[2] < heights[0]
    assert places == sorted(places)
    assert [dot.get("class", "").endswith("hollow") for dot in dots] == [False, False, True]
    (line,) = root.iter("polyline")
    assert len(line.get("points", "").split()) == 3


def test_a_chart_is_an_image_with_a_name_a_description_and_values_to_point_at() -> None:
    root = chart([0.5, 0.75])
    assert root.get("role") == "img"
    assert titles(root) == [
        "Accuracy",
        "validation, version 1: 0.50",
        "validation, version 2: 0.75",
    ]
    (about,) = root.iter("desc")
    assert about.text == "validation: 0.50 at version 1, 0.75 at version 2"


def test_other_values_than_shares_begin_at_zero() -> None:
    marks = [node.text for node in classed(chart([3.0, 4.0]), "tick")]
    assert "0.00" in marks
    assert "4.00" in marks


@pytest.mark.parametrize("values", [[], [None], [0.5], [0.0, 0.0], [1.0]])
def test_few_values_can_be_drawn_too(values: list[float | None]) -> None:
    assert chart(values, shares=True).get("role") == "img"
    assert chart(values).get("role") == "img"


def test_a_sparkline_ends_with_its_newest_value() -> None:
    root = parsed(sparkline("name", "about", [0.5, 0.9, 0.7]))
    points = [point.split(",") for point in root[2].get("points", "").split()]
    (dot,) = classed(root, "dot")
    assert [dot.get("cx"), dot.get("cy")] == points[-1]
    assert float(points[1][1]) < float(points[2][1]) < float(points[0][1])


def test_a_sparkline_of_one_value_and_of_small_changes_is_no_cliff() -> None:
    assert parsed(sparkline("name", "about", [0.5])).get("role") == "img"
    root = parsed(sparkline("name", "about", [0.901, 0.902]))
    first, last = (float(p.split(",")[1]) for p in root[2].get("points", "").split())
    assert 0 < first - last < 3


# Alignment


SCORED = [
    Scored("stem.weight", 9, 0.8, 1.0),
    Scored("blocks.0.conv.weight", 90, 0.2, 0.0),
    Scored("blocks.0.conv.bias", 3, -0.4, 0.0),
    Scored(f"blocks.1.{HOSTILE}", 30, 0.31, 0.5),
]


def test_what_was_transferred_stands_above_the_threshold() -> None:
    root = parsed(score_chart("alignment", SCORED, 0.3, "τ"))
    threshold = next(n for n in classed(root, "threshold") if n.tag == "line")
    line = float(threshold.get("y1", ""))

    def heights(kind: str) -> list[float]:
        groups = classed(root, kind)
        return [float(dot.get("cy", "")) for group in groups for dot in group.iter("circle")]

    assert len(heights("taken")) == len(heights("left")) == 2
    assert all(height < line for height in heights("taken"))
    assert all(height > line for height in heights("left"))
    assert [node.text for node in classed(root, "threshold") if node.tag == "text"] == ["τ 0.300"]


def test_each_parameter_says_what_became_of_it() -> None:
    root = parsed(score_chart("alignment", SCORED, 0.3, "τ"))
    assert titles(root)[1:] == [
        "stem.weight: alignment 0.800, transferred",
        "blocks.0.conv.weight: alignment 0.200, kept",
        "blocks.0.conv.bias: alignment -0.400, kept",
        f"blocks.1.{HOSTILE}: alignment 0.310, 50% transferred",
    ]
    (about,) = root.iter("desc")
    assert about.text is not None
    assert about.text.startswith("2 of 4 parameter tensors were transferred")


def test_a_large_network_is_drawn_with_less() -> None:
    many = [Scored(f"blocks.{i}.weight", 1, 0.5, float(i % 2)) for i in range(2000)]
    drawn = score_chart("alignment", many, 0.3, "τ")
    stems = [path.get("d", "").count("M") for path in parsed(drawn).iter("path")]
    assert stems == [1000, 1000]
    assert len(drawn) < 60_000


@pytest.mark.parametrize("score", [-7.0, -1.0, -0.05, 0.0, 1.0, 250.0])
def test_every_score_lies_on_the_drawing(score: float) -> None:
    root = parsed(score_chart("score", [Scored("a.weight", 1, score, 0.0)], 0.0, ""))
    (dot,) = root.iter("circle")
    _, _, _, height = map(float, root.get("viewBox", "").split())
    assert 0 <= float(dot.get("cy", "")) <= height


# Layers


@pytest.mark.parametrize(
    ("parameter", "block", "layer"),
    [
        ("conv_stem.weight", "conv_stem", "conv_stem"),
        ("blocks.2.0.conv.weight", "blocks.2", "blocks.2.0.conv"),
        ("layer1.0.bn1.bias", "layer1.0", "layer1.0.bn1"),
        ("head.fc.weight", "head", "head.fc"),
        ("cls_token", "cls_token", "cls_token"),
    ],
)
def test_a_parameter_belongs_to_a_layer_and_a_block(parameter: str, block: str, layer: str) -> None:
    assert block_of(parameter) == block
    assert layer_of(parameter) == layer


def test_deep_networks_are_told_apart_less_finely() -> None:
    names = [f"stages.{a}.{b}.{c}.weight" for a in range(4) for b in range(20) for c in "xyz"]
    assert depth_for(names, 1000) is None
    assert depth_for(names, 100) == 3
    assert depth_for(names, 10) == 2
    assert depth_for(names, 2) == 1


# Provenance


def test_a_source_keeps_its_colour_when_others_come_and_go() -> None:
    names = {"a": "first", "b": "second", "c": "third"}
    both = contributors({"c": 0.6, "a": 0.4}, names)
    all_three = contributors({"a": 0.1, "b": 0.2, "c": 0.7}, names)
    assert [part.name for part in all_three.values()] == ["first", "second", "third"]
    assert both["a"].slot == all_three["a"].slot
    assert both["c"].slot == all_three["c"].slot


def test_colours_of_many_sources_differ_until_there_are_too_many() -> None:
    names = {str(i): f"site {i}" for i in range(40)}
    few = contributors({str(i): 1 / COLOURS for i in range(0, 7 * COLOURS - 21, 4)}, names)
    assert len({part.slot for part in few.values()}) == len(few) == COLOURS
    many = contributors({str(i): (i + 1) / 820 for i in range(40)}, names)
    alone = [part for part in many.values() if part.slot != OTHERS]
    assert len({part.slot for part in alone}) == len(alone) == COLOURS - 1
    assert min(part.share for part in alone) > max(
        part.share for part in many.values() if part.slot == OTHERS
    )


def test_an_unknown_source_is_called_by_its_hash() -> None:
    (part,) = contributors({"0123456789abcdef": 1.0}, {}).values()
    assert part.name == "0123456789ab"


def test_a_layer_has_the_shares_of_its_parameters_by_size() -> None:
    sizes = {"conv.weight": 30, "conv.bias": 10, "head.weight": 5}
    shares = {"conv.weight": {"a": 1.0}, "conv.bias": {"b": 0.5, "a": 0.5}, "head.weight": {}}
    conv, head = layers(sizes, shares, {"a": 0, "b": 1})
    assert (conv.name, conv.size) == ("conv", 40)
    assert conv.shares == pytest.approx({0: 0.875, 1: 0.125})
    assert (head.name, head.shares) == ("head", {})


def test_the_bands_of_the_map_are_filled_and_small_blocks_share_one() -> None:
    sizes = {"stem.weight": 1, "norm.weight": 100, "blocks.0.a.weight": 9, "blocks.0.b.weight": 4}
    shares = {name: {"a": 0.25, "b": 0.75} for name in sizes}
    found = layers(sizes, shares, {"a": 0, "b": 1})
    rows = provenance_rows(found, {0: "one", 1: HOSTILE})

    assert [row.name for row in rows] == ["stem – norm", "blocks.0"]
    for row in rows:
        root = parsed(row.band)
        assert len(list(root.iter("g"))) == 2
        widths = [float(rect.get("width", "")) for rect in classed(root, "s0")]
        assert sum(widths) == pytest.approx(1000, abs=0.1)
        assert [rect.get("height") for rect in classed(root, "s1")] == ["0.75", "0.75"]
    assert titles(parsed(rows[1].band))[0] == f"blocks.0.a: one 25%, {HOSTILE} 75% (9 parameters)"


def test_the_map_of_a_large_network_stays_small() -> None:
    sizes = {f"stages.{a}.{b}.{c}.weight": 10 for a in range(9) for b in range(20) for c in "vwxyz"}
    found = layers(sizes, {name: {"a": 1.0} for name in sizes}, {"a": 0})
    assert len(found) <= MOST_LAYERS
    assert sum(layer.size for layer in found) == sum(sizes.values())
    assert sum(len(row.band) for row in provenance_rows(found, {0: "one"})) < 100_000


def test_the_bar_of_the_whole_is_divided_by_share() -> None:
    parts = list(contributors({"a": 0.75, "b": 0.25}, {"a": "one", "b": HOSTILE}).values())
    root = parsed(share_bar("title", parts))
    rects = list(root.iter("rect"))
    assert [(r.get("x"), r.get("width")) for r in rects] == [("0", "750"), ("750", "250")]
    assert titles(root) == ["title", "one: 75.0%", f"{HOSTILE}: 25.0%"]


# Bars and shades


@pytest.mark.parametrize(("share", "width"), [(0.5, "50"), (-1.0, "0"), (2.0, "100")])
def test_a_bar_is_as_long_as_its_share(share: float, width: str) -> None:
    (rect,) = parsed(bar(share))
    assert rect.get("width") == width


def test_a_cell_is_shaded_by_its_share() -> None:
    assert [shade(x, "bad") for x in (0.0, 0.44, 1.0, 7.0)] == [
        "bad-0",
        "bad-4",
        "bad-10",
        "bad-10",
    ]
    assert shade(None) == ""


def test_a_band_lies_around_a_line_and_is_all_in_sight() -> None:
    line = Series("val", [0.9, 0.8, 0.95], 0, band=[(0.85, 0.94), (0.7, 0.87), None])
    root = parsed(
        line_chart("Accuracy", "version", [1, 2, 3], [line], format_value=str, shares=True)
    )

    [band] = classed(root, "spread")
    [path] = classed(root, "line")
    corners = [tuple(map(float, pair.split(","))) for pair in band.get("points", "").split()]
    places = [tuple(map(float, pair.split(","))) for pair in path.get("points", "").split()]
    above, below = corners[:2], corners[:1:-1]
    for (x, y), (x_above, high), (x_below, low) in zip(places, above, below, strict=False):
        assert x == x_above == x_below
        assert high < y < low  # downwards
    ticks_at = [float(node.get("y1", "0")) for node in classed(root, "grid")]
    assert min(ticks_at) <= min(y for _, y in corners)
    assert max(y for _, y in corners) <= max(ticks_at)


def test_a_line_without_a_band_has_none() -> None:
    line = Series("val", [0.9, 0.8], 0)
    root = parsed(line_chart("Accuracy", "version", [1, 2], [line], format_value=str, shares=True))
    assert classed(root, "spread") == []
