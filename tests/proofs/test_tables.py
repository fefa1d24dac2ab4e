"""A database that nobody has migrated: the service says so, and workers wait."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from registry.database import Database
from registry.process.settings import Settings
from registry.tables import Worker
from tests.servers import Redis
from tests.service.harness import GRASP, WORKER, Process, environment
from tests.worker.waiting import until


@pytest.fixture
def settings(no_settings: None, tmp_path: Path, database_url: str, redis: Redis) -> Settings:
    return Settings(home=tmp_path / "home", database_url=database_url, broker_url=redis.url)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database)
    database.downgrade()
    yield database
    database.close()


def test_a_worker_waits_for_the_tables(settings: Settings, database: Database) -> None:
    with Process(WORKER, settings) as worker:
        until(lambda: worker.says("grasp admin migrate"))
        database.migrate()
        until(lambda: bool(worker_ids(database)))
        assert worker.end(signal.SIGTERM) == 0
    assert worker_ids(database) == []


def worker_ids(database: Database) -> Sequence[str]:
    with database.read() as session:
        return session.scalars(select(Worker.id)).all()


def test_commands_say_what_to_run(settings: Settings, database: Database, tmp_path: Path) -> None:
    def admin(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*GRASP, "admin", *words],
            env=environment(settings),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    listed = admin("keys", "list")
    assert listed.returncode == 2
    assert listed.stderr.strip().endswith("run `grasp admin migrate`")
    assert admin("migrate").returncode == 0
    assert admin("keys", "list").returncode == 0
