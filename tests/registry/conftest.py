"""Real databases, migrated and empty, and a registry whose clock only the test moves."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import make_url, text

from grasp_core.kinds.image.config import PreprocessingOverrides
from registry import models, sources, targets, versions
from registry.blobs.base import Blob
from registry.database import Database
from registry.jobs import queue
from registry.jobs.queue import Lease
from registry.jobs.states import JobStatus
from registry.jobs.transitions import Failure
from registry.tables import Base, Job, Model, Queue, Source, Target, Version
from registry.versions import FoldResult
from tests.configs import grasp_alone
from tests.servers import serving_postgres

Row = TypeVar("Row", bound=Base)
START = datetime(2030, 1, 1, tzinfo=UTC)
LEASE_SECONDS = 60.0
MAX_ATTEMPTS = 3
MAX_LOSSES = 4


def blob(content: str) -> Blob:
    return Blob(hashlib.sha256(content.encode()).hexdigest(), len(content))


def result(
    base: int | None, weights: str | None, reason: str | None = None, state: str | None = None
) -> FoldResult:
    """What a fold into version `base` leaves; without weights it was rejected."""
    contents = {"weights": weights, "state/grasp": state}
    made = {name: blob(content) for name, content in contents.items() if content is not None}
    verdict = {"outcome": "rejected" if reason else "accepted", "reason": reason}
    return FoldResult(base, '{"schema": 1}', {"accuracy": 0.5}, made, "grasp", verdict)


@dataclass
class World:
    """A registry and the hands that work on it, each call one transaction."""

    database: Database
    now: datetime = START

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def add_target(self, name: str = "faces", owner: str = "ann") -> tuple[Target, Job]:
        with self.database.write() as session:
            return targets.create_target(session, owner, name, uri="file:///faces")

    def add_model(self, target: Target, name: str = "merged", **options: Any) -> tuple[Model, Job]:
        chosen: dict[str, Any] = {
            "architecture": "mobilevit_xxs",
            "classes": ("F", "M"),
            "preprocessing": PreprocessingOverrides(),
            "merge": grasp_alone(),
            "keep_versions": None,
            "keep_sources": False,
        }
        with self.database.write() as session:
            return models.create_model(session, target.owner, target, name=name, **chosen | options)

    def ready_target(self, name: str = "faces", owner: str = "ann") -> Target:
        target, job = self.add_target(name, owner)
        lease = self.lease_of(job)
        with self.database.write() as session:
            targets.record_validation(session, lease, {"classes": ["F", "M"]}, self.now)
        return self.get(Target, target.id)

    def prepare(self, lease: Lease) -> None:
        with self.database.write() as session:
            models.record_preparation(session, lease, ("F", "M"), {"tensors": {}}, self.now)

    def ready_model(
        self, name: str = "merged", owner: str = "ann", target: Target | None = None, **options: Any
    ) -> Model:
        target = target or self.ready_target(f"target of {name}", owner)
        model, job = self.add_model(target, name, **options)
        self.prepare(self.lease_of(job))
        return self.get(Model, model.id)

    def offer(
        self, model: Model, content: str, weights: str | None = None
    ) -> tuple[Source, Job, bool]:
        """A file of this content; two can hold the same weights."""
        digest = blob(f"weights {content if weights is None else weights}").sha256
        with self.database.write() as session:
            return sources.offer_source(
                session, model, blob(content), content=digest, name=content, classes=None
            )

    def try_out(self, model: Model, content: str) -> Job:
        with self.database.write() as session:
            return sources.try_source(session, model, blob(content), name=content, classes=None)

    def claim(self, worker: str = "wrk_a") -> Lease | None:
        with self.database.write() as session:
            return queue.claim(
                session, worker, self.now, lease_seconds=LEASE_SECONDS, max_losses=MAX_LOSSES
            )

    def lease_of(self, job: Job, worker: str = "wrk_a") -> Lease:
        """Claim, and see that it is this job that comes."""
        lease = self.claim(worker)
        assert lease is not None
        assert lease.job_id == job.id
        return lease

    def lose(self, job: Job) -> None:
        """With its worker, which is silent until its lease has expired."""
        self.lease_of(job)
        self.later(LEASE_SECONDS)

    def publish(
        self, lease: Lease, base: int | None, weights: str, state: str | None = None
    ) -> int:
        made = result(base, weights, state=state)
        with self.database.write() as session:
            return versions.publish(session, lease, made, self.now)

    def reject(self, lease: Lease, base: int | None = None) -> None:
        with self.database.write() as session:
            versions.reject(session, lease, result(base, None, "worse"), self.now)

    def rollback(self, model: Model, number: int) -> Version:
        with self.database.write() as session:
            return versions.rollback(session, session.get_one(Model, model.id), number, self.now)

    def fold(
        self,
        model: Model,
        content: str,
        weights: str | None = None,
        state: str | None = None,
    ) -> int:
        """Offer a source and publish its fold."""
        _, job, new = self.offer(model, content)
        assert new
        base = self.get(Model, model.id).version
        made = weights or f"merged with {content}"
        return self.publish(self.lease_of(job), base, made, state)

    def fail(self, lease: Lease, failure: Failure) -> str:
        with self.database.write() as session:
            return queue.fail(session, lease, failure, self.now, max_attempts=MAX_ATTEMPTS)

    def close(self, lease: Lease, status: JobStatus, **values: Any) -> None:
        with self.database.write() as session:
            queue.close(session, lease, status, self.now, **values)

    def hold(self, lease: Lease, seconds: float | None = None) -> None:
        until = None if seconds is None else self.now + timedelta(seconds=seconds)
        with self.database.write() as session:
            queue.hold(session, lease, until)

    def hand_back(self, lease: Lease) -> None:
        with self.database.write() as session:
            queue.hand_back(session, lease)

    def progress(self, lease: Lease, stage: str, share: float, **metrics: float) -> None:
        measured = {"loss": 1.0 - share} | metrics
        with self.database.write() as session:
            queue.record_progress(session, lease, stage, share, measured)

    def cancel(self, job: Job) -> str:
        with self.database.write() as session:
            return queue.cancel(session, job.id, self.now)

    def retry(self, job: Job) -> None:
        with self.database.write() as session:
            queue.retry(session, session.get_one(Job, job.id))

    def wants_cancel(self, lease: Lease) -> bool:
        with self.database.read() as session:
            return queue.wants_cancel(session, lease)

    def get(self, table: type[Row], key: Any) -> Row:
        with self.database.read() as session:
            return session.get_one(table, key)

    def job(self, job: Job | Lease) -> Job:
        return self.get(Job, job.job_id if isinstance(job, Lease) else job.id)

    def queue(self, queue_id: str) -> Queue:
        return self.get(Queue, queue_id)

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that is stored, to see that nothing changed."""
        with self.database.read() as session:
            return {
                table.name: sorted(map(tuple, session.execute(table.select())), key=repr)
                for table in Base.metadata.sorted_tables
            }


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a running PostgreSQL; each process that runs tests has its own."""
    with serving_postgres() as server:
        yield server.url()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, of its own for this test."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server = request.getfixturevalue("postgres")
    _execute(server, "CREATE DATABASE empty")
    yield make_url(server).set(database="empty").render_as_string(hide_password=False)
    _execute(server, "DROP DATABASE empty WITH (FORCE)")


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database with all tables and no rows, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres: str) -> Iterator[Database]:
    _execute(postgres, "CREATE DATABASE migrated")
    url = make_url(postgres).set(database="migrated")
    database = Database(url.render_as_string(hide_password=False))
    database.migrate()
    yield database
    database.close()


def truncate(database: Database) -> None:
    names = ", ".join(Base.metadata.tables)
    with database.engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {names}"))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Migrated and empty."""
    if request.param == "sqlite":
        path = tmp_path / "grasp.db"
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        copy = Database(f"sqlite:///{path}")
        yield copy
        copy.close()
    else:
        server: Database = request.getfixturevalue("migrated_postgres")
        truncate(server)
        yield server


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


def _execute(url: str, statement: str) -> None:
    """Outside of any transaction, as CREATE DATABASE wants it."""
    database = Database(url)
    engine = database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    database.close()
