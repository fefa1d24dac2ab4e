"""kill -9 of everything, again and again: what was accepted is folded once, and nothing is left."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
import psutil
import pytest
from sqlalchemy import select

from registry.blobs.collection import collect_blobs, collect_work
from registry.jobs.states import ACTIVE, TERMINAL
from registry.tables import Target, Version
from tests.service.client import Client
from tests.service.fake_folds import chain, checkpoint
from tests.service.harness import WORKER, Harness, Process
from tests.service.place import Place, codes
from tests.worker.waiting import is_gone, until

KILLS = {"child": 18, "worker": 8, "api": 4}  # 30, the more of those that start quickly
MODELS = 3
BACKLOG = 4  # jobs that wait or run, so that a kill hits something
PAUSE_S = 0.4  # at most, between two kills
SEED = int(os.environ.get("KILLS_SEED", random.randrange(2**32)))


class Sender:
    """Offers sources until told to stop, each again and again until it is accepted."""

    def __init__(self, harness: Harness, place: Place, models: list[str]) -> None:
        self.client = Client(harness.client)
        self.place = place
        self.models = models
        self.done = Event()
        self.accepted: dict[str, tuple[str, bytes]] = {}  # job: model and source

    def run(self) -> None:
        while not self.done.wait(0.05):
            if self.place.count_jobs(*ACTIVE) < BACKLOG:
                self._send(len(self.accepted))

    def _send(self, number: int) -> None:
        model, name = self.models[number % MODELS], f"source-{number}"
        data = checkpoint(name, ticks=10)
        while True:
            try:
                answer = self.client.offer(model, name, data, key=name)
            except httpx.TransportError:
                time.sleep(0.1)  # the server was killed, and we cannot know when
            else:
                assert answer["job"]["id"] not in self.accepted
                self.accepted[answer["job"]["id"]] = (model, data)
                return


@contextmanager
def sending(sender: Sender) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        outcome: Future[None] = pool.submit(sender.run)
        try:
            yield
        finally:
            sender.done.set()
        outcome.result()


def kill_child(harness: Harness, chance: random.Random) -> None:
    def killed() -> bool:
        running = harness.children()
        try:
            if running:
                chance.choice(running).kill()
        except psutil.NoSuchProcess:
            return False  # it had just come to its own end
        return bool(running)

    until(killed)


def kill_worker(harness: Harness, chance: random.Random) -> None:
    number = chance.randrange(len(harness.workers))
    harness.workers[number].send(signal.SIGKILL)
    harness.restart_worker(number)


def kill_api(harness: Harness, chance: random.Random) -> None:
    harness.api.send(signal.SIGKILL)
    harness.restart_api()


@pytest.mark.proof
def test_thirty_kills_lose_nothing_and_double_nothing(home: Path) -> None:
    print(f"KILLS_SEED={SEED}")
    chance = random.Random(SEED)
    kills = [kind for kind, count in KILLS.items() for _ in range(count)]
    chance.shuffle(kills)
    kill = {"child": kill_child, "worker": kill_worker, "api": kill_api}
    options = {"max_attempts": 1000, "max_losses": 1000, "lease_seconds": 5, "heartbeat_seconds": 1}

    with Harness(home, workers=2, **options) as harness:
        place = Place(home, **options)
        client = Client(harness.client)
        models = client.make_models(MODELS)
        sender = Sender(harness, place, models)
        with sending(sender):
            for number, kind in enumerate(kills):
                wait_for_jobs(place, number // 2)  # or the kills would let nothing end at all
                time.sleep(chance.uniform(0, PAUSE_S))
                kill[kind](harness, chance)
        harness.wait_for_api()

        ended = [client.ended(job) for job in sender.accepted]
        assert {job["status"] for job in ended} == {"succeeded"}
        for model in models:
            own = [data for owner, data in sender.accepted.values() if owner == model]
            client.check_chain(harness.settings, model, own)

    reasons = Counter(failure["code"] for job in ended for failure in job["failures"])
    print(f"{len(ended)} sources", reasons)
    assert reasons.keys() == {"child_killed", "worker_lost"}
    check_nothing_is_left(place)


def wait_for_jobs(place: Place, count: int) -> None:
    until(lambda: place.count_jobs(*TERMINAL) >= count)


def check_nothing_is_left(place: Place) -> None:
    collect_blobs(place.database, place.store, 0)
    collect_work(place.database, place.settings.work_folder)
    with place.database.read() as session:
        versions = session.scalars(select(Version.sha256)).all()
        targets = session.scalars(select(Target.sha256)).all()
    assert place.blobs() == {*versions, *targets}
    assert list((place.settings.blob_folder / "tmp").iterdir()) == []
    assert place.work() == []
    place.database.close()


def test_a_job_whose_every_attempt_is_killed_has_failed_with_three_reasons(place: Place) -> None:
    model = place.ready_model()
    job = place.offer(model, checkpoint("a", ticks=10**6))
    after = checkpoint("b")
    next_job = place.offer(model, after)

    with Process(WORKER, place.settings) as first:
        child = place.started(job)
        os.kill(child, signal.SIGKILL)
        child = place.started(job, after=child)
        first.end(signal.SIGKILL)
    with Process(WORKER, place.settings) as second:
        for _ in range(2):
            child = place.started(job, after=child)
            os.kill(child, signal.SIGKILL)
        place.ended(next_job)
        assert second.end() == 0

    failed = place.job(job)
    assert failed.status == "failed"
    assert codes(failed) == ["child_killed", "worker_lost", "child_killed", "child_killed"]
    assert place.hashes(model) == chain([after])
    until(lambda: is_gone(child))
