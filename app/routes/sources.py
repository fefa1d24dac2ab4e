"""Sources: the checkpoints that are folded in."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator, Field, field_validator
from sqlalchemy import select
from sqlalchemy.orm import undefer

from app.auth import CallerDep
from app.idempotency import Created, Once, OnceDep
from app.openapi import UPLOAD_PROBLEMS, problems, upload_body
from app.receiving import Reception, is_type, read_json, validated
from app.schemas import (
    REFERENCE_PATTERN,
    SHA256_PATTERN,
    TEXT_PATTERN,
    Classes,
    Cursor,
    Id,
    In,
    Limit,
    Page,
    RefFilter,
    Sha256,
    SourceCreate,
    SourceCreated,
    SourceRead,
    Text,
    Uri,
)
from app.service import Service, ServiceDep
from app.show import show_job, show_source
from registry.blobs import BlobWriter
from registry.errors import Unusable
from registry.keys import Caller
from registry.lookup import find, find_named, list_page
from registry.safetensors_header import Header, HeaderReader
from registry.sources import check_fit, offer_source, require_usable, try_source
from registry.states import JobStatus
from registry.tables import Job, Model, Source

router = APIRouter(tags=["sources"])


def _from_json(value: Any) -> Any:
    """A form field or query parameter holds a list as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('must be a JSON list of names, such as ["F", "M"]') from None


