"""Jobs: polled, followed, stopped and tried again."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect

from app.auth import CallerDep
from app.fields import Cursor, Id, Limit, RefFilter
from app.idempotency import Created, OnceDep
from app.openapi import REPORT, problems
from app.schemas import JobRead, Page
from app.service import Service, ServiceDep
from app.show import show_job
from registry.errors import BytesGone, Conflict, NotFound
from registry.lookup import find, find_named, list_page
from registry.queue import cancel, retry
from registry.states import RETRIABLE, TERMINAL, JobKind, JobStatus
from registry.tables import Job, Model, Source, Target, utc_now

router = APIRouter(tags=["jobs"])

LOOK_SECONDS = 0.25  # how often waiting requests look; one row by its key
RETRY_AFTER = {"queued": "2", "running": "1"}
MAX_WAIT = 60
REVISION = re.compile(r"[0-9]{1,18}")


def load_job(service: Service, owner: str, job_id: str) -> JobRead:
    with service.database.read() as session:
        return show_job(find(session, Job, owner, job_id))


@router.get("/jobs", summary="List jobs, newest first", responses=problems(404))
def list_jobs(
    service: ServiceDep,
    caller: CallerDep,
    model: RefFilter = None,
    target: RefFilter = None,
    status: JobStatus | None = None,
    kind: JobKind | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[JobRead]:
    with service.database.read() as session:
        conditions = []
        if model is not None:
            conditions.append(Job.model_id == find_named(session, Model, caller.owner, model).id)
        if target is not None:
            conditions.append(Job.target_id == find_named(session, Target, caller.owner, target).id)
        if status is not None:
            conditions.append(Job.status == status)
        if kind is not None:
            conditions.append(Job.kind == kind)
        page = list_page(session, Job, caller.owner, conditions, limit=limit, cursor=cursor)
        return Page(items=[show_job(job) for job in page.items], next_cursor=page.next_cursor)


@router.get(
    "/jobs/{job}",
    summary="Poll a job",
    responses=problems(404)
    | {
        200: {"headers": {"Retry-After": {"schema": {"type": "integer"}}}, "description": "The job"}
    },
)
async def get_job(
    job: Id,
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    response: Response,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT, description="Answer when it has ended, or after so long.")
    ] = 0,
) -> JobRead:
    """While it has not ended, `Retry-After` says when to ask again."""
    until = time.monotonic() + wait
    found = await run_in_threadpool(load_job, service, caller.owner, job)
    while found.status not in TERMINAL and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(LOOK_SECONDS, left))
        if await request.is_disconnected():
            raise ClientDisconnect
        found = await run_in_threadpool(load_job, service, caller.owner, job)
    if found.status in RETRY_AFTER:
        response.headers["Retry-After"] = RETRY_AFTER[found.status]
    return found


def existing_job(job: Id, service: ServiceDep, caller: CallerDep) -> JobRead:
    """The job, found before a stream begins: there is no 404 after that."""
    return load_job(service, caller.owner, job)


@router.get(
    "/jobs/{job}/events",
    summary="Follow a job live",
    response_class=EventSourceResponse,
    responses=problems(404),
)
async def stream_job_events(
    first: Annotated[JobRead, Depends(existing_job)],
    service: ServiceDep,
    caller: CallerDep,
    last_event_id: Annotated[
        str | None, Header(description="Id of the last event that was seen.")
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events named `job`; each holds the whole job, its id is the job's revision.

    A client that comes back with Last-Event-ID gets what it has not seen. The stream ends with the
    job; one that ended before is sent once.
    """
    seen = int(last_event_id) if last_event_id and REVISION.fullmatch(last_event_id) else 0
    job = first
    while True:
        if job.revision > seen or job.status in TERMINAL:
            seen = job.revision
            yield ServerSentEvent(data=job, event="job", id=str(job.revision))
        if job.status in TERMINAL:
            return
        await asyncio.sleep(LOOK_SECONDS)
        try:
            job = await run_in_threadpool(load_job, service, caller.owner, job.id)
        except NotFound:
            return  # deleted with its model


@router.post(
    "/jobs/{job}/cancel",
    status_code=202,
    summary="Stop a job",
    response_model=JobRead,
    responses=problems(404, 409),
)
def cancel_job(job: Id, service: ServiceDep, caller: CallerDep, once: OnceDep) -> Response:
    """A queued job is cancelled at once; a running one within two seconds."""
    with service.database.write() as session:

        def act() -> Created:
            row = find(session, Job, caller.owner, job)
            cancel(session, row.id, utc_now())
            session.refresh(row)
            return Created(show_job(row), 202)

        return once.run(session, None, act)


@router.post(
    "/jobs/{job}/retry",
    status_code=202,
    summary="Run a rejected, failed or cancelled job again",
    response_model=JobRead,
    responses=problems(404, 409, 410),
)
def retry_job(job: Id, service: ServiceDep, caller: CallerDep, once: OnceDep) -> Response:
    """It goes to the end of its queue, with the model's present parameters."""
    with service.database.write() as session:

        def act() -> Created:
            row = find(session, Job, caller.owner, job)
            _require_bytes(session, row)
            retry(session, row)
            return Created(show_job(row), 202)

        return once.run(session, None, act)


def _require_bytes(session: Session, job: Job) -> None:
    """Raise Conflict or BytesGone where there is nothing left to run on."""
    if job.kind == "dry_run":
        raise Conflict("a dry run is not kept", hint="post the source with dry_run again")
    source = session.get(Source, job.source_id) if job.source_id else None
    if source is not None and not source.stored and job.status in RETRIABLE:
        raise BytesGone(
            "the bytes of this source were deleted after its fold",
            hint="post the same checkpoint again, then retry",
        )


@router.get(
    "/jobs/{job}/report",
    summary="What a fold or a dry run measured, also where it was rejected",
    responses=REPORT | problems(404),
)
def get_job_report(job: Id, service: ServiceDep, caller: CallerDep) -> Response:
    with service.database.read() as session:
        row = find(session, Job, caller.owner, job)
        if row.report is None:
            raise NotFound(f"job {job} has no report", hint="only ended folds have one")
        return Response(row.report, media_type="application/json")
