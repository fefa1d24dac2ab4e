"""Observability of an attempt at a job: lines in the log, spans of a trace, sums for /metrics."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil
import structlog
from opentelemetry.trace import Span, SpanKind
from sqlalchemy import select
from sqlalchemy.orm import Session

from grasp_core.operations import Folded, FoldSource, Operation, Result, TargetSummary
from grasp_core.report import SplitAccuracies
from registry.errors import LeaseLost
from registry.jobs.queue import Lease
from registry.jobs.states import JobKind, JobStatus
from registry.jobs.totals import FoldKind, Outcome, Sum, Totals
from registry.jobs.transitions import Failure
from registry.process.logs import get_log
from registry.process.tracing import (
    Attributes,
    log_context,
    set_attributes,
    set_failed,
    start_child,
    traced,
)
from registry.tables import Job, Model, Source, Target
from worker.messages import Progressed

if sys.platform != "win32":
    import resource

RUSAGE_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


class Tally:
    """Counts since the worker started; a new worker counts from nothing."""

    def __init__(self) -> None:
        self._totals = Totals()

    def count_end(self, kind: FoldKind, outcome: Outcome) -> None:
        """A fold that came to an end without a report."""
        self._totals.folds[kind][outcome] += 1

    def count_fold(self, kind: FoldKind, folded: Folded) -> None:
        """A fold whose report is recorded."""
        totals = self._totals
        totals.folds[kind][folded.outcome] += 1
        if kind == "fold" and folded.outcome == "rejected":
            looked_at_only = folded.metrics.after is None
            totals.rejections["tensors" if looked_at_only else "accuracy"] += 1
        first = folded.metrics.before is None  # taken whole: there was nothing to choose
        share = folded.metrics.transferred_share
        if share is not None and not first:
            totals.transferred_share.add(share)
        for stage in folded.stages:
            totals.stages.setdefault(stage.name, Sum()).add(stage.seconds)

    def count_failure(self, code: str) -> None:
        """An attempt that went wrong, whether or not another follows."""
        self._totals.failures[code] = self._totals.failures.get(code, 0) + 1

    def snapshot(self) -> dict[str, Any]:
        """All of it, with the memory of this moment."""
        self._totals.resident_bytes = psutil.Process().memory_info().rss
        self._totals.child_peak_bytes = max(self._totals.child_peak_bytes, _child_peak())
        return self._totals.model_dump()


def _child_peak() -> int:
    """The most that a child that has ended ever held, or a running one holds now."""
    running = [_resident(child) for child in psutil.Process().children()]
    ended = 0
    if sys.platform != "win32":
        ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * RUSAGE_UNIT
    return max(ended, *running, 0)


def _resident(process: psutil.Process) -> int:
    try:
        bytes_: int = process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
    return bytes_


SPARSE_S = 2.0  # between two lines of progress: a fold of seconds needs hardly any
FIRST_STAGE = "start"  # until a child says more: files are fetched, torch is loaded
Kind = JobKind | Literal["job"]  # a job that was deleted meanwhile is just that

log = get_log(__name__)


@dataclass(frozen=True)
class JobContext:
    """The job that an attempt is at, and what people call it."""

    kind: Kind
    ids: dict[str, str]  # of the job, its model, source and request
    attempt: int = 1
    traceparent: str | None = None
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, session: Session, lease: Lease) -> "JobContext":
        job = session.get(Job, lease.job_id)
        if job is None:
            return cls("job", {"job": lease.job_id})
        ids = {"model": job.model_id, "source": job.source_id, "request_id": job.request_id}
        whose = _name(session, Model, job.model_id) or _name(session, Target, job.target_id)
        names = {"name": whose, "source_name": _name(session, Source, job.source_id)}
        return cls(
            job.kind,
            {"job": job.id} | {key: value for key, value in ids.items() if value},
            job.attempts,
            job.traceparent,
            {key: value for key, value in names.items() if value},
        )


def _name(session: Session, table: type[Model | Target | Source], row_id: str | None) -> str | None:
    return session.scalar(select(table.name).where(table.id == row_id)) if row_id else None


@contextmanager
def observe(job: JobContext, worker_id: str, tally: Tally) -> Iterator["AttemptObserver"]:
    """Follow an attempt from its start to its end; the log knows whose lines these are."""
    parent = {"traceparent": job.traceparent} if job.traceparent else {}
    ids = {f"grasp.{name}": value for name, value in job.ids.items()}
    about: Attributes = {**ids, "grasp.worker": worker_id, "grasp.attempts": job.attempt}
    with (
        traced(job.kind, parent=parent, kind=SpanKind.CONSUMER, attributes=about) as span,
        structlog.contextvars.bound_contextvars(**job.ids, **log_context(span)),
    ):
        log.info(
            "job started",
            kind=job.kind,
            **job.names,
            attempt=job.attempt,
            worker=worker_id,
        )
        observer = AttemptObserver(job.kind, span, tally)
        try:
            yield observer
        finally:
            observer.close()


class AttemptObserver:
    """Follows one attempt; whoever runs it says what happens."""

    def __init__(self, kind: Kind, span: Span, tally: Tally) -> None:
        self.tally = tally
        self._kind = kind
        self._span = span
        self._work: tuple[str | None, str] = (None, FIRST_STAGE)
        self._stage_span = start_child(span, FIRST_STAGE)
        self._newest: Progressed | None = None
        self._began = self._logged = time.monotonic()

    def close(self) -> None:
        self._stage_span.end()

    def enter(self, stage: str, candidate: str | None = None) -> None:
        """A stage begins, of one candidate or of all; the one before it is over."""
        if (candidate, stage) != self._work:
            self._work = candidate, stage
            self._stage_span.end()
            self._stage_span = start_child(self._span, stage)
            set_attributes(self._stage_span, {"grasp.candidate": candidate})

    def progressed(self, progress: Progressed) -> None:
        before, self._newest = self._newest, progress
        if before is not None and _epoch_of(before) not in (None, _epoch_of(progress)):
            accuracy = progress.metrics.get("val_accuracy")  # measured when the epoch was over
            loss = before.metrics.get("loss")
            candidate = _candidate_of(before)
            epoch = {"epoch": _epoch_of(before), "loss": loss, "val_accuracy": accuracy}
            self._log("epoch", candidate=candidate, **epoch)
        candidate, stage = _candidate_of(progress), progress.stage
        if (candidate, stage) != self._work:
            self._log(
                "stage", stage=stage, candidate=candidate, progress=round(progress.fraction, 2)
            )
        self.enter(stage, candidate)

    def recorded(self, operation: Operation, result: Result) -> None:
        """Its result lasts."""
        if isinstance(operation, FoldSource) and isinstance(result, Folded):
            self._folded(operation, result)
        elif isinstance(result, TargetSummary):
            self._end("succeeded", examples=result.images, classes=len(result.classes))
        else:
            self._end("succeeded")

    def failed(self, failure: Failure, status: JobStatus) -> None:
        """It went wrong; the job will be tried again, or has failed."""
        log.warning("attempt failed", code=failure.code, reason=failure.message, status=status)
        self.tally.count_failure(failure.code)
        set_failed(self._span, failure.code)
        if status == "failed":
            self._end_early("failed")

    def cancelled(self) -> None:
        self._end_early("cancelled")

    def handed_back(self, reason: str) -> None:
        """Another attempt will follow, as if this one had not been."""
        log.info("job handed back", reason=reason)
        set_attributes(self._span, {"grasp.outcome": "handed_back"})

    def held(self, failure: Failure) -> None:
        """It waits, with all jobs of its queue, until what they need is mended."""
        log.warning("job waits", code=failure.code, reason=failure.message, hint=failure.hint)
        self.tally.count_failure(failure.code)
        set_failed(self._span, failure.code)

    def lost(self, error: Exception) -> None:
        """The job is somebody else's by now, or nobody's."""
        log.warning("result thrown away", reason=str(error))
        self.tally.count_failure(LeaseLost.code)
        set_failed(self._span, LeaseLost.code)

    def _folded(self, operation: FoldSource, folded: Folded) -> None:
        self.tally.count_fold("dry_run" if operation.dry_run else "fold", folded)
        set_attributes(self._span, {"grasp.outcome": folded.outcome})
        accepted, trial = folded.outcome != "rejected", operation.dry_run
        self._end(
            "succeeded" if accepted or trial else "rejected",
            outcome=folded.outcome if trial else None,
            version=operation.version if accepted and not trial else None,
            accuracy=_accuracy(folded.metrics.after),
            accuracy_before=_accuracy(folded.metrics.before),
            transferred_share=folded.metrics.transferred_share,
            reason=folded.reason,
        )

    def _end_early(self, outcome: Literal["failed", "cancelled"]) -> None:
        if self._kind in ("fold", "dry_run"):
            self.tally.count_end(self._kind, outcome)
        set_attributes(self._span, {"grasp.outcome": outcome})
        self._end(outcome)

    def _end(self, status: JobStatus, **figures: object) -> None:
        seconds = round(time.monotonic() - self._began, 1)
        log.info("job ended", kind=self._kind, status=status, **_known(figures), seconds=seconds)

    def _log(self, event: str, **figures: object) -> None:
        now = time.monotonic()
        due = now - self._logged > SPARSE_S
        self._logged = now if due else self._logged
        (log.info if due else log.debug)(event, **_known(figures))


def _candidate_of(progress: Progressed) -> str | None:
    """Whose turn it is; None: it is the fold as a whole."""
    candidate = progress.metrics.get("candidate")
    return None if candidate is None else str(candidate)


def _epoch_of(progress: Progressed) -> int | None:
    """Which epoch runs; none before refinement, and none after."""
    epoch = progress.metrics.get("epoch")
    return int(epoch) if epoch is not None and progress.stage == "refine" else None


def _accuracy(accuracies: SplitAccuracies | None) -> float | None:
    """On the validation split, as the gate sees it."""
    return None if accuracies is None else accuracies.val.accuracy


def _known(figures: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in figures.items() if value is not None}
