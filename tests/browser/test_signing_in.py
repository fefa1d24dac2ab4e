"""Keys in a real browser: asked for, kept, and given to nobody else."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.visitor import Visitor, address, visiting
from tests.service.harness import Harness


@pytest.fixture
def visitor(browser: Browser, locked: tuple[Harness, str]) -> Iterator[Visitor]:
    """Somebody who is asked for a key."""
    with visiting(browser, address(locked[0])) as found:
        yield found


@pytest.fixture
def signed_in(visitor: Visitor, locked: tuple[Harness, str]) -> Visitor:
    visitor.visit("/ui/login")
    give_key(visitor, locked[1])
    visitor.sees("Signed in as ann (write)")
    return visitor


def give_key(visitor: Visitor, key: str) -> None:
    visitor.page.get_by_label("API key").fill(key)
    visitor.page.keyboard.press("Enter")


def go_elsewhere(visitor: Visitor) -> None:
    """To a page of another origin."""
    visitor.page.goto(f"{visitor.url.replace('127.0.0.1', 'localhost')}/healthz")


def test_signing_in_leads_back_and_signing_out_forgets(
    visitor: Visitor, locked: tuple[Harness, str]
) -> None:
    page = visitor.page
    visitor.visit("/ui/jobs?status=failed")
    assert visitor.faults() == []
    assert visitor.complaints == []
    give_key(visitor, "grasp_wrong")
    visitor.sees("This key is unknown, revoked or expired.")
    give_key(visitor, locked[1])
    page.wait_for_url("**/ui/jobs?status=failed")
    assert page.evaluate("document.cookie") == ""
    visitor.visit("/ui/targets")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/ui/login")
    visitor.visit("/ui/targets")
    expect(page.locator("h1")).to_have_text("Sign in")


def test_scripts_of_a_page_act_with_the_key_that_was_given(signed_in: Visitor) -> None:
    page = signed_in.page
    signed_in.visit("/ui/targets")
    archive = {"name": "a.zip", "mimeType": "application/zip", "buffer": b"PK"}
    page.get_by_label("Drop an archive").set_input_files(archive)  # type: ignore[arg-type]
    page.get_by_label("Name").fill("faces")
    page.get_by_role("button", name="Register the target").click()
    page.wait_for_url("**/ui/jobs/*")
    expect(page.locator("h1 .pill")).to_have_text("queued")
    assert signed_in.complaints == []


def test_a_link_from_elsewhere_finds_whoever_is_signed_in(signed_in: Visitor) -> None:
    """On that request the browser holds the cookie back; the login page looks again."""
    go_elsewhere(signed_in)
    signed_in.page.evaluate("url => { location.href = url }", f"{signed_in.url}/ui/workers")
    expect(signed_in.page.locator("h1")).to_have_text("Workers")


def test_a_page_of_another_origin_can_do_nothing(
    signed_in: Visitor, locked: tuple[Harness, str]
) -> None:
    go_elsewhere(signed_in)
    signed_in.page.evaluate(
        """url => fetch(url, {method: "POST", body: "PK", mode: "no-cors",
                              credentials: "include"})""",
        f"{signed_in.url}/targets?name=stolen",
    )
    assert locked[0].client.get("/targets/stolen").status_code == 404
