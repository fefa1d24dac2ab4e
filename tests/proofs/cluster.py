"""The service as it runs on many machines: every process has a home of its own."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from registry.database import Database
from registry.jobs.states import TERMINAL, JobStatus
from registry.process.settings import Settings
from registry.tables import Job
from tests.service.client import Client
from tests.service.harness import (
    SERVE,
    WORKER,
    Process,
    children_of,
    free_port,
    is_ready,
    none_left,
)
from tests.worker.waiting import PATIENCE_S, until


class Cluster:
    """Some APIs and workers, of fake folds or real ones, that share database, broker and store."""

    def __init__(
        self,
        folder: Path,
        *,
        apis: int = 1,
        workers: int,
        worker: tuple[str, ...] = WORKER,
        **options: Any,
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self._worker = worker
        chosen: dict[str, Any] = {
            "poll_seconds": 0.1,
            "warm_spare": False,
            "device": "cpu",
            "workers": 0,
            "lease_seconds": 4.0,
            "heartbeat_seconds": 1.0,
            "blob_url": f"file://{folder / 'blobs'}",
        }
        self.settings = Settings(home=folder / "observer", **chosen | options)
        self.database = Database(self.settings.database)
        self._api_settings = [self._own(f"api{n}", port=free_port()) for n in range(apis)]
        self._worker_settings: list[Settings] = []
        self.apis = [Process(SERVE, settings) for settings in self._api_settings]
        self.workers: list[Process] = []
        self.add_workers(workers)
        self.https = [
            httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=PATIENCE_S)
            for settings in self._api_settings
        ]
        self.wait_for_apis()

    @property
    def client(self) -> Client:
        return Client(self.https[0])

    @property
    def database_name(self) -> str:
        return self.database.engine.url.database or ""

    def _own(self, name: str, **values: Any) -> Settings:
        return self.settings.model_copy(update={"home": self.folder / name, **values})

    def add_workers(self, count: int, **values: Any) -> None:
        for number in range(len(self.workers), len(self.workers) + count):
            self._worker_settings.append(self._own(f"worker{number}", **values))
            self.workers.append(Process(self._worker, self._worker_settings[number]))

    def wait_for_workers(self) -> None:
        """Until each has looked for the first time."""
        until(lambda: all(worker.says("worker started") for worker in self.workers))

    def wait_for_apis(self) -> None:
        until(lambda: all(map(_answers, self.apis, self.https)))

    def kill_api(self, number: int) -> None:
        """And start it again, as whatever looks after it would."""
        self.apis[number].end(signal.SIGKILL)
        self.apis[number] = Process(SERVE, self._api_settings[number])

    def kill_worker(self, number: int) -> None:
        self.workers[number].send(signal.SIGKILL)
        self.restart_worker(number)

    def restart_worker(self, number: int) -> None:
        self.workers[number].wait()
        self.workers[number] = Process(self._worker, self._worker_settings[number])

    def children(self, number: int) -> list[psutil.Process]:
        """The processes that run jobs for this worker."""
        return children_of(self.workers[number].pid)

    def count_jobs(self, *statuses: JobStatus) -> int:
        """0 as long as the database is away."""
        counted = select(func.count()).where(Job.status.in_(statuses))
        try:
            with self.database.read() as session:
                return session.scalars(counted).one()
        except OperationalError:
            return 0

    def wait_for_ended(self, count: int) -> None:
        """Until so many jobs are over."""
        until(lambda: self.count_jobs(*TERMINAL) >= count)

    def job(self, job_id: str) -> Job:
        with self.database.read() as session:
            return session.get_one(Job, job_id)

    def failures(self) -> Counter[str]:
        """Why attempts went wrong, all in all."""
        with self.database.read() as session:
            lists = session.scalars(select(Job.failures)).all()
        return Counter(failure["code"] for failures in lists for failure in failures)

    def logs(self) -> str:
        """Of all workers that ever were."""
        return "".join(log.read_text() for log in self.folder.glob("worker*/*.log"))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        """End all; a process that stays is a failure of the test."""
        processes = [*self.workers, *self.apis]
        for http in self.https:
            http.close()
        self.database.close()
        for process in processes:
            if process.alive:
                process.send(signal.SIGCONT)
                process.send(signal.SIGTERM)
        with ExitStack() as homes:
            for settings in (*self._api_settings, *self._worker_settings):
                homes.enter_context(none_left(settings.home))
            for process in processes:
                process.wait()


def _answers(api: Process, http: httpx.Client) -> bool:
    assert api.alive, api.log.read_text()
    return is_ready(http)
