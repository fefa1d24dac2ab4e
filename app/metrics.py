"""What Prometheus is told, read from the database when it asks."""

from datetime import timedelta

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from registry.settings import Settings
from registry.tables import Job, Model, Target, Version, Worker, utc_now

__all__ = ["CONTENT_TYPE", "render_metrics"]


def render_metrics(session: Session, settings: Settings) -> bytes:
    registry = CollectorRegistry()
    jobs = Gauge("grasp_jobs", "Jobs by kind and status", ["kind", "status"], registry=registry)
    counted = select(Job.kind, Job.status, func.count()).group_by(Job.kind, Job.status)
    for kind, status, count in session.execute(counted):
        jobs.labels(kind, status).set(count)
    _gauge(registry, "grasp_oldest_queued_seconds", "Age of the oldest waiting job", _age(session))
    alive = Worker.seen_at > utc_now() - timedelta(seconds=settings.lease_seconds)
    for name, about, query in (
        ("grasp_workers_alive", "Workers heard of lately", select(func.count()).where(alive)),
        (
            "grasp_workers_busy",
            "Workers with a job",
            select(func.count()).where(alive, Worker.job_id.is_not(None)),
        ),
        ("grasp_targets", "Targets", select(func.count(Target.id))),
        ("grasp_models", "Models", select(func.count(Model.id))),
        ("grasp_versions", "Versions", select(func.count()).select_from(Version)),
    ):
        _gauge(registry, name, about, float(session.scalar(query) or 0))
    return generate_latest(registry)


def _gauge(registry: CollectorRegistry, name: str, about: str, value: float) -> None:
    Gauge(name, about, registry=registry).set(value)


def _age(session: Session) -> float:
    oldest = session.scalar(select(func.min(Job.created_at)).where(Job.status == "queued"))
    return (utc_now() - oldest).total_seconds() if oldest else 0.0
