"""Which workers there are, and what they do."""

from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from registry.jobs.transitions import change
from registry.process.settings import Settings
from registry.tables import Json, Worker, utc_now

FORGOTTEN_AFTER = timedelta(days=1)


def register_worker(session: Session, worker: Worker) -> None:
    """Note a worker that starts, and forget those that have long been silent."""
    known = session.merge(worker)
    session.flush()  # by now it has a time
    silent = Worker.seen_at < known.seen_at - FORGOTTEN_AFTER
    session.execute(delete(Worker).where(silent))


def see_worker(
    session: Session,
    worker_id: str,
    job_id: str | None,
    now: datetime,
    totals: Json | None = None,
) -> None:
    """Note that a worker lives, what it runs and, if given, what it has done so far."""
    new = {} if totals is None else {"totals": totals}
    change(session, Worker, Worker.id == worker_id, {"seen_at": now, "job_id": job_id, **new})


def remove_worker(session: Session, worker_id: str) -> None:
    session.execute(delete(Worker).where(Worker.id == worker_id))


def is_alive(worker: Worker, settings: Settings) -> bool:
    """Whether it was heard of lately: a worker silent for longer has lost its job."""
    return utc_now() - worker.seen_at < timedelta(seconds=settings.lease_seconds)


def list_workers(session: Session) -> list[Worker]:
    return list(session.scalars(select(Worker).order_by(Worker.id)))
