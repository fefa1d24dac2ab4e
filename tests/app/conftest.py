"""A service on a home of its own, in this process; and a live one in another."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.peers import PEER_UID
from app.main import create_app
from registry.database import Database
from registry.process.settings import Settings
from tests.app.story import Story, populate
from tests.app.world import Server, World


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables and no rows, to be copied: migrating takes its time."""
    path = tmp_path_factory.mktemp("migrated") / "grasp.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@cache
def shared_app() -> FastAPI:
    """Its routes take longer to build than most tests run; its state begins anew with a world."""
    app = create_app(Settings())
    app.add_middleware(Connected)
    return app


class Connected:
    """As if a user had connected: within a process there is nobody to recognise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[PEER_UID] = scope["app"].state.peer_uid
        await self.app(scope, receive, send)


@contextmanager
def opened(home: Path, **options: Any) -> Iterator[World]:
    """The service on this home, which has a database. One at a time."""
    settings = Settings(home=home, log_level="error", **options)
    app = shared_app()
    app.state.settings = settings
    app.state.peer_uid = os.geteuid()
    database = Database(settings.database)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield World(client, settings, database)
    database.close()


@pytest.fixture
def make_world(migrated: Path, tmp_path: Path, no_settings: None) -> Iterator[Callable[..., World]]:
    """Builds services: with other settings, or on a copy of the home of another."""
    with ExitStack() as stack:

        def make(copied: Path | None = None, **options: Any) -> World:
            home = tmp_path / f"home{len(list(tmp_path.iterdir()))}"
            if copied is not None:
                shutil.copytree(copied, home)
            else:
                home.mkdir()
                shutil.copy(migrated, home / "grasp.db")
            return stack.enter_context(opened(home, **options))

        yield make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.fixture(scope="session")
def populated(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Story]:
    """A home with much to show, to be copied."""
    home = tmp_path_factory.mktemp("populated") / "home"
    home.mkdir()
    shutil.copy(migrated, home / "grasp.db")
    with opened(home) as world:
        return home, populate(world)


@pytest.fixture
def filled(populated: tuple[Path, Story], make_world: Callable[..., World]) -> tuple[World, Story]:
    home, story = populated
    return make_world(home), story


@pytest.fixture(scope="module")
def server(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A live server, shared by the tests of a module."""
    home = tmp_path_factory.mktemp("live") / "home"
    home.mkdir()
    shutil.copy(migrated, home / "grasp.db")
    running = Server(home, GRASP_LOG_FORMAT="json", GRASP_MAX_UPLOAD_BYTES=str(2**29))
    yield running
    running.stop()


@pytest.fixture
def live(server: Server) -> Iterator[World]:
    """The live server's world; names must differ from test to test."""
    settings = Settings(home=server.log.parent / "home")
    database = Database(settings.database)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield World(client, settings, database)
    database.close()
