"""Targets: registered once, validated by a job, removed when no model needs them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from grasp_core.kinds import DEFAULT
from registry.blobs.base import Blob
from registry.blobs.damage import forget_problems
from registry.errors import StillUsed
from registry.jobs.queue import (
    Lease,
    close,
    drop_queue,
    enqueue,
    lock_queue,
    open_queue,
    ring_waiting,
)
from registry.jobs.replacement import replace_failed
from registry.jobs.transitions import change
from registry.lookup import add_named, new_id
from registry.tables import Job, Model, Target


def create_target(
    session: Session,
    owner: str,
    name: str,
    *,
    kind: str = DEFAULT,
    uri: str | None = None,
    blob: Blob | None = None,
    request_id: str | None = None,
) -> tuple[Target, Job]:
    """A target and the job that validates it; it replaces one of the same name that has failed,
    with the models that have failed for it. Raises NameTaken."""
    target_id = new_id("tgt")
    if blob is not None:
        forget_problems(session, [blob.sha256])
    job = Job(
        id=new_id("job"),
        owner=owner,
        queue_id=target_id,
        kind="validate",
        target_id=target_id,
        request_id=request_id,
    )
    target = Target(
        id=target_id,
        owner=owner,
        name=name,
        kind=kind,
        uri=uri,
        sha256=blob.sha256 if blob else None,
        size=blob.size if blob else None,
        status="validating",
        job_id=job.id,
    )
    replace_failed(session, Target, owner, name)
    add_named(session, target)
    open_queue(session, target_id)
    enqueue(session, job)
    return target, job


def record_validation(
    session: Session,
    lease: Lease,
    summary: dict[str, Any],
    now: datetime,
    *,
    samples: Sequence[Mapping[str, str]] = (),
) -> None:
    """The target is fit for use, and looks like its samples. Raises LeaseLost."""
    close(session, lease, "succeeded", now)
    values = {"status": "ready", "summary": summary, "samples": list(samples), "error": None}
    change(session, Target, Target.id == lease.queue_id, values)
    ring_waiting(session, now)  # its models among them, for other workers than this one


def find_fingerprints(session: Session) -> set[str]:
    """Those of all validated targets: whose decoded data may be kept."""
    fingerprint = Target.summary["fingerprint"].as_string()
    return set(session.scalars(select(fingerprint).where(Target.summary.is_not(None))))


def delete_target(session: Session, target: Target) -> None:
    """Forget a target and its job. Raises StillUsed while models refer to it."""
    lock_queue(session, target.id)  # as whoever makes a model of it does
    users = session.scalar(select(func.count()).where(Model.target_id == target.id))
    if users:
        raise StillUsed(
            f"target {target.name!r} is used by {users} model{'s' if users > 1 else ''}",
            hint="delete these models first",
        )
    drop_queue(session, target.id)
    session.delete(target)
