"""Targets: labelled data of the domain we care about."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from app.access.auth import CallerDep
from app.fetching.fetch import is_local, local_path
from app.fields import (
    KIND_PATTERN,
    NAME_PATTERN,
    SHA256_PATTERN,
    Cursor,
    KindName,
    Limit,
    Name,
    Reference,
    Sha256,
)
from app.intake.idempotency import Created, OnceDep
from app.intake.intake import FileIntake, Place
from app.intake.receiving import validated
from app.openapi import UPLOAD_PROBLEMS, problems, upload_body
from app.schemas import (
    Page,
    TargetCreated,
    TargetFields,
    TargetFromUpload,
    TargetFromUri,
    TargetRead,
    TargetSamples,
)
from app.serializers import serialize_job, serialize_target
from app.service import ServiceDep
from grasp_core.kinds import DEFAULT
from registry.blobs.base import Blob
from registry.errors import Unusable
from registry.jobs.states import TargetStatus
from registry.lookup import find_named, list_page, require_free_name
from registry.tables import Target
from registry.targets import create_target as create_target_row
from registry.targets import delete_target as delete_target_row

router = APIRouter(tags=["targets"])


@router.post(
    "/targets",
    status_code=202,
    summary="Register target data",
    response_model=TargetCreated,
    responses=problems(404, 409, *UPLOAD_PROBLEMS),
    openapi_extra=upload_body(
        "TargetCreate",
        (TargetFromUri, TargetFromUpload),
        {
            "name": (NAME_PATTERN, "What to call the target."),
            "kind": (KIND_PATTERN, f"The kind of problem; without, {DEFAULT}."),
            "sha256": (SHA256_PATTERN, "Verified, if given."),
        },
        required=["name"],
    ),
)
async def create_target(
    request: Request,
    service: ServiceDep,
    once: OnceDep,
    name: Annotated[Name | None, Query(description="For a raw body: its name.")] = None,
    kind: Annotated[KindName | None, Query(description="For a raw body: its kind.")] = None,
    sha256: Annotated[Sha256 | None, Query(description="For a raw body: verified.")] = None,
) -> JSONResponse:
    """Send an archive, or name a finished upload or a uri; what it may hold depends on its kind.

    A folder below one of GRASP_DATA_ROOTS is used where it lies. A job validates the data: poll
    `Location`.
    """
    given = {"name": name, "kind": kind, "sha256": sha256}
    return await TargetIntake(request, service, once, given).answer()


class TargetIntake(FileIntake[TargetFields]):
    early = "name"
    file_hint = "send the archive in a part named file"

    def parse(self, values: dict[str, Any]) -> TargetFields:
        return validated(TargetFields, values)

    async def locate(self, fields: TargetFields) -> Mapping[str, Place]:
        """Local data is used where it lies: at the place that is checked here."""
        places = await super().locate(fields)
        if fields.uri is None or not is_local(fields.uri):
            return places
        if fields.sha256 is not None:
            raise Unusable("data that is used where it lies has no sha256 to be verified")
        path = await run_in_threadpool(local_path, fields.uri, self.service.fetching)
        self.uris["file"] = path.as_uri()
        return {}

    def check(self, session: Session, fields: TargetFields) -> None:
        require_free_name(session, Target, self.once.owner, fields.name)

    def write(self, session: Session, fields: TargetFields, blobs: Mapping[str, Blob]) -> Created:
        target, job = create_target_row(
            session,
            self.once.owner,
            fields.name,
            kind=fields.kind,
            uri=self.uris.get("file"),
            blob=blobs.get("file"),
            request_id=self.request_id,
        )
        body = TargetCreated(target=serialize_target(target), job=serialize_job(job))
        return Created(body, 202, f"/jobs/{job.id}")


@router.get("/targets", summary="List targets, newest first", responses=problems())
def list_targets(
    service: ServiceDep,
    caller: CallerDep,
    status: TargetStatus | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[TargetRead]:
    conditions = [Target.status == status] if status else []
    with service.database.read() as session:
        page = list_page(session, Target, caller.owner, conditions, limit=limit, cursor=cursor)
        return Page(
            items=[serialize_target(row) for row in page.items], next_cursor=page.next_cursor
        )


@router.get(
    "/targets/{target}",
    summary="A target: its classes, and its examples per split and class",
    responses=problems(404),
)
def get_target(target: Reference, service: ServiceDep, caller: CallerDep) -> TargetRead:
    with service.database.read() as session:
        return serialize_target(find_named(session, Target, caller.owner, target))


@router.get(
    "/targets/{target}/samples",
    summary="A few examples of a target, to look at",
    responses=problems(404),
    response_model_exclude_none=True,
)
def get_target_samples(target: Reference, service: ServiceDep, caller: CallerDep) -> TargetSamples:
    """Some of each class, class by class; none until the target is validated."""
    with service.database.read() as session:
        found = find_named(session, Target, caller.owner, target)
        return TargetSamples.model_validate({"items": found.samples or []})


@router.delete(
    "/targets/{target}",
    status_code=204,
    summary="Remove a target that no model uses",
    responses=problems(404, 409),
)
def delete_target(target: Reference, service: ServiceDep, caller: CallerDep) -> Response:
    with service.database.write() as session:
        delete_target_row(session, find_named(session, Target, caller.owner, target))
    return Response(status_code=204)
