"""Jobs: polled, followed, waited for, stopped and tried again."""

from __future__ import annotations

import builtins
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from grasp_client import concurrency
from grasp_client._async.records import AsyncCollection, AsyncRecord
from grasp_client.errors import (
    GraspError,
    JobCancelled,
    JobFailed,
    JobRejected,
    JobUnfinished,
    Unreachable,
)
from grasp_client.protocol import (
    ENDED,
    HEARTBEAT_S,
    LARGEST_PAGE,
    LATE_S,
    SILENCE_S,
    EventReader,
    JobProblem,
    Retries,
    Verdict,
    path,
    timeouts,
)


class AsyncJobHandle(AsyncRecord):
    """A job by its id, which is what others have in their field `job`."""

    id: str

    @model_validator(mode="before")
    @classmethod
    def _from_id(cls, data: object) -> object:
        return {"id": data} if isinstance(data, str) else data

    @model_serializer(mode="wrap")
    def _as_given(self, serialize: SerializerFunctionWrapHandler) -> Any:
        return self.id if type(self) is AsyncJobHandle else serialize(self)

    async def get(self) -> AsyncJob:
        """As it is now."""
        return await self._client.jobs.get(self.id)

    async def wait(
        self, progress: Callable[[AsyncJob], object] | None = None, timeout: float | None = None
    ) -> AsyncJob:
        """As `jobs.wait`."""
        return await self._client.jobs.wait(self.id, progress, timeout)

    def follow(self) -> AsyncIterator[AsyncJob]:
        """As `jobs.follow`."""
        return self._client.jobs.follow(self.id)

    async def cancel(self) -> AsyncJob:
        return await self._client.jobs.cancel(self.id)

    async def retry(self) -> AsyncJob:
        return await self._client.jobs.retry(self.id)

    async def report(self) -> dict[str, Any]:
        """What the fold measured."""
        return await self._client.jobs.report(self.id)


class AsyncJob(AsyncJobHandle):
    """The state of a job at one moment."""

    kind: str
    status: str
    stage: str | None
    progress: float
    metrics: dict[str, Any]
    attempts: int
    failures: list[dict[str, Any]]
    model: str | None
    target: str | None
    source: str | None
    version: int | None
    verdict: Verdict | None = None  # of folds; None: it has not come so far, or the server is old
    error: JobProblem | None
    revision: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"

    def require_success(self) -> None:
        """Raises JobRejected, JobCancelled or JobFailed, if that is how it ended."""
        if self.ended and not self.succeeded:
            kinds = {"rejected": JobRejected, "cancelled": JobCancelled}
            raise kinds.get(self.status, JobFailed)(self)


class AsyncJobs(AsyncCollection):
    """`client.jobs`"""

    async def get(self, job: str) -> AsyncJob:
        """A job as it is now."""
        return await self._get(AsyncJob, path("jobs", job))

    async def list(
        self,
        *,
        model: str | None = None,
        target: str | None = None,
        status: str | None = None,
        kind: str | None = None,
        code: str | None = None,
        limit: int | None = None,
    ) -> list[AsyncJob]:
        """Newest first; with a `code`, only those that ended with this error."""
        filters = {"model": model, "target": target, "status": status, "kind": kind, "code": code}
        return await self._list(AsyncJob, "/jobs", limit, **filters)

    async def wait(
        self,
        job: str,
        progress: Callable[[AsyncJob], object] | None = None,
        timeout: float | None = None,
    ) -> AsyncJob:
        """The job once it has succeeded; `progress` is called with its states until then.

        Raises JobFailed, JobRejected or JobCancelled if it did not succeed, and JobUnfinished
        after `timeout` seconds.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        async with aclosing(self._states(job, until)) as states:
            async for state in states:
                if state is not None:
                    if progress is not None:
                        progress(state)
                    if state.ended:
                        state.require_success()
                        return state
                if time.monotonic() >= until:
                    break
        raise JobUnfinished(f"job {job} has not ended within {timeout:g} seconds")

    async def follow(self, job: str) -> AsyncIterator[AsyncJob]:
        """Iterate over the job's states up to the last, through restarts of the server."""
        async with aclosing(self._states(job)) as states:
            async for state in states:
                if state is not None:
                    yield state
                    if state.ended:
                        return

    async def cancel(self, job: str) -> AsyncJob:
        """Stop it: a queued one at once, a running one within seconds. Raises Conflict."""
        return self._read(AsyncJob, await self._client.ask("POST", path("jobs", job, "cancel")))

    async def retry(self, job: str) -> AsyncJob:
        """Queue a rejected, failed or cancelled one again. Raises Conflict."""
        return self._read(AsyncJob, await self._client.ask("POST", path("jobs", job, "retry")))

    async def retry_failed(self, code: str) -> builtins.list[AsyncJob]:
        """Queue again all that failed with this code, such as `worker_lost`; which they are."""
        again: builtins.list[AsyncJob] = []
        while True:  # the server takes some at a time
            answer = await self._client.ask("POST", "/jobs/retry", params={"code": code})
            queued = answer["items"]
            again += [self._read(AsyncJob, item) for item in queued]
            if len(queued) < LARGEST_PAGE:
                return again

    async def report(self, job: str) -> dict[str, Any]:
        """What a fold or a dry run measured, also where it was rejected."""
        report: dict[str, Any] = await self._client.ask("GET", path("jobs", job, "report"))
        return report

    async def _states(
        self, job: str, until: float = math.inf
    ) -> AsyncGenerator[AsyncJob | None, None]:
        """One state after the other, over server-sent events, whatever happens to the connection;
        None now and then, when there is nothing new.

        `until`, by time.monotonic(): what is read after it comes too late. Raises Refused, or
        Unreachable if the server stays away for longer than patience lasts.
        """
        retries = Retries(self._client)
        headers = {"Accept": "text/event-stream"}
        while True:
            silence = min(SILENCE_S, max(LATE_S, until - time.monotonic()))
            events = EventReader()
            try:
                async with self._client.open(
                    "GET", path("jobs", job, "events"), headers=headers, timeout=timeouts(silence)
                ) as response:
                    async for piece in response.aiter_bytes():
                        retries.progress()
                        for event in events.feed(piece):
                            if event.id is not None:
                                headers["Last-Event-ID"] = event.id
                            yield self._read(AsyncJob, json.loads(event.data))
                        yield None
                        if min(silence, HEARTBEAT_S) > until - time.monotonic() + LATE_S:
                            break  # lest the next silence lasts too long
                    else:
                        raise Unreachable(f"{self._client.url} ended the events of {job}")
            except GraspError as error:
                await concurrency.async_sleep(retries.pause(error, until=until))
                yield None
