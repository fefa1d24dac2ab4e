"""Jobs: polled, followed, waited for, stopped and tried again."""

from __future__ import annotations

import builtins
import math
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer, model_validator

from grasp_client.errors import JobCancelled, JobFailed, JobRejected, JobUnfinished
from grasp_client.events import Follower
from grasp_client.exchange import ask
from grasp_client.plans import Bound, C, Call, Plan, Tell, Telling, at, operation, stream
from grasp_client.records import LARGEST_PAGE, Record, get, list_all, read

ENDED = ("succeeded", "rejected", "failed", "cancelled")


class JobProblem(BaseModel):
    """Why a job, a target or a model did not come to a good end."""

    code: str
    message: str
    hint: str | None = None


class JobHandle(Record[C]):
    """A job by its id, which is what others have in their field `job`."""

    id: str

    @model_validator(mode="before")
    @classmethod
    def _from_id(cls, data: object) -> object:
        return {"id": data} if isinstance(data, str) else data

    @model_serializer(mode="wrap")
    def _as_given(self, serialize: SerializerFunctionWrapHandler) -> Any:
        return self.id if type(self) is JobHandle else serialize(self)

    @operation
    def get(self) -> Plan[Job[C]]:
        """As it is now."""
        return get_job(self._client, self.id)

    @operation
    def wait(
        self, progress: Callable[[Job[C]], object] | None = None, timeout: float | None = None
    ) -> Plan[Job[C]]:
        """As `jobs.wait`."""
        return wait_for(self._client, self.id, progress, timeout)

    @stream
    def follow(self) -> Telling[Job[C]]:
        """As `jobs.follow`."""
        return follow(self._client, self.id)

    @operation
    def cancel(self) -> Plan[Job[C]]:
        return act(self._client, self.id, "cancel")

    @operation
    def retry(self) -> Plan[Job[C]]:
        return act(self._client, self.id, "retry")

    @operation
    def report(self) -> Plan[dict[str, Any]]:
        """What the fold measured."""
        return report_of(self._client, self.id)


class Job(JobHandle[C]):
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


class Jobs(Bound[C]):
    """`client.jobs`"""

    def __init__(self, client: C) -> None:
        self._client = client

    @operation
    def get(self, job: str) -> Plan[Job[C]]:
        """A job as it is now."""
        return get_job(self._client, job)

    @operation
    def list(
        self,
        *,
        model: str | None = None,
        target: str | None = None,
        status: str | None = None,
        kind: str | None = None,
        code: str | None = None,
        limit: int | None = None,
    ) -> Plan[list[Job[C]]]:
        """Newest first; with a `code`, only those that ended with this error."""
        filters = {"model": model, "target": target, "status": status, "kind": kind, "code": code}
        return list_all(Job, self._client, "/jobs", limit, filters)

    @operation
    def wait(
        self,
        job: str,
        progress: Callable[[Job[C]], object] | None = None,
        timeout: float | None = None,
    ) -> Plan[Job[C]]:
        """The job once it has succeeded; `progress` is called with its states until then.

        Raises JobFailed, JobRejected or JobCancelled if it did not succeed, and JobUnfinished
        after `timeout` seconds.
        """
        return wait_for(self._client, job, progress, timeout)

    @stream
    def follow(self, job: str) -> Telling[Job[C]]:
        """Iterate over the job's states up to the last, through restarts of the server."""
        return follow(self._client, job)

    @operation
    def cancel(self, job: str) -> Plan[Job[C]]:
        """Stop it: a queued one at once, a running one within seconds. Raises Conflict."""
        return act(self._client, job, "cancel")

    @operation
    def retry(self, job: str) -> Plan[Job[C]]:
        """Queue a rejected, failed or cancelled one again. Raises Conflict."""
        return act(self._client, job, "retry")

    @operation
    def retry_failed(self, code: str) -> Plan[builtins.list[Job[C]]]:
        """Queue again all that failed with this code, such as `worker_lost`; which they are."""
        return retry_failed(self._client, code)

    @operation
    def report(self, job: str) -> Plan[dict[str, Any]]:
        """What a fold or a dry run measured, also where it was rejected."""
        return report_of(self._client, job)


def get_job(client: C, job: str) -> Plan[Job[C]]:
    return get(Job, client, at("jobs", job))


def act(client: C, job: str, deed: str) -> Plan[Job[C]]:
    answer = yield from ask(client, Call("POST", at("jobs", job, deed)))
    return read(Job, client, answer.json())


def retry_failed(client: C, code: str) -> Plan[list[Job[C]]]:
    again: list[Job[C]] = []
    while True:  # the server takes some at a time
        answer = yield from ask(client, Call("POST", "/jobs/retry", params={"code": code}))
        queued = answer.json()["items"]
        again += [read(Job, client, item) for item in queued]
        if len(queued) < LARGEST_PAGE:
            return again


def report_of(client: C, job: str) -> Plan[dict[str, Any]]:
    answer = yield from ask(client, Call("GET", at("jobs", job, "report")))
    report: dict[str, Any] = answer.json()
    return report


def follow(client: C, job: str) -> Telling[Job[C]]:
    follower = Follower(client, job)
    while True:
        state = yield from follower.next()
        if state is not None:
            found = read(Job, client, state)
            yield Tell(found)
            if found.ended:
                return


def wait_for(
    client: C,
    job: str,
    progress: Callable[[Job[C]], object] | None = None,
    timeout: float | None = None,
) -> Plan[Job[C]]:
    follower = Follower(client, job, math.inf if timeout is None else time.monotonic() + timeout)
    while True:
        state = yield from follower.next()
        if state is not None:
            found = read(Job, client, state)
            if progress is not None:
                progress(found)
            if found.ended:
                found.require_success()
                return found
        if follower.left <= 0:
            raise JobUnfinished(f"job {job} has not ended within {timeout:g} seconds")
