"""The queue: jobs in order, under leases that are fenced.

A worker leases a whole queue (a model's, or a target's), so that jobs of one model run one at a
time and in order. Everything it then writes begins with `hold`, which locks the queue's row and
finds out whether the lease is still its own: a worker that was paused or taken for dead writes
nothing. Functions here flush; whoever opened the transaction commits it.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    delete,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.orm import Session, aliased

from registry.errors import Conflict, LeaseLost, NotFound
from registry.jobs.abilities import Abilities, lacks_abilities
from registry.jobs.bell import Ring, ring_after_commit
from registry.jobs.curves import with_curves
from registry.jobs.states import ACTIVE, RETRIABLE, JobStatus
from registry.jobs.transitions import (
    CANCELLED,
    WORKER_LOST,
    Failure,
    bumped,
    change,
    end,
    move,
    record_failure,
    restart,
)
from registry.process.tracing import current_traceparent
from registry.tables import (
    BlobProblem,
    DeviceClass,
    Job,
    Model,
    ModelFile,
    Queue,
    Source,
    Target,
    UtcDateTime,
    Version,
    VersionFile,
)

CANDIDATES = 16  # queues tried per claim: one whose last job was lost for good has no other
RUNG_AT_ONCE = 100  # more would wait in the broker instead


@dataclass(frozen=True)
class Lease:
    """A worker's claim on a queue, and the job it may run."""

    queue_id: str
    epoch: int
    worker_id: str
    job_id: str


def open_queue(session: Session, queue_id: str, waits_for: str | None = None) -> None:
    session.add(Queue(id=queue_id, waits_for=waits_for))
    session.flush()


def drop_queue(session: Session, queue_id: str) -> None:
    """Delete a queue with its jobs; before all else, as everybody locks the queue first."""
    session.execute(delete(Queue).where(Queue.id == queue_id))


def lock_queue(session: Session, queue_id: str) -> None:
    """Make others who work on this queue wait until the transaction ends. Raises NotFound."""
    if not change(session, Queue, Queue.id == queue_id, {"next_seq": Queue.next_seq}):
        raise _gone(queue_id)


def enqueue(session: Session, job: Job) -> None:
    """Put a job at the end of its queue. The row lock makes arrival order commit order.

    Raises NotFound if the model or target was deleted meanwhile.
    """
    job.seq = _next_seq(session, job.queue_id)
    job.traceparent = current_traceparent()
    session.add(job)
    session.flush()
    _ring(session, job.queue_id)


def claim(
    session: Session,
    worker_id: str,
    now: datetime,
    *,
    lease_seconds: float,
    max_losses: int,
    device_class: DeviceClass = "gpu",
    abilities: Abilities | None = None,
) -> Lease | None:
    """Lease the queue whose next job has waited longest, and start that job.

    Queues of models that want another device, or a method or kind that is not among the abilities
    of this worker, are left to others, and those wait whose jobs all need a blob that is known to
    be bad.
    """
    abilities = abilities or Abilities.here()
    expires_at = now + timedelta(seconds=lease_seconds)
    for _ in range(CANDIDATES):
        found = _next_free(session, now, device_class, abilities)
        if found is None:
            return None
        queue_id, epoch = found
        if not _take(session, queue_id, epoch, worker_id, now, expires_at):
            continue
        _recover(session, queue_id, now, max_losses)
        job_id = _start_next(session, queue_id, worker_id, now)
        lease = Lease(queue_id, epoch + 1, worker_id, job_id or "")
        if job_id:
            return lease
        release(session, lease)
    return None


def hold(session: Session, lease: Lease, expires_at: datetime | None = None) -> None:
    """Lock the lease for this transaction, and renew it if asked. Raises LeaseLost if it is over.

    Until the transaction ends nobody else can lease the queue, however late it is.
    """
    values = {"epoch": lease.epoch} if expires_at is None else {"expires_at": expires_at}
    mine = and_(
        Queue.id == lease.queue_id,
        Queue.epoch == lease.epoch,
        Queue.holder == lease.worker_id,
    )
    if not change(session, Queue, mine, values):
        raise LeaseLost(f"the lease of {lease.queue_id} in epoch {lease.epoch} is over")


def release(session: Session, lease: Lease) -> None:
    """Let others lease the queue. Nothing happens if somebody already has."""
    mine = and_(Queue.id == lease.queue_id, Queue.epoch == lease.epoch)
    change(session, Queue, mine, {"holder": None, "expires_at": None})


def end_leases(session: Session, worker_id: str, now: datetime) -> None:
    """Let the leases of a worker that is surely dead expire at once."""
    change(session, Queue, Queue.holder == worker_id, {"expires_at": now})


