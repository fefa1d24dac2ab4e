"""How the status of a job changes, and what follows from it for its target or model.

The only code that writes `jobs.status`: always by compare-and-set, always with a new revision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, and_, update
from sqlalchemy.orm import Session

from registry.errors import LeaseLost
from registry.jobs.states import JobStatus, after_failure, origins
from registry.tables import Base, Job, Model, Source, Target


@dataclass(frozen=True)
class Failure:
    """Why an attempt went wrong."""

    code: str
    message: str
    hint: str | None = None
    retryable: bool = True

    def as_error(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


CANCELLED = Failure("cancelled", "cancelled by request", hint="retry the job to run it again")
WORKER_LOST = Failure(
    "worker_lost",
    "the worker running this job stopped answering",
    hint="it crashed, was killed, or lost the database; its log says more",
)


def change(
    session: Session, table: type[Base], where: ColumnElement[bool], values: Mapping[str, Any]
) -> bool:
    """Update rows; whether there were any."""
    statement = update(table).where(where).values(**values)
    result = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)  # noqa: S101 - what an UPDATE gives
    return result.rowcount > 0


def move(
    session: Session,
    job_id: str,
    status: JobStatus,
    values: Mapping[str, Any],
    origin: tuple[JobStatus, ...] | None = None,
) -> bool:
    """Compare and set a job's status; False if it was in no state that leads there."""
    allowed = and_(Job.id == job_id, Job.status.in_(origin or origins(status)))
    return change(session, Job, allowed, {**values, "status": status, **bumped()})


def bumped() -> dict[str, Any]:
    return {"revision": Job.revision + 1}


def end(
    session: Session,
    job_id: str,
    status: JobStatus,
    now: datetime,
    values: Mapping[str, Any],
    origin: tuple[JobStatus, ...] = ("running",),
) -> bool:
    """Bring a job to a final state, with all that this means; False if it was in another state."""
    done = {"finished_at": now, "worker_id": None, "cancel_requested": False, **values}
    if status == "succeeded":
        done["progress"] = 1.0
    if not move(session, job_id, status, done, origin):
        return False
    if status in ("failed", "cancelled"):
        job = session.get_one(Job, job_id, populate_existing=True)
        _set_parent(session, job, "failed", job.error)
    return True


def record_failure(
    session: Session, job_id: str, failure: Failure, now: datetime, limit: int
) -> JobStatus:
    """Note why a running job's attempt went wrong; queue it again, or let it have failed.

    `limit` is of failures of its sort: a loss of the worker says little about the job, and does
    not use up what the job may do wrong itself.
    """
    job = session.get_one(Job, job_id, populate_existing=True)
    noted = failure.as_error() | {"attempt": job.attempts, "at": now.isoformat()}
    failures = [*job.failures, noted]
    status = after_failure(_of_same_sort(failures), limit, retryable=failure.retryable)
    values = {"failures": failures, "worker_id": None}
    if status == "queued":
        moved = move(session, job_id, "queued", values, ("running",))
    else:
        moved = end(session, job_id, status, now, values | {"error": failure.as_error()})
    if not moved:
        raise LeaseLost(f"job {job_id} is no longer running")
    return status


def _of_same_sort(failures: Sequence[Mapping[str, Any]]) -> int:
    """How many failures since the job was queued by somebody are losses, if the last one is, or
    else are not. Attempts count from 1 then, and each that was not handed back is noted."""
    first = max(place for place, failure in enumerate(failures) if failure["attempt"] == 1)
    losses = [failure["code"] == WORKER_LOST.code for failure in failures[first:]]
    return losses.count(losses[-1])


def restart(session: Session, job: Job) -> None:
    """A target or model whose job is tried again is undecided again; a source is needed again."""
    _set_parent(session, job, "validating" if job.kind == "validate" else "preparing", None)
    if job.kind == "fold":
        change(session, Source, Source.id == job.source_id, {"stored": True})


def _set_parent(session: Session, job: Job, status: str, error: Mapping[str, Any] | None) -> None:
    values = {"status": status, "error": error}
    if job.kind == "validate":
        change(session, Target, Target.id == job.target_id, values)
    if job.kind == "prepare":
        change(session, Model, Model.id == job.model_id, values)
