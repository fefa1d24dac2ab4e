"""Sources: the checkpoints that are folded in."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

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
from app.intake.checkpoints import CheckpointInspector, SourceFields, SourceInspector, find_model
from app.intake.idempotency import Created, Once, OnceDep
from app.intake.intake import FileIntake
from app.intake.receiving import validated, wrong_value, wrong_values
from app.intake.uploads import metadata_of
from app.openapi import UPLOAD_PROBLEMS, problems, upload_body
from app.schemas import Page, SourceCreated, SourceFromUpload, SourceFromUri, SourceRead
from app.serializers import serialize_job, serialize_source, serialize_sources
from app.service import Service, ServiceDep
from grasp_core.errors import CheckpointError
from grasp_core.parameters import read_candidates
from registry.blobs.base import Blob
from registry.errors import NotFound
from registry.jobs.states import JobStatus
from registry.lookup import find, find_named, list_page
from registry.sources import digest_stored, find_undigested, offer_source, try_source
from registry.tables import Job, Model, Source, utc_now
from registry.uploads import delete_upload, find_upload

router = APIRouter(tags=["sources"])


@router.post(
    "/sources",
    status_code=202,
    summary="Offer a checkpoint to a model",
    response_model=SourceCreated,
    responses=problems(404, 409, *UPLOAD_PROBLEMS)
    | {200: {"model": SourceCreated, "description": "These weights were offered before"}},
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
    candidates: Annotated[
        str | None,
        Query(
            description="With dry_run: other candidates than the model's, by name with commas"
            " between them, as a JSON list, or `all`."
        ),
    ] = None,
) -> JSONResponse:
    """Send safetensors as multipart, as a raw body, or as JSON with a uri or a finished upload.

    The answer comes when the bytes are safe and the job is queued: poll `Location`. The same
    weights offered to the same model again give the first source and its job, also if they were
    saved with other metadata or in another order, and whatever `classes` or the metadata call
    their classes: `content` of a source is a hash of its tensors' names, types, shapes and values.
    An upload is gone once it is offered, or refused by the model that its metadata names; a dry
    run leaves it.
    """
    given = {"model": model, "name": name, "classes": classes, "sha256": sha256}
    tried = _read_candidates(candidates, dry_run=dry_run)
    return await SourceIntake(
        request, service, once, given, dry_run=dry_run, candidates=tried
    ).answer()


def _read_candidates(text: str | None, *, dry_run: bool) -> list[dict[str, Any]] | None:
    """As a job keeps them."""
    if text is None:
        return None
    if not dry_run:
        raise wrong_value("only a dry run has candidates of its own", text, "query", "candidates")
    try:
        return [each.model_dump(mode="json") for each in read_candidates(text)]
    except ValidationError as error:
        raise wrong_values(error, "query") from error


class SourceIntake(FileIntake[SourceFields]):
    early = "model"
    file_hint = "send the checkpoint in a part named file"

    def __init__(
        self,
        request: Request,
        service: Service,
        once: Once,
        given: Mapping[str, str | None],
        *,
        dry_run: bool,
        candidates: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(request, service, once, given)
        self.keeps_uploads = self._dry_run = dry_run
        self._candidates = candidates
        self._model: Model | None = None
        self._undigested: list[tuple[str, str]] = []
        self._inspector: SourceInspector | None = None

    def parse(self, values: dict[str, Any]) -> SourceFields:
        return validated(SourceFields, values)

    def check(self, session: Session, fields: SourceFields) -> None:
        self._model = find_model(session, self.once.owner, fields.model)
        self._undigested = find_undigested(session, self._model.id)

    def inspect(
        self,
        part: str,  # noqa: ARG002
        filename: str,
        fields: SourceFields | None,
    ) -> SourceInspector:
        """With the model named before the file, a checkpoint of another model ends early."""
        self._inspector = SourceInspector(filename, self._model, fields)
        return self._inspector

    async def verify(self, fields: SourceFields) -> None:
        """Compare it unless that is done: its model came after it, or was prepared meanwhile."""
        inspector = self._inspector
        if inspector is not None and not inspector.has_compared(fields):
            await super().verify(fields)
            await self.service.turns.run(inspector.takes_long, self._compare, inspector, fields)
        if self._undigested and not self._dry_run:
            fetch = partial(self.service.verifier.fetch, self.service.store)
            database = self.service.database
            await run_in_threadpool(digest_stored, database, fetch, self._undigested)

    def _compare(self, inspector: CheckpointInspector, fields: SourceFields) -> None:
        assert self._model  # noqa: S101 - it was checked
        inspector.compare(self.reception.files["file"].writer, self._model, fields)

    def write(self, session: Session, fields: SourceFields, blobs: Mapping[str, Blob]) -> Created:
        assert self._model and self._inspector  # noqa: S101, PT018 - it was checked, and came
        model = find_named(session, Model, self.once.owner, self._model.id)
        blob = blobs["file"]
        details: dict[str, Any] = {
            "name": (fields.name or self.reception.files["file"].filename)[:200],
            "classes": fields.classes,
            "request_id": self.request_id,
        }
        if self._dry_run:
            job = try_source(session, model, blob, candidates=self._candidates, **details)
            return Created(
                SourceCreated(source=None, job=serialize_job(job)), 202, f"/jobs/{job.id}"
            )
        content = self._inspector.content
        source, job, new = offer_source(session, model, blob, content=content, **details)
        body = SourceCreated(source=serialize_source(source, job), job=serialize_job(job))
        return Created(body, 202 if new else 200, f"/jobs/{job.id}")

    async def answer(self) -> JSONResponse:
        try:
            return await super().answer()
        except CheckpointError:
            await run_in_threadpool(self._forget_upload)
            raise

    def _forget_upload(self) -> None:
        """One that was sent for this model, and is no checkpoint of it, is of no more use."""
        if "file" not in self.uploads:
            return
        with suppress(NotFound), self.service.database.write() as session:
            upload = find_upload(session, self.once.owner, self.uploads["file"], utc_now())
            meant = metadata_of(upload).get("model")
            if meant and self._is_model(session, meant):
                delete_upload(session, upload.id)

    def _is_model(self, session: Session, reference: str) -> bool:
        meant = find_named(session, Model, self.once.owner, reference)
        return self._model is not None and self._model.id == meant.id


@router.get("/sources", summary="List sources, newest first", responses=problems(404))
def list_sources(
    service: ServiceDep,
    caller: CallerDep,
    model: RefFilter = None,
    status: JobStatus | None = None,
    sha256: Annotated[
        str | None, Query(pattern=SHA256_PATTERN, description="Of the bytes.")
    ] = None,
    content: Annotated[
        str | None, Query(pattern=SHA256_PATTERN, description="Of the weights.")
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
        if content is not None:
            conditions.append(Source.content == content)
        page = list_page(session, Source, caller.owner, conditions, limit=limit, cursor=cursor)
        return Page(items=serialize_sources(session, page.items), next_cursor=page.next_cursor)


@router.get("/sources/{source}", summary="What became of a source", responses=problems(404))
def get_source(source: Id, service: ServiceDep, caller: CallerDep) -> SourceRead:
    with service.database.read() as session:
        row = find(session, Source, caller.owner, source)
        return serialize_source(row, session.get_one(Job, row.job_id))
