"""A live server, and clients of both kinds."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from grasp_client import AsyncGrasp, Grasp
from registry.database import Database
from registry.process.settings import Settings
from registry.tables import Base
from tests.app.conftest import migrated as migrated
from tests.app.world import Server, World, checkpoint
from tests.client.awaited import Awaited
from tests.client.proxy import Proxy

FOLDER = Path(__file__).parent
SAMPLE = 4  # of so many tests of the generated client one is enough, but for those who prove
PATIENCE_S = 60.0  # nothing that passes takes that long, however slow the machine is


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The client that does things at once is written from the other by a script."""
    generated = [item for item in items if "[sync" in item.name and item.path.parent == FOLDER]
    for number, item in enumerate(generated):
        if number % SAMPLE:
            item.add_marker(pytest.mark.proof)


@pytest.fixture(scope="session")
def server(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("live") / "home"
    home.mkdir()
    shutil.copy(migrated, home / "grasp.db")
    running = Server(home)
    yield running
    running.stop()


@pytest.fixture
def world(server: Server, no_settings: None) -> Iterator[World]:
    """The live server's world, in which nothing is left from the test before."""
    settings = Settings(home=server.log.parent / "home")
    database = Database(settings.database)
    with database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        yield World(client, settings, database)
    database.close()


@pytest.fixture
def grasp(server: Server, world: World) -> Iterator[Grasp]:
    with Grasp(server.url, patience=PATIENCE_S) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest, world: World) -> Iterator[Callable[..., Any]]:
    """Makes clients, of one kind and of the other; both are used as a Grasp is."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner()) if request.param == "async" else None

        def make(url: str, **options: Any) -> Any:
            chosen = {"patience": PATIENCE_S, **options}
            if runner is None:
                return stack.enter_context(Grasp(url, **chosen))
            client = AsyncGrasp(url, **chosen)
            stack.callback(lambda: runner.run(client.close()))
            return Awaited(client, runner)

        yield make


@pytest.fixture
def g(server: Server, connect: Callable[..., Any]) -> Any:
    """A client of either kind."""
    return connect(server.url)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as between:
        yield between


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint that fits."""
    path = tmp_path / "site-a.safetensors"
    path.write_bytes(checkpoint(1))
    return path
