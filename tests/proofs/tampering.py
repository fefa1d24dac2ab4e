"""What a test changes inside a worker's process, by variables of its environment.

PROOF_LOOK_S: how often an idle worker looks by itself though there is a broker.
PROOF_UNFENCED: what keeps the results of stale workers out is turned off: `lease` stands for the
lock on the lease, `all` also for the comparisons made when a version or an end is written.
"""

import os
from datetime import datetime
from typing import Any

from sqlalchemy import and_
from sqlalchemy.orm import Session

import registry.queue
import registry.settings
import registry.transitions
import registry.versions
from registry.queue import Lease
from registry.states import JobStatus
from registry.tables import Job, Model, Queue


def tamper() -> None:
    if "PROOF_LOOK_S" in os.environ:
        registry.settings.RUNG_LOOK_S = float(os.environ["PROOF_LOOK_S"])
    fence = os.environ.get("PROOF_UNFENCED")
    if fence is not None:
        for module in (registry.queue, registry.versions):
            module.__dict__["hold"] = _hold_nothing
    if fence == "all":
        registry.versions.__dict__["_advance"] = _advance_anyway
        registry.queue.__dict__["end"] = _end_anyway


def _hold_nothing(session: Session, lease: Lease, expires_at: datetime | None = None) -> None:
    """Renew what may be ours, as else every lease would expire; ask no questions."""
    if expires_at is not None:
        mine = and_(Queue.id == lease.queue_id, Queue.holder == lease.worker_id)
        registry.transitions.change(session, Queue, mine, {"expires_at": expires_at})


def _advance_anyway(session: Session, model: Model, base: int | None) -> int:
    """On top of what there is, whatever was folded into."""
    session.refresh(model, with_for_update=True)
    model.version = (model.version or 0) + 1
    session.flush()
    return model.version


def _end_anyway(
    session: Session, job_id: str, status: JobStatus, now: datetime, values: Any, *_: Any
) -> bool:
    ended = {"status": status, "finished_at": now, "worker_id": None, **values}
    registry.transitions.change(session, Job, Job.id == job_id, ended)
    return True
