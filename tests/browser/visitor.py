"""Somebody who looks at the pages in a real browser, and notices what goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Request, Response, expect, sync_playwright

from tests.service.harness import Harness

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LEFT = "net::ERR_ABORTED"  # by going to another page, where streams end
PATIENCE_MS = 60_000  # for a busy machine; nothing here is a measurement
CHECK = Path(__file__).parent / "check_page.js"


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browsing(executable: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(OPTIONS))
        yield browser
        browser.close()


@dataclass
class Visitor:
    """One browser window on one service."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)  # of the console, and answers above 399

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.page.on("console", lambda said: self._hear(said.type, said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("requestfailed", self._miss)
        self.page.on("response", self._judge)

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def _miss(self, request: Request) -> None:
        if request.failure != LEFT:
            self.complaints.append(f"{request.failure}: {request.url}")

    def _judge(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.status}: {response.url}")

    def visit(self, path: str) -> None:
        answer = self.page.goto(f"{self.url}{path}", wait_until="load")
        assert answer is not None

    def weight(self) -> int:
        """Bytes of everything that this page needed, unpacked."""
        found = self.page.evaluate(
            "() => performance.getEntries().map(entry => entry.decodedBodySize ?? 0)"
        )
        return int(sum(found))

    def faults(self) -> list[str]:
        """What a user of a keyboard, a phone or a screen reader would stumble on."""
        found: list[str] = self.page.evaluate(CHECK.read_text())
        return found

    def sees(self, text: str) -> None:
        """Wait until it stands somewhere on the page."""
        self.page.get_by_text(text).first.wait_for()


def address(harness: Harness) -> str:
    return f"http://127.0.0.1:{harness.settings.port}"


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visitor]:
    context = browser.new_context(**{"viewport": {"width": 1240, "height": 900}, **options})
    yield Visitor(context.new_page(), url)
    context.close()
