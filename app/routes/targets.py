"""Targets: labelled data of the domain we care about."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.access.auth import CallerDep
from app.fetching.fetch import local_path
from app.fields import (
    NAME_PATTERN,
    SHA256_PATTERN,
    Cursor,
    Limit,
    Name,
    Reference,
    Sha256,
)
from app.intake.idempotency import Created, Once, OnceDep
from app.intake.receiving import Reception, is_type, read_json, require_one_place, validated
from app.intake.uploads import take_upload
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
from app.service import Service, ServiceDep
from app.show import show_job, show_target
from registry.blobs.base import Blob, BlobWriter
from registry.errors import Unusable
from registry.jobs.states import TargetStatus
from registry.lookup import find_named, list_page
from registry.naming import require_free_name
from registry.tables import Target
from registry.targets import create_target as create_target_row
from registry.targets import delete_target as delete_target_row
from registry.uploads import delete_upload

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
    sha256: Annotated[Sha256 | None, Query(description="For a raw body: verified.")] = None,
) -> JSONResponse:
    """Send an archive (zip, tar, WebDataset, Parquet, npz), or name a finished upload or a uri.

    A folder below one of GRASP_DATA_ROOTS is used where it lies. A job validates the data: poll
    `Location`.
    """
    given = {"name": name, "sha256": sha256}
    values = {key: value for key, value in given.items() if value is not None}
    request_id = request.state.request_id
    if is_type(request, "application/json"):

        def add(found: dict[str, Any]) -> TargetFields:
            values.update(found)
            return validated(TargetFields, values)

        fields = await read_json(request, service, add)
        require_one_place(fields.uri, fields.upload)
        if fields.uri is not None and fields.uri.startswith("file:"):
            if fields.sha256 is not None:
                raise Unusable("data that is used where it lies has no sha256 to be verified")
            await run_in_threadpool(local_path, fields.uri, service.fetching)
            return await run_in_threadpool(_register, service, once, fields, None, request_id)
        if fields.upload is not None:  # one that is gone may have been answered before
            before = await run_in_threadpool(_replay, service, once, fields, None)
            if before is not None:
                return before
    return await _store_and_register(request, service, once, values, request_id)


async def _store_and_register(
    request: Request, service: Service, once: Once, values: dict[str, Any], request_id: str
) -> JSONResponse:
    async def begin(values: dict[str, Any], _filename: str) -> None:
        """With the name before the file, one that cannot be had is refused at once."""
        if "name" in values:
            fields = validated(TargetFields, values)
            if once.key is None:  # with one, a taken name may be this request's own
                await run_in_threadpool(_require_free, service, once.owner, fields.name)

    with service.store.create() as writer:
        reception = Reception(service, writer, values, begin)
        if values.get("uri") is not None:
            await reception.fetch(values["uri"])
        elif values.get("upload") is not None:
            await take_upload(reception, service, once.owner, values["upload"])
        else:
            await reception.receive(request)
        if reception.filename is None:
            raise Unusable("no file was sent", hint="send the archive in a part named file")
        fields = validated(TargetFields, reception.fields)
        return await run_in_threadpool(_register, service, once, fields, writer, request_id)


def _require_free(service: Service, owner: str, name: str) -> None:
    with service.database.read() as session:
        require_free_name(session, Target, owner, name)


def _content(fields: TargetFields, writer: BlobWriter | None) -> dict[str, Any]:
    """What was asked: an upload by its id, which never stands for other bytes."""
    sha256 = writer.sha256() if writer and fields.upload is None else None
    return fields.model_dump() | {"content": sha256}


def _replay(
    service: Service, once: Once, fields: TargetFields, writer: BlobWriter | None
) -> JSONResponse | None:
    with service.database.read() as session:
        return once.replay(session, _content(fields, writer))


def _register(
    service: Service, once: Once, fields: TargetFields, writer: BlobWriter | None, request_id: str
) -> JSONResponse:
    before = _replay(service, once, fields, writer)  # what is refused, or known, leaves no blob
    if before is not None:
        return before
    _require_free(service, once.owner, fields.name)
    with service.store.guard():
        blob: Blob | None = writer.commit() if writer else None
        with service.database.write() as session:

            def act() -> Created:
                target, job = create_target_row(
                    session,
                    once.owner,
                    fields.name,
                    uri=fields.uri,
                    blob=blob,
                    request_id=request_id,
                )
                if fields.upload is not None:
                    delete_upload(session, fields.upload)
                body = TargetCreated(target=show_target(target), job=show_job(job))
                return Created(body, 202, f"/jobs/{job.id}")

            return once.run(session, _content(fields, writer), act)


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
        return Page(items=[show_target(row) for row in page.items], next_cursor=page.next_cursor)


@router.get(
    "/targets/{target}",
    summary="A target: its classes, and its images per split and class",
    responses=problems(404),
)
def get_target(target: Reference, service: ServiceDep, caller: CallerDep) -> TargetRead:
    with service.database.read() as session:
        return show_target(find_named(session, Target, caller.owner, target))


@router.get(
    "/targets/{target}/samples",
    summary="A few small images of a target",
    responses=problems(404),
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
