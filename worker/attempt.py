"""One attempt at one job: a child computes, and this watches, records, or throws away."""

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event as Flag
from typing import TypeVar

import structlog
from sqlalchemy.exc import NoResultFound, OperationalError
from sqlalchemy.orm import Session

from grasp_core.errors import DeviceError, GraspError
from grasp_core.operations import Folded, FoldSource, Operation, Result
from registry.blobs.base import Blob, BlobStore, StorageError, StorageFull
from registry.blobs.collection import discard_blob
from registry.blobs.damage import (
    BadInput,
    Input,
    find_problems,
    forget_problems,
    note_problem,
)
from registry.blobs.integrity import Verifier
from registry.database import Database, explain
from registry.errors import LeaseLost, StaleBase
from registry.jobs import queue
from registry.jobs.queue import Lease
from registry.jobs.transitions import CANCELLED, Failure
from registry.jobs.workers import see_worker
from registry.process.logs import RepeatedWarning, get_log
from registry.process.settings import Settings
from registry.tables import utc_now
from worker.child import Child, SparePool
from worker.jobs import JobReader, JobSpec, record_result, take_over_work, work_folder
from worker.messages import Failed, Finished, Last, Progressed, Stopped
from worker.observability import AttemptObserver

TICK_S = 0.25
WRITE_S = 1.0  # between two writes of progress, and two looks for a cancellation
STOP_S = 10.0  # for a fold to reach its next tick when the worker stops, before it is killed

Answer = TypeVar("Answer")
log = get_log(__name__)


class Cancelled(Exception):
    """The job is to be stopped for good."""


class TookTooLong(GraspError):
    """The job computes for longer than it may."""

    code = "took_too_long"


