"""Workers that end, die, sleep or lose the database: others go on with what they had."""

import json
import os
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from sqlalchemy import event

import registry.database
from registry.blobs.collection import collect_work
from registry.jobs import queue
from registry.tables import Worker, utc_now
from tests.service.fake_folds import (
    chain,
    checkpoint,
)
from tests.service.harness import WORKER, Process
from tests.service.place import Place, codes
from tests.worker.waiting import is_gone, until

A_WHILE = 50  # ticks: long enough for something to happen meanwhile


def test_a_worker_that_is_told_to_end_hands_its_job_on(place: Place) -> None:
    model = place.ready_model()
    source = checkpoint("a", ticks=A_WHILE)
    job = place.offer(model, source)

    with Process(WORKER, place.settings) as first:
        child = place.started(job)
        assert first.end(signal.SIGTERM) == 0
    handed_back = place.job(job)
    with place.worker() as second:
        assert second.drain() == 1

    assert (handed_back.status, handed_back.attempts) == ("queued", 0)
    assert handed_back.failures == []
    assert is_gone(child)
    ended = place.job(job)
    assert (ended.status, ended.attempts) == ("succeeded", 1)
    assert json.loads(place.report(job))["begun_before"] == 1  # it had the first one's folder
    assert place.hashes(model) == chain([source])
    assert place.rows(Worker) == []


def test_the_job_of_a_worker_whose_process_is_gone_is_taken_over_at_once(place: Place) -> None:
    model = place.ready_model()
    source = checkpoint("a", ticks=A_WHILE)
    job = place.offer(model, source)

    with Process(WORKER, place.settings) as first:
        child = place.started(job)
        first.end(signal.SIGKILL)
    with place.worker() as second:
        assert second.drain() == 1  # long before the lease expires

    ended = place.job(job)
    assert (ended.status, ended.attempts, codes(ended)) == ("succeeded", 2, ["worker_lost"])
    assert place.hashes(model) == chain([source])
    until(lambda: is_gone(child))


def test_a_worker_whose_process_number_another_has_now_is_gone_too(place: Place) -> None:
    job = place.offer(place.ready_model(), checkpoint("a"))
    before_us = datetime.fromtimestamp(psutil.Process().create_time() - 1, UTC)
    with place.database.write() as session:
        lease = queue.claim(session, "wrk_lost", utc_now(), lease_seconds=10**6, max_losses=3)
        session.add(
            Worker(
                id="wrk_lost",
                host=socket.gethostname(),
                pid=os.getpid(),
                device="cpu",
                release="0",
                seen_at=before_us,
            )
        )

    with place.worker() as worker:
        assert worker.drain() == 1

    assert lease is not None
    assert codes(place.job(job)) == ["worker_lost"]
    assert place.job(job).status == "succeeded"


def test_the_job_of_a_silent_worker_elsewhere_is_taken_over_when_its_lease_ends(
    home: Path,
) -> None:
    place = Place(home, lease_seconds=1.5, heartbeat_seconds=0.5)
    model = place.ready_model()
    source = checkpoint("a", ticks=A_WHILE)
    job = place.offer(model, source)

    with Process(WORKER, place.settings) as first:
        place.started(job)
        first.end(signal.SIGKILL)
    place.change(Worker, host="elsewhere")  # where nobody here can see whether it lives
    with place.worker() as second:
        until(second.run_next)

        hosts = {worker.id: worker.host for worker in place.rows(Worker)}
        assert hosts.pop(second.id) != "elsewhere"
        assert list(hosts.values()) == ["elsewhere"]
    ended = place.job(job)
    assert (ended.status, codes(ended)) == ("succeeded", ["worker_lost"])
    assert place.hashes(model) == chain([source])
    place.database.close()


def test_a_worker_that_slept_through_its_lease_publishes_nothing(home: Path) -> None:
    place = Place(home, lease_seconds=1.5, heartbeat_seconds=0.5)
    model = place.ready_model()
    sources = [checkpoint("a", ticks=A_WHILE), checkpoint("b")]
    job = place.offer(model, sources[0])

    with Process(WORKER, place.settings) as sleeper:
        place.started(job)
        sleeper.send(signal.SIGSTOP)
        with place.worker() as second:
            until(second.run_next)
        published = place.versions(model)
        sleeper.send(signal.SIGCONT)
        until(lambda: sleeper.says("result thrown away"))
        later = place.ended(place.offer(model, sources[1]))
        assert sleeper.end() == 0

    assert [version.sha256 for version in published] == chain(sources[:1])
    assert json.loads(place.report(job))["begun_before"] == 1  # in a folder taken from the sleeper
    assert later.status == "succeeded"  # it goes on with other jobs
    assert place.hashes(model) == chain(sources)
    assert [version.job_id for version in place.versions(model)] == [job.id, later.id]
    collect_work(place.database, place.settings.work_folder)
    assert place.work() == []
    place.database.close()


def test_a_worker_taken_for_dead_makes_itself_known_again(home: Path) -> None:
    place = Place(home, heartbeat_seconds=0.01)

    with place.worker() as worker:
        worker.run_next()
        with place.database.write() as session:
            session.delete(session.get_one(Worker, worker.id))
        until(lambda: worker.run_next() or place.rows(Worker))

        assert [row.id for row in place.rows(Worker)] == [worker.id]
    place.database.close()


@contextmanager
def locked(place: Place) -> Iterator[None]:
    """Nobody else can write to the database."""
    connection = sqlite3.connect(place.settings.home / "grasp.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


def test_a_database_that_is_away_for_a_moment_costs_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.database, "BUSY_SECONDS", 0.01)
    place = Place(home)
    model = place.ready_model()
    source = checkpoint("a", ticks=A_WHILE)
    errors: list[object] = []

    def refused(times: int) -> None:
        before = len(errors)
        until(lambda: len(errors) >= before + times)

    with place.working() as worker:
        event.listen(worker.database.engine, "handle_error", errors.append)
        with locked(place):
            refused(2)  # while it is idle
        job = place.offer(model, source)
        child = place.started(job)
        with locked(place):
            until(lambda: is_gone(child))  # it has finished
            refused(2)  # while the result is to be recorded
        ended = place.ended(job)

    assert (ended.status, ended.attempts, ended.failures) == ("succeeded", 1, [])
    assert place.hashes(model) == chain([source])
    place.database.close()


def test_a_worker_can_end_while_the_database_is_away(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.database, "BUSY_SECONDS", 0.01)
    place = Place(home)

    with place.worker() as worker:
        worker.run_next()
        with locked(place):
            worker.close()

        assert [row.id for row in place.rows(Worker)] == [worker.id]
    place.database.close()
