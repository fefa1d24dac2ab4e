"""Uploads: large files in parts, by tus 1.0.0; what is made of them begins elsewhere."""

from contextlib import suppress
from email.utils import format_datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.access.auth import CallerDep
from app.fields import Cursor, Id, Limit
from app.http.requests import has_body
from app.intake.checkpoints import CheckpointInspector
from app.intake.idempotency import Created, Once, OnceDep
from app.intake.receiving import is_type, too_large
from app.intake.uploads import (
    ALGORITHMS,
    EXTENSIONS,
    MEDIA_TYPE,
    MEDIA_TYPES,
    Arrival,
    Checksum,
    UnsupportedMediaType,
    VersionChecked,
    inspector_of,
    next_expiry,
    read_metadata,
)
from app.openapi import UPLOAD_PROBLEMS, header_of, problems
from app.schemas import Page, UploadRead
from app.serializers import serialize_upload
from app.service import Service, ServiceDep
from grasp_core.errors import CheckpointError, GraspError
from registry.errors import NotFound
from registry.lookup import list_page
from registry.tables import Upload, utc_now
from registry.uploads import create_upload as create_upload_row
from registry.uploads import delete_upload as delete_upload_row
from registry.uploads import find_upload, require_offset

MAX_SIZE = 2**63 - 1  # what a database integer holds
ChecksumHeader = Annotated[
    str | None,
    Header(
        pattern=r"^[\x21-\x7e]+ [\x21-\x7e]+$",
        max_length=200,
        description="sha256 or sha1 of this request's bytes in base64: `sha1 Kq5sNclP…`.",
    ),
]
STATE = {
    "Upload-Offset": header_of("How many bytes have arrived.", "integer"),
    "Upload-Length": header_of("How many there will be.", "integer"),
    "Upload-Expires": header_of("When it is deleted, unless more bytes come."),
}
BYTES: dict[str, Any] = {
    kind: {"schema": {"title": "UploadBytes", "type": "string", "format": "binary"}}
    for kind in MEDIA_TYPES
}
PART_PROBLEMS = (*UPLOAD_PROBLEMS, 404, 409, 412, 415, 460)
REPLAYED = "Idempotency-Replayed"
KEPT = ("Location", REPLAYED)  # of the answer that is remembered

router = APIRouter(tags=["uploads"])


@router.options(
    "/uploads",
    status_code=204,
    summary="What this server can do of tus",
    response_class=Response,
    responses=problems()
    | {
        204: {
            "description": "The headers tell",
            "headers": {
                "Tus-Version": header_of("Versions of the protocol."),
                "Tus-Extension": header_of("Its extensions."),
                "Tus-Max-Size": header_of("Largest upload, in bytes.", "integer"),
                "Tus-Checksum-Algorithm": header_of("For Upload-Checksum."),
            },
        }
    },
)
def show_upload_options(service: ServiceDep) -> Response:
    headers = {
        "Tus-Extension": EXTENSIONS,
        "Tus-Max-Size": str(service.settings.max_upload_bytes),
        "Tus-Checksum-Algorithm": ",".join(ALGORITHMS),
    }
    return Response(status_code=204, headers=headers)


@router.post(
    "/uploads",
    status_code=201,
    summary="Begin an upload",
    response_model=UploadRead,
    responses=problems(*PART_PROBLEMS)
    | {201: {"model": UploadRead, "description": "The upload", "headers": STATE}},
    openapi_extra={"requestBody": {"required": False, "content": BYTES}},
    dependencies=[VersionChecked],
)
async def create_upload(
    request: Request,
    service: ServiceDep,
    once: OnceDep,
    upload_length: Annotated[int, Header(ge=0, le=MAX_SIZE, description="Of the whole file.")],
    upload_metadata: Annotated[
        str,
        Header(
            pattern=r"^[\x20-\x7e]*$",
            max_length=8192,
            description="Keys, and values in base64: `filename c2l0ZS1h,model ZmFjZXM=`. With "
            "`model` (and `classes`), a checkpoint of another model is refused by its first bytes.",
        ),
    ] = "",
    upload_checksum: ChecksumHeader = None,
) -> JSONResponse:
    """`Location` is where to `PATCH` the bytes. The first of them may come with this request."""
    checksum = Checksum(upload_checksum) if upload_checksum else None
    has_bytes = has_body(request.headers)
    if has_bytes:
        _require_media_type(request)
    created = await run_in_threadpool(_create, service, once, upload_length, upload_metadata)
    upload = await run_in_threadpool(_find, service, once.owner, _id_of(created))
    if has_bytes and REPLAYED not in created.headers:
        try:
            upload = await _append(request, service, upload, checksum)
        except GraspError:
            if once.key is None:  # with one, the client can ask for its name again
                await run_in_threadpool(_forget, service, upload)
            raise
    kept = {name: created.headers[name] for name in KEPT if name in created.headers}
    body = serialize_upload(upload).model_dump(mode="json")
    return JSONResponse(body, status_code=201, headers=_state(upload) | kept)


