"""Jobs: polled, followed, stopped and tried again."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from app.access.auth import CallerDep
from app.errors import Forbidden
from app.fields import Code, Cursor, Id, Limit, RefFilter
from app.http.following import FollowedJob, Following, FollowingDep, JobState
from app.http.requests import unless_gone
from app.intake.idempotency import Created, OnceDep
from app.openapi import REPORT, problems
from app.schemas import JobRead, Page
from app.serializers import serialize_job
from app.service import Service, ServiceDep
from registry.errors import BytesGone, Conflict, NotFound
from registry.jobs.queue import cancel, has_error, retry, retry_failed
from registry.jobs.states import RETRIABLE, JobKind, JobStatus
from registry.keys import Caller
from registry.lookup import MAX_PAGE, find, find_named, list_page
from registry.tables import Job, Model, Source, Target, utc_now

router = APIRouter(tags=["jobs"])

RETRY_AFTER = {"queued": "2", "running": "1"}
MAX_WAIT = 60
PING_SECONDS = 15  # proxies and clients take a stream that is silent for longer for dead
PING = b": ping\n\n"
REVISION = re.compile(r"[0-9]{1,18}")


def load_job(service: Service, caller: Caller, job_id: str) -> JobState:
    with service.database.read() as session:
        return JobState(find_job(session, caller, job_id))


def find_job(session: Session, caller: Caller, job_id: str) -> Job:
    """Administrators look after those of all owners. Raises NotFound."""
    return find(session, Job, None if caller.may("admin") else caller.owner, job_id)


@router.get("/jobs", summary="List jobs, newest first", responses=problems(404))
def list_jobs(
    service: ServiceDep,
    caller: CallerDep,
    model: RefFilter = None,
    target: RefFilter = None,
    status: JobStatus | None = None,
    kind: JobKind | None = None,
    code: Annotated[
        Code | None, Query(description="Only those that ended with this error.")
    ] = None,
    all_owners: Annotated[
        bool, Query(description="Those of everybody: for keys of scope admin.")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[JobRead]:
    if all_owners and not caller.may("admin"):
        raise Forbidden("the jobs of all owners are listed for a key of scope admin alone")
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
        if code is not None:
            conditions.append(has_error(code))
        owner = None if all_owners else caller.owner
        page = list_page(session, Job, owner, conditions, limit=limit, cursor=cursor)
        return Page(items=[serialize_job(job) for job in page.items], next_cursor=page.next_cursor)


@router.get(
    "/jobs/{job}",
    summary="Poll a job",
    response_model=JobRead,
    responses=problems(404)
    | {
        200: {"headers": {"Retry-After": {"schema": {"type": "integer"}}}, "description": "The job"}
    },
)
async def get_job(
    job: Id,
    request: Request,
    service: ServiceDep,
    following: FollowingDep,
    caller: CallerDep,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT, description="Answer when it has ended, or after so long.")
    ] = 0,
) -> Response:
    """While it has not ended, `Retry-After` says when to ask again."""
    found = await run_in_threadpool(load_job, service, caller, job)
    if wait and not found.ended:
        ended = await unless_gone(request, _ended(following, found, wait))
        if ended is None:
            found = await run_in_threadpool(load_job, service, caller, job)
        else:
            found = ended
    again = RETRY_AFTER.get(found.status)
    headers = {"Retry-After": again} if again else None
    return Response(found.json, headers=headers, media_type="application/json")


async def _ended(following: Following, found: JobState, seconds: float) -> JobState | None:
    """The job as it has ended; None if it has not after so long, or is deleted."""
    with following.follow(found) as followed, suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await followed.ended()
    return None


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


async def followed_job(
    job: Id, service: ServiceDep, following: FollowingDep, caller: CallerDep
) -> AsyncIterator[tuple[JobState, FollowedJob]]:
    """The job as it is, found before a stream begins, for there is no 404 after that; and as it
    will be, until the client has left."""
    found = await run_in_threadpool(load_job, service, caller, job)
    with following.follow(found) as followed:
        yield found, followed


@router.get(
    "/jobs/{job}/events",
    summary="Follow a job live",
    response_class=EventStream,
    responses=problems(404),
)
async def stream_job_events(
    job: Annotated[tuple[JobState, FollowedJob], Depends(followed_job)],
    last_event_id: Annotated[
        str | None, Header(description="Id of the last event that was seen.")
    ] = None,
) -> EventStream:
    """Server-sent events named `job`; each holds the whole job, its id is the job's revision.

    A client that comes back with Last-Event-ID gets what it has not seen. The stream ends with the
    job; one that ended before is sent once.
    """
    seen = int(last_event_id) if last_event_id and REVISION.fullmatch(last_event_id) else 0
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx would hold it back
    return EventStream(_events(*job, seen), headers=headers)


async def _events(found: JobState, followed: FollowedJob, seen: int) -> AsyncIterator[bytes]:
    if found.revision > seen or found.ended:
        yield found.event
    state: JobState | None = found
    while state is not None and not state.ended:
        try:
            async with asyncio.timeout(PING_SECONDS):
                state = await followed.after(state.revision)
        except TimeoutError:
            yield PING
        else:
            if state is not None:  # None: deleted with its model
                yield state.event


@router.post(
    "/jobs/{job}/cancel",
    status_code=202,
    summary="Stop a job",
    response_model=JobRead,
    responses=problems(404, 409),
)
def cancel_job(job: Id, service: ServiceDep, caller: CallerDep, once: OnceDep) -> Response:
    """A queued job is cancelled at once; a running one within two seconds.

    An administrator can cancel anybody's.
    """
    with service.database.write() as session:

        def act() -> Created:
            row = find_job(session, caller, job)
            cancel(session, row.id, utc_now())
            session.refresh(row)
            return Created(serialize_job(row), 202)

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
            return Created(serialize_job(row), 202)

        return once.run(session, None, act)


@router.post(
    "/jobs/retry",
    status_code=202,
    summary="Run again all jobs that failed for one reason",
    response_model=Page[JobRead],
    responses=problems(),
)
def retry_failed_jobs(
    code: Annotated[Code, Query(description="The `code` of their error, such as worker_lost.")],
    service: ServiceDep,
    caller: CallerDep,
    once: OnceDep,
) -> Response:
    """Each goes to the end of its queue, in their order; at most 200 at once, which are listed in
    the answer. Ask again until there are none. Dry runs are not kept, and are passed by."""
    with service.database.write() as session:

        def act() -> Created:
            again = retry_failed(session, code, owner=caller.owner, limit=MAX_PAGE)
            jobs = [serialize_job(job) for job in again]
            return Created(Page[JobRead](items=jobs, next_cursor=None), 202)

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
