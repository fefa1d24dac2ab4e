"""Files: what belongs to a model, and to each of its versions beside the weights, by name."""

from fastapi import APIRouter, Request, Response

from app.access.auth import CallerDep
from app.fields import FileName, Number, Reference
from app.openapi import BINARY, CONDITIONS, problems
from app.routes.versions import find_stored
from app.schemas import FileRead, Page
from app.sending import Download, send
from app.serializers import serialize_files
from app.service import Service, ServiceDep
from grasp_core.named_files import BASE, download_name, state_name
from registry.errors import NotFound
from registry.files import find_file
from registry.lookup import find_named
from registry.tables import Model

router = APIRouter(tags=["files"])


@router.get("/models/{model}/files", summary="List a model's own files", responses=problems(404))
def list_model_files(model: Reference, service: ServiceDep, caller: CallerDep) -> Page[FileRead]:
    """Such as the `base` that its sources were fine-tuned from."""
    with service.database.read() as session:
        found = find_named(session, Model, caller.owner, model)
        return Page(items=serialize_files(f"/models/{found.id}", found.files), next_cursor=None)


@router.get(
    "/models/{model}/versions/{number}/files",
    summary="List a version's files beside its weights",
    responses=problems(404, 409, 410),
)
def list_version_files(
    model: Reference, number: Number, service: ServiceDep, caller: CallerDep
) -> Page[FileRead]:
    """Such as `state/mean`: what the method `mean` remembers of all folds so far."""
    with service.database.read() as session:
        found = find_stored(session, caller.owner, model, number)
        place = f"/models/{found.model_id}/versions/{number}"
        return Page(items=serialize_files(place, found.files), next_cursor=None)


def _send_model_file(
    service: Service, request: Request, owner: str, model: str, name: str
) -> Response:
    with service.database.read() as session:
        found = find_named(session, Model, owner, model)
        file = find_file(found.files, name)
        if file is None:
            raise NotFound(
                f"model {found.name!r} has no {name}",
                hint="a base is given when a model is made; GET the model's files for what it has",
            )
        called = download_name(found.name, name)
    return send(service, request, Download(file.sha256, file.size, called, found.created_at))


def _send_version_file(
    service: Service, request: Request, owner: str, model: str, number: int, name: str | None
) -> Response:
    """Without a name, the state of the method that made the version."""
    with service.database.read() as session:
        version = find_stored(session, owner, model, number)
        name = name or state_name(version.method or "")
        file = find_file(version.files, name)
        if file is None:
            raise NotFound(
                f"version {number} has no {name}",
                hint="not every method remembers something; GET the version's files for those it"
                " has",
            )
        owner_name = find_named(session, Model, owner, model).name
    called = download_name(f"{owner_name}-v{number}", name)
    return send(service, request, Download(file.sha256, file.size, called, version.created_at))


@router.get(
    "/models/{model}/files/{name:path}",
    summary="Download a model's file",
    response_class=Response,
    responses=BINARY | problems(404, 412, 416),
    openapi_extra=CONDITIONS,
)
def download_model_file(
    model: Reference, name: FileName, request: Request, service: ServiceDep, caller: CallerDep
) -> Response:
    return _send_model_file(service, request, caller.owner, model, name)


@router.get(
    "/models/{model}/base",
    summary="Download a model's base",
    response_class=Response,
    responses=BINARY | problems(404, 412, 416),
    openapi_extra=CONDITIONS,
)
def download_base(
    model: Reference, request: Request, service: ServiceDep, caller: CallerDep
) -> Response:
    """Another name for its file `base`: what the model's sources were fine-tuned from."""
    return _send_model_file(service, request, caller.owner, model, BASE)


@router.get(
    "/models/{model}/versions/{number}/files/{name:path}",
    summary="Download a version's file",
    response_class=Response,
    responses=BINARY | problems(404, 409, 410, 412, 416),
    openapi_extra=CONDITIONS,
)
def download_version_file(
    model: Reference,
    number: Number,
    name: FileName,
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
) -> Response:
    return _send_version_file(service, request, caller.owner, model, number, name)


@router.get(
    "/models/{model}/versions/{number}/state",
    summary="Download what the method of a version remembers",
    response_class=Response,
    responses=BINARY | problems(404, 409, 410, 412, 416),
    openapi_extra=CONDITIONS,
)
def download_state(
    model: Reference, number: Number, request: Request, service: ServiceDep, caller: CallerDep
) -> Response:
    """Another name for the version's `state/…` of its own method. Not every method has one."""
    return _send_version_file(service, request, caller.owner, model, number, None)


for path, endpoint in (
    ("/models/{model}/files/{name:path}", download_model_file),
    ("/models/{model}/base", download_base),
    ("/models/{model}/versions/{number}/files/{name:path}", download_version_file),
    ("/models/{model}/versions/{number}/state", download_state),
):
    router.add_api_route(
        path, endpoint, methods=["HEAD"], include_in_schema=False, response_class=Response
    )
