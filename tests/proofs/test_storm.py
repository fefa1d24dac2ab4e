"""kill -9 of everything, servers included, while sources arrive: each is folded once, in order."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import httpx
import psutil
import pytest

from registry.states import TERMINAL
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.proofs.forms import short_and_long
from tests.proofs.servers import Postgres, Redis, send_signal
from tests.service.fake_folds import checkpoint
from tests.worker.waiting import until

MODELS = 10
WORKERS = 4
AHEAD = 12  # sources that may be under way, so that a fault hits something
PAUSE_S = 0.5  # at most, between two faults
AWAY_S = 1.0  # at most, that a server stays down
SEED = int(os.environ.get("STORM_SEED", random.randrange(2**32)))
SHORT = {"child": 16, "worker": 9, "api": 4, "redis": 5, "postmaster": 3, "backend": 3, "flush": 5}
LONG = {
    "child": 80,
    "worker": 50,
    "api": 20,
    "redis": 20,
    "postmaster": 15,
    "backend": 15,
    "flush": 20,
}


@dataclass
class Sender:
    """Offers sources one by one, each again and again until it is accepted."""

    cluster: Cluster
    models: list[str]
    count: int
    allowed: int = AHEAD  # how many may have been sent by now
    accepted: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # job: model, source
    given_up: Event = field(default_factory=Event)

    def run(self) -> None:
        for number in range(self.count):
            while number >= self.allowed and not self.given_up.wait(0.05):
                pass
            self._send(number)

    def _send(self, number: int) -> None:
        model, name = self.models[number % len(self.models)], f"source-{number}"
        data = checkpoint(name, ticks=10)
        while not self.given_up.is_set():
            try:
                answer = self._post(model, name, data)
            except httpx.TransportError:
                time.sleep(0.1)  # the server was killed, and we cannot know when
                continue
            if answer.status_code != 503:
                assert answer.status_code == 202, answer.text
                job = answer.json()["job"]["id"]
                assert job not in self.accepted
                self.accepted[job] = (model, data)
                return
            time.sleep(0.1)

    def _post(self, model: str, name: str, data: bytes) -> httpx.Response:
        return self.cluster.https[0].post(
            "/sources",
            data={"model": model, "name": name},
            files={"file": (f"{name}.safetensors", data)},
            headers={"Idempotency-Key": name},
        )


@contextmanager
def sending(sender: Sender) -> Iterator[None]:
    """To the end of its sources, or of the test's patience."""
    with ThreadPoolExecutor(1) as pool:
        outcome: Future[None] = pool.submit(sender.run)
        try:
            yield
            sender.allowed = sender.count
            outcome.result()
        finally:
            sender.given_up.set()


class Storm:
    """What can go wrong, by name."""

    def __init__(self, cluster: Cluster, postgres: Postgres, redis: Redis) -> None:
        self.cluster = cluster
        self.postgres = postgres
        self.redis = redis
        self.chance = random.Random(SEED)

    def child(self) -> None:
        until(self._children)
        children = self._children()
        if children:
            send_signal(self.chance.choice(children), signal.SIGKILL)

    def _children(self) -> list[psutil.Process]:
        return [child for number in range(WORKERS) for child in self.cluster.children(number)]

    def worker(self) -> None:
        self.cluster.kill_worker(self.chance.randrange(WORKERS))

    def api(self) -> None:
        self.cluster.kill_api(0)

    def redis_server(self) -> None:
        self._away(self.redis)

    def postmaster(self) -> None:
        self._away(self.postgres)

    def _away(self, server: Postgres | Redis) -> None:
        server.kill()
        time.sleep(self.chance.uniform(0, AWAY_S))
        server.start()

    def backend(self) -> None:
        """PostgreSQL then ends the others too, and recovers by itself."""
        found = self.postgres.backends()
        if found:
            send_signal(self.chance.choice(found), signal.SIGKILL)

    def flush(self) -> None:
        self.redis.flush()

    def faults(self, counts: dict[str, int]) -> list[Callable[[], None]]:
        named = {"redis": self.redis_server}
        faults = [
            named.get(name) or getattr(self, name)
            for name, count in counts.items()
            for _ in range(count)
        ]
        self.chance.shuffle(faults)
        return faults


def wait_for_jobs(cluster: Cluster, count: int) -> None:
    until(lambda: cluster.count_jobs(*TERMINAL) >= count)


@pytest.mark.parametrize("scale", short_and_long((SHORT, 60), (LONG, 300)))
def test_a_storm_loses_nothing_and_doubles_nothing(
    scale: tuple[dict[str, int], int],
    make_cluster: MakeCluster,
    bucket: dict[str, Any],
    postgres: Postgres,
    redis: Redis,
) -> None:
    print(f"STORM_SEED={SEED}")
    counts, sources = scale
    began = time.monotonic()
    with make_cluster(workers=WORKERS, max_attempts=1000, **bucket) as cluster:
        models = cluster.client.make_models(MODELS)
        sender = Sender(cluster, models, sources)
        storm = Storm(cluster, postgres, redis)
        faults = storm.faults(counts)
        with sending(sender):
            for number, fault in enumerate(faults):
                share = sources * number // len(faults)
                sender.allowed = share + AHEAD
                wait_for_jobs(cluster, share - AHEAD)
                time.sleep(storm.chance.uniform(0, PAUSE_S))
                fault()
            cluster.wait_for_apis()

        ended = [cluster.client.ended(job) for job in sender.accepted]
        assert len(ended) == sources
        assert {job["status"] for job in ended} == {"succeeded"}
        for model in models:
            own = [data for owner, data in sender.accepted.values() if owner == model]
            cluster.client.check_chain(cluster.settings, model, own)
        reasons = cluster.failures()
    print(f"{sources} sources, {sum(counts.values())} faults {Counter(counts)}")
    print(f"attempts lost: {dict(reasons)}; {time.monotonic() - began:.0f} s")
    assert reasons.keys() >= {"child_killed", "worker_lost"}
