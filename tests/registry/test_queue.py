"""The order of jobs, their attempts and ends, on both databases, under a clock the test moves."""

import math
from datetime import timedelta, timezone
from typing import Any

import pytest

from registry import models, targets
from registry.errors import Conflict, NotFound
from registry.jobs import queue
from registry.jobs.transitions import Failure
from registry.tables import Model, Source, Target
from tests.registry.conftest import LEASE_SECONDS, MAX_LOSSES, START, World

OUT_OF_MEMORY = Failure("out_of_memory", "the child was killed", hint="a smaller batch")
BAD_SOURCE = Failure("checkpoint_mismatch", "tensors are missing", retryable=False)


def test_jobs_of_a_queue_come_in_order_and_one_at_a_time(world: World) -> None:
    model = world.ready_model()
    jobs = [world.offer(model, name)[1] for name in "abc"]
    assert [job.seq for job in jobs] == [1, 2, 3]

    for number, job in enumerate(jobs):
        lease = world.lease_of(job)
        assert world.claim("wrk_b") is None
        assert world.publish(lease, number or None, job.id) == number + 1

    assert world.claim() is None


def test_the_queue_whose_head_is_oldest_comes_first(world: World) -> None:
    target = world.ready_target()
    first, second = (world.ready_model(name, target=target) for name in ("first", "second"))
    a, b, c, d = (
        world.offer(model, name)[1]
        for model, name in ((second, "a"), (first, "b"), (first, "c"), (second, "d"))
    )

    ran = []
    for _ in range(4):
        lease = world.claim()
        assert lease is not None
        ran.append(lease.job_id)
        world.close(lease, "succeeded")

    assert ran == [a.id, b.id, c.id, d.id]


def test_a_model_waits_for_its_target_only(world: World) -> None:
    _, unrelated, _ = world.offer(world.ready_model("other"), "a")
    target, validation = world.add_target()
    model, preparation = world.add_model(target)
    busy = world.lease_of(unrelated, "wrk_c")
    lease = world.lease_of(validation)

    assert world.claim("wrk_b") is None

    with world.database.write() as session:
        targets.record_validation(session, lease, {}, world.now)
    world.prepare(world.lease_of(preparation, "wrk_b"))
    assert world.get(Model, model.id).status == "ready"
    world.hold(busy)


def test_a_failed_target_lets_its_models_go_on(world: World) -> None:
    target, validation = world.add_target()
    _, preparation = world.add_model(target)

    world.fail(world.lease_of(validation), BAD_SOURCE)

    assert world.get(Target, target.id).status == "failed"
    world.lease_of(preparation)


