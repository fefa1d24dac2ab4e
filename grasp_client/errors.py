"""Everything the client raises on purpose.

GraspError
├── Unreachable          nobody answers at that address, or the connection broke too often
├── Refused              the server said no: status, code, detail, hint, request_id
│   ├── NotAllowed           401, 403: the key is missing, unknown, or of too small a scope
│   ├── NotFound             404
│   ├── Conflict             409, 410, 412: not in the present state of things
│   ├── Invalid              other 4xx: what was sent cannot be used; `errors` says which fields
│   │   └── CheckpointMismatch   … the tensors are not the model's: `mismatches`, by name
│   └── Unavailable          429, 5xx: not now; `retry_after` if the server said when
├── Misunderstood        the answer is not what a GRASP server sends
├── JobFailed            a job did not succeed: `job`, and its code, message and hint
│   ├── JobRejected          the gate refused the fold; the model is as it was
│   └── JobCancelled         somebody stopped it
├── JobUnfinished        it has not ended within the time given to `wait`; it goes on
└── Damaged              the bytes that arrived are not those that were sent
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grasp_client._async.jobs import AsyncJob
    from grasp_client._sync.jobs import Job


class GraspError(Exception):
    """Base of all errors of this package; `hint` says what the user can do about it."""

    code = "grasp_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class Unreachable(GraspError):
    code = "unreachable"

    def __init__(self, message: str, *, hint: str | None = None, refused: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.refused = refused  # nothing listens there at all


class Refused(GraspError):
    """An answer that is no success, with all that its problem+json says."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: float | None) -> None:
        super().__init__(problem["detail"], hint=problem.get("hint"))
        self.status = status
        self.problem = problem  # with what only some codes have: docs/reference/http.md, Problem
        self.code = problem["code"]
        self.detail: str = problem["detail"]
        self.request_id: str | None = problem.get("request_id")
        self.errors: list[dict[str, str]] = problem.get("errors") or []
        self.mismatches: dict[str, Any] = problem.get("mismatches") or {}
        self.retry_after = retry_after


class NotAllowed(Refused):
    pass


class NotFound(Refused):
    pass


class Conflict(Refused):
    pass


class Invalid(Refused):
    pass


class CheckpointMismatch(Invalid):
    pass


class Unavailable(Refused):
    pass


class Misunderstood(GraspError):
    code = "misunderstood"


class JobFailed(GraspError):
    def __init__(self, job: Job | AsyncJob) -> None:
        error = job.error
        super().__init__(
            error.message if error else f"job {job.id} was {job.status}",
            hint=error.hint if error else None,
        )
        self.job = job
        self.code = error.code if error else job.status


class JobRejected(JobFailed):
    pass


class JobCancelled(JobFailed):
    pass


class JobUnfinished(GraspError):
    code = "unfinished"


class Damaged(GraspError):
    code = "damaged"


def refusal(status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> Refused:
    """The error for an answer with this status."""
    kinds: dict[int, type[Refused]] = {
        401: NotAllowed,
        403: NotAllowed,
        404: NotFound,
        409: Conflict,
        410: Conflict,
        412: Conflict,
        429: Unavailable,
    }
    kind = kinds.get(status, Unavailable if status >= 500 else Invalid)
    if problem["code"] == "checkpoint_mismatch":
        kind = CheckpointMismatch
    return kind(status, problem, retry_after)
