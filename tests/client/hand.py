"""A worker in a thread, without folds: what a source is called decides what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from grasp_core.report import Difference, Differences, Figures, Runner, Worth
from registry.jobs import queue
from registry.jobs.queue import Lease
from registry.tables import Job, Source, utc_now
from tests.app.world import World

RACE = Figures(
    candidates=(
        Runner(name="keep", outcome="lost", accuracy=0.9, log_likelihood=-0.5),
        Runner(name="source", outcome="out", reason="its outputs are not finite"),
        Runner(
            name="mean",
            outcome="won",
            accuracy=0.92,
            log_likelihood=-0.25,
            error=0.0124,
            test_accuracy=0.91,
            seconds=12.5,
            peak_bytes=800_000_000,
            gain=Differences(accuracy=Difference(mean=0.02, error=0.01), log_likelihood=None),
        ),
        Runner(name="grasp", outcome="lost", same_as="keep", accuracy=0.9, log_likelihood=-0.5),
    ),
    worth=Worth(
        effectiveness=0.25,
        informativeness=1.28,
        test=Differences(accuracy=Difference(mean=0.018, error=0.007), log_likelihood=None),
    ),
)


@dataclass
class Hand(World):
    """Takes up every job. A source called bad… is rejected, one called broken… fails; one that is
    called race… was taken in several ways."""

    stopped: Event = field(default_factory=Event)
    lease: Lease | None = None  # the job that is being worked on

    def claim(self) -> Lease:
        assert self.lease is not None
        return self.lease

    def work(self) -> None:
        while not self.stopped.wait(0.02):
            while self._take():
                self._finish(*self._job())

    def _take(self) -> bool:
        with self.database.write() as session:
            self.lease = queue.claim(session, "wrk_h", utc_now(), lease_seconds=60, max_losses=1)
        return self.lease is not None

    def _job(self) -> tuple[str, str]:
        """What kind of job it is, and what its source is called."""
        with self.database.read() as session:
            job = session.get_one(Job, self.claim().job_id)
            source = session.get(Source, job.source_id) if job.source_id else None
            offered = job.candidate or {}
            return job.kind, source.name if source else str(offered.get("name", ""))

    def _finish(self, kind: str, source: str) -> None:
        if kind == "validate":
            self.validate()
        elif kind == "prepare":
            self.prepare()
        elif kind == "dry_run":
            metrics = RACE.model_dump(mode="json") if source.startswith("race") else None
            self.try_out(refused=source.startswith("bad"), metrics=metrics)
        elif source.startswith("bad"):
            self.reject()
        elif source.startswith("broken"):
            self.fail()
        else:
            self.progress(self.claim(), "refine", 0.5, loss=0.25)
            self.publish()


@contextmanager
def working(world: World) -> Iterator[None]:
    """Somebody does the work meanwhile."""
    hand = Hand(world.client, world.settings, world.database)
    thread = Thread(target=hand.work)
    thread.start()
    try:
        yield
    finally:
        hand.stopped.set()
        thread.join()
