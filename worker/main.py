"""A worker process: `grasp worker`, one that `grasp serve` starts, or a Celery worker.

`celery -A worker.main worker` finds `app` here; it is made when first asked for, because without a
broker there is no need of Celery.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from socket import gethostname
from threading import Thread
from typing import TYPE_CHECKING

from registry.process.logs import configure_logs
from registry.process.processes import Workers
from registry.process.settings import Settings
from worker.loop import Worker

if TYPE_CHECKING:
    from celery import Celery


def main(*, with_parent: bool = False) -> None:
    """Work until SIGTERM or SIGINT or, `with_parent`, until standard input ends."""
    settings = Settings()
    configure_logs(settings)
    if settings.broker_url:
        run_celery(celery_app(), with_parent=with_parent)
    else:
        run_worker(Worker(settings), with_parent=with_parent)


def run_many(environments: Sequence[Mapping[str, str]]) -> None:
    """Keep a worker process running for each environment, until SIGTERM or SIGINT."""
    configure_logs()
    heard = _signals()
    with Workers(environments):
        os.read(heard, 1)


@cache
def celery_app() -> "Celery":
    from worker.doorbell import make_celery

    settings = Settings()
    return make_celery(settings, lambda: Worker(settings))


def __getattr__(name: str) -> object:
    if name == "app":
        return celery_app()
    raise AttributeError(name)


def run_celery(app: "Celery", *, with_parent: bool = False) -> None:
    """Let this process be a Celery worker, to its end."""
    if with_parent:
        _start(_follow_parent, lambda: os.kill(os.getpid(), signal.SIGTERM))
    worker = app.Worker(
        hostname=f"grasp-{os.getpid()}@{gethostname()}",  # a machine may have many
        quiet=True,  # no banner in the log
        without_gossip=True,  # they have nothing to say to each other
        without_mingle=True,
    )
    worker.start()
    sys.exit(worker.exitcode)


def run_worker(worker: Worker, *, with_parent: bool = False) -> None:
    """Let this process be that worker, to its end."""
    if worker.settings.embedded:
        worker.database.migrate()
    # A signal may come while the main thread holds a lock that `stop` needs: a thread stops it.
    _start(_follow_signals, worker.stop, _signals())
    if with_parent:
        _start(_follow_parent, worker.stop)
    worker.run()


def _signals() -> int:
    """A descriptor that can be read from once SIGTERM or SIGINT has come."""
    heard, sent = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(sent, b"."))
    return heard


def _start(follow: Callable[..., None], *arguments: object) -> None:
    Thread(target=follow, args=arguments, name=follow.__name__, daemon=True).start()


def _follow_signals(stop: Callable[[], None], heard: int) -> None:
    os.read(heard, 1)
    stop()


def _follow_parent(stop: Callable[[], None]) -> None:
    """Whoever started us holds the other end of our standard input, and has it cut by any death."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stop()
