"""Models: created with a job that prepares them, changed for later folds, deleted whole."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from grasp_core.config import FoldConfig, Frozen
from grasp_core.kinds import find_kind
from grasp_core.methods import METHODS
from grasp_core.named_files import BASE
from grasp_core.parameters import change_config, methods_of
from grasp_core.spec import ModelSpec
from registry.blobs.base import Blob
from registry.blobs.damage import find_bad_inputs, forget_problems
from registry.files import find_file, make_files
from registry.histories import require_histories
from registry.jobs.abilities import find_missing
from registry.jobs.queue import Lease, close, drop_queue, enqueue, lock_queue, open_queue
from registry.jobs.replacement import replace_failed
from registry.jobs.transitions import Failure, change
from registry.lookup import add_named, new_id, rename
from registry.tables import DeviceClass, Job, Model, ModelFile, ModelMethod, Target, Version

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
    files: Mapping[str, Blob] | None = None,
    request_id: str | None = None,
) -> tuple[Model, Job]:
    """A model with its files, by name, and the job that prepares it: seq 0 of its queue.

    It replaces one of the same name that has failed.

    Raises NameTaken, and NotFound if the target was deleted meanwhile.
    """
    lock_queue(session, target.id)
    files = files or {}
    forget_problems(session, [blob.sha256 for blob in files.values()])
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
        target_id=target.id,
        status="preparing",
        keep_versions=keep_versions,
        keep_sources=keep_sources,
        device_class=device_class,
        job_id=job.id,
        files=make_files(ModelFile, files),
    )
    set_merge(model, merge)
    replace_failed(session, Model, owner, name)
    add_named(session, model)
    open_queue(session, model_id, waits_for=target.id)
    enqueue(session, job)
    return model, job


def record_preparation(
    session: Session,
    lease: Lease,
    classes: tuple[str, ...],
    manifest: Any,
    now: datetime,
    warnings: Sequence[str] = (),
) -> None:
    """The model can be folded into. Raises LeaseLost."""
    close(session, lease, "succeeded", now, metrics={"warnings": [*warnings]} if warnings else {})
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
    before = methods_of(model.merge)
    added = [name for name in config.methods if name not in before]
    has_base = find_file(model.files, BASE) is not None
    for name in added:
        METHODS[name].require_base(given=has_base, hint=MODEL_WITH_BASE)
    newest = session.get(Version, (model.id, model.version)) if model.version else None
    require_histories(newest, added)
    return config


def set_merge(model: Model, merge: FoldConfig) -> None:
    model.merge = merge.model_dump(mode="json")
    model.methods = [ModelMethod(method=name) for name in merge.methods]


def find_holds(
    session: Session, models: Sequence[Model], lease_seconds: float
) -> dict[str, Failure]:
    """By id, why the jobs of these models wait, where they do: for a worker, or for a blob."""
    return find_missing(session, models, lease_seconds) | find_bad_inputs(session, models)


def rename_model(session: Session, model: Model, name: str) -> None:
    """It replaces one of that name that has failed. Raises NameTaken."""
    if name != model.name:
        replace_failed(session, Model, model.owner, name)
        rename(session, model, name)


def delete_model(session: Session, model: Model) -> None:
    """Forget a model with all its jobs, sources and versions; a running fold loses its lease."""
    drop_queue(session, model.id)
    session.delete(model)