def record_progress(
    session: Session, lease: Lease, stage: str, progress: float, metrics: Mapping[str, float | str]
) -> None:
    """Record how far the running job is. Raises LeaseLost."""
    hold(session, lease)
    before = session.scalar(select(Job.metrics).where(Job.id == lease.job_id)) or {}
    finite = {  # or no JSON
        name: value
        for name, value in metrics.items()
        if isinstance(value, str) or math.isfinite(value)
    }
    known = with_curves(finite, before)
    values = {"stage": stage, "progress": progress, "metrics": known}
    change(session, Job, Job.id == lease.job_id, values | bumped())


def wants_cancel(session: Session, lease: Lease) -> bool:
    """Whether the job should be stopped: by request, or because it is gone altogether."""
    return session.scalar(select(Job.cancel_requested).where(Job.id == lease.job_id)) is not False


def close(session: Session, lease: Lease, status: JobStatus, now: datetime, **values: Any) -> None:
    """End the leased job in a final state, and the lease with it. Raises LeaseLost."""
    hold(session, lease)
    if not end(session, lease.job_id, status, now, values):
        raise LeaseLost(f"job {lease.job_id} is no longer running")
    release(session, lease)


def fail(
    session: Session, lease: Lease, failure: Failure, now: datetime, *, max_attempts: int
) -> JobStatus:
    """Note why the attempt went wrong; the job is queued again or has failed for good."""
    hold(session, lease)
    status = record_failure(session, lease.job_id, failure, now, max_attempts)
    release(session, lease)
    _ring(session, lease.queue_id)  # for this job or the next: its worker may rest
    return status


def hand_back(session: Session, lease: Lease, why: Failure | None = None) -> None:
    """Queue the running job again, at its old place, as if this attempt had not been.

    If `why` is given, the job says what it waits for until it is started again.
    """
    hold(session, lease)
    error = why.as_error() if why else None
    values = {"attempts": Job.attempts - 1, "worker_id": None, "error": error}
    move(session, lease.job_id, "queued", values, ("running",))
    release(session, lease)
    _ring(session, lease.queue_id)


def cancel(session: Session, job_id: str, now: datetime) -> JobStatus:
    """Cancel a queued job at once; ask for a running one to be stopped. Raises Conflict."""
    session.execute(select(Job.id).where(Job.id == job_id).with_for_update())  # or it may move on
    if end(session, job_id, "cancelled", now, {"error": CANCELLED.as_error()}, ("queued",)):
        return "cancelled"
    running = and_(Job.id == job_id, Job.status == "running")
    if change(session, Job, running, {"cancel_requested": True, **bumped()}):
        return "running"
    raise Conflict(f"job {job_id} has ended and cannot be cancelled")


def retry(session: Session, job: Job) -> None:
    """Queue an ended job again, at the end of its queue, with all its attempts.

    Raises Conflict, and NotFound if its model or target was deleted meanwhile.
    """
    lock_queue(session, job.queue_id)  # another of the same name may be taking its place
    fresh: dict[str, Any] = {
        # Everything else of a model waits for its preparation, which keeps its place.
        "seq": job.seq if job.kind == "prepare" else _next_seq(session, job.queue_id),
        "attempts": 0,
        "cancel_requested": False,
        "stage": None,
        "progress": 0.0,
        "metrics": {},
        "error": None,
        "started_at": None,
        "finished_at": None,
        "worker_id": None,
        "traceparent": current_traceparent(),
    }
    if not move(session, job.id, "queued", fresh, origin=RETRIABLE):
        raise Conflict(
            f"job {job.id} is {job.status}; only a rejected, failed or cancelled one can be retried"
        )
    session.refresh(job)
    restart(session, job)
    _ring(session, job.queue_id)


def retry_failed(session: Session, code: str, *, owner: str | None, limit: int) -> list[Job]:
    """Queue again, in their order, at most so many jobs that failed with this code: of one owner,
    or of all. What is not there any more, and what others were faster to retry, is passed by."""
    there = or_(Job.source_id.is_(None), exists().where(Source.id == Job.source_id, Source.stored))
    mine = true() if owner is None else Job.owner == owner
    failed = (
        select(Job)
        .where(mine, Job.status == "failed", Job.kind != "dry_run", has_error(code), there)
        .order_by(Job.queue_id, Job.seq)  # two at once lock queues in the same order
        .limit(limit)
    )
    again = []
    for job in session.scalars(failed).all():
        with suppress(Conflict, NotFound):
            retry(session, job)
            again.append(job)
    return again


def has_error(code: str) -> ColumnElement[bool]:
    """Whether a job ended with this error."""
    found: ColumnElement[str] = Job.error["code"].as_string()
    return found == code


def ring_waiting(session: Session, now: datetime) -> None:
    """Ring once more for what nobody took up, oldest first: rings get lost, and leases expire."""
    waiting = (
        select(Job.queue_id)
        .join(Queue, Queue.id == Job.queue_id)
        .where(is_active(Job), _is_free(now), ~_is_held(now))
        .order_by(Job.created_at)
        .limit(RUNG_AT_ONCE)
    )
    for queue_id in session.scalars(waiting):
        _ring(session, queue_id)


