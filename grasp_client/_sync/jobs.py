# Written by `make client` from grasp_client/_async/jobs.py: change that one.
"""Jobs: polled, followed, waited for, stopped and tried again."""

from __future__ import annotations

import builtins
import json
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from grasp_client import concurrency
from grasp_client._sync.records import Collection, Record
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


class JobHandle(Record):
    """A job by its id, which is what others have in their field `job`."""

    id: str

    @model_validator(mode="before")
    @classmethod
    def _from_id(cls, data: object) -> object:
        return {"id": data} if isinstance(data, str) else data

    @model_serializer(mode="wrap")
    def _as_given(self, serialize: SerializerFunctionWrapHandler) -> Any:
        return self.id if type(self) is JobHandle else serialize(self)

    def get(self) -> Job:
        """As it is now."""
        return self._client.jobs.get(self.id)

    def wait(
        self, progress: Callable[[Job], object] | None = None, timeout: float | None = None
    ) -> Job:
        """As `jobs.wait`."""
        return self._client.jobs.wait(self.id, progress, timeout)

    def follow(self) -> Iterator[Job]:
        """As `jobs.follow`."""
        return self._client.jobs.follow(self.id)

    def cancel(self) -> Job:
        return self._client.jobs.cancel(self.id)

    def retry(self) -> Job:
        return self._client.jobs.retry(self.id)

    def report(self) -> dict[str, Any]:
        """What the fold measured."""
        return self._client.jobs.report(self.id)


class Job(JobHandle):
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


class Jobs(Collection):
    """`client.jobs`"""

    def get(self, job: str) -> Job:
        """A job as it is now."""
        return self._get(Job, path("jobs", job))

    def list(
        self,
        *,
        model: str | None = None,
        target: str | None = None,
        status: str | None = None,
        kind: str | None = None,
        code: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Newest first; with a `code`, only those that ended with this error."""
        filters = {"model": model, "target": target, "status": status, "kind": kind, "code": code}
        return self._list(Job, "/jobs", limit, **filters)

    def wait(
        self,
        job: str,
        progress: Callable[[Job], object] | None = None,
        timeout: float | None = None,
    ) -> Job:
        """The job once it has succeeded; `progress` is called with its states until then.

        Raises JobFailed, JobRejected or JobCancelled if it did not succeed, and JobUnfinished
        after `timeout` seconds.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        with closing(self._states(job, until)) as states:
            for state in states:
                if state is not None:
                    if progress is not None:
                        progress(state)
                    if state.ended:
                        state.require_success()
                        return state
                if time.monotonic() >= until:
                    break
        raise JobUnfinished(f"job {job} has not ended within {timeout:g} seconds")

    def follow(self, job: str) -> Iterator[Job]:
        """Iterate over the job's states up to the last, through restarts of the server."""
        with closing(self._states(job)) as states:
            for state in states:
                if state is not None:
                    yield state
                    if state.ended:
                        return

    def cancel(self, job: str) -> Job:
        """Stop it: a queued one at once, a running one within seconds. Raises Conflict."""
        return self._read(Job, self._client.ask("POST", path("jobs", job, "cancel")))

    def retry(self, job: str) -> Job:
        """Queue a rejected, failed or cancelled one again. Raises Conflict."""
        return self._read(Job, self._client.ask("POST", path("jobs", job, "retry")))

    def retry_failed(self, code: str) -> builtins.list[Job]:
        """Queue again all that failed with this code, such as `worker_lost`; which they are."""
        again: builtins.list[Job] = []
        while True:  # the server takes some at a time
            answer = self._client.ask("POST", "/jobs/retry", params={"code": code})
            queued = answer["items"]
            again += [self._read(Job, item) for item in queued]
            if len(queued) < LARGEST_PAGE:
                return again

    def report(self, job: str) -> dict[str, Any]:
        """What a fold or a dry run measured, also where it was rejected."""
        report: dict[str, Any] = self._client.ask("GET", path("jobs", job, "report"))
        return report

    def _states(self, job: str, until: float = math.inf) -> Generator[Job | None, None, None]:
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
                with self._client.open(
                    "GET", path("jobs", job, "events"), headers=headers, timeout=timeouts(silence)
                ) as response:
                    for piece in response.iter_bytes():
                        retries.progress()
                        for event in events.feed(piece):
                            if event.id is not None:
                                headers["Last-Event-ID"] = event.id
                            yield self._read(Job, json.loads(event.data))
                        yield None
                        if min(silence, HEARTBEAT_S) > until - time.monotonic() + LATE_S:
                            break  # lest the next silence lasts too long
                    else:
                        raise Unreachable(f"{self._client.url} ended the events of {job}")
            except GraspError as error:
                concurrency.sleep(retries.pause(error, until=until))
                yield None
