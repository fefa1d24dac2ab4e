"""Many threads at once, each with its own sessions, on both databases."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from registry import models, sources
from registry.errors import Conflict, NotFound
from registry.tables import Model, Queue
from tests.registry.conftest import World, blob


def test_enqueueing_at_once_leaves_no_gaps(world: World) -> None:
    model = world.ready_model()
    together = threading.Barrier(6)

    def offer(thread: int) -> list[int]:
        together.wait()
        return [world.offer(model, f"{thread} {i}")[1].seq for i in range(5)]

    with ThreadPoolExecutor(6) as pool:
        taken = [seq for some in pool.map(offer, range(6)) for seq in some]

    assert sorted(taken) == list(range(1, 31))
    assert world.queue(model.id).next_seq == 31


def test_workers_at_once_never_share_a_queue_and_lose_no_job(world: World) -> None:
    target = world.ready_target()
    pool_of_models = [world.ready_model(f"model {i}", target=target) for i in range(4)]
    jobs = {
        world.offer(model, f"{model.name} {i}")[1].id: (model.id, i)
        for i in range(6)
        for model in pool_of_models
    }
    together = threading.Barrier(5)
    lock = threading.Lock()
    busy: set[str] = set()
    ran: list[str] = []

    def work(worker: str) -> None:
        together.wait()
        while len(ran) < len(jobs):
            lease = world.claim(worker)
            if lease is None:
                continue
            with lock:
                assert lease.queue_id not in busy
                busy.add(lease.queue_id)
            world.progress(lease, "align", 0.5)
            with lock:  # before the lease ends, as another may have the queue right after
                busy.remove(lease.queue_id)
                ran.append(lease.job_id)
            world.close(lease, "succeeded")

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, [f"wrk_{i}" for i in range(5)]))

    assert Counter(ran) == Counter(jobs.keys())
    for model in pool_of_models:
        order = [jobs[job_id][1] for job_id in ran if jobs[job_id][0] == model.id]
        assert order == sorted(order)
    assert all(world.get(Queue, model.id).holder is None for model in pool_of_models)


def test_one_of_many_retries_at_once_succeeds(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    world.cancel(job)
    together = threading.Barrier(4)

    def retry(_: int) -> bool:
        together.wait()
        try:
            world.retry(job)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(retry, range(4)))

    assert sum(outcomes) == 1
    assert world.job(job).seq == 2


def test_a_source_offered_while_its_model_goes_is_lost_cleanly(world: World) -> None:
    model = world.ready_model()
    together = threading.Barrier(3)

    def offer(name: str) -> None:
        together.wait()
        for i in range(5):
            with world.database.write() as session:
                offered = blob(f"{name} {i}")
                sources.offer_source(
                    session, model, offered, content=offered.sha256, name=name, classes=None
                )

    def delete() -> None:
        together.wait()
        with world.database.write() as session:
            models.delete_model(session, session.get_one(Model, model.id))

    with ThreadPoolExecutor(3) as pool:
        offers = [pool.submit(offer, name) for name in "ab"]
        pool.submit(delete).result()
        errors = [future.exception() for future in offers]

    assert all(error is None or isinstance(error, NotFound) for error in errors)
    rows = world.rows()
    assert (rows["sources"], rows["models"]) == ([], [])
    assert {row[2] for row in rows["jobs"]} == {model.target_id}
