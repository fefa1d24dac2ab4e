"""Keys in a real browser: asked for, kept, and given to nobody else."""

from playwright.sync_api import Browser, expect

from tests.browser.visitor import address, visiting
from tests.service.harness import Harness


def test_signing_in_leads_back_and_signing_out_forgets(
    browser: Browser, locked: tuple[Harness, str]
) -> None:
    harness, secret = locked
    with visiting(browser, address(harness)) as visitor:
        page = visitor.page
        visitor.visit("/ui/jobs?status=failed")
        assert visitor.faults() == []
        assert visitor.complaints == []
        page.get_by_label("API key").fill("grasp_wrong")
        page.keyboard.press("Enter")
        visitor.sees("This key is unknown, revoked or expired.")
        page.get_by_label("API key").fill(secret)
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/jobs?status=failed")
        assert page.evaluate("document.cookie") == ""
        visitor.visit("/ui/targets")
        visitor.sees("Signed in as ann (write)")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/ui/login")
        visitor.visit("/ui/targets")
        expect(page.locator("h1")).to_have_text("Sign in")


def test_scripts_of_a_page_act_with_the_key_that_was_given(
    browser: Browser, locked: tuple[Harness, str]
) -> None:
    harness, secret = locked
    with visiting(browser, address(harness)) as visitor:
        page = visitor.page
        visitor.visit("/ui/login?next=/ui/targets")
        page.get_by_label("API key").fill(secret)
        page.keyboard.press("Enter")
        page.wait_for_url("**/ui/targets")
        archive = {"name": "a.zip", "mimeType": "application/zip", "buffer": b"PK"}
        page.get_by_label("Drop an archive").set_input_files(archive)  # type: ignore[arg-type]
        page.get_by_label("Name").fill("faces")
        page.get_by_role("button", name="Register the target").click()
        page.wait_for_url("**/ui/jobs/*")
        expect(page.locator("h1 .pill")).to_have_text("queued")
        assert visitor.complaints == []


def test_a_link_from_elsewhere_finds_whoever_is_signed_in(
    browser: Browser, locked: tuple[Harness, str]
) -> None:
    """On that request the browser holds the cookie back; the login page looks again."""
    harness, secret = locked
    with visiting(browser, address(harness)) as visitor:
        page = visitor.page
        visitor.visit("/ui/login")
        page.get_by_label("API key").fill(secret)
        page.keyboard.press("Enter")
        visitor.sees("Signed in as ann")
        elsewhere = address(harness).replace("127.0.0.1", "localhost")
        page.goto(f"{elsewhere}/healthz")
        page.evaluate("url => { location.href = url }", f"{address(harness)}/ui/workers")
        expect(page.locator("h1")).to_have_text("Workers")


def test_a_page_of_another_origin_can_do_nothing(
    browser: Browser, locked: tuple[Harness, str]
) -> None:
    harness, secret = locked
    with visiting(browser, address(harness)) as visitor:
        page = visitor.page
        visitor.visit("/ui/login")
        page.get_by_label("API key").fill(secret)
        page.keyboard.press("Enter")
        visitor.sees("Signed in as ann")
        elsewhere = address(harness).replace("127.0.0.1", "localhost")
        page.goto(f"{elsewhere}/healthz")
        page.evaluate(
            """url => fetch(url, {method: "POST", body: "PK", mode: "no-cors",
                                  credentials: "include"})""",
            f"{address(harness)}/targets?name=stolen",
        )
        assert harness.client.get("/targets/stolen").status_code == 404
