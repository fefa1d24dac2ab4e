"""Jobs as a worker sees them: the operation that a child runs, and how its result is recorded."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, assert_never
from urllib.parse import unquote_to_bytes, urlsplit

from pydantic import ValidationError
from sqlalchemy.orm import Session

from grasp_core.config import FoldConfig
from grasp_core.errors import GraspError, TargetError
from grasp_core.named_files import SOURCE, TARGET
from grasp_core.operations import (
    LEGACY_FRACTIONS,
    Folded,
    FoldSource,
    Operation,
    Prepared,
    PrepareModel,
    Result,
    TargetSummary,
    ValidateTarget,
)
from grasp_core.parameters import change_config
from registry.blobs.base import Blob
from registry.blobs.damage import Input, model_inputs, target_input
from registry.jobs.queue import Lease
from registry.models import record_preparation, spec_of
from registry.process.settings import Settings
from registry.tables import Job, Model, Source, Target
from registry.targets import record_validation
from registry.versions import FoldResult, publish, record_trial, reject

WORK, OUTPUT = "work", "made"  # folders: what a fold goes on with, and what came of it


@dataclass(frozen=True)
class JobSpec:
    """An operation, but for its files: some lie here, and blobs stand for what is to be fetched."""

    operation: Callable[..., Operation]  # given its `files`
    inputs: Mapping[str, Input]  # by name
    local: Mapping[str, Path] = field(default_factory=dict)


JobReader = Callable[[Session, Lease, Settings], JobSpec]


class NotReady(GraspError):
    """What the job builds on did not come about."""

    code = "not_ready"


class UnknownParameters(GraspError):
    """Another release, or another package, made them."""

    code = "unknown_parameters"


def work_folder(settings: Settings, job_id: str) -> Path:
    """Of all attempts at a job; each lease has a folder of its own in it."""
    return (settings.work_folder / job_id).absolute()


def read_job(session: Session, lease: Lease, settings: Settings) -> JobSpec:
    """What a leased job computes, and from what. Raises GraspError where it cannot be done."""
    job = session.get_one(Job, lease.job_id)
    target = session.get_one(Target, job.target_id)
    decoded: dict[str, Any] = {
        "cache_dir": settings.cache_folder.absolute(),
        "max_decoded_bytes": settings.decoded_target_bytes,
    }
    if job.kind == "validate":
        validate = partial(ValidateTarget, kind=target.kind, **decoded)
        return _on_target(target, settings, validate)
    summary = _summary(target)
    train, val, test = summary.get("fractions") or LEGACY_FRACTIONS
    model = session.get_one(Model, job.model_id)
    if job.kind == "prepare":
        prepare = partial(
            PrepareModel,
            kind=model.kind,
            architecture=model.architecture,
            classes=tuple(model.classes) if model.classes else None,
            preprocessing=model.preprocessing,
            target_fingerprint=summary["fingerprint"],
            target_classes=tuple(summary["classes"]),
            fractions=(train, val, test),
            **decoded,
        )
        return _on_target(target, settings, prepare, **model_inputs(session, model))
    _require_prepared(model)
    source, classes = _candidate(session, job)
    folder = leased_folder(settings, lease)
    fold = partial(
        FoldSource,
        spec=spec_of(model),
        config=_config(model, settings, (job.candidate or {}).get("candidates")),
        version=(model.version or 0) + 1,
        source_sha256=source.sha256,
        source_classes=tuple(classes) if classes else None,
        target_fingerprint=summary["fingerprint"],
        work_dir=folder / WORK,
        output=folder / OUTPUT,
        dry_run=job.kind == "dry_run",
        test_all=job.kind == "dry_run",
        learning_rate=model.learning_rate["rate"] if model.learning_rate else None,
        fractions=(train, val, test),
        **decoded,
    )
    shared = model_inputs(session, model)
    return _on_target(target, settings, fold, **shared, **{SOURCE: source})


def record_result(
    session: Session,
    lease: Lease,
    operation: Operation,
    result: Result,
    stored: Mapping[str, Blob],
    now: datetime,
) -> None:
    """Make a result last, with the files that are stored, by name.

    Raises LeaseLost, and StaleBase if a fold's base is no longer newest.
    """
    match result:
        case TargetSummary():
            summary = asdict(result)
            samples = summary.pop("samples")
            record_validation(session, lease, summary, now, samples=samples)
        case Prepared():
            manifest = result.manifest.model_dump(mode="json")
            record_preparation(session, lease, result.classes, manifest, now, result.warnings)
        case Folded():
            assert isinstance(operation, FoldSource)  # noqa: S101 - what it is the result of
            _record_fold(session, lease, operation, result, stored, now)
        case _:
            assert_never(result)


def _record_fold(
    session: Session,
    lease: Lease,
    operation: FoldSource,
    folded: Folded,
    stored: Mapping[str, Blob],
    now: datetime,
) -> None:
    rate = folded.learning_rate
    result = FoldResult(
        base=operation.version - 1 or None,
        report=folded.report,
        metrics=folded.metrics.model_dump(mode="json"),
        files=stored,
        method=folded.method,
        verdict=folded.verdict.model_dump(mode="json"),
        learning_rate=rate.model_dump(mode="json") if rate else None,
    )
    if operation.dry_run:
        record_trial(session, lease, result, now)
    elif folded.outcome != "rejected":
        publish(session, lease, result, now)
    else:
        reject(session, lease, result, now)


def leased_folder(settings: Settings, lease: Lease) -> Path:
    """What an attempt works in."""
    return work_folder(settings, lease.job_id) / str(lease.epoch)


def take_over_work(settings: Settings, lease: Lease) -> None:
    """Let the leased folder hold what the last attempt left, to go on from.

    It is renamed, so that a child of a worker that only seemed dead no longer finds it: two of
    them writing to the same files could make something that neither of them meant.
    """
    folder = work_folder(settings, lease.job_id)
    epochs = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    earlier = [epoch for epoch in epochs if epoch < lease.epoch]
    if earlier and lease.epoch not in epochs:
        with suppress(FileNotFoundError):  # somebody who leased it later was faster
            (folder / str(max(earlier))).rename(leased_folder(settings, lease))


def _on_target(
    target: Target, settings: Settings, operation: Callable[..., Operation], **inputs: Input
) -> JobSpec:
    """With the target first, and what the whole queue needs before what one job does."""
    if target.sha256 is None:
        path = local_data(target.uri or "", settings.data_roots)
        return JobSpec(operation, inputs, {TARGET: path})
    return JobSpec(operation, {TARGET: target_input(target), **inputs})


def local_data(uri: str, roots: Iterable[Path]) -> Path:
    """Where the data of a target lies, without symbolic links.

    Raises TargetError where a link was put on the way since the API looked, and leads out of the
    data roots.
    """
    path = Path(os.fsdecode(unquote_to_bytes(urlsplit(uri).path)))
    found = path.resolve()
    if found != path and not any(found.is_relative_to(root.resolve()) for root in roots):
        raise TargetError(
            f"{path} leads to another place than when it was registered, outside of the data roots",
            hint="put the data back, or name its folder in GRASP_DATA_ROOTS of the worker, too",
        )
    return found


def _summary(target: Target) -> dict[str, Any]:
    if target.status != "ready" or target.summary is None:
        why = f": {target.error['message']}" if target.error else ""
        raise NotReady(
            f"target {target.name!r} is {target.status}{why}",
            hint=f"put that right, then POST /jobs/{target.job_id}/retry, then retry this job",
        )
    return target.summary


def _require_prepared(model: Model) -> None:
    if model.status != "ready":
        why = f": {model.error['message']}" if model.error else ""
        raise NotReady(
            f"model {model.name!r} could not be prepared{why}",
            hint=f"put that right, then POST /jobs/{model.job_id}/retry, then retry this job",
        )


def _candidate(session: Session, job: Job) -> tuple[Input, list[str] | None]:
    """The bytes that a job folds, and their class names."""
    if job.candidate_sha256 is not None:
        offered = job.candidate or {}
        label = f"the checkpoint {offered.get('name')!r}"
        remedy = "post the source with dry_run again"
        return Input(job.candidate_sha256, label, remedy), offered.get("classes")
    source = session.get_one(Source, job.source_id)
    remedy = "send the same file again, which stores its bytes anew, then retry this job"
    return Input(source.sha256, f"the source {source.name!r}", remedy), source.classes


def _config(model: Model, settings: Settings, candidates: object = None) -> FoldConfig:
    """Of the model's candidates, or of others.

    Raises UnknownParameters, where those of the API are of another release."""
    changes = {"device": settings.device} | ({"candidates": candidates} if candidates else {})
    try:
        return change_config(model.merge, changes)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UnknownParameters(
            f"this worker does not know the parameters of model {model.name!r}: {wrong}",
            hint="it may be of another release than the API: upgrade it, then retry this job",
        ) from error
