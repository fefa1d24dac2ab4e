"""Models: one lineage of merged versions each."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.access.auth import CallerDep
from app.errors import InvalidJson
from app.fields import Cursor, Limit, Reference, RefFilter, check_merge
from app.intake.checkpoints import CheckpointInspector, SourceInspector
from app.intake.idempotency import Created, OnceDep
from app.intake.intake import Intake, Place
from app.intake.receiving import json_body, parse_json, validated, wrong_values
from app.openapi import UPLOAD_PROBLEMS, body_of, model_body, problems
from app.schemas import (
    BaseFromUpload,
    BaseFromUri,
    ModelCreate,
    ModelCreated,
    ModelInfo,
    ModelRead,
    ModelUpdate,
    Page,
)
from app.serializers import model_fields, see, serialize_job, serialize_model, serialize_source
from app.service import Service, ServiceDep
from grasp_core.config import FoldConfig, Frozen, GateConfig
from grasp_core.kinds import Kind, check_augmentation, find_kind, require_architecture
from grasp_core.methods import METHODS
from grasp_core.named_files import BASE
from grasp_core.parameters import asks_for_probe
from registry.blobs.base import Blob
from registry.errors import Unusable
from registry.jobs.queue import lock_queue
from registry.jobs.states import JobStatus, ModelStatus
from registry.lookup import find_named, list_page, require_free_name
from registry.models import changed_merge, rename_model, set_merge
from registry.models import create_model as create_model_row
from registry.models import delete_model as delete_model_row
from registry.sources import offer_source
from registry.tables import Job, Model, Source, Target, Version, utc_now
from registry.versions import find_best, prune, read_accuracies

router = APIRouter(tags=["models"])

GIVE_BASE = (
    'give one: `base` as {"uri": …}, {"upload": …} or "initial", or the part `base` of a form; or'
    " choose another method"
)


@router.post(
    "/models",
    status_code=201,
    summary="Create a model",
    response_model=ModelCreated,
    responses=problems(404, 409, *UPLOAD_PROBLEMS),
    openapi_extra=model_body(),
)
async def create_model(request: Request, service: ServiceDep, once: OnceDep) -> JSONResponse:
    """Only `name`, `architecture` and `target` are required. A job prepares the model.

    Initial weights may come as the part `file` of a form, with the JSON in the part `model`: they
    are the first source, folded before any other. A base may come as the part `base`.
    """
    return await ModelIntake(request, service, once).answer()


class ModelIntake(Intake[ModelCreate]):
    parts = ("file", "base")
    early = "model"
    raw = False
    _initial: SourceInspector | None = None

    def parse(self, values: dict[str, Any]) -> ModelCreate:
        return validated(ModelCreate, values if self.is_json else _described(values))

    async def locate(self, fields: ModelCreate) -> Mapping[str, Place]:
        files, base = self.reception.files, fields.base
        if "base" in files and base is not None:
            raise Unusable("the model has two bases", hint="send the part `base`, or name it")
        if base == "initial" and "file" not in files:
            raise Unusable(
                "there are no initial weights that could be the base",
                hint="send them in the part `file` of a form, or give the base by uri or upload",
            )
        for name in fields.merge.methods:
            given = base is not None or "base" in files
            METHODS[name].require_base(given=given, hint=GIVE_BASE)
        match base:
            case BaseFromUri():
                return {"base": Place(uri=base.uri)}
            case BaseFromUpload():
                return {"base": Place(upload=base.upload)}
            case _:
                return {}

    async def verify(self, fields: ModelCreate) -> None:
        given = self.reception.fields.get("base_sha256") if not self.is_json else None
        named = (
            fields.base.sha256 if isinstance(fields.base, BaseFromUri | BaseFromUpload) else None
        )
        for expected in (given, named):
            self.reception.check_digest("base", expected)
        await super().verify(fields)

    def check(self, session: Session, fields: ModelCreate) -> None:
        target = find_named(session, Target, self.once.owner, fields.target)
        kind = find_kind(target.kind)
        _fit(fields, kind)
        require_architecture(kind, fields.architecture)
        require_free_name(session, Model, self.once.owner, fields.name)

    def inspect(
        self,
        part: str,
        filename: str,
        fields: ModelCreate | None,  # noqa: ARG002
    ) -> CheckpointInspector:
        if part == "base":
            return CheckpointInspector(filename)
        self._initial = SourceInspector(filename)
        return self._initial

    def write(self, session: Session, fields: ModelCreate, blobs: Mapping[str, Blob]) -> Created:
        target = find_named(session, Target, self.once.owner, fields.target)
        overrides, parameters = _fit(fields, find_kind(target.kind))
        base = blobs.get("file" if fields.base == "initial" else "base")
        model, job = create_model_row(
            session,
            self.once.owner,
            target,
            name=fields.name,
            architecture=fields.architecture,
            classes=fields.classes,
            preprocessing=overrides,
            merge=parameters,
            keep_versions=fields.keep_versions,
            keep_sources=fields.keep_sources,
            device_class=fields.queue,
            files={BASE: base} if base else {},
            request_id=self.request_id,
        )
        body = ModelCreated(model=serialize_model(model), job=serialize_job(job))
        if self._initial is not None:
            source, first, _ = offer_source(
                session,
                model,
                blobs["file"],
                content=self._initial.content,
                name="initial",
                classes=None,
                request_id=self.request_id,
            )
            body.source = serialize_source(source, first)
        return Created(body, 201, f"/models/{model.id}/info")


def _described(form: dict[str, Any]) -> dict[str, Any]:
    unknown = form.keys() - {"model", "sha256", "base_sha256"}
    if unknown:
        raise Unusable(
            f"the form has unknown parts: {', '.join(sorted(unknown))}",
            hint="put all but the files into the JSON of the part `model`",
        )
    try:
        described = parse_json(form.get("model", ""))
    except ValueError as error:
        raise InvalidJson(
            "the part `model` is missing or not JSON", hint="""-F 'model={"name": …}'"""
        ) from error
    if not isinstance(described, dict):
        raise InvalidJson("the part `model` is JSON, but not an object")
    return described


def _fit(fields: ModelCreate, kind: Kind) -> tuple[Frozen, FoldConfig]:
    """Preprocessing and parameters as a model of this kind has them, or what is wrong with them."""
    try:
        overrides = fields.overrides(kind)
    except ValidationError as error:
        raise wrong_values(error, "body", "preprocessing") from error
    try:
        return overrides, fields.parameters(kind)
    except ValidationError as error:
        raise wrong_values(error, "body", "merge", "refine", "augmentation") from error


@router.get("/models", summary="List models, newest first", responses=problems(404))
def list_models(
    service: ServiceDep,
    caller: CallerDep,
    target: RefFilter = None,
    architecture: RefFilter = None,
    status: ModelStatus | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ModelRead]:
    with service.database.read() as session:
        conditions = []
        if target is not None:
            found = find_named(session, Target, caller.owner, target)
            conditions.append(Model.target_id == found.id)
        if architecture is not None:
            conditions.append(Model.architecture == architecture)
        if status is not None:
            conditions.append(Model.status == status)
        page = list_page(session, Model, caller.owner, conditions, limit=limit, cursor=cursor)
        holds = service.find_holds(session, page.items)
        known = read_accuracies(session, page.items)
        items = [serialize_model(r, holds.get(r.id), known.get(r.id)) for r in page.items]
        return Page(items=items, next_cursor=page.next_cursor)


@router.get("/models/{model}/info", summary="A model's state", responses=problems(404))
def get_model(model: Reference, service: ServiceDep, caller: CallerDep) -> ModelInfo:
    with service.database.read() as session:
        return _info(service, session, find_named(session, Model, caller.owner, model))


def _info(service: Service, session: Session, model: Model) -> ModelInfo:
    newest = session.get(Version, (model.id, model.version)) if model.version else None
    return ModelInfo.model_validate(
        {
            **model_fields(model, service.find_holds(session, [model]).get(model.id)),
            "sha256": newest.sha256 if newest else None,
            "size": newest.size if newest else None,
            "metrics": newest.metrics if newest else None,
            "best": find_best(session, model),
            "sensitivity": see(
                session.get_one(Target, model.target_id),
                GateConfig.model_validate(model.merge["gate"]),
            ),
            "sources": _count_sources(session, model),
        }
    )


def _count_sources(session: Session, model: Model) -> dict[JobStatus, int]:
    counted = (
        select(Job.status, func.count())
        .join(Source, Source.job_id == Job.id)
        .where(Source.model_id == model.id)
        .group_by(Job.status)
    )
    return {row.status: row[1] for row in session.execute(counted)}


@router.patch(
    "/models/{model}",
    summary="Change parameters for later folds",
    responses=problems(400, 404, 409, 413),
    openapi_extra=body_of(ModelUpdate),
)
def update_model(
    model: Reference,
    changes: Annotated[ModelUpdate, Depends(json_body(ModelUpdate))],
    service: ServiceDep,
    caller: CallerDep,
) -> ModelInfo:
    """What is not given stays as it is, also inside `merge`. A running fold is not disturbed.

    `merge.refine.lr: "auto"` lets the next fold try learning rates again.
    """
    given = changes.model_fields_set
    with service.database.write() as session:
        row = find_named(session, Model, caller.owner, model)
        lock_queue(session, row.id)  # neither another change nor a fold comes between
        session.refresh(row)
        if changes.name is not None:
            rename_model(session, row, changes.name)
        if changes.merge is not None:
            set_merge(row, _checked_merge(session, row, changes.merge))
            if asks_for_probe(changes.merge):
                row.learning_rate = None
        if changes.keep_sources is not None:
            row.keep_sources = changes.keep_sources
        if "queue" in given:
            row.device_class = changes.queue
        if "keep_versions" in given:
            row.keep_versions = changes.keep_versions
            prune(session, row, utc_now())
        session.flush()
        return _info(service, session, row)


def _checked_merge(session: Session, model: Model, changes: dict[str, Any]) -> FoldConfig:
    try:
        merge = check_merge(changed_merge(session, model, changes))
    except ValidationError as error:
        raise wrong_values(error, "body", "merge") from error
    except ValueError as error:
        raise Unusable(f"merge: {error}") from error
    try:
        return check_augmentation(merge, find_kind(model.kind))
    except ValidationError as error:
        raise wrong_values(error, "body", "merge", "refine", "augmentation") from error


@router.delete(
    "/models/{model}",
    status_code=204,
    summary="Delete a model with its versions, sources and jobs",
    responses=problems(404),
)
def delete_model(model: Reference, service: ServiceDep, caller: CallerDep) -> Response:
    """There is no way back. A running fold is stopped."""
    with service.database.write() as session:
        delete_model_row(session, find_named(session, Model, caller.owner, model))
    return Response(status_code=204)
