"""A home of the service without its API: rows and blobs as the API would have made them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from sqlalchemy import func, select, update

from grasp_core.kinds.image.config import PreprocessingOverrides
from registry import models, sources, targets
from registry.blobs import open_store
from registry.blobs.base import Blob, BlobStore
from registry.database import Database
from registry.jobs import queue
from registry.jobs.states import JobStatus
from registry.process.settings import Settings
from registry.tables import Base, Job, Model, Target, Version, utc_now
from tests.configs import grasp_alone
from tests.service.fake_folds import CLASSES, MANIFEST, STATE, read_fake_job
from tests.worker.waiting import until
from worker.jobs import JobReader
from worker.loop import Worker

OWNER = "local"  # whom a server without keys takes its callers for
Row = TypeVar("Row", bound=Base)


def codes(job: Job) -> list[str]:
    """Why its attempts went wrong."""
    return [failure["code"] for failure in job.failures]


class Place:
    """A migrated database, a store, and workers of this process."""

    def __init__(self, home: Path, **options: Any) -> None:
        chosen: dict[str, Any] = {"poll_seconds": 0.05, "warm_spare": False, "port": 0}
        self.settings = Settings(home=home, **chosen | options)
        self.database = Database(self.settings.database)
        self.database.migrate()
        self.store: BlobStore = open_store(self.settings)

    def put(self, data: bytes) -> Blob:
        with self.store.create() as writer:
            writer.write(data)
            return writer.commit()

    def add_target(self, data: bytes) -> tuple[Target, Job]:
        with self.database.write() as session:
            return targets.create_target(session, OWNER, "target", blob=self.put(data))

    def add_model(self, target: Target, name: str = "merged", **options: Any) -> tuple[Model, Job]:
        chosen: dict[str, Any] = {
            "architecture": "test_resnet",
            "classes": CLASSES,
            "preprocessing": PreprocessingOverrides(),
            "merge": grasp_alone(),
            "keep_versions": None,
            "keep_sources": False,
        }
        with self.database.write() as session:
            return models.create_model(session, OWNER, target, name=name, **chosen | options)

    def ready_model(self, name: str = "merged", **options: Any) -> Model:
        """Validated and prepared, without a process for it."""
        with self.database.write() as session:
            target, _ = targets.create_target(session, OWNER, f"of {name}", uri="file:///nowhere")
        summary = {"classes": CLASSES, "fingerprint": "f" * 64}
        with self.database.write() as session:
            targets.record_validation(session, self._lease(target.id), summary, utc_now())
        model, _ = self.add_model(target, name, **options)
        manifest = MANIFEST.model_dump(mode="json")
        with self.database.write() as session:
            models.record_preparation(session, self._lease(model.id), CLASSES, manifest, utc_now())
        return model

    def _lease(self, queue_id: str) -> queue.Lease:
        with self.database.write() as session:
            lease = queue.claim(session, "setup", utc_now(), lease_seconds=60, max_losses=3)
        assert lease is not None
        assert lease.queue_id == queue_id
        return lease

    def offer(self, model: Model, data: bytes) -> Job:
        with self.database.write() as session:
            known = session.get_one(Model, model.id)
            blob = self.put(data)
            return sources.offer_source(
                session, known, blob, content=blob.sha256, name="source", classes=None
            )[1]

    def try_out(self, model: Model, data: bytes) -> Job:
        with self.database.write() as session:
            known = session.get_one(Model, model.id)
            return sources.try_source(session, known, self.put(data), name="try", classes=None)

    def job(self, job: Job) -> Job:
        with self.database.read() as session:
            return session.get_one(Job, job.id)

    def count_jobs(self, *statuses: JobStatus) -> int:
        with self.database.read() as session:
            counted = select(func.count()).where(Job.status.in_(statuses))
            return session.scalars(counted).one()

    def report(self, job: Job) -> str:
        with self.database.read() as session:
            return session.scalars(select(Job.report).where(Job.id == job.id)).one() or ""

    def cancel(self, job: Job) -> None:
        with self.database.write() as session:
            queue.cancel(session, job.id, utc_now())

    def rows(self, table: type[Row]) -> list[Row]:
        with self.database.read() as session:
            return list(session.scalars(select(table)))

    def change(self, table: type[Base], **values: Any) -> None:
        """Every row."""
        with self.database.write() as session:
            session.execute(update(table).values(**values))

    def versions(self, model: Model) -> list[Version]:
        own = select(Version).where(Version.model_id == model.id).order_by(Version.number)
        with self.database.read() as session:
            return list(session.scalars(own))

    def hashes(self, model: Model) -> list[str]:
        return [version.sha256 for version in self.versions(model)]

    def states(self, model: Model, name: str = STATE) -> list[str | None]:
        return [
            next((file.sha256 for file in version.files if file.name == name), None)
            for version in self.versions(model)
        ]

    def blobs(self) -> set[str]:
        return {path.name for path in self.settings.blob_folder.glob("??/*")}

    def work(self) -> list[Path]:
        return list(self.settings.work_folder.glob("*"))

    def started(self, job: Job, after: int = 0) -> int:
        """Wait until the job's child, one `after` another, has reported its process id: which."""
        until(lambda: self.job(job).metrics.get("pid", after) != after)
        return int(self.job(job).metrics["pid"])

    def ended(self, job: Job) -> Job:
        until(lambda: self.job(job).finished_at is not None)
        return self.job(job)

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """A worker that does what it is told to, job by job."""
        worker = Worker(self.settings, read_job=read_fake_job, warm=False)
        yield worker
        worker.close()

    @contextmanager
    def working(self, read_job: JobReader = read_fake_job) -> Iterator[Worker]:
        """A worker that works by itself."""
        worker = Worker(self.settings, read_job=read_job, warm=False)
        thread = Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()
