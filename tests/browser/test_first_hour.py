"""The first hour in a real browser, with a worker that really folds: from a zip of images and two
checkpoints to an understood verdict."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.browser.visitor import visiting
from tests.serving import serving
from tests.trained import Digits

VERDICT = re.compile(r"won over|no candidate was better", re.IGNORECASE)
MINUTES = 5 * 60_000


def test_from_images_and_two_checkpoints_to_a_verdict(
    browser: Browser, digits: Digits, tmp_path: Path
) -> None:
    with (
        serving(tmp_path / "home") as (client, _),
        visiting(browser, str(client.base_url).rstrip("/")) as visitor,
    ):
        page = visitor.page

        def ends_well() -> None:
            page.wait_for_url("**/ui/jobs/*")
            expect(page.locator("h1 .pill")).to_have_text("succeeded", timeout=MINUTES)

        def upload(source: Path) -> None:
            visitor.visit("/ui/upload?model=mine")
            page.get_by_label("Drop a safetensors file").set_input_files(source)
            page.locator("form").get_by_role("button", name="Upload").click()
            ends_well()

        visitor.visit("/")
        expect(page.locator(".empty")).to_be_visible()
        visitor.visit("/ui/targets")
        visitor.sees("docs/target-data.md")
        page.get_by_label("Drop an archive").set_input_files(digits.target)
        page.get_by_label("Name").fill("digits")
        page.get_by_role("button", name="Register the target").click()
        ends_well()

        visitor.visit("/#new-model")
        page.get_by_label("Name", exact=True).fill("mine")
        page.get_by_label("Architecture").fill("test_efficientnett")
        page.get_by_label("Image size").fill("32")
        page.get_by_role("button", name="Create the model").click()
        visitor.sees("did you mean")
        assert all("422" in said for said in visitor.complaints)  # that answer, and no other
        visitor.complaints.clear()
        page.get_by_label("Architecture").fill("test_efficientnet")
        page.get_by_role("button", name="Create the model").click()
        ends_well()

        visitor.visit("/ui/models/mine#parameters")
        page.get_by_label("refine.steps").fill("10")
        page.get_by_label("refine.epochs").fill("null")
        page.get_by_label("refine.lr").fill("0.001")
        page.get_by_role("button", name="Change the parameters").click()
        visitor.sees("Later folds use these parameters.")

        upload(digits.sources[0])
        upload(digits.sources[1])
        page.get_by_role("link", name=re.compile("version 2", re.IGNORECASE)).first.click()
        page.wait_for_url("**/versions/2")
        expect(page.get_by_text(VERDICT).first).to_be_visible()
        expect(page.locator(".gains svg.gain").first).to_be_visible()
        visitor.visit("/ui/models/mine")
        expect(page.locator(".gains tbody tr")).to_have_count(2)
        assert visitor.complaints == []
