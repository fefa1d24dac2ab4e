"""Versions: published under a lease, gone back to, and thinned out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import and_, select, tuple_
from sqlalchemy.orm import Session

from grasp_core.errors import ConfigError
from grasp_core.named_files import WEIGHTS
from grasp_core.parameters import methods_of
from registry.blobs.base import Blob
from registry.blobs.damage import forget_problems
from registry.errors import BytesGone, Conflict, NotFound, NoVersion, StaleBase
from registry.files import make_files
from registry.histories import require_histories
from registry.jobs.queue import Lease, close, hold, lock_queue, ring_waiting
from registry.jobs.transitions import change
from registry.tables import Job, Model, Source, Version, VersionFile

ALLOWED_BY = {  # grasp_core.report.Cause: the setting; of what is not finite there is none
    "norm": "merge.gate.max_norm_ratio",
    "floor": "merge.gate.max_drop to 1",
    "fall": "merge.gate.max_drop (of one class: max_class_drop)",
}
NEVER_ALLOWED = "no setting allows what is not finite: offer a checkpoint whose values all are"


@dataclass(frozen=True)
class FoldResult:
    """What a finished fold leaves to be recorded."""

    base: int | None  # the version folded into
    report: str  # JSON
    metrics: dict[str, Any]
    files: Mapping[str, Blob] = field(default_factory=dict)  # by name; rejected: none
    method: str | None = None  # None: the weights stay as they were
    verdict: dict[str, Any] | None = None  # grasp_core.report.FoldVerdict
    learning_rate: dict[str, Any] | None = None  # as it was probed; None: it was not


def publish(session: Session, lease: Lease, result: FoldResult, now: datetime) -> int:
    """Make a fold's weights the model's newest version. Raises LeaseLost, StaleBase."""
    hold(session, lease)
    job = session.get_one(Job, lease.job_id)
    model = session.get_one(Model, lease.queue_id)
    files = dict(result.files)
    forget_problems(session, [blob.sha256 for blob in files.values()])
    weights = files.pop(WEIGHTS)
    number = _advance(session, model, result.base)
    session.add(
        Version(
            model_id=model.id,
            number=number,
            owner=model.owner,
            sha256=weights.sha256,
            size=weights.size,
            method=result.method or _method_of(session, model, result.base),
            parent=result.base,
            source_id=job.source_id,
            job_id=job.id,
            metrics=result.metrics,
            created_at=now,
            files=make_files(VersionFile, files),
        )
    )
    if result.learning_rate is not None:
        model.learning_rate = result.learning_rate | {"version": number}
    _let_go(session, model, job)
    close(session, lease, "succeeded", now, version=number, **_describe(result))
    prune(session, model, now)
    return number


def reject(session: Session, lease: Lease, result: FoldResult, now: datetime) -> None:
    """Keep the report of a fold that the gate refused; the model stays as it was.

    Raises LeaseLost, and StaleBase if it was compared with a version that is no longer newest.
    """
    hold(session, lease)
    job = session.get_one(Job, lease.job_id)
    model = session.get_one(Model, lease.queue_id)
    if model.version != result.base:
        raise _stale(model, result.base)
    _let_go(session, model, job)
    error = {
        "code": "gate_rejected",
        "message": result.verdict and result.verdict["reason"],
        "hint": _advise(result.verdict or {}, stored=model.keep_sources),
    }
    close(session, lease, "rejected", now, error=error, **_describe(result))


def record_trial(session: Session, lease: Lease, result: FoldResult, now: datetime) -> None:
    """Keep what a dry run found; its weights are thrown away."""
    close(session, lease, "succeeded", now, **_describe(result))


def read_accuracies(session: Session, models: Iterable[Model]) -> dict[str, dict[str, float]]:
    """Of their newest versions, on each split, by the ids of models."""
    after = Version.metrics["after"]
    splits = {split: after[split]["accuracy"].as_float() for split in ("val", "test")}
    query = select(Version.model_id, *splits.values()).where(
        tuple_(Version.model_id, Version.number).in_(
            [(model.id, model.version) for model in models if model.version]
        )
    )
    return {
        model: {split: value for split, value in zip(splits, row, strict=True) if value is not None}
        for model, *row in session.execute(query)
    }


def _advise(verdict: Mapping[str, Any], *, stored: bool) -> str:
    """What somebody can do who wants it nevertheless."""
    cause = verdict.get("cause")
    if cause == "not_finite":
        return NEVER_ALLOWED
    again = "" if stored else " POST the same checkpoint again, which is no longer stored,"
    setting = ALLOWED_BY.get(str(cause), "merge.gate")
    return (
        f"the report has the figures; to allow it, PATCH the model's {setting},{again} and retry"
        " the job"
    )


def _describe(result: FoldResult) -> dict[str, Any]:
    """What its job keeps of a fold, however it ended."""
    return {"report": result.report, "metrics": result.metrics, "verdict": result.verdict}


def rollback(session: Session, model: Model, number: int, now: datetime) -> Version:
    """A new version equal to an older one.

    Raises NoVersion, NotFound, BytesGone, and Conflict where the model's method could not fold
    into it.
    """
    lock_queue(session, model.id)  # a fold that publishes has it locked too
    session.refresh(model)
    older = find_version(session, model, number)
    if older.pruned_at is not None:
        raise BytesGone(f"the weights of version {number} were deleted by the model's retention")
    try:
        require_histories(older, methods_of(model.merge))
    except ConfigError as error:
        raise Conflict(
            f"the model could not go on from version {number}: {error.message}",
            hint="first PATCH its merge parameters to methods that can, such as the one that made"
            " it; or make a new model",
        ) from error
    version = Version(
        model_id=model.id,
        number=_advance(session, model, model.version),
        owner=model.owner,
        sha256=older.sha256,
        size=older.size,
        method=older.method,
        parent=model.version,
        source_id=older.source_id,
        rollback_of=number,
        job_id=older.job_id,
        metrics=older.metrics,
        created_at=now,
        files=make_files(VersionFile, {f.name: Blob(f.sha256, f.size) for f in older.files}),
    )
    session.add(version)
    session.refresh(model)
    prune(session, model, now)
    ring_waiting(session, now)  # its jobs may have waited for this
    return version


def find_version(session: Session, model: Model, number: int | None = None) -> Version:
    """One version, or the newest. Raises NoVersion while there is none, and NotFound."""
    if model.version is None:
        raise NoVersion(
            f"model {model.name!r} has no version yet",
            hint="post a source, and wait until its job has succeeded",
        )
    version = session.get(Version, (model.id, model.version if number is None else number))
    if version is None:
        raise NotFound(
            f"model {model.name!r} has no version {number}",
            hint=f"the newest is {model.version}",
        )
    return version


def find_best(session: Session, model: Model) -> int | None:
    """The version with the best validation log-likelihood, of those whose bytes are here; of two
    the newer. Those of an older release, which did not say, do not count. None: there is none."""
    likelihood = Version.metrics["after"]["val"]["log_likelihood"].as_float()
    candidates = (
        select(Version.number)
        .where(Version.model_id == model.id, Version.pruned_at.is_(None), likelihood.is_not(None))
        .order_by(likelihood.desc(), Version.number.desc())
    )
    return session.scalar(candidates.limit(1))


def prune(session: Session, model: Model, now: datetime) -> None:
    """Let go of the bytes of all but the model's last versions, and of what these equal."""
    if model.keep_versions is None:
        return
    stored = select(Version).where(Version.model_id == model.id, Version.pruned_at.is_(None))
    versions = session.scalars(stored.order_by(Version.number.desc())).all()
    kept = {version.content for version in versions[: model.keep_versions]}
    for version in versions:
        if version.content not in kept:
            version.pruned_at, version.files = now, []
    session.flush()


def _method_of(session: Session, model: Model, number: int | None) -> str | None:
    """Of a version whose weights stay as they were."""
    version = session.get(Version, (model.id, number)) if number else None
    return version.method if version else None


def _advance(session: Session, model: Model, base: int | None) -> int:
    number = (base or 0) + 1
    unchanged = and_(Model.id == model.id, Model.version.is_not_distinct_from(base))
    if not change(session, Model, unchanged, {"version": number}):
        raise _stale(model, base)
    return number


def _stale(model: Model, base: int | None) -> StaleBase:
    return StaleBase(f"model {model.name!r} is no longer at version {base}")


def _let_go(session: Session, model: Model, job: Job) -> None:
    """A folded source is never read again."""
    if not model.keep_sources:
        change(session, Source, Source.id == job.source_id, {"stored": False})
