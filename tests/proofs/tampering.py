"""What a test changes inside a worker's process, by variables of its environment.

PROOF_LOOK_S: how often an idle worker looks by itself though there is a broker.
PROOF_UNFENCED: the fence is off. Three comparisons keep a stale worker out: of its lease, of the
version it folded into, and of its job's status. Here each is content with whatever it finds.
"""

import os
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

import registry.process.settings
from registry import versions
from registry.jobs import queue, transitions
from registry.jobs.queue import Lease
from registry.jobs.states import ACTIVE, TERMINAL, JobStatus
from registry.tables import Model, Queue

_advance, _end = versions._advance, transitions.end


def tamper() -> None:
    if "PROOF_LOOK_S" in os.environ:
        registry.process.settings.RUNG_LOOK_S = float(os.environ["PROOF_LOOK_S"])
    if "PROOF_UNFENCED" in os.environ:
        vars(queue).update(hold=_hold_any, end=_end_any)
        vars(versions).update(hold=_hold_any, _advance=_advance_any)


def _hold_any(session: Session, lease: Lease, expires_at: datetime | None = None) -> None:
    """The lock, and the renewal, of whoever's lease it is."""
    held = session.get_one(Queue, lease.queue_id, populate_existing=True, with_for_update=True)
    held.expires_at = expires_at or held.expires_at


def _advance_any(session: Session, model: Model, _base: int | None) -> int:
    return _advance(session, model, model.version)


def _end_any(
    session: Session, job_id: str, status: JobStatus, now: datetime, values: Any, *_: Any
) -> bool:
    return _end(session, job_id, status, now, values, (*ACTIVE, *TERMINAL))