@router.get("/uploads", summary="List uploads, newest first", responses=problems())
def list_uploads(
    service: ServiceDep,
    caller: CallerDep,
    finished: Annotated[bool | None, Query(description="Whether all bytes have arrived.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[UploadRead]:
    """Those that nothing was made of yet."""
    conditions = [Upload.expires_at > utc_now()]
    if finished is not None:
        conditions.append((Upload.received == Upload.size) == finished)
    with service.database.read() as session:
        page = list_page(session, Upload, caller.owner, conditions, limit=limit, cursor=cursor)
        return Page(
            items=[serialize_upload(row) for row in page.items], next_cursor=page.next_cursor
        )


@router.get(
    "/uploads/{upload}",
    summary="How far an upload is",
    response_model=UploadRead,
    responses=problems(404, 412)
    | {200: {"model": UploadRead, "description": "The upload", "headers": STATE}},
    dependencies=[VersionChecked],
)
def get_upload(upload: Id, service: ServiceDep, caller: CallerDep) -> JSONResponse:
    """`HEAD` gives the headers alone, which is how tus asks where to go on."""
    row = _find(service, caller.owner, upload)
    return JSONResponse(serialize_upload(row).model_dump(mode="json"), headers=_state(row))


router.add_api_route(
    "/uploads/{upload}",
    get_upload,
    methods=["HEAD"],
    include_in_schema=False,
    dependencies=[VersionChecked],
)


@router.patch(
    "/uploads/{upload}",
    status_code=204,
    summary="Go on with an upload",
    response_class=Response,
    responses=problems(*PART_PROBLEMS)
    | {204: {"description": "All bytes of the request are kept", "headers": STATE}},
    openapi_extra={"requestBody": {"required": True, "content": BYTES}},
    dependencies=[VersionChecked],
)
async def append_to_upload(
    upload: Id,
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    upload_offset: Annotated[
        int, Header(ge=0, le=MAX_SIZE, description="Where these bytes belong: as HEAD says.")
    ],
    upload_checksum: ChecksumHeader = None,
) -> Response:
    """Send the rest in one request, or in as many as you like.

    What had arrived when the connection was cut is kept: ask with HEAD where to go on. Bytes with
    an `Upload-Checksum` are kept all together or not at all. An upload whose first bytes show that
    it is no checkpoint of its model is refused, and gone.
    """
    checksum = Checksum(upload_checksum) if upload_checksum else None
    _require_media_type(request)
    row = await run_in_threadpool(_find, service, caller.owner, upload)
    require_offset(row, upload_offset)
    row = await _append(request, service, row, checksum)
    return Response(status_code=204, headers=_state(row))


@router.delete(
    "/uploads/{upload}",
    status_code=204,
    summary="Throw an upload away",
    responses=problems(404, 412),
    dependencies=[VersionChecked],
)
def delete_upload(upload: Id, service: ServiceDep, caller: CallerDep) -> Response:
    _delete(service, caller.owner, upload)
    return Response(status_code=204)


def _create(service: Service, once: Once, size: int, metadata: str) -> JSONResponse:
    if size > service.settings.max_upload_bytes:
        raise too_large(service.settings.max_upload_bytes)
    read_metadata(metadata)
    with service.database.write() as session:

        def act() -> Created:
            expires_at = next_expiry(service)
            details = {"metadata": metadata}
            upload = create_upload_row(session, once.owner, size, details, expires_at)
            inspector_of(session, upload)  # of a model that is there
            return Created(serialize_upload(upload), 201, f"/uploads/{upload.id}")

        return once.run(session, {"size": size, "metadata": metadata}, act)


async def _append(
    request: Request, service: Service, upload: Upload, checksum: Checksum | None
) -> Upload:
    def inspector() -> CheckpointInspector | None:
        with service.database.read() as session:
            return inspector_of(session, upload) if upload.received == 0 else None

    looked_at = await run_in_threadpool(inspector)
    arrival = Arrival(service, upload, checksum=checksum, inspector=looked_at)
    try:
        return await arrival.receive(request)
    except CheckpointError:  # the file is the wrong one: there is nothing to go on with
        await run_in_threadpool(_forget, service, upload)
        raise


def _find(service: Service, owner: str, upload_id: str) -> Upload:
    with service.database.read() as session:
        return find_upload(session, owner, upload_id, utc_now())


def _delete(service: Service, owner: str, upload_id: str) -> None:
    with service.database.write() as session:
        delete_upload_row(session, find_upload(session, owner, upload_id, utc_now()).id)


def _forget(service: Service, upload: Upload) -> None:
    """Delete it, if nobody else has."""
    with suppress(NotFound):
        _delete(service, upload.owner, upload.id)


def _id_of(created: Response) -> str:
    return created.headers["Location"].rpartition("/")[2]


def _state(upload: Upload) -> dict[str, str]:
    """How far it is; never to be answered by a cache."""
    headers = {
        "Upload-Offset": str(upload.received),
        "Upload-Length": str(upload.size),
        "Upload-Expires": format_datetime(upload.expires_at, usegmt=True),
        "Cache-Control": "no-store",
    }
    metadata = upload.details["metadata"]
    return headers | ({"Upload-Metadata": metadata} if metadata else {})


def _require_media_type(request: Request) -> None:
    if not any(is_type(request, kind) for kind in MEDIA_TYPES):
        raise UnsupportedMediaType(
            "the bytes of an upload have a Content-Type of their own",
            hint=f"send Content-Type: {MEDIA_TYPE}",
        )