def test_attempts_are_counted_and_their_reasons_kept(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")

    assert world.fail(world.lease_of(job), OUT_OF_MEMORY) == "queued"
    world.lose(job)
    assert world.fail(world.lease_of(job), OUT_OF_MEMORY) == "queued"
    assert world.fail(world.lease_of(job), OUT_OF_MEMORY) == "failed"

    ended = world.job(job)
    assert ended.attempts == 4
    assert [(f["attempt"], f["code"]) for f in ended.failures] == [
        (1, "out_of_memory"),
        (2, "worker_lost"),
        (3, "out_of_memory"),
        (4, "out_of_memory"),
    ]
    assert ended.error == {
        "code": "out_of_memory",
        "message": "the child was killed",
        "hint": "a smaller batch",
    }
    assert ended.finished_at == world.now
    assert ended.worker_id is None


def test_a_failure_for_good_ends_the_job_at_once(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    _, following, _ = world.offer(model, "b")

    assert world.fail(world.lease_of(job), BAD_SOURCE) == "failed"

    assert world.job(job).attempts == 1
    assert world.get(Model, model.id).status == "ready"
    world.lease_of(following)


def test_a_worker_lost_for_the_last_time_makes_room(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    _, following, _ = world.offer(model, "b")
    for _ in range(MAX_LOSSES):
        world.lose(job)

    world.lease_of(following)

    ended = world.job(job)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error["code"] == "worker_lost"


def test_three_lost_workers_are_not_the_fault_of_a_source(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")

    for _ in range(3):
        world.lose(job)

    assert world.publish(world.lease_of(job), None, "weights") == 1


def test_a_retried_job_may_be_lost_as_often_as_a_new_one(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    for _ in range(MAX_LOSSES):
        world.lose(job)
    assert world.claim() is None
    world.retry(job)

    for _ in range(MAX_LOSSES - 1):
        world.lose(job)

    assert world.publish(world.lease_of(job), None, "weights") == 1


def test_all_that_failed_for_one_reason_is_retried_in_its_order(world: World) -> None:
    model = world.ready_model()
    lost, also_lost = (world.offer(model, name)[1] for name in "ab")
    trial = world.try_out(model, "c")
    bad = world.offer(model, "d")[1]
    for job in (lost, also_lost, trial):
        for _ in range(MAX_LOSSES):
            world.lose(job)
    world.fail(world.lease_of(bad), BAD_SOURCE)

    def retried(**options: Any) -> list[str]:
        with world.database.write() as session:
            return [job.id for job in queue.retry_failed(session, "worker_lost", **options)]

    assert retried(owner="bob", limit=9) == []
    assert retried(owner="ann", limit=1) == [lost.id]
    assert retried(owner=None, limit=9) == [also_lost.id]
    assert retried(owner=None, limit=9) == []
    world.publish(world.lease_of(lost), None, "weights")
    world.lease_of(also_lost)


def test_a_queue_in_which_nothing_is_left_is_free_again(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    for _ in range(MAX_LOSSES):
        world.lose(job)

    assert world.claim() is None
    assert world.job(job).status == "failed"
    assert world.queue(model.id).holder is None


def test_a_queued_job_is_cancelled_at_once(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")

    assert world.cancel(job) == "cancelled"

    ended = world.job(job)
    assert (ended.status, ended.attempts, ended.finished_at) == ("cancelled", 0, world.now)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"
    assert world.claim() is None
    with pytest.raises(Conflict):
        world.cancel(job)


def test_a_running_job_is_asked_to_stop(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    lease = world.lease_of(job)
    assert not world.wants_cancel(lease)

    assert world.cancel(job) == "running"

    assert world.wants_cancel(lease)
    assert world.job(job).status == "running"
    world.close(lease, "cancelled")
    assert world.job(job).status == "cancelled"
    assert not world.job(job).cancel_requested


@pytest.mark.parametrize("ending", ["lost", "failed", "handed back"])
def test_a_job_that_was_to_stop_is_not_begun_again(world: World, ending: str) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    _, following, _ = world.offer(model, "b")
    lease = world.lease_of(job)
    world.cancel(job)

    if ending == "lost":
        world.later(LEASE_SECONDS)
    elif ending == "failed":
        world.fail(lease, OUT_OF_MEMORY)
    else:
        world.hand_back(lease)

    world.lease_of(following)
    assert world.job(job).status == "cancelled"


def test_a_deleted_job_wants_to_be_stopped(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    lease = world.lease_of(job)

    with world.database.write() as session:
        models.delete_model(session, session.get_one(Model, model.id))

    assert world.wants_cancel(lease)


def test_retry_puts_a_job_last_with_all_its_attempts(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    _, following, _ = world.offer(model, "b")
    lease = world.lease_of(job)
    world.progress(lease, "refine", 0.7)
    world.fail(lease, BAD_SOURCE)

    world.retry(job)

    again = world.job(job)
    assert (again.status, again.attempts, again.seq) == ("queued", 0, following.seq + 1)
    assert (again.stage, again.progress, again.metrics, again.error) == (None, 0.0, {}, None)
    assert (again.started_at, again.finished_at) == (None, None)
    assert [f["code"] for f in again.failures] == ["checkpoint_mismatch"]
    world.publish(world.lease_of(following), None, "b")
    world.lease_of(job)


@pytest.mark.parametrize("status", ["queued", "running", "succeeded"])
def test_what_has_not_ended_badly_cannot_be_retried(world: World, status: str) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    if status != "queued":
        lease = world.lease_of(job)
        if status == "succeeded":
            world.publish(lease, None, "weights")
    before = world.rows()

    with pytest.raises(Conflict, match=f"is {status}"):
        world.retry(job)

    assert world.rows() == before


def test_a_preparation_keeps_its_place_when_retried(world: World) -> None:
    target = world.ready_target()
    model, preparation = world.add_model(target)
    _, fold, _ = world.offer(model, "a")
    world.fail(world.lease_of(preparation), BAD_SOURCE)
    failed = world.get(Model, model.id)
    assert (failed.status, failed.error and failed.error["code"]) == (
        "failed",
        "checkpoint_mismatch",
    )

    world.retry(preparation)

    undecided = world.get(Model, model.id)
    assert (undecided.status, undecided.error) == ("preparing", None)
    world.prepare(world.lease_of(preparation))
    assert world.get(Model, model.id).status == "ready"
    world.lease_of(fold)


def test_a_cancelled_validation_fails_its_target_until_retried(world: World) -> None:
    target, job = world.add_target()

    world.cancel(job)
    assert world.get(Target, target.id).status == "failed"
    world.retry(job)
    assert world.get(Target, target.id).status == "validating"

    lease = world.lease_of(job)
    with world.database.write() as session:
        targets.record_validation(session, lease, {"classes": ["F"]}, world.now)
    ready = world.get(Target, target.id)
    assert (ready.status, ready.summary, ready.error) == ("ready", {"classes": ["F"]}, None)


def test_retry_needs_the_bytes_of_a_source_again(world: World) -> None:
    source, job, _ = world.offer(world.ready_model(), "a")
    world.reject(world.lease_of(job))
    assert not world.get(Source, source.id).stored

    world.retry(job)

    assert world.get(Source, source.id).stored


def test_handing_back_costs_no_attempt_and_no_place(world: World) -> None:
    model = world.ready_model()
    _, job, _ = world.offer(model, "a")
    world.offer(model, "b")

    for _ in range(5):
        world.hand_back(world.lease_of(job))

    waiting = world.job(job)
    assert (waiting.status, waiting.attempts, waiting.failures) == ("queued", 0, [])
    world.lease_of(job)


def test_every_change_has_a_new_revision(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    seen = [world.job(job).revision]

    lease = world.lease_of(job)
    seen.append(world.job(job).revision)
    world.progress(lease, "align", 0.25)
    seen.append(world.job(job).revision)
    world.cancel(job)
    seen.append(world.job(job).revision)
    world.publish(lease, None, "weights")
    seen.append(world.job(job).revision)

    assert seen == sorted(set(seen))


def test_metrics_that_json_cannot_hold_are_left_out(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    lease = world.lease_of(job)

    with world.database.write() as session:
        queue.record_progress(session, lease, "refine", 0.5, {"loss": math.nan, "accuracy": 0.5})

    assert world.job(job).metrics == {"accuracy": 0.5}


def test_progress_is_kept_and_success_completes_it(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    lease = world.lease_of(job)

    world.progress(lease, "align", 0.25, step=10)

    running = world.job(job)
    metrics = {"loss": 0.75, "step": 10, "curves": {"loss": [[10, 0.75]]}}
    assert (running.stage, running.progress, running.metrics) == ("align", 0.25, metrics)
    world.publish(lease, None, "weights")
    assert world.job(job).progress == 1.0


def test_times_of_other_zones_are_the_same_instants(world: World) -> None:
    _, job, _ = world.offer(world.ready_model(), "a")
    world.now = START.astimezone(timezone(timedelta(hours=5)))

    world.lease_of(job)

    assert world.job(job).started_at == START
    expires_at = world.queue(job.queue_id).expires_at
    assert expires_at == START + timedelta(seconds=LEASE_SECONDS)


def test_a_deleted_queue_takes_no_jobs(world: World) -> None:
    model = world.ready_model()
    with world.database.write() as session:
        models.delete_model(session, session.get_one(Model, model.id))

    with pytest.raises(NotFound):
        world.offer(model, "a")
    with pytest.raises(NotFound):
        world.try_out(model, "a")
