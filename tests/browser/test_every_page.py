"""Every page in a real browser, wide and on a phone: there is nothing to complain of."""

from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.app.story import Story
from tests.app.test_pages import LISTS, OF_THE_STORY
from tests.browser.visitor import Visitor, address, visiting
from tests.service.harness import Harness

MAX_BYTES = 300_000
WINDOWS: dict[str, dict[str, Any]] = {
    "wide": {"viewport": {"width": 1240, "height": 900}},
    "phone": {"viewport": {"width": 375, "height": 740}, "has_touch": True},
}


def wrong_with(visitor: Visitor, path: str) -> list[str]:
    """All that there is to complain of."""
    visitor.visit(path)
    weight = visitor.weight()
    heavy = [f"it has {weight} bytes"] if weight > MAX_BYTES else []
    return [*visitor.faults(), *visitor.complaints, *heavy]


def test_faults_are_found(browser: Browser, empty: Harness) -> None:
    """So that finding none means something."""
    with visiting(browser, address(empty)) as visitor:
        visitor.page.set_content(
            "<h1>One</h1><h1>Two</h1><input><img src='data:,'><button></button><table><th>x</table>"
            "<div style='width: 200vw'>wide</div><p id=a><p id=a>"
        )
        faults = " ".join(visitor.faults())
    for fault in (
        "2 h1",
        "0 main",
        "no language",
        "no title",
        "a field without a label",
        "an image without alt",
        "it has no name",
        "a header without scope",
        "two elements have the id a",
        "the page scrolls sideways",
    ):
        assert fault in faults


@pytest.mark.parametrize("window", WINDOWS)
def test_a_page_with_much_to_show(
    browser: Browser, populated: tuple[Harness, Story], window: str
) -> None:
    harness, story = populated
    with visiting(browser, address(harness), **WINDOWS[window]) as visitor:
        for path in (*LISTS, *OF_THE_STORY):
            assert wrong_with(visitor, path.format(**vars(story))) == [], path
        for details in visitor.page.locator("details").all():
            details.evaluate("element => element.open = true")
        assert visitor.faults() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", WINDOWS)
def test_candidates_have_bars_and_their_source_a_sentence(
    browser: Browser, populated: tuple[Harness, Story], window: str, scheme: str
) -> None:
    harness, _ = populated
    options = {**WINDOWS[window], "color_scheme": scheme}
    with visiting(browser, address(harness), **options) as visitor:
        visitor.visit("/ui/models/merged/versions/2")
        visitor.sees("+1.1 points on test over doing without it (-0.9 to 3.1); grasp won over")
        bars = visitor.page.locator(".gains svg.gain")
        assert bars.count() == 4  # of two measures, for each of two that ran against keep
        assert all(bar.is_visible() for bar in bars.all())
        assert visitor.page.locator(".gains .pill.won").count() == 1
        colours = {
            bars.first.locator("rect").evaluate("rect => getComputedStyle(rect).fill"),
            visitor.page.evaluate("getComputedStyle(document.body).backgroundColor"),
        }
        assert len(colours) == 2
        visitor.visit("/ui/models/merged")
        visitor.sees("Grasp won over keep, source")
        assert visitor.page.locator(".gains svg.gain").count() == 1


@pytest.mark.parametrize("window", WINDOWS)
def test_a_page_without_anything(browser: Browser, empty: Harness, window: str) -> None:
    with visiting(browser, address(empty), **WINDOWS[window]) as visitor:
        for path in (*LISTS, "/ui/login"):
            assert wrong_with(visitor, path) == [], path


def test_an_error_is_a_page_like_any_other(browser: Browser, empty: Harness) -> None:
    with visiting(browser, address(empty), **WINDOWS["phone"]) as visitor:
        visitor.visit("/ui/models/nobody")
        assert visitor.faults() == []
        visitor.sees("there is no model 'nobody'")


def test_the_api_documentation_works_without_a_network(
    browser: Browser, populated: tuple[Harness, Story]
) -> None:
    harness, _ = populated
    with visiting(browser, address(harness)) as visitor:
        asked: list[str] = []
        visitor.page.on("request", lambda request: asked.append(request.url))
        visitor.visit("/docs")
        visitor.sees("Offer a checkpoint to a model")
        assert visitor.complaints == []
        assert all(url.startswith((address(harness), "data:")) for url in asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_whoever_likes_it_dark_gets_it_dark(
    browser: Browser, populated: tuple[Harness, Story], scheme: str
) -> None:
    harness, _ = populated
    with visiting(browser, address(harness), color_scheme=scheme) as visitor:
        visitor.visit("/ui/models/merged")
        channels = visitor.page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
    assert (max(channels) < 64) if scheme == "dark" else (min(channels) > 192)


def test_a_chart_tells_its_values_where_the_mouse_points(
    browser: Browser, populated: tuple[Harness, Story]
) -> None:
    harness, _ = populated
    with visiting(browser, address(harness)) as visitor:
        visitor.visit("/ui/models/merged/versions/3")
        stem = visitor.page.locator(".taken title").first
        assert "alignment" in (stem.text_content() or "")
        band = visitor.page.locator(".band g").first
        box = band.bounding_box()
        assert box is not None
        assert box["width"] > 20
        assert box["height"] > 10


def test_the_keyboard_reaches_the_content_first(
    browser: Browser, populated: tuple[Harness, Story]
) -> None:
    harness, _ = populated
    with visiting(browser, address(harness)) as visitor:
        visitor.visit("/ui/models/merged")
        visitor.page.keyboard.press("Tab")
        visitor.page.keyboard.press("Enter")
        assert visitor.page.evaluate("document.activeElement.id") == "main"
        visitor.page.keyboard.press("Tab")
        assert visitor.page.evaluate("document.activeElement.closest('main') !== null")
