"""Sources: the checkpoints that are folded in."""

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy import select

from app.access.auth import CallerDep
from app.fields import (
    REFERENCE_PATTERN,
    SHA256_PATTERN,
    TEXT_PATTERN,
    Cursor,
    Id,
    Limit,
    RefFilter,
    Sha256,
    Text,
)
from app.intake.checkpoints import CheckpointInspector, SourceFields, find_model
from app.intake.idempotency import Created, Once, OnceDep
from app.intake.receiving import Reception, is_type, read_json, require_one_place, validated
from app.intake.uploads import metadata_of, take_upload
from app.openapi import UPLOAD_PROBLEMS, problems, upload_body
from app.schemas import Page, SourceCreated, SourceFromUpload, SourceFromUri, SourceRead
from app.service import Service, ServiceDep
from app.show import show_job, show_source
from grasp_core.errors import CheckpointError
from registry.blobs.base import BlobWriter
from registry.errors import NotFound, Unusable
from registry.jobs.states import JobStatus
from registry.lookup import find, find_named, list_page
from registry.sources import offer_source, try_source
from registry.tables import Job, Model, Source, utc_now
from registry.uploads import delete_upload, find_upload

router = APIRouter(tags=["sources"])


@router.post(
    "/sources",
    status_code=202,
    summary="Offer a checkpoint to a model",
    response_model=SourceCreated,
    responses=problems(404, 409, *UPLOAD_PROBLEMS)
    | {200: {"model": SourceCreated, "description": "These bytes were offered before"}},
    openapi_extra=upload_body(
        "SourceCreate",
        (SourceFromUri, SourceFromUpload),
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
    once: OnceDep,
    model: Annotated[
        str | None, Query(pattern=REFERENCE_PATTERN, description="For a raw body: the model.")
    ] = None,
    name: Annotated[Text | None, Query(description="For a raw body: a name.")] = None,
    classes: Annotated[str | None, Query(description="For a raw body: a JSON list.")] = None,
    sha256: Annotated[Sha256 | None, Query(description="For a raw body: verified.")] = None,
    dry_run: Annotated[bool, Query(description="Score the source; publish nothing.")] = False,
) -> JSONResponse:
    """Send safetensors as multipart, as a raw body, or as JSON with a uri or a finished upload.

    The answer comes when the bytes are safe and the job is queued: poll `Location`. The same
    bytes offered to the same model again give the same source and job. An upload is gone once it
    is offered, or refused by the model that its metadata names; a dry run leaves it.
    """
    given = {"model": model, "name": name, "classes": classes, "sha256": sha256}
    with service.store.create() as writer:
        offer = Offer(
            service, once, writer, {key: value for key, value in given.items() if value is not None}
        )
        try:
            before = await offer.receive(request)
            if before is not None:
                return before
            fields, chosen = await offer.require_fit()
        except CheckpointError:
            await run_in_threadpool(offer.forget_upload)
            raise
        return await run_in_threadpool(
            offer.accept, fields, chosen, request.state.request_id, dry_run
        )


class Offer:
    """A source on its way in: from a request's bytes to a row, a blob and a job."""

    def __init__(
        self, service: Service, once: Once, writer: BlobWriter, fields: dict[str, Any]
    ) -> None:
        self.service = service
        self.once = once
        self.reception = Reception(service, writer, fields, self._begin)
        self._inspector: CheckpointInspector | None = None

    async def receive(self, request: Request) -> JSONResponse | None:
        """Take the bytes; or find the answer that was given before, to an upload that is gone."""
        if is_type(request, "application/json"):
            fields = await read_json(request, self.service, self._add_fields)
            return await self._receive_from_elsewhere(fields)
        await self.reception.receive(request)
        if self._inspector is None:
            raise Unusable("no file was sent", hint="send the checkpoint in a part named file")
        return None

    def _add_fields(self, found: dict[str, Any]) -> SourceFields:
        self.reception.fields.update(found)
        return validated(SourceFields, self.reception.fields)

    async def _receive_from_elsewhere(self, fields: SourceFields) -> JSONResponse | None:
        require_one_place(fields.uri, fields.upload)
        if fields.upload is not None:
            before = await run_in_threadpool(self._replay, fields)
            if before is not None:
                return before
        await run_in_threadpool(self._find_model, fields.model)  # before anything is fetched
        if fields.upload is not None:
            await take_upload(self.reception, self.service, self.once.owner, fields.upload)
        elif fields.uri is not None:
            await self.reception.fetch(fields.uri)
        return None

    async def _begin(self, values: dict[str, Any], filename: str) -> CheckpointInspector:
        """With the model named before the file, a checkpoint of another model ends early."""
        fields = validated(SourceFields, values) if "model" in values else None
        model = await run_in_threadpool(self._find_model, fields.model) if fields else None
        self._inspector = CheckpointInspector(filename, model, fields)
        return self._inspector

    def _find_model(self, reference: str) -> Model:
        with self.service.database.read() as session:
            return find_model(session, self.once.owner, reference)

    def _replay(self, fields: SourceFields) -> JSONResponse | None:
        with self.service.database.read() as session:
            return self.once.replay(session, self._content(fields))

    def _content(self, fields: SourceFields) -> dict[str, Any]:
        """What was asked: an upload by its id, which never stands for other bytes."""
        sha256 = None if fields.upload else self.reception.writer.sha256()
        return {**fields.model_dump(mode="json"), "content": sha256}

    async def require_fit(self) -> tuple[SourceFields, Model]:
        """What was asked, and of which model.

        Raises CheckpointMismatch, where the model came after the file, or was prepared since.
        """
        fields = validated(SourceFields, self.reception.fields)
        model = await run_in_threadpool(self._find_model, fields.model)
        inspector, writer = self._received, self.reception.writer
        await self.service.turns.run(
            inspector.takes_long, inspector.require_fit, writer, model, fields
        )
        return fields, model

    def forget_upload(self) -> None:
        """One that was sent for this model, and is no checkpoint of it, is of no more use."""
        fields = validated(SourceFields, self.reception.fields)
        if fields.upload is None:
            return
        with suppress(NotFound), self.service.database.write() as session:
            upload = find_upload(session, self.once.owner, fields.upload, utc_now())
            meant = metadata_of(upload).get("model")
            if meant and self._find_model(meant).id == self._find_model(fields.model).id:
                delete_upload(session, upload.id)

    @property
    def _received(self) -> CheckpointInspector:
        assert self._inspector is not None  # noqa: S101 - a file was received
        return self._inspector

    def accept(
        self, fields: SourceFields, model: Model, request_id: str, dry_run: bool
    ) -> JSONResponse:
        """Make the bytes safe, then the rows, in one transaction."""
        name = fields.name or self._received.filename
        before = self._replay(fields)  # what is refused, or known, leaves no blob
        if before is not None:
            return before
        with self.service.store.guard():
            blob = self.reception.writer.commit()
            with self.service.database.write() as session:

                def act() -> Created:
                    current = find_named(session, Model, self.once.owner, model.id)
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
                    if fields.upload is not None:
                        delete_upload(session, fields.upload)
                    body = SourceCreated(source=show_source(source, job), job=show_job(job))
                    return Created(body, 202 if new else 200, f"/jobs/{job.id}")

                return self.once.run(session, self._content(fields), act)


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
