"""The loop: claim a job, run it in a child, record what came out, go on.

It is the same whether something rings (a broker) or nothing does (it looks every second): the
database alone says what there is to do.
"""

import math
import time
from threading import Event as Flag

from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, ProgrammingError

from grasp_core.cache_folders import sweep
from grasp_core.errors import DeviceError
from registry.answers import forget_answers
from registry.blobs import open_store
from registry.blobs.base import BlobStore, StorageError
from registry.blobs.collection import collect_blobs, collect_work
from registry.blobs.damage import forget_unneeded
from registry.blobs.integrity import Verifier
from registry.database import Database, explain
from registry.jobs.abilities import Abilities
from registry.jobs.bell import open_bell
from registry.jobs.queue import Lease, claim, ring_waiting
from registry.jobs.workers import remove_worker, see_worker
from registry.lookup import new_id
from registry.process.home import open_home
from registry.process.logs import RepeatedWarning, configure_logs, get_log
from registry.process.settings import Settings
from registry.process.tracing import tracing
from registry.tables import utc_now
from registry.targets import find_fingerprints
from registry.uploads import forget_uploads
from worker.attempt import Attempt
from worker.child import Child, SparePool
from worker.devices import device_class
from worker.identity import expire_dead_workers, register, total_memory
from worker.jobs import JobReader, read_job
from worker.observability import JobContext, Tally, observe

CLEAN_S = 30.0  # between two looks for what nothing refers to any more
NO_ROOM_S = 30.0  # or a worker with a full disk, which fails fast, would take job after job
MIGRATE = "run `grasp admin migrate`"
STOP_LOOK_S = 1.0  # a ring that comes while the loop ends would never find it idle

log = get_log(__name__)


