"""Jobs that are followed: one look at the database for all of them, published to whoever waits.

Every process looks four times a second, however many follow, and only while somebody does: at the
revisions, then at the jobs whose revision is another. A new state is serialised once.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import format_sse_event
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.schemas import JobRead
from app.serializers import serialize_job
from registry.database import Database
from registry.jobs.states import TERMINAL
from registry.process.logs import RepeatedWarning, get_log
from registry.tables import Job

LOOK_SECONDS = 0.25
IDS_PER_QUERY = 500  # databases limit the parameters of a statement
WOKEN_AT_ONCE = 50  # then other requests have their turn

log = get_log(__name__)


class JobState:
    """A job as it was at one revision, and what goes over the wire of it."""

    def __init__(self, job: Job) -> None:
        self.id = job.id
        self.revision = job.revision
        self.status = job.status
        self._shown: JobRead = serialize_job(job)

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @cached_property
    def json(self) -> str:
        return self._shown.model_dump_json()

    @cached_property
    def event(self) -> bytes:
        """Server-sent: the whole job, under its revision."""
        return format_sse_event(data_str=self.json, event="job", id=str(self.revision))


class FollowedJob:
    """The newest known state of one job, shared by all who follow it."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self.deleted = False
        self.followers = 0
        self._waiting: set[asyncio.Future[None]] = set()

    async def after(self, revision: int) -> JobState | None:
        """The newest state, once there is one beyond that revision; None if the job is deleted."""
        while self.state.revision <= revision and not self.deleted:
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(changed)
            try:
                await changed
            finally:  # also of a follower that leaves
                self._waiting.discard(changed)
        return self.state if self.state.revision > revision else None

    async def ended(self) -> JobState | None:
        """The state that the job has ended in; None if it is deleted before."""
        state: JobState | None = self.state
        while state is not None and not state.ended:
            state = await self.after(state.revision)
        return state

    async def publish(self, state: JobState | None) -> None:
        """Wake all who wait, some at a time; without a state the job is deleted."""
        self.state, self.deleted = state or self.state, state is None
        waiting = list(self._waiting)
        for first in range(0, len(waiting), WOKEN_AT_ONCE):
            for changed in waiting[first : first + WOKEN_AT_ONCE]:
                if not changed.done():  # or its follower has left
                    changed.set_result(None)
            await asyncio.sleep(0)


class Following:
    """All followed jobs of this process, and the task that looks at them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs: dict[str, FollowedJob] = {}
        self._looking: asyncio.Task[None] | None = None
        self._warning = RepeatedWarning(log)

    @contextmanager
    def follow(self, state: JobState) -> Iterator[FollowedJob]:
        """Follow a job from a state on that the caller was allowed to see."""
        job = self._jobs.setdefault(state.id, FollowedJob(state))
        job.followers += 1
        if self._looking is None or self._looking.done():
            # In a context of its own: what it logs belongs to no request.
            loop = asyncio.get_running_loop()
            self._looking = loop.create_task(self._look_on(), context=Context())
        try:
            yield job
        finally:
            job.followers -= 1
            if not job.followers:
                del self._jobs[state.id]

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def _look_on(self) -> None:
        """Look while anybody follows. A database that is away for a while is waited for."""
        while self._jobs:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
                self._warning.clear()
            except Exception as error:
                self._warning.log("followed jobs cannot be looked at", error=str(error))

    async def look(self) -> None:
        """Publish what has changed since the last look."""
        known = {id_: job.state.revision for id_, job in self._jobs.items() if not job.deleted}
        for id_, state in (await run_in_threadpool(self._load_changed, known)).items():
            if id_ in self._jobs:  # or everybody has left meanwhile
                await self._jobs[id_].publish(state)

    def _load_changed(self, known: Mapping[str, int]) -> dict[str, JobState | None]:
        """The jobs that are not at their known revisions any more; None: deleted."""
        ids = list(known)
        changed: dict[str, JobState | None] = {}
        with self._database.read() as session:
            for first in range(0, len(ids), IDS_PER_QUERY):
                changed |= _changed(session, ids[first : first + IDS_PER_QUERY], known)
        return changed


def _changed(
    session: Session, ids: Sequence[str], known: Mapping[str, int]
) -> dict[str, JobState | None]:
    rows = session.execute(select(Job.id, Job.revision).where(Job.id.in_(ids)))
    found: dict[str, int] = dict(rows.all())
    newer = [id_ for id_, revision in found.items() if revision > known[id_]]
    jobs = session.scalars(select(Job).where(Job.id.in_(newer))) if newer else ()
    return {id_: None for id_ in ids if id_ not in found} | {job.id: JobState(job) for job in jobs}


def get_following(request: Request) -> Following:
    following: Following = request.app.state.following
    return following


FollowingDep = Annotated[Following, Depends(get_following)]
