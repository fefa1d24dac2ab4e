"""One spawned process per job: it can run out of memory, crash or be killed, and only the job ends.

This is the parent's side; `worker.child_process` is the child's own.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

from grasp_core.operations import Operation
from worker.child_process import Setup, main
from worker.messages import (
    STOP,
    Event,
    Failed,
    Last,
    Order,
    Progressed,
    Ready,
    describe,
    post_mortem,
)

EXIT_S = 5.0  # from its last word to the end of a process; freeing a GPU takes a while


class Child:
    """A process that does one operation. It is started at once, and loads torch while it waits."""

    def __init__(
        self,
        *,
        memory_limit: int | None = None,
        threads: int | None = None,
        warm: bool = True,
        setup: Setup | None = None,
    ) -> None:
        """`setup` is called first in the process, so it must be a function of some module.

        An operation that needs more than `memory_limit` bytes, what is loaded included, fails. The
        limit may be set until the start.
        """
        context = multiprocessing.get_context("spawn")  # CUDA forbids fork
        self.memory_limit = memory_limit
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=main, args=(theirs, setup, threads, warm), name="grasp-job", daemon=True
        )
        with theirs, _interrupts_held():
            self._process.start()
        self.pid: int = self._process.pid or 0
        self.device: str | None = None  # what it computes on, once it is ready
        self._ready = False
        self._newest: Progressed | None = None
        self._last: Last | None = None
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.is_alive()

    @property
    def ready(self) -> bool:
        """Whether everything is loaded, so that an operation begins at once."""
        while self._last is None and self._receive(0.0):
            pass
        return self._ready

    def start(self, operation: Operation, log_context: Mapping[str, str]) -> None:
        """Have it run its one and only `operation`, with `log_context` in all its logs."""
        self._send(pickle.dumps(Order(operation, dict(log_context), self.memory_limit)))

    def poll(self, timeout: float) -> Event | None:
        """The next event, or None if there is none in `timeout` seconds.

        Of progress only the newest is given. The last event is given again whenever asked; a
        process that died without one has Failed.
        """
        deadline = time.monotonic() + timeout
        while self._last is None:
            wait = 0.0 if self._newest else max(0.0, deadline - time.monotonic())
            if not self._receive(wait):
                break
        newest, self._newest = self._newest, None
        return newest or self._last

    def ask_to_stop(self) -> None:
        """Let it end as Stopped when it next reports progress."""
        self._send(STOP)

    def kill(self) -> None:
        """End it now, whatever it is doing. May be called again."""
        if not self._closed:
            self._process.kill()
            self._process.join()

    def close(self) -> None:
        """Free everything, killing an operation that still runs. May be called again."""
        if self._closed:
            return
        if self._last is not None:
            self._process.join(EXIT_S)
        self.kill()
        self._connection.close()
        self._process.close()
        self._closed = True

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead: poll says how it died
            self._connection.send_bytes(message)

    def _receive(self, timeout: float) -> bool:
        """Take in one message, if one comes in time."""
        if self._closed:
            return False
        try:
            if not self._connection.poll(timeout):
                return False
            message = self._connection.recv()
        except (EOFError, OSError):
            message = self._died()
        except Exception as error:  # whatever unpickling raises
            message = describe(error)
        if isinstance(message, Progressed):
            self._newest = message
        elif isinstance(message, Ready):
            self.device = message.device
        else:
            self._last = message
        self._ready = self._ready or not isinstance(message, Failed)
        return True

    def _died(self) -> Failed:
        self._process.join(EXIT_S)  # its connection closes a moment before it is gone
        if self._process.is_alive():
            self.kill()
        return post_mortem(self._process.exitcode, limited=self.memory_limit is not None)


class SparePool:
    """Children as `make` makes them, one of them ahead of time: loading torch takes seconds."""

    def __init__(self, make: Callable[[], Child], *, spare: bool = True) -> None:
        self._make = make
        self._wanted = spare
        self._spare = make() if spare else None

    def take(self) -> Child:
        """The spare if it is well, else a new child; the next spare starts to load meanwhile."""
        child, self._spare = self._spare, None
        if child is not None and not child.alive:
            child.close()
            child = None
        child = child or self._make()
        if self._wanted:
            self._spare = self._make()
        return child

    def close(self) -> None:
        """End the spare; children that were taken are their takers'."""
        if self._spare is not None:
            self._spare.close()
        self._spare, self._wanted = None, False

    def __enter__(self) -> SparePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process started meanwhile does not hear Ctrl-C before it can ignore it."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # starting this helper of spawn lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
