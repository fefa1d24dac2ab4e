"""Leases: taken over when they expire, and fenced: an old holder changes nothing."""

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from registry import models, targets, versions
from registry.errors import LeaseLost
from registry.jobs import queue
from registry.jobs.queue import Lease
from registry.jobs.transitions import Failure
from registry.tables import Job, Model
from tests.registry.conftest import LEASE_SECONDS, START, World, result

OUT_OF_MEMORY = Failure("out_of_memory", "the child was killed", hint="a smaller batch")


def test_a_lease_that_expired_is_taken_over(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    old = world.lease_of(job, "wrk_a")

    world.later(LEASE_SECONDS - 0.001)
    assert world.claim("wrk_b") is None
    world.later(0.001)
    new = world.lease_of(job, "wrk_b")

    assert new.epoch > old.epoch
    stored = world.job(job)
    assert (stored.status, stored.attempts, stored.worker_id) == ("running", 2, "wrk_b")
    assert [(f["attempt"], f["code"]) for f in stored.failures] == [(1, "worker_lost")]
    assert stored.started_at == START


def test_a_heartbeat_keeps_the_lease(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    lease = world.lease_of(job)

    for _ in range(5):
        world.later(LEASE_SECONDS - 1)
        world.hold(lease, LEASE_SECONDS)

    assert world.claim("wrk_b") is None
    assert world.job(job).attempts == 1


def test_a_late_holder_whose_lease_nobody_took_still_counts(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    lease = world.lease_of(job)

    world.later(10 * LEASE_SECONDS)

    assert world.publish(lease, None, "weights") == 1


ZOMBIE_ACTS: dict[str, Callable[[World, Lease], object]] = {
    "hold": lambda world, lease: world.hold(lease),
    "renew": lambda world, lease: world.hold(lease, LEASE_SECONDS),
    "close": lambda world, lease: world.close(lease, "succeeded"),
    "cancelled": lambda world, lease: world.close(lease, "cancelled"),
    "fail": lambda world, lease: world.fail(lease, OUT_OF_MEMORY),
    "progress": lambda world, lease: world.progress(lease, "refine", 0.5),
    "hand back": lambda world, lease: world.hand_back(lease),
    "publish": lambda world, lease: world.publish(lease, None, "weights"),
    "reject": lambda world, lease: world.reject(lease),
}


@pytest.mark.parametrize("then", ["taken over", "ended", "handed back", "deleted"])
def test_an_old_holder_changes_nothing(world: World, then: str) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    old = world.lease_of(job)
    if then == "taken over":
        world.later(LEASE_SECONDS)
        world.lease_of(job, "wrk_b")
    elif then == "ended":
        world.publish(old, None, "other weights")
    elif then == "handed back":
        world.hand_back(old)
    else:
        with world.database.write() as session:
            models.delete_model(session, session.get_one(Model, model.id))
    before = world.rows()

    for name, act in ZOMBIE_ACTS.items():
        with pytest.raises(LeaseLost):
            act(world, old)
        assert world.rows() == before, name


def some_job(world: World, kind: str) -> Job:
    """A job of a kind that is neither published nor rejected."""
    if kind == "validate":
        return world.add_target()[1]
    target = world.ready_target()
    if kind == "prepare":
        return world.add_model(target)[1]
    return world.try_out(world.ready_model(target=target), "a")


RECORDS: dict[str, Callable[[World, Session, Lease], None]] = {
    "validate": lambda world, session, lease: targets.record_validation(
        session, lease, {}, world.now
    ),
    "prepare": lambda world, session, lease: models.record_preparation(
        session, lease, ("F",), {}, world.now
    ),
    "dry_run": lambda world, session, lease: versions.record_trial(
        session, lease, result(None, None), world.now
    ),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_an_old_holder_records_nothing(world: World, kind: str) -> None:
    job = some_job(world, kind)
    old = world.lease_of(job)
    world.later(LEASE_SECONDS)
    new = world.lease_of(job, "wrk_b")
    before = world.rows()

    with pytest.raises(LeaseLost), world.database.write() as session:
        RECORDS[kind](world, session, old)
    assert world.rows() == before

    with world.database.write() as session:
        RECORDS[kind](world, session, new)
    assert world.job(job).status == "succeeded"


def test_releasing_an_old_lease_does_nothing(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    old = world.lease_of(job)
    world.later(LEASE_SECONDS)
    world.lease_of(job, "wrk_b")
    before = world.rows()

    with world.database.write() as session:
        queue.release(session, old)

    assert world.rows() == before


def test_a_released_lease_leaves_its_job_to_the_next(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    lease = world.lease_of(job)

    with world.database.write() as session:
        queue.release(session, lease)

    world.lease_of(job, "wrk_b")
    assert world.job(job).failures[0]["code"] == "worker_lost"