class Worker:
    """Runs jobs one at a time until asked to stop."""

    def __init__(
        self, settings: Settings, *, read_job: JobReader = read_job, warm: bool = True
    ) -> None:
        """`read_job` says what a job's child does; `warm` children load torch before they know."""
        open_home(settings)
        self.id = new_id("wrk")
        self.settings = settings
        self.database = Database(settings.database, open_bell(settings.broker_url))
        self.store: BlobStore = open_store(settings)
        self.stopping = Flag()
        self._bell = Flag()
        self._idle = Flag()
        self._started_at = utc_now()
        self._device = settings.device
        self._device_class = device_class(settings)
        self._abilities = Abilities.here()
        self._newest_child: Child | None = None
        self._cleaned = -math.inf
        self._swept = -math.inf
        self._seen = -math.inf
        self._store_failed = False
        self._warning = RepeatedWarning(log)
        self._read_job = read_job
        self._warm = warm
        self._tally = Tally()
        self._verifier = Verifier()  # as long as this process: what was read once is known
        self._spares = SparePool(self._new_child, spare=settings.warm_spare)

    def run(self) -> None:
        """Work until `stop` is called. Raises SystemExit where it cannot work at all."""
        log.info("worker started", worker=self.id)
        try:
            with tracing("grasp-worker"):
                self._run()
        except DeviceError as error:
            log.error("the worker cannot compute", error=str(error))
            raise SystemExit(1) from error
        finally:
            self.close()
            self._idle.set()
            log.info("worker stopped", worker=self.id)

    def _run(self) -> None:
        while not self.stopping.is_set():
            pause = self._run_next()
            if pause:
                self._idle.set()
                self._bell.wait(pause)
                self._bell.clear()

    def ring(self) -> None:
        """There may be something to do: look at once."""
        self._idle.clear()
        self._bell.set()

    def wait_until_idle(self) -> None:
        """Return when, since the last ring, a look has found nothing to do; or at the end."""
        while not self.stopping.is_set() and not self._idle.wait(STOP_LOOK_S):
            pass

    def stop(self) -> None:
        """Come to an end: a running job is handed back, to go on where it is elsewhere."""
        self.stopping.set()
        self._bell.set()

    def close(self) -> None:
        self._spares.close()
        try:
            with self.database.write() as session:
                remove_worker(session, self.id)
        except DBAPIError as error:
            log.warning("the worker's row is left behind", error=str(error.orig))
        self.database.close()

    def drain(self) -> int:
        """Run jobs until there is nothing to claim; how many it was."""
        count = 0
        while not self.stopping.is_set() and self.run_next():
            count += 1
        return count

    def run_next(self) -> bool:
        """Claim one job and run it to some end; False if there was none."""
        self._show()
        self._check_store()
        self._clean()
        self._sweep_cache()
        lease = self._claim()
        if lease is None:
            return False
        with observe(self._context(lease), self.id, self._tally) as observer:
            attempt = Attempt(
                lease=lease,
                settings=self.settings,
                database=self.database,
                store=self.store,
                verifier=self._verifier,
                spares=self._spares,
                read_job=self._read_job,
                stopping=self.stopping,
                observer=observer,
                sweep_cache=self._sweep_cache,
            )
            attempt.run()
        self._show(force=True)
        self._sweep_cache(force=True)  # a child that was killed could not tidy up
        if attempt.lacked_room:
            log.warning("no room is left here: others may have some", rests_seconds=NO_ROOM_S)
            self.stopping.wait(NO_ROOM_S)
        return True

    def _run_next(self) -> float:
        """How many seconds to rest now.

        A database or a store that is away for a while is waited for, not died of; nobody rings
        when it is back.
        """
        try:
            found = self.run_next()
            self._warning.clear()
            return 0.0 if found else self.settings.look_seconds
        except (OperationalError, InternalError) as error:
            what, hint = explain(error)
            self._warning.log(what, error=str(error.orig), hint=hint)
        except ProgrammingError as error:
            what = "the tables are not of this release"
            self._warning.log(what, error=str(error.orig), hint=MIGRATE)
        except StorageError as error:
            self._warning.log("the store does not answer", error=str(error))
            self._store_failed = True
        return self.settings.poll_seconds

    def _check_store(self) -> None:
        """Once it has failed, nothing is claimed until it answers again. Raises StorageError."""
        if self._store_failed:
            self.store.check()
            self._store_failed = False

    def _claim(self) -> Lease | None:
        if self.settings.embedded:
            expire_dead_workers(self.database)
        now = utc_now()
        with self.database.write() as session:
            lease = claim(
                session,
                self.id,
                now,
                lease_seconds=self.settings.lease_seconds,
                max_losses=self.settings.max_losses,
                device_class=self._device_class,
                abilities=self._abilities,
            )
            if lease is not None:
                see_worker(session, self.id, lease.job_id, now)
            return lease

    def _new_child(self) -> Child:
        self._newest_child = Child(
            memory_limit=self.settings.job_memory_bytes or total_memory(),
            threads=self.settings.threads,
            warm=self._warm,
            setup=configure_logs,
        )
        return self._newest_child

    def _context(self, lease: Lease) -> JobContext:
        with self.database.read() as session:
            return JobContext.read(session, lease)

    def _show(self, *, force: bool = False) -> None:
        """Say that this worker lives, and does nothing."""
        now = time.monotonic()
        if force or now - self._seen > self.settings.heartbeat_seconds:
            totals = self._tally.snapshot()
            device = self._find_device()
            register(self.database, self.id, device, self._started_at, totals, self._abilities)
            self._seen = now

    def _find_device(self) -> str:
        """What `auto` comes to only a child can say, when it has loaded torch."""
        child = self._newest_child
        if self.settings.device == "auto" and child is not None and child.ready:
            self._device = child.device or self._device
        return self._device

    def _clean(self) -> None:
        if time.monotonic() - self._cleaned > CLEAN_S:
            collect_blobs(self.database, self.store, self.settings.collect_age_seconds)
            collect_work(self.database, self.settings.work_folder)
            forget_unneeded(self.database)
            with self.database.write() as session:
                forget_answers(session, utc_now())
                forget_uploads(session, utc_now())
                ring_waiting(session, utc_now())
            self._cleaned = time.monotonic()

    def _sweep_cache(self, *, force: bool = False) -> None:
        """Delete decoded targets of this machine that are not there any more, not finished, or too
        many."""
        if force or time.monotonic() - self._swept > CLEAN_S:
            with self.database.read() as session:
                needed = find_fingerprints(session)
            sweep(
                self.settings.cache_folder,
                lambda name: name.partition("-")[0] in needed,
                self.settings.decoded_cache_bytes,
            )
            self._swept = time.monotonic()
