"""What the database knows for /metrics.

Each query reads an index of what it counts, never the rows of jobs that have ended: those hold
reports, and there are more of them every day.
"""

from datetime import datetime
from typing import NamedTuple, get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from registry.jobs.queue import is_active
from registry.jobs.states import JobKind, JobStatus
from registry.tables import DeviceClass, Job, Model, Target, Version

QUEUES: tuple[str, ...] = (*get_args(DeviceClass), "any")  # by the workers they wait for


class Waiting(NamedTuple):
    """What waits in the queues of one kind, together."""

    jobs: int = 0
    oldest_seconds: float = 0.0


def count_jobs(session: Session) -> dict[tuple[JobKind, JobStatus], int]:
    """Jobs of every kind in every status, also where there are none."""
    counts = {(kind, status): 0 for kind in get_args(JobKind) for status in get_args(JobStatus)}
    query = select(Job.kind, Job.status, func.count()).group_by(Job.kind, Job.status)
    counts.update({(kind, status): count for kind, status, count in session.execute(query)})
    return counts


def measure_queues(session: Session, now: datetime) -> dict[str, Waiting]:
    """Targets, and models that do not care, wait for any worker."""
    name = func.coalesce(Model.device_class, "any")
    query = (
        select(name, func.count(), func.min(Job.created_at))
        .join(Model, Model.id == Job.queue_id, isouter=True)
        .where(is_active(Job), Job.status == "queued")
        .group_by(name)
    )
    waiting = dict.fromkeys(QUEUES, Waiting())
    for queue, jobs, oldest in session.execute(query):
        waiting[queue] = Waiting(jobs, max(0.0, (now - oldest).total_seconds()))
    return waiting


def count_rows(session: Session, table: type[Target | Model | Version]) -> int:
    return session.scalar(select(func.count()).select_from(table)) or 0
