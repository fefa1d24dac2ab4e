"""Rings that come three times, late, or never: what comes out is the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

import pytest
from celery import Celery

from registry.database import Database
from registry.jobs.bell import CELERY, RING, Bell, Ring, celery_queue
from registry.jobs.states import JobStatus
from tests.proofs.conftest import MakeCluster
from tests.servers import Redis
from tests.service.fake_folds import chain, checkpoint
from tests.service.place import Place

pytestmark = pytest.mark.proof

MODELS = 2
SOURCES = 3  # of each model
LATE_S = 1.5
NEVER_S = 3600.0
FIRST_TIME = {("succeeded", 1)}  # every job, at its first attempt


@contextmanager
def ringing(broker_url: str) -> Iterator[Bell]:
    """A bell that rings at once, and each time it is asked to."""
    with Celery(broker=broker_url) as client:
        client.conf.update(CELERY)

        def ring(ring: Ring) -> None:
            queue = celery_queue(ring.device_class)
            client.send_task(RING, args=[ring.queue_id], queue=queue, retry=False)

        yield ring


def thrice(ring: Bell) -> Bell:
    def ring_thrice(wanted: Ring) -> None:
        for _ in range(3):
            ring(wanted)

    return ring_thrice


def late(ring: Bell) -> Bell:
    return lambda wanted: Timer(LATE_S, ring, [wanted]).start()


@pytest.mark.parametrize("way", [thrice, late])
def test_rings_that_come_thrice_or_late_change_nothing(
    make_cluster: MakeCluster,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Bell], Bell],
) -> None:
    monkeypatch.delenv("PROOF_LOOK_S")  # nothing but rings wakes a worker
    with ringing(redis.url) as ring:
        assert fold_all(make_cluster, way(ring), poll_seconds=NEVER_S) == FIRST_TIME


def test_without_any_ring_workers_find_everything_by_themselves(
    make_cluster: MakeCluster, redis: Redis
) -> None:
    redis.kill()
    assert fold_all(make_cluster, lambda _: None) == FIRST_TIME


def fold_all(make_cluster: MakeCluster, bell: Bell, **options: float) -> set[tuple[JobStatus, int]]:
    """Every source into its model, in order; how their jobs ended, and after how many attempts."""
    with make_cluster(apis=0, workers=0, **options) as cluster:
        place = Place(**cluster.settings.model_dump(exclude_unset=True))
        models = [place.ready_model(f"model-{number}") for number in range(MODELS)]
        place.database.close()
        cluster.add_workers(2)
        cluster.wait_for_workers()
        place.database = Database(place.settings.database, bell)
        files = [
            [checkpoint(f"{model.name}-{number}") for number in range(SOURCES)] for model in models
        ]
        jobs = [
            place.offer(model, own[number])
            for number in range(SOURCES)
            for model, own in zip(models, files, strict=True)
        ]
        ended = [place.ended(job) for job in jobs]

        assert [place.hashes(model) for model in models] == [chain(own) for own in files]
        place.database.close()
        return {(job.status, job.attempts) for job in ended}