def _next_seq(session: Session, queue_id: str) -> int:
    taken = update(Queue).where(Queue.id == queue_id).values(next_seq=Queue.next_seq + 1)
    following = session.scalars(taken.returning(Queue.next_seq)).one_or_none()
    if following is None:
        raise _gone(queue_id)
    return following - 1


def _ring(session: Session, queue_id: str) -> None:
    wanted = session.scalar(select(Model.device_class).where(Model.id == queue_id))
    ring_after_commit(session, Ring(queue_id, wanted))


def _gone(queue_id: str) -> NotFound:
    return NotFound(f"{queue_id} was deleted", hint="make it anew")


def _next_free(
    session: Session, now: datetime, device_class: DeviceClass, abilities: Abilities
) -> tuple[str, int] | None:
    """The free queue whose next job is oldest, and its epoch. Other claimers pass it by.

    Active jobs are looked at from the oldest on, by an index that has no others, until one will
    do: however many wait, or have ended, only those of queues that are held are passed.
    """
    earlier, awaited = aliased(Job), aliased(Job)
    query = (
        select(Queue.id, Queue.epoch)
        .join(Job, Job.queue_id == Queue.id)
        .where(
            is_active(Job),
            _is_free(now),
            ~exists().where(
                earlier.queue_id == Queue.id, earlier.seq < Job.seq, is_active(earlier)
            ),
            ~exists().where(awaited.queue_id == Queue.waits_for, is_active(awaited)),
            ~exists().where(Model.id == Queue.id, Model.device_class != device_class),
            ~lacks_abilities(abilities),
            ~_is_held(now),
        )
        .order_by(Job.created_at, Job.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=Queue)  # SQLite has one writer and no such words
    )
    found = session.execute(query).one_or_none()
    return None if found is None else (found.id, found.epoch)


def is_active(job: type[Job]) -> ColumnElement[bool]:
    """With the states written out, as the indexes of active jobs have them."""
    return job.status.in_([literal_column(f"'{status}'") for status in ACTIVE])


def _is_free(now: datetime) -> ColumnElement[bool]:
    return or_(Queue.holder.is_(None), Queue.expires_at <= now)


def _is_held(now: datetime) -> ColumnElement[bool]:
    """Whether a blob that all jobs of a queue need is bad, and not worth another look yet."""
    newest = and_(
        Model.id == Queue.id, Version.model_id == Model.id, Version.number == Model.version
    )
    of_newest = and_(VersionFile.model_id == Version.model_id, VersionFile.number == Version.number)
    its_target = Target.id == func.coalesce(Queue.waits_for, Queue.id)  # a model's waits for it
    needed = (
        and_(newest, BlobProblem.sha256 == Version.sha256),
        and_(newest, of_newest, BlobProblem.sha256 == VersionFile.sha256),
        and_(ModelFile.model_id == Queue.id, BlobProblem.sha256 == ModelFile.sha256),
        and_(its_target, BlobProblem.sha256 == Target.sha256),
    )
    return or_(*(exists().where(BlobProblem.look_at > now, each) for each in needed))


def _take(
    session: Session,
    queue_id: str,
    epoch: int,
    worker_id: str,
    now: datetime,
    expires_at: datetime,
) -> bool:
    unchanged = and_(Queue.id == queue_id, Queue.epoch == epoch, _is_free(now))
    lease = {"holder": worker_id, "expires_at": expires_at, "epoch": epoch + 1}
    return change(session, Queue, unchanged, lease)


def _recover(session: Session, queue_id: str, now: datetime, max_losses: int) -> None:
    """A job that still runs in a queue nobody holds was lost with its worker.

    One that was to be stopped, but whose attempt ended otherwise first, is not begun again.
    """
    left = or_(Job.status == "running", and_(Job.status == "queued", Job.cancel_requested))
    orphans = select(Job).where(Job.queue_id == queue_id, is_active(Job), left)
    for job in session.scalars(orphans.execution_options(populate_existing=True)).all():
        if job.cancel_requested:
            end(session, job.id, "cancelled", now, {"error": CANCELLED.as_error()}, ACTIVE)
        else:
            record_failure(session, job.id, WORKER_LOST, now, max_losses)


def _start_next(session: Session, queue_id: str, worker_id: str, now: datetime) -> str | None:
    first = (
        select(Job.id)
        .where(Job.queue_id == queue_id, is_active(Job), Job.status == "queued")
        .order_by(Job.seq)
        .limit(1)
    )
    job_id = session.scalar(first)
    values = {
        "attempts": Job.attempts + 1,
        "started_at": func.coalesce(Job.started_at, literal(now, UtcDateTime())),
        "worker_id": worker_id,
        "stage": "start",
        "progress": 0.0,
        "error": None,
    }
    return job_id if job_id and move(session, job_id, "running", values) else None
