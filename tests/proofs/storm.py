"""A storm: sources are sent on and on while everything that can be killed is."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import NamedTuple

import httpx
import psutil

from registry.jobs.states import ACTIVE
from tests.proofs.cluster import Cluster
from tests.servers import Postgres, Redis, send_signal
from tests.worker.waiting import until

AWAY_S = 1.0  # at most, that a server stays down


class Offer(NamedTuple):
    """A source for a model."""

    model: str
    name: str
    data: bytes


@dataclass
class Sender:
    """Makes its offers one by one, each again and again until it is accepted."""

    cluster: Cluster
    offers: Sequence[Offer]
    allowed: int  # how many may have been made by now
    accepted: dict[str, Offer] = field(default_factory=dict)  # by job
    given_up: Event = field(default_factory=Event)

    def run(self) -> None:
        for number, offer in enumerate(self.offers):
            while number >= self.allowed and not self.given_up.wait(0.05):
                pass
            self._send(offer)

    def _send(self, offer: Offer) -> None:
        while not self.given_up.is_set():
            try:
                answer = self._post(offer)
            except httpx.TransportError:
                time.sleep(0.1)  # the server was killed, and we cannot know when
                continue
            if answer.status_code != 503:
                assert answer.status_code == 202, answer.text
                job = answer.json()["job"]["id"]
                assert job not in self.accepted
                self.accepted[job] = offer
                return
            time.sleep(0.1)

    def _post(self, offer: Offer) -> httpx.Response:
        return self.cluster.https[0].post(
            "/sources",
            data={"model": offer.model, "name": offer.name},
            files={"file": (f"{offer.name}.safetensors", offer.data)},
            headers={"Idempotency-Key": f"{offer.model}/{offer.name}"},
        )


@contextmanager
def sending(sender: Sender) -> Iterator[None]:
    """To the end of its offers, or of the test's patience."""
    with ThreadPoolExecutor(1) as pool:
        outcome: Future[None] = pool.submit(sender.run)
        try:
            yield
            sender.allowed = len(sender.offers)
            wait([outcome])
        finally:
            sender.given_up.set()
            outcome.result()


class Storm:
    """What can go wrong, by name."""

    def __init__(self, cluster: Cluster, postgres: Postgres, redis: Redis, seed: int) -> None:
        self.cluster = cluster
        self.postgres = postgres
        self.redis = redis
        self.chance = random.Random(seed)

    def faults(self, counts: dict[str, int]) -> list[Callable[[], None]]:
        """So many of each name, in any order."""
        faults = [getattr(self, name) for name, count in counts.items() for _ in range(count)]
        self.chance.shuffle(faults)
        return faults

    def child(self) -> None:
        until(lambda: self._children() or not self.cluster.count_jobs(*ACTIVE))  # or all is done
        children = self._children()
        if children:
            send_signal(self.chance.choice(children), signal.SIGKILL)

    def worker(self) -> None:
        """One that is at work, if any is."""
        numbers = range(len(self.cluster.workers))
        busy = [number for number in numbers if self.cluster.children(number)]
        self.cluster.kill_worker(self.chance.choice(busy or numbers))

    def api(self) -> None:
        self.cluster.kill_api(0)

    def broker(self) -> None:
        self._away(self.redis)

    def postmaster(self) -> None:
        self._away(self.postgres)

    def backend(self) -> None:
        """PostgreSQL then ends the others too, and recovers by itself."""
        found = self.postgres.backends()
        if found:
            send_signal(self.chance.choice(found), signal.SIGKILL)

    def flush(self) -> None:
        self.redis.flush()

    def _children(self) -> list[psutil.Process]:
        numbers = range(len(self.cluster.workers))
        return [child for number in numbers for child in self.cluster.children(number)]

    def _away(self, server: Postgres | Redis) -> None:
        server.kill()
        time.sleep(self.chance.uniform(0, AWAY_S))
        server.start()
