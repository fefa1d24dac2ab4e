"""The page of a running job, told one thing after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from registry.tables import utc_now
from tests.app.story import Story
from tests.browser.visitor import Visitor, address, visiting
from tests.service.harness import Harness

CURVES = {"keep": [[0, 1.0], [50, 0.5]], "grasp": [[0, 1.25], [25, 0.75]]}


@pytest.fixture
def running(
    browser: Browser, populated: tuple[Harness, Story]
) -> Iterator[tuple[Visitor, str, dict[str, Any]]]:
    """Somebody who looks, the path of the job, and what the service says of it."""
    harness, story = populated
    job = harness.client.get(f"/jobs/{story.running}").json()
    with visiting(browser, address(harness)) as visitor:
        yield visitor, f"/ui/jobs/{story.running}", job


def follow(
    running: tuple[Visitor, str, dict[str, Any]], *metrics: dict[str, Any], **fields: Any
) -> Visitor:
    """The page, after these metrics came one by one."""
    visitor, path, job = running
    events = [job | fields | {"metrics": {"curves": CURVES, **each}} for each in metrics]
    body = "".join(f"event: job\ndata: {json.dumps(event)}\n\n" for event in events)

    def tell(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=body)

    visitor.page.route("**/events", tell)
    visitor.visit(path)
    visitor.page.locator("figure.live polyline").first.wait_for()
    return visitor


def shown(visitor: Visitor, field: str) -> str:
    return visitor.page.locator(f"[data-field={field}]").inner_text()


STEP = {"candidate": "grasp", "step": 25, "steps": 100, "epoch": 3, "epochs": 8, "loss": 0.75}
LOOK = {"candidate": "grasp", "step": 25, "steps": 100, "epochs": 8, "val_accuracy": 0.875}


def test_what_steps_and_looks_say_stays_until_the_next(
    running: tuple[Visitor, str, dict[str, Any]],
) -> None:
    visitor = follow(running, STEP, LOOK, STEP)
    assert shown(visitor, "epoch") == "epoch 3 of 8"
    assert shown(visitor, "step") == "25 of 100"
    assert shown(visitor, "val_accuracy") == "87.5\u202f%"
    visitor = follow(running, STEP, LOOK)
    assert shown(visitor, "loss") == "0.750"
    assert shown(visitor, "epoch") == "epoch 3 of 8"


def test_another_candidate_has_an_accuracy_of_its_own(
    running: tuple[Visitor, str, dict[str, Any]],
) -> None:
    visitor = follow(running, LOOK | {"candidate": "keep"}, STEP)
    assert shown(visitor, "val_accuracy") == "–"
    assert shown(visitor, "stage").startswith("grasp: ")


def test_the_chart_has_axes_that_can_be_read(
    running: tuple[Visitor, str, dict[str, Any]],
) -> None:
    visitor = follow(running, STEP)
    ticks = visitor.page.locator("figure.live .tick")
    expect(ticks.and_(visitor.page.locator(".y"))).to_have_text(["0", "0.5", "1"])
    expect(ticks.and_(visitor.page.locator(".x"))).to_have_text(["0", "50", "100"])
    drawn = visitor.page.locator("figure.live polyline")
    expect(drawn).to_have_count(2)
    chart = visitor.page.locator("figure.live svg.chart").bounding_box()
    assert chart is not None
    assert chart["width"] / chart["height"] == pytest.approx(560 / 200, rel=0.02)
    assert visitor.faults() == []


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.01, ""), (0.25, "about 30\u202fmin left"), (0.99, "about 6\u202fs left")],
)
def test_the_time_that_is_left_is_told_once_it_can_be(
    running: tuple[Visitor, str, dict[str, Any]], progress: float, expected: str
) -> None:
    now = utc_now()
    running[0].page.clock.set_fixed_time(now)
    started = now - timedelta(minutes=10)
    visitor = follow(running, STEP, progress=progress, started_at=started.isoformat())
    assert shown(visitor, "left") == expected
