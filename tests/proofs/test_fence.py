"""Workers that sleep longer than their lease: what they bring when they wake is thrown away."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import InternalError

from registry.database import Database
from registry.jobs.bell import open_bell
from registry.jobs.queue import lock_queue, open_queue
from registry.tables import Job, Model, Worker
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.proofs.forms import short_and_long
from tests.service.fake_folds import chain, checkpoint
from tests.service.place import Place
from tests.worker.waiting import until

pytestmark = pytest.mark.proof

AT_ONCE = 2  # models, and of four workers those that sleep
LONG_ENOUGH = 150  # ticks of a fold, to be stopped before its end
THROWN = "result thrown away"
LEASE = {"lease_seconds": 4.0, "heartbeat_seconds": 0.5}  # seven may be late on a busy machine


@dataclass
class Sleepers:
    """A cluster whose workers are put to sleep in the midst of a fold."""

    cluster: Cluster
    place: Place
    models: list[Model]
    folded: dict[str, list[bytes]]
    rounds: int = 0

    def round(self) -> None:
        """Of each model one fold is overslept, and done by another with one more source."""
        self.rounds += 1
        jobs, asleep = [], []
        for model in self.models:
            jobs.append(self._offer(model, "overslept", ticks=LONG_ENOUGH))
            asleep.append(self._put_to_sleep(jobs[-1]))
        jobs += [self._offer(model, "next", ticks=1) for model in self.models]
        for job in jobs:
            assert self.place.ended(job).status == "succeeded"
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)

    def _offer(self, model: Model, label: str, ticks: int) -> Job:
        data = checkpoint(f"{model.name}-{self.rounds}-{label}", ticks=ticks)
        self.folded[model.id].append(data)
        return self.place.offer(model, data)

    def _put_to_sleep(self, job: Job) -> int:
        """Only the worker, not its child, whose result will be there when it wakes."""
        self.place.started(job)
        with self.place.database.read() as session:
            worker = session.get_one(Worker, self.place.job(job).worker_id)
        os.kill(worker.pid, signal.SIGSTOP)
        return worker.pid

    def idle(self) -> bool:
        """Whether those that slept are up, and have noticed."""
        last = max(job.finished_at for job in self.place.rows(Job) if job.finished_at)
        workers = self.place.rows(Worker)
        return all(worker.seen_at > last and worker.job_id is None for worker in workers)

    def check(self) -> None:
        """Each source was folded once, onto the one before."""
        for model in self.models:
            sources = Counter(version.source_id for version in self.place.versions(model))
            assert max(sources.values()) == 1, "a source was folded twice"
            assert self.place.hashes(model) == chain(self.folded[model.id])


@contextmanager
def sleepers(make_cluster: MakeCluster) -> Iterator[Sleepers]:
    with make_cluster(apis=0, workers=0, **LEASE) as cluster:
        options: dict[str, Any] = cluster.settings.model_dump(exclude_unset=True)
        place = Place(**options)
        place.database.close()
        place.database = Database(place.settings.database, open_bell(place.settings.broker_url))
        models = [place.ready_model(f"model-{number}") for number in range(AT_ONCE)]
        cluster.add_workers(2 * AT_ONCE)
        try:
            yield Sleepers(cluster, place, models, {model.id: [] for model in models})
        finally:
            place.database.close()


def oversleep(make_cluster: MakeCluster, stops: int) -> tuple[int, set[str]]:
    """So many workers sleep beyond their lease, and what they bring changes nothing.

    How many results were thrown away, and why attempts were lost.
    """
    with sleepers(make_cluster) as found:
        for _ in range(stops // AT_ONCE):
            found.round()
            until(found.idle)
            found.check()
        return found.cluster.logs().count(THROWN), set(found.cluster.failures())


@pytest.mark.parametrize("stops", short_and_long(4, 50))
def test_what_a_worker_brings_after_its_lease_is_thrown_away(
    make_cluster: MakeCluster, stops: int
) -> None:
    thrown_away, reasons = oversleep(make_cluster, stops)

    assert thrown_away >= stops
    assert reasons == {"worker_lost"}


def test_without_the_fence_the_proof_fails(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROOF_UNFENCED", "1")
    with pytest.raises(AssertionError, match="a source was folded twice"):
        oversleep(make_cluster, AT_ONCE)


def test_a_process_frozen_in_a_transaction_lets_go_of_its_locks(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = text("SET LOCAL idle_in_transaction_session_timeout = 200")
    monkeypatch.setattr("registry.database.LET_GO", soon)
    database = Database(database_url)
    with database.write() as session:
        open_queue(session, "queue")
    with pytest.raises(InternalError), database.write() as frozen:  # noqa: PT012 - nested in time
        lock_queue(frozen, "queue")
        with database.write() as other:
            lock_queue(other, "queue")  # it waits until the first is given up
        lock_queue(frozen, "queue")
    database.close()
