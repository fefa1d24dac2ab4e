"""Celery's part: a message says "look", and the loop, in a thread of its own, looks.

The task holds its place until the loop is idle again, so that the next ring goes to a worker that
has time. It computes nothing: folds run in children of this process, which Celery knows nothing of,
so its heartbeats are never late, and no fork ever meets CUDA.
"""

from collections.abc import Callable
from threading import Thread
from typing import Any

from celery import Celery, signals
from celery.platforms import EX_FAILURE
from celery.worker import state

from grasp_core.errors import ConfigError
from registry.jobs.bell import ANY_DEVICE, CELERY, RING, celery_queue
from registry.process.logs import configure_logs, get_log
from registry.process.settings import Settings
from worker.devices import device_class
from worker.loop import Worker

STOP_S = 20.0  # for the loop to hand back its job, when Celery ends; less than its keeper waits

log = get_log(__name__)


def make_celery(settings: Settings, make_worker: Callable[[], Worker]) -> Celery:
    """What `celery -A worker.main worker` runs, around the loop of the worker that is made."""
    if settings.broker_url is None:
        raise ConfigError("there is no broker to listen to", hint="set GRASP_BROKER_URL")
    app = Celery("grasp", broker=settings.broker_url)
    app.conf.update(
        CELERY,
        worker_pool="threads",
        worker_concurrency=1,
        worker_hijack_root_logger=False,
        task_queues={
            name: {"exchange": name, "routing_key": name}
            for name in (ANY_DEVICE, celery_queue(device_class(settings)))
        },
    )
    LoopThread(app, make_worker)
    return app


class LoopThread:
    """The loop of a worker in a thread, which Celery's signals start and stop."""

    def __init__(self, app: Celery, make_worker: Callable[[], Worker]) -> None:
        self._make_worker = make_worker
        self._worker: Worker | None = None
        self._thread: Thread | None = None
        app.task(name=RING)(self.ring)
        signals.setup_logging.connect(self.set_up_logs, weak=False)
        # Not when it is ready, which it is only once it has reached the broker.
        signals.celeryd_after_setup.connect(self.begin, weak=False)
        signals.worker_shutting_down.connect(self.stop, weak=False)
        signals.worker_shutdown.connect(self.end, weak=False)

    def ring(self, queue_id: str) -> None:  # noqa: ARG002 - the loop finds out by itself
        if self._worker is not None:
            self._worker.ring()
            self._worker.wait_until_idle()

    def set_up_logs(self, **_: Any) -> None:
        """Celery leaves logging alone where somebody answers this signal."""
        configure_logs()

    def begin(self, **_: Any) -> None:
        """Raises SystemExit: any other exception Celery would log, and listen for nobody."""
        try:
            self._worker = self._make_worker()
        except Exception as error:
            log.exception("the worker cannot begin")
            raise SystemExit(1) from error
        self._thread = Thread(target=self._run, args=(self._worker,), name="loop")
        self._thread.start()

    def _run(self, worker: Worker) -> None:
        """A loop that dies takes the process with it: listening alone would look like working."""
        try:
            worker.run()
        finally:
            if not worker.stopping.is_set():
                state.should_stop = EX_FAILURE

    def stop(self, **_: Any) -> None:
        if self._worker is not None:
            self._worker.stop()

    def end(self, **_: Any) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join(STOP_S)
