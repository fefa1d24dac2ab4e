"""Models: created with a job that prepares them, changed for later folds, deleted whole."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from grasp_core.config import FoldConfig, Frozen
from grasp_core.kinds import find_kind
from grasp_core.methods import METHODS, change_config
from grasp_core.spec import ModelSpec
from registry.blobs.base import Blob
from registry.blobs.damage import forget_problems
from registry.jobs.queue import Lease, close, drop_queue, enqueue, lock_queue, open_queue
from registry.jobs.transitions import change
from registry.lookup import add_named, new_id
from registry.tables import DeviceClass, Job, Model, Target, Version

MODEL_WITH_BASE = "a base is given with a new model: make one with this method, and its base"


def create_model(
    session: Session,
    owner: str,
    target: Target,
    *,
    name: str,
    architecture: str,
    classes: tuple[str, ...] | None,
    preprocessing: Frozen,
    merge: FoldConfig,
    keep_versions: int | None,
    keep_sources: bool,
    device_class: DeviceClass | None = None,
    base: Blob | None = None,
    request_id: str | None = None,
) -> tuple[Model, Job]:
    """A model and the job that prepares it: seq 0 of its queue.

    Raises NameTaken, and NotFound if the target was deleted meanwhile.
    """
    lock_queue(session, target.id)
    forget_problems(session, [base.sha256] if base else [])
    model_id = new_id("mdl")
    job = Job(
        id=new_id("job"),
        owner=owner,
        queue_id=model_id,
        kind="prepare",
        model_id=model_id,
        target_id=target.id,
        request_id=request_id,
    )
    model = Model(
        id=model_id,
        owner=owner,
        name=name,
        kind=target.kind,
        architecture=architecture,
        classes=list(classes) if classes else None,
        preprocessing=preprocessing.model_dump(mode="json"),
        merge=merge.model_dump(mode="json"),
        target_id=target.id,
        status="preparing",
        keep_versions=keep_versions,
        keep_sources=keep_sources,
        device_class=device_class,
        base_sha256=base.sha256 if base else None,
        base_size=base.size if base else None,
        job_id=job.id,
    )
    add_named(session, model)
    open_queue(session, model_id, waits_for=target.id)
    enqueue(session, job)
    return model, job


def record_preparation(
    session: Session, lease: Lease, classes: tuple[str, ...], manifest: Any, now: datetime
) -> None:
    """The model can be folded into. Raises LeaseLost."""
    close(session, lease, "succeeded", now)
    values = {"status": "ready", "classes": list(classes), "manifest": manifest, "error": None}
    change(session, Model, Model.id == lease.queue_id, values)


def spec_of(model: Model) -> ModelSpec:
    """What all versions of a prepared model have in common. Raises ConfigError for a lost kind."""
    find_kind(model.kind)
    return ModelSpec(
        kind=model.kind,
        architecture=model.architecture,
        classes=tuple(model.classes or ()),
        preprocessing=model.preprocessing,
    )


def changed_merge(session: Session, model: Model, changes: Mapping[str, Any]) -> FoldConfig:
    """The model's parameters with some replaced, for later folds.

    Raises ValidationError, and ConfigError for a method that lacks its base, or cannot take over
    what was merged.
    """
    config = change_config(model.merge, changes)
    if config.method != model.merge["method"]:
        method = METHODS[config.method]
        method.require_base(given=model.base_sha256 is not None, hint=MODEL_WITH_BASE)
        if not _has_state_of(session, model, config.method):
            method.require_beginning(first=model.version is None)
    return config


def _has_state_of(session: Session, model: Model, method: str) -> bool:
    """Whether the newest version was made by this method, and has what it remembers of that."""
    newest = session.get(Version, (model.id, model.version)) if model.version else None
    if newest is None or newest.state_sha256 is None:
        return False
    report = session.scalar(select(Job.report).where(Job.id == newest.job_id))
    return bool(report and json.loads(report)["config"]["method"] == method)


def delete_model(session: Session, model: Model) -> None:
    """Forget a model with all its jobs, sources and versions; a running fold loses its lease."""
    drop_queue(session, model.id)
    session.delete(model)