class SourceFields(In):
    """What comes beside the bytes, in whichever way they come."""

    model: str = Field(pattern=REFERENCE_PATTERN)
    name: Text | None = None
    classes: Annotated[Classes | None, BeforeValidator(_from_json)] = None
    sha256: Sha256 | None = None
    uri: Uri | None = None

    @field_validator("classes")
    @classmethod
    def _differ(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes and len(set(classes)) < len(classes):
            raise ValueError("class names given twice")
        return classes


class CheckpointInspector:
    """Reads the header as it arrives; compares it with the model as soon as both are known."""

    def __init__(self, filename: str, model: Model | None, fields: SourceFields | None) -> None:
        self.reader = HeaderReader(filename)
        self.filename = filename
        self.model = model
        self.fields = fields

    def feed(self, data: bytes) -> None:
        header = self.reader.feed(data)
        if header is not None and self.model is not None and self.fields is not None:
            check_fit(self.model, header, self.fields.classes, self.filename)

    def finish(self) -> Header:
        return self.reader.finish()


@router.post(
    "/sources",
    status_code=202,
    summary="Offer a checkpoint to a model",
    response_model=SourceCreated,
    responses=problems(404, 409, *UPLOAD_PROBLEMS)
    | {200: {"model": SourceCreated, "description": "These bytes were offered before"}},
    openapi_extra=upload_body(
        SourceCreate,
        {
            "model": (
                REFERENCE_PATTERN,
                "Id or name of the model; give it before the file, to be refused early.",
            ),
            "name": (TEXT_PATTERN, "What to call the source; its file name otherwise."),
            "classes": (r"^\[", 'Its class names as a JSON list, such as ["F", "M"].'),
            "sha256": (SHA256_PATTERN, "Verified, if given."),
        },
        required=["model"],
    ),
)
async def create_source(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    once: OnceDep,
    model: Annotated[
        str | None, Query(pattern=REFERENCE_PATTERN, description="For a raw body: the model.")
    ] = None,
    name: Annotated[Text | None, Query(description="For a raw body: a name.")] = None,
    classes: Annotated[str | None, Query(description="For a raw body: a JSON list.")] = None,
    sha256: Annotated[Sha256 | None, Query(description="For a raw body: verified.")] = None,
    dry_run: Annotated[bool, Query(description="Score the source; publish nothing.")] = False,
) -> JSONResponse:
    """Send safetensors as multipart, as a raw body, or as JSON with a uri.

    The answer comes when the bytes are safe and the job is queued: poll `Location`. The same
    bytes offered to the same model again give the same source and job.
    """
    given = {"model": model, "name": name, "classes": classes, "sha256": sha256}
    with service.store.create() as writer:
        offer = Offer(service, caller, writer, {k: v for k, v in given.items() if v is not None})
        await offer.receive(request)
        return await run_in_threadpool(offer.accept, once, request.state.request_id, dry_run)


class Offer:
    """A source on its way in: from a request's bytes to a row, a blob and a job."""

    def __init__(
        self, service: Service, caller: Caller, writer: BlobWriter, fields: dict[str, Any]
    ) -> None:
        self.service = service
        self.caller = caller
        self.reception = Reception(
            writer,
            max_bytes=service.settings.max_upload_bytes,
            policy=service.fetching,
            fields=fields,
            begin=self._begin,
        )
        self._inspector: CheckpointInspector | None = None

    async def receive(self, request: Request) -> None:
        if is_type(request, "application/json"):
            await self._receive_uri(await read_json(request))
        else:
            await self.reception.receive(request)
        if self._inspector is None:
            raise Unusable("no file was sent", hint="send the checkpoint in a part named file")

    async def _receive_uri(self, body: dict[str, Any]) -> None:
        self.reception.fields.update(body)
        fields = validated(SourceFields, self.reception.fields)
        if fields.uri is None:
            raise Unusable(
                "the JSON body has no uri",
                hint="give a file://, https:// or s3:// uri, or send the file itself",
            )
        await run_in_threadpool(self._find_model, fields.model)  # before anything is fetched
        await self.reception.fetch(fields.uri)

    async def _begin(self, values: dict[str, Any], filename: str) -> CheckpointInspector:
        """With the model named before the file, a checkpoint of another model ends early."""
        fields = validated(SourceFields, values) if "model" in values else None
        model = await run_in_threadpool(self._find_model, fields.model) if fields else None
        self._inspector = CheckpointInspector(filename, model, fields)
        return self._inspector

    def _find_model(self, reference: str) -> Model:
        with self.service.database.read() as session:
            found = find_named(session, Model, self.caller.owner, reference)
            require_usable(found)
            whole = undefer(Model.manifest)
            return session.get_one(Model, found.id, options=[whole], populate_existing=True)

    def accept(self, once: Once, request_id: str, dry_run: bool) -> JSONResponse:
        """Make the bytes safe, then the rows, in one transaction."""
        inspector = self._inspector
        assert inspector is not None  # noqa: S101 - a file was received
        fields = validated(SourceFields, self.reception.fields)
        model = self._find_model(fields.model)
        check_fit(model, inspector.finish(), fields.classes, inspector.filename)
        name = fields.name or inspector.filename
        service, writer = self.service, self.reception.writer
        content = {**fields.model_dump(mode="json"), "content": writer.sha256()}
        with service.database.read() as session:  # what is refused, or known, leaves no blob
            before = once.replay(session, content)
        if before is not None:
            return before
        with service.store.guard():
            blob = writer.commit()
            with service.database.write() as session:

                def act() -> Created:
                    current = find_named(session, Model, self.caller.owner, model.id)
                    details: dict[str, Any] = {
                        "name": name[:200],
                        "classes": fields.classes,
                        "request_id": request_id,
                    }
                    if dry_run:
                        job = try_source(session, current, blob, **details)
                        body = SourceCreated(source=None, job=show_job(job))
                        return Created(body, 202, f"/jobs/{job.id}")
                    source, job, new = offer_source(session, current, blob, **details)
                    body = SourceCreated(source=show_source(source, job), job=show_job(job))
                    return Created(body, 202 if new else 200, f"/jobs/{job.id}")

                return once.run(session, content, act)


@router.get("/sources", summary="List sources, newest first", responses=problems(404))
def list_sources(
    service: ServiceDep,
    caller: CallerDep,
    model: RefFilter = None,
    status: JobStatus | None = None,
    sha256: Annotated[
        str | None, Query(pattern=SHA256_PATTERN, description="Of the bytes.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[SourceRead]:
    with service.database.read() as session:
        conditions = []
        if model is not None:
            found = find_named(session, Model, caller.owner, model)
            conditions.append(Source.model_id == found.id)
        if status is not None:
            of_status = select(Job.id).where(Job.status == status)
            conditions.append(Source.job_id.in_(of_status))
        if sha256 is not None:
            conditions.append(Source.sha256 == sha256)
        page = list_page(session, Source, caller.owner, conditions, limit=limit, cursor=cursor)
        wanted = select(Job).where(Job.id.in_([source.job_id for source in page.items]))
        jobs = {job.id: job for job in session.scalars(wanted)}
        items = [show_source(source, jobs[source.job_id]) for source in page.items]
        return Page(items=items, next_cursor=page.next_cursor)


@router.get("/sources/{source}", summary="What became of a source", responses=problems(404))
def get_source(source: Id, service: ServiceDep, caller: CallerDep) -> SourceRead:
    with service.database.read() as session:
        row = find(session, Source, caller.owner, source)
        return show_source(row, session.get_one(Job, row.job_id))