@dataclass
class Attempt:
    """A leased job, and everything that running it needs."""

    lease: Lease
    settings: Settings
    database: Database
    store: BlobStore
    verifier: Verifier
    spares: SparePool
    read_job: JobReader
    stopping: Flag
    observer: AttemptObserver
    sweep_cache: Callable[[], None]  # looks now and then, for a fold may take hours
    lacked_room: bool = False  # on this machine, or in the store
    _renewed: float = field(default_factory=time.monotonic)
    _looked: float = 0.0
    _stage: str | None = None
    _unwritten: Progressed | None = None
    _files: dict[Path, Input] = field(default_factory=dict)  # what the child reads
    _warning: RepeatedWarning = field(default_factory=lambda: RepeatedWarning(log))

    def run(self) -> None:
        """Bring the attempt to an end, whatever happens; of a lost one nothing is kept.

        Raises StorageError or DeviceError, the job handed back, if the store does not answer at
        all, or if this worker's device cannot be used: none would fare better here.
        """
        try:
            self._run()
        except (LeaseLost, NoResultFound) as error:
            self.observer.lost(error)

    def _run(self) -> None:
        try:
            self._compute()
        except Cancelled:
            self._close_cancelled()
        except StaleBase as error:
            self._hand_back(str(error))
        except (LeaseLost, NoResultFound):
            raise  # somebody else's job now, or nobody's
        except BadInput as bad:
            self._blame_input(bad)
        except StorageError as error:  # not the job's fault
            self._blame_store(error)
        except DeviceError as error:
            self._hand_back(error.message)
            raise
        except GraspError as error:
            self._fail(Failure(error.code, error.message, error.hint, retryable=False))
        except Exception as error:
            log.exception("attempt failed")
            self._fail(Failure("internal_error", f"{type(error).__name__}: {error}"))

    def _compute(self) -> None:
        take_over_work(self.settings, self.lease)
        spec = self._keeping_lease(lambda: self._patiently(self._read_spec))
        operation = self._keeping_lease(lambda: self._fetch(spec))
        with self.spares.take() as child:
            child.start(operation, structlog.contextvars.get_contextvars())
            last = self._watch(child)
            if isinstance(last, Finished | Failed):
                self._keeping_lease(self._verify)
            if isinstance(last, Finished):  # while its process ends
                self._record(operation, last.result)
        match last:
            case Stopped():
                self._hand_back("the worker stops")
            case Failed(code=DeviceError.code):
                raise DeviceError(last.message, hint=last.hint)
            case Failed():
                if last.traceback:
                    log.error("attempt failed", code=last.code, traceback=last.traceback)
                self._fail(Failure(last.code, last.message, last.hint, last.retryable))

    def _read_spec(self) -> JobSpec:
        with self.database.read() as session:
            return self.read_job(session, self.lease, self.settings)

    def _fetch(self, spec: JobSpec) -> Operation:
        """The operation with its files, each as it was stored. Raises BadInput, StorageFull."""
        paths: dict[str, Path] = {}
        for name, given in spec.inputs.items():
            with _blaming(given):
                paths[name] = self.verifier.fetch(self.store, given.sha256).absolute()
            self._files[paths[name]] = given
        self._patiently(self._forget_problems)
        return spec.operation(files={**spec.local, **paths})

    def _verify(self) -> None:
        """Whether the files are still what they were: a look at each. Raises BadInput."""
        for path, given in self._files.items():
            if path.exists():  # a name may go while the bytes are in use
                with _blaming(given):
                    self.verifier.check(path, given.sha256)

    def _forget_problems(self) -> None:
        names = [given.sha256 for given in self._files.values()]
        with self.database.read() as session:
            known = find_problems(session, names)
        if known:
            with self.database.write() as session:
                forget_problems(session, known)

    def _watch(self, child: Child) -> Last:
        """Follow the child to its end, forwarding progress, keeping the lease."""
        deadline: float | None = None
        latest = time.monotonic() + self.settings.job_seconds
        while True:
            event = child.poll(TICK_S)
            if isinstance(event, Finished | Stopped | Failed):
                return event
            if event is not None:
                self.observer.progressed(event)
            self._tick(event)
            if time.monotonic() > latest:
                raise TookTooLong(
                    f"it computed for longer than {self.settings.job_seconds:g} seconds",
                    hint="fewer epochs, a smaller target, or more time by GRASP_JOB_SECONDS",
                )
            if self.stopping.is_set():
                if deadline is None:
                    child.ask_to_stop()
                    deadline = time.monotonic() + STOP_S
                elif time.monotonic() > deadline:
                    return Stopped()  # leaving the child's context kills it

    def _tick(self, progress: Progressed | None) -> None:
        """Write progress and renew the lease, each when due. Raises Cancelled, LeaseLost."""
        now = time.monotonic()
        self._unwritten = progress or self._unwritten
        new_stage = progress is not None and progress.stage != self._stage
        if not new_stage and now - self._looked < WRITE_S:
            return
        self._looked = now
        try:
            self._look_for_cancellation()
            self._write(renew=now - self._renewed >= self.settings.heartbeat_seconds)
            self.sweep_cache()
        except OperationalError as error:
            self._forgive(error)

    def _look_for_cancellation(self) -> None:
        with self.database.read() as session:
            if queue.wants_cancel(session, self.lease):
                raise Cancelled

    def _write(self, *, renew: bool) -> None:
        progress = self._unwritten
        if progress is None and not renew:
            return
        now = utc_now()
        with self.database.write() as session:
            if renew:
                queue.hold(
                    session, self.lease, now + timedelta(seconds=self.settings.lease_seconds)
                )
                totals = self.observer.tally.snapshot()
                see_worker(session, self.lease.worker_id, self.lease.job_id, now, totals)
            if progress is not None:
                queue.record_progress(
                    session, self.lease, progress.stage, progress.fraction, progress.metrics
                )
        self._stage = progress.stage if progress else self._stage
        self._unwritten = None
        self._renewed = time.monotonic() if renew else self._renewed

    def _keeping_lease(self, action: Callable[[], Answer]) -> Answer:
        """Do what may take minutes, such as moving bytes over a network, in a thread, and renew
        the lease meanwhile. Raises Cancelled, LeaseLost, when the thread has come to its end."""
        with ThreadPoolExecutor(1, thread_name_prefix="attempt") as pool:
            future = pool.submit(action)
            while not wait([future], timeout=TICK_S).done:
                self._tick(None)
            return future.result()

    def _patiently(self, action: Callable[[], Answer]) -> Answer:
        """Do it again while the database does not answer. Raises LeaseLost when it is too late."""
        while True:
            try:
                return action()
            except OperationalError as error:
                self._forgive(error)
                time.sleep(TICK_S)

    def _forgive(self, error: OperationalError) -> None:
        what, hint = explain(error)
        self._warning.log(what, error=str(error.orig), hint=hint)
        if time.monotonic() - self._renewed > self.settings.lease_seconds:
            raise LeaseLost("the lease could not be renewed in time") from error

    def _write_last(self, action: Callable[[Session], Answer]) -> Answer:
        """The transaction that ends the lease. Raises LeaseLost, also where it was made before."""

        def attempt() -> Answer:
            with self.database.write() as session:
                return action(session)

        return self._patiently(attempt)

    def _record(self, operation: Operation, result: Result) -> None:
        self.observer.enter("publish" if isinstance(operation, FoldSource) else "record")
        with self.store.guard():
            stored = self._keeping_lease(lambda: self._store(operation, result))
            self._write_last(
                lambda session: record_result(
                    session, self.lease, operation, result, stored, utc_now()
                )
            )
        if isinstance(operation, FoldSource):
            self._discard(operation.source_sha256)
        self._clear()
        self.observer.recorded(operation, result)

    def _discard(self, sha256: str) -> None:
        """A source that was folded or tried is not read again; what cannot go now is collected."""
        try:
            discard_blob(self.database, self.store, sha256)
        except (OperationalError, StorageError) as error:
            log.warning("the source's bytes are left for later", error=str(error))

    def _store(self, operation: Operation, result: Result) -> dict[str, Blob]:
        """What a fold made becomes blobs before anything refers to it; of a dry run nothing."""
        if not isinstance(operation, FoldSource) or not isinstance(result, Folded):
            return {}
        made = () if operation.dry_run else result.files
        return {
            file.name: self.store.adopt(operation.output / file.name, file.sha256) for file in made
        }

    def _fail(self, failure: Failure) -> None:
        self.lacked_room = failure.code == StorageFull.code
        limit = self.settings.max_attempts
        status = self._write_last(
            lambda session: queue.fail(session, self.lease, failure, utc_now(), max_attempts=limit)
        )
        if status == "failed":
            self._clear()
        self.observer.failed(failure, status)

    def _blame_store(self, error: StorageError) -> None:
        self._require_store(error)
        self._fail(Failure(error.code, error.message, error.hint))

    def _blame_input(self, bad: BadInput) -> None:
        """A bad source fails its job; what all jobs of the queue need is waited for, by all."""
        self._require_store(bad.error)
        given, failure = bad.given, bad.given.failure(bad.problem)

        def note(session: Session) -> None:
            queue.hold(session, self.lease)
            note_problem(session, given.sha256, bad.problem, utc_now())
            if given.shared:
                queue.hand_back(session, self.lease, failure)

        self._write_last(note)
        if given.shared:
            self.observer.held(failure)
        else:
            self._fail(failure)

    def _require_store(self, error: StorageError) -> None:
        """A store that does nothing for anybody costs no attempt. Raises StorageError then."""
        try:
            self.store.check()
        except StorageError:
            self._hand_back(error.message)
            raise

    def _hand_back(self, reason: str) -> None:
        self._write_last(lambda session: queue.hand_back(session, self.lease))
        self.observer.handed_back(reason)

    def _close_cancelled(self) -> None:
        error = CANCELLED.as_error()
        self._write_last(
            lambda session: queue.close(session, self.lease, "cancelled", utc_now(), error=error)
        )
        self._clear()
        self.observer.cancelled()

    def _clear(self) -> None:
        """What an ended job kept to go on with."""
        shutil.rmtree(work_folder(self.settings, self.lease.job_id), ignore_errors=True)


@contextmanager
def _blaming(given: Input) -> Iterator[None]:
    """Troubles of the store as those of the blob that is read, but for a lack of room."""
    try:
        yield
    except StorageFull:
        raise
    except StorageError as error:
        raise BadInput(given, error) from error
