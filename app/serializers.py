"""Rows as the JSON of the contract."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.intake.uploads import read_metadata
from app.schemas import (
    BlobRead,
    FileRead,
    JobRead,
    ModelRead,
    SourceRead,
    TargetRead,
    UploadRead,
    VersionRead,
    WorkerRead,
)
from grasp_core.config import GateConfig
from grasp_core.named_files import BASE, state_name
from grasp_core.report import Figures
from grasp_core.sensitivity import Sensitivity
from registry.briefs import load_briefly
from registry.files import find_file
from registry.jobs.states import RETRIABLE, TERMINAL
from registry.jobs.transitions import Failure
from registry.jobs.workers import is_alive
from registry.keys import Caller
from registry.process.settings import Settings
from registry.tables import (
    Job,
    Model,
    ModelFile,
    ProblemKind,
    Source,
    Target,
    Upload,
    Version,
    VersionFile,
    Worker,
)


def serialize_job(job: Job) -> JobRead:
    return JobRead(
        id=job.id,
        kind=job.kind,
        status=job.status,
        stage=job.stage,
        progress=job.progress,
        metrics=job.metrics,
        attempts=job.attempts,
        failures=job.failures,
        model=job.model_id,
        target=job.target_id,
        source=job.source_id,
        version=job.version,
        verdict=job.verdict,
        error=job.error,
        revision=job.revision,
        owner=job.owner,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        links=_job_links(job),
    )


def _job_links(job: Job) -> dict[str, str]:
    me = f"/jobs/{job.id}"
    return _present(
        {
            "self": me,
            "events": f"{me}/events",
            "cancel": None if job.status in TERMINAL else f"{me}/cancel",
            "retry": f"{me}/retry" if _can_be_retried(job) else None,
            "report": f"{me}/report" if _has_report(job) else None,
            "model": f"/models/{job.model_id}/info" if job.model_id else None,
            "target": f"/targets/{job.target_id}" if job.target_id else None,
            "source": f"/sources/{job.source_id}" if job.source_id else None,
            "download": f"/models/{job.model_id}/versions/{job.version}" if job.version else None,
        }
    )


def _can_be_retried(job: Job) -> bool:
    return job.status in RETRIABLE and job.kind != "dry_run"


def _has_report(job: Job) -> bool:
    return job.kind in ("fold", "dry_run") and job.status in ("succeeded", "rejected")


def see(target: Target, gate: GateConfig) -> Sensitivity | None:
    """What a gate can see of a target, once its examples are counted."""
    counts = ((target.summary or {}).get("counts") or {}).get("val")
    return Sensitivity.of(counts, gate) if counts else None


def serialize_target(target: Target) -> TargetRead:
    summary: Mapping[str, Any] = target.summary or {}
    sensitivity = see(target, GateConfig())
    return TargetRead(
        id=target.id,
        name=target.name,
        kind=target.kind,
        status=target.status,
        uri=target.uri,
        sha256=target.sha256,
        size=target.size,
        classes=summary.get("classes"),
        class_count=_count(summary.get("classes"), target.class_count),
        counts=summary.get("counts"),
        images=summary.get("images"),
        broken=summary.get("broken"),
        broken_count=summary.get("broken_count"),
        fingerprint=summary.get("fingerprint"),
        sensitivity=sensitivity,
        warnings=[sensitivity.warning] if sensitivity and sensitivity.warning else [],
        error=target.error,
        job=target.job_id,
        created_at=target.created_at,
        links={
            "self": f"/targets/{target.id}",
            "samples": f"/targets/{target.id}/samples",
            "job": f"/jobs/{target.job_id}",
        },
    )


def model_fields(model: Model, held: Failure | None = None) -> dict[str, Any]:
    me = f"/models/{model.id}"
    return {
        "id": model.id,
        "name": model.name,
        "status": model.status,
        "version": model.version,
        "kind": model.kind,
        "architecture": model.architecture,
        "classes": model.classes,
        "class_count": _count(model.classes, model.class_count),
        "image_size": model.preprocessing.get("image_size"),
        "preprocessing": model.preprocessing,
        "seed": model.merge["seed"],
        "learning_rate": model.learning_rate,
        "merge": model.merge,
        "target": model.target_id,
        "keep_versions": model.keep_versions,
        "keep_sources": model.keep_sources,
        "queue": model.device_class,
        "base": _serialize_blob(find_file(model.files, BASE)),
        "files": serialize_files(me, model.files),
        "error": model.error,
        "held": held.as_error() if held else None,
        "job": model.job_id,
        "created_at": model.created_at,
        "links": _present(
            {
                "self": f"{me}/info",
                "versions": f"{me}/versions",
                "sources": f"/sources?model={model.id}",
                "jobs": f"/jobs?model={model.id}",
                "target": f"/targets/{model.target_id}",
                "download": me if model.version else None,
                "files": f"{me}/files",
                "base": f"{me}/base" if find_file(model.files, BASE) else None,
            }
        ),
    }


def serialize_model(
    model: Model, held: Failure | None = None, accuracy: Mapping[str, float] | None = None
) -> ModelRead:
    return ModelRead.model_validate(model_fields(model, held) | {"accuracy": accuracy})


def serialize_source(source: Source, job: Job) -> SourceRead:
    return SourceRead(
        id=source.id,
        name=source.name,
        model=source.model_id,
        sha256=source.sha256,
        size=source.size,
        content=source.content,
        classes=source.classes,
        class_count=_count(source.classes, source.class_count),
        status=job.status,
        version=job.version,
        stored=source.stored,
        job=job.id,
        created_at=source.created_at,
        links={
            "self": f"/sources/{source.id}",
            "job": f"/jobs/{job.id}",
            "model": f"/models/{source.model_id}/info",
        },
    )


def serialize_sources(session: Session, sources: Sequence[Source]) -> list[SourceRead]:
    jobs = {job.id: job for job in load_briefly(session, Job, [each.job_id for each in sources])}
    return [serialize_source(source, jobs[source.job_id]) for source in sources]


def serialize_upload(upload: Upload) -> UploadRead:
    return UploadRead(
        id=upload.id,
        size=upload.size,
        received=upload.received,
        metadata=read_metadata(upload.details["metadata"]),
        created_at=upload.created_at,
        expires_at=upload.expires_at,
        links={"self": f"/uploads/{upload.id}"},
    )


def serialize_version(version: Version, problem: ProblemKind | None = None) -> VersionRead:
    me = f"/models/{version.model_id}/versions/{version.number}"
    state = find_file(version.files, state_name(version.method or ""))
    figures = Figures() if version.rollback_of else Figures.read(version.metrics)
    return VersionRead(
        number=version.number,
        sha256=version.sha256,
        size=version.size,
        method=version.method,
        state=_serialize_blob(state),
        files=serialize_files(me, version.files),
        parent=version.parent,
        source=version.source_id,
        rollback_of=version.rollback_of,
        kept=figures.kept,
        summary=figures.sentence,
        metrics=version.metrics,
        available=version.pruned_at is None,
        problem=problem,
        job=version.job_id,
        created_at=version.created_at,
        links=_present(
            {
                "self": me,
                "report": f"{me}/report",
                "provenance": f"{me}/provenance",
                "files": f"{me}/files" if version.pruned_at is None else None,
                "state": f"{me}/state" if state else None,
            }
        ),
    )


def serialize_files(
    place: str, files: Iterable[ModelFile] | Iterable[VersionFile]
) -> list[FileRead]:
    """Of a model or a version, whose address is `place`."""
    return [
        FileRead(
            name=file.name,
            sha256=file.sha256,
            size=file.size,
            links={"self": f"{place}/files/{file.name}"},
        )
        for file in files
    ]


def _serialize_blob(file: ModelFile | VersionFile | None) -> BlobRead | None:
    return None if file is None else BlobRead(sha256=file.sha256, size=file.size)


def serialize_worker(
    session: Session, worker: Worker, settings: Settings, caller: Caller
) -> WorkerRead:
    job = session.get(Job, worker.job_id) if worker.job_id else None
    return WorkerRead(
        id=worker.id,
        host=worker.host,
        pid=worker.pid,
        device=worker.device,
        memory_bytes=worker.memory_bytes,
        release=worker.release,
        alive=is_alive(worker, settings),
        busy=worker.job_id is not None,
        job=job.id if job and job.owner == caller.owner else None,
        started_at=worker.started_at,
        seen_at=worker.seen_at,
    )


def _count(names: Sequence[str] | None, counted: int | None) -> int | None:
    """Of names that a list leaves out, as the database has counted them."""
    return counted if names is None else len(names)


def _present(links: Mapping[str, str | None]) -> dict[str, str]:
    return {name: link for name, link in links.items() if link is not None}
