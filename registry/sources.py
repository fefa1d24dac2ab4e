"""Sources: offered to a model, each once, and queued for folding; or only tried."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from grasp_core.config import require_names
from grasp_core.content import digest_content
from grasp_core.errors import CheckpointError
from grasp_core.manifest import Manifest
from registry.blobs.base import Blob, StorageError
from registry.blobs.damage import find_problems, forget_problems
from registry.blobs.safetensors_header import Header
from registry.database import Database
from registry.errors import Conflict
from registry.jobs.queue import enqueue, lock_queue
from registry.jobs.states import RETRIABLE
from registry.jobs.transitions import change
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
    content: str | None = None,
    request_id: str | None = None,
) -> tuple[Source, Job, bool]:
    """A source with the job that folds it, and whether they are new.

    The same weights offered again, in whatever file, give what they gave the first time. Raises
    Conflict if the model could not be prepared.
    """
    require_usable(model)
    lock_queue(session, model.id)
    forget_problems(session, [blob.sha256])
    known = _find_same(session, model, blob, content)
    if known:
        job = session.get_one(Job, known.job_id)
        _replace_lost(session, known, job, blob)
        known.content = content or known.content  # not known of one of an older release
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
        content=content,
        classes=list(classes) if classes else None,
        job_id=job.id,
    )
    session.add(source)
    enqueue(session, job)
    return source, job, True


def _find_same(session: Session, model: Model, blob: Blob, content: str | None) -> Source | None:
    """The source of these bytes, or else the first of these weights."""
    sources = select(Source).where(Source.model_id == model.id)
    same = session.scalar(sources.where(Source.sha256 == blob.sha256))
    if same or content is None:
        return same
    return session.scalar(
        sources.where(Source.content == content).order_by(Source.created_at, Source.id).limit(1)
    )


def _replace_lost(session: Session, source: Source, job: Job, blob: Blob) -> None:
    """A retry reads the bytes that came now, if those that came first are gone."""
    sound = source.stored and not find_problems(session, [source.sha256])
    if job.status in RETRIABLE and not sound:
        source.sha256, source.size = blob


def find_undigested(session: Session, model_id: str) -> list[tuple[str, str]]:
    """Id and sha256 of a model's sources of older releases whose bytes are here."""
    undigested = select(Source.id, Source.sha256).where(
        Source.model_id == model_id, Source.content.is_(None), Source.stored
    )
    sources = [(row.id, row.sha256) for row in session.execute(undigested)]
    bad = find_problems(session, [sha256 for _, sha256 in sources])
    return [each for each in sources if each[1] not in bad]


def digest_stored(
    database: Database, fetch: Callable[[str], Path], undigested: Iterable[tuple[str, str]]
) -> None:
    """What these sources hold, as far as their bytes can be read."""
    for source_id, sha256 in undigested:
        with suppress(StorageError, CheckpointError, OSError):
            content = digest_content(fetch(sha256))
            with database.write() as session:
                change(session, Source, Source.id == source_id, {"content": content})


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
