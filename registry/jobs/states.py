"""The states of a job and the moves between them: data and pure functions, no database."""

from typing import Literal

JobStatus = Literal["queued", "running", "succeeded", "rejected", "failed", "cancelled"]
JobKind = Literal["validate", "prepare", "fold", "dry_run"]
TargetStatus = Literal["validating", "ready", "failed"]
ModelStatus = Literal["preparing", "ready", "failed"]

ACTIVE: tuple[JobStatus, ...] = ("queued", "running")
TERMINAL: tuple[JobStatus, ...] = ("succeeded", "rejected", "failed", "cancelled")
RETRIABLE: tuple[JobStatus, ...] = ("rejected", "failed", "cancelled")

MOVES: dict[JobStatus, tuple[JobStatus, ...]] = {
    "queued": ("running", "cancelled"),
    "running": ("succeeded", "rejected", "failed", "cancelled", "queued"),
    "succeeded": (),
    "rejected": ("queued",),
    "failed": ("queued",),
    "cancelled": ("queued",),
}


def origins(status: JobStatus) -> tuple[JobStatus, ...]:
    """The states from which a job may come to `status`."""
    return tuple(before for before, after in MOVES.items() if status in after)


def after_failure(failures: int, limit: int, *, retryable: bool) -> JobStatus:
    """Where a running job goes whose attempts went wrong so many times."""
    return "queued" if retryable and failures < limit else "failed"
