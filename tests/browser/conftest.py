"""A real browser, if the machine has one, and services for it to look at."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from registry.database import Database
from registry.keys import create_key
from tests.app.conftest import opened
from tests.app.story import Story, populate
from tests.browser.visitor import browsing, find_chromium
from tests.service.harness import Harness


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer than a module: while it runs, this thread cannot run loops of its own."""
    executable = find_chromium()
    if executable is None:
        pytest.skip("there is no Chromium on this machine")
    with browsing(executable) as opened_browser:
        yield opened_browser


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A service without anything, but a worker."""
    with Harness(tmp_path_factory.mktemp("empty") / "home", workers=1) as harness:
        yield harness


@pytest.fixture(scope="module")
def populated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, Story]]:
    """A service with much to show, where nothing goes on."""
    home = tmp_path_factory.mktemp("populated") / "home"
    home.mkdir()
    database = Database(f"sqlite:///{home / 'grasp.db'}")
    database.migrate()
    database.close()
    with opened(home) as world:
        story = populate(world)
    with Harness(home, workers=0) as harness:
        yield harness, story


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, str]]:
    """A service that wants a key, and that key."""
    with Harness(tmp_path_factory.mktemp("locked") / "home", workers=0) as harness:
        database = Database(harness.settings.database)
        with database.write() as session:
            _, secret = create_key(session, "ann", "write")
        database.close()
        harness.client.headers["Authorization"] = f"Bearer {secret}"
        yield harness, secret
