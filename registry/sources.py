"""Sources: offered to a model, each once, and queued for folding; or only tried."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from grasp_core.config import require_names
from grasp_core.errors import CheckpointError
from grasp_core.manifest import Manifest
from registry.blobs.base import Blob
from registry.blobs.damage import forget_problems
from registry.blobs.safetensors_header import Header
from registry.errors import Conflict
from registry.jobs.queue import enqueue, lock_queue
from registry.lookup import new_id
from registry.tables import Job, Model, Source


def check_fit(model: Model, header: Header, classes: Sequence[str] | None, name: str) -> None:
    """Raise CheckpointMismatch, with every difference, if the header is not one of this model.

    A model that is not prepared yet has no manifest: its worker will look then. Raises
    CheckpointError for class names in the header that are too many, too long or unprintable.
    """
    known = classes or read_classes(header, name)
    if model.manifest is None:
        return
    manifest = Manifest.model_validate(model.manifest)
    manifest.require(header.tensors, name=name, classes=len(known) if known else None)


def offer_source(
    session: Session,
    model: Model,
    blob: Blob,
    *,
    name: str,
    classes: Sequence[str] | None,
    request_id: str | None = None,
) -> tuple[Source, Job, bool]:
    """A source with the job that folds it, and whether they are new.

    The same bytes offered again give what they gave the first time. Raises Conflict if the model
    could not be prepared.
    """
    require_usable(model)
    lock_queue(session, model.id)
    forget_problems(session, [blob.sha256])
    same = select(Source).where(Source.model_id == model.id, Source.sha256 == blob.sha256)
    known = session.scalar(same)
    if known:
        job = session.get_one(Job, known.job_id)
        known.stored = known.stored or job.status != "succeeded"  # so that it can be retried
        return known, job, False
    source_id = new_id("src")
    job = _job(model, request_id)
    job.kind, job.source_id = "fold", source_id
    source = Source(
        id=source_id,
        owner=model.owner,
        model_id=model.id,
        name=name,
        sha256=blob.sha256,
        size=blob.size,
        classes=list(classes) if classes else None,
        job_id=job.id,
    )
    session.add(source)
    enqueue(session, job)
    return source, job, True


def try_source(
    session: Session,
    model: Model,
    blob: Blob,
    *,
    name: str,
    classes: Sequence[str] | None,
    request_id: str | None = None,
    candidates: Sequence[Mapping[str, Any]] | None = None,
) -> Job:
    """A job that folds the bytes and publishes nothing. Raises Conflict like `offer_source`.

    It has the candidates of the model, unless it is given others."""
    require_usable(model)
    forget_problems(session, [blob.sha256])
    job = _job(model, request_id)
    job.kind = "dry_run"
    job.candidate_sha256 = blob.sha256
    job.candidate = {
        "name": name,
        "size": blob.size,
        "classes": list(classes) if classes else None,
        **({"candidates": list(candidates)} if candidates else {}),
    }
    enqueue(session, job)
    return job


def _job(model: Model, request_id: str | None) -> Job:
    return Job(
        id=new_id("job"),
        owner=model.owner,
        queue_id=model.id,
        model_id=model.id,
        target_id=model.target_id,
        request_id=request_id,
    )


def require_usable(model: Model) -> None:
    if model.status == "failed":
        why = model.error["message"] if model.error else "no reason was kept"
        raise Conflict(
            f"model {model.name!r} could not be prepared: {why}",
            hint=f"put that right, then POST /jobs/{model.job_id}/retry",
        )


def read_classes(header: Header, name: str) -> list[str] | None:
    """The class names that a checkpoint made by grasp_core says about itself.

    Raises CheckpointError for those that are too many, too long or unprintable.
    """
    try:
        classes = json.loads(header.metadata.get("grasp", "{}")).get("classes")
    except (ValueError, AttributeError):
        return None
    if not isinstance(classes, list):
        return None
    names = [str(each) for each in classes]
    try:
        require_names(names)
    except ValueError as error:
        raise CheckpointError(
            f"{name}: {error}", hint="write it again, with other names in its metadata"
        ) from error
    return names
