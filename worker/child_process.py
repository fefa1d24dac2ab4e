"""What happens inside a child process.

The main thread computes, one thread listens to the parent (and ends the process when the parent is
gone), and one sends, so that a slow parent holds up nothing.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue
from threading import Event as Flag
from threading import Thread

import structlog

from grasp_core.errors import FoldStopped
from grasp_core.operations import Live
from worker.messages import STOP, Finished, Last, Order, Progressed, Ready, Stopped, describe

if sys.platform != "win32":
    import resource

PROGRESS_S = 0.25  # as often as anyone can read it
STATM = Path("/proc/self/statm")

Setup = Callable[[], None]


def main(connection: Connection, setup: Setup | None, threads: int | None, warm: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    inbox, outbox = _Inbox(connection), _Outbox(connection)
    try:
        if setup is not None:
            setup()
        outbox.offer(Ready(_load(threads, warm)))
        order = pickle.loads(inbox.orders.get())  # noqa: S301 - the parent's own
        last: Last = _run(order, inbox.stop, outbox)
    except Exception as error:
        last = describe(error)
    outbox.finish(last)
    os._exit(0)  # all is said and written; unloading torch would take a second of the processor


def _load(threads: int | None, warm: bool) -> str | None:
    """Import what takes seconds, if `warm`; then also the device that `auto` means."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it when it is loaded
    if not warm:
        return None
    import torch

    from grasp_core import fold  # noqa: F401
    from grasp_core.kinds import KINDS
    from grasp_core.runtime import choose_device

    for kind in KINDS.values():
        with suppress(Exception):  # what is wrong with one is said by the first job that needs it
            kind.load()

    if threads is not None:
        torch.set_num_threads(threads)
    device = choose_device("auto")
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _run(order: Order, stop: Flag, outbox: _Outbox) -> Finished | Stopped:
    structlog.contextvars.bind_contextvars(**order.log_context)
    try:
        with _memory_limited(order.memory_limit):
            return Finished(order.operation.run(_Reporter(stop, outbox)))
    except FoldStopped:
        return Stopped()


@contextmanager
def _memory_limited(limit: int | None) -> Iterator[None]:
    """Allocations beyond `limit` bytes in all fail; reporting it afterwards does not."""
    if limit is None or sys.platform == "win32":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit + _untouched_bytes()
    if hard != resource.RLIM_INFINITY:
        allowed = min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _untouched_bytes() -> int:
    """What was allocated and never used: after loading torch, half a gigabyte."""
    if not STATM.exists():
        return 0
    _, resident, shared, _, _, data, _ = map(int, STATM.read_text().split())
    return max(0, data - (resident - shared)) * mmap.PAGESIZE


class _Reporter:
    """Offers progress when the stage changes, else now and then."""

    def __init__(self, stop: Flag, outbox: _Outbox) -> None:
        self._stop = stop
        self._outbox = outbox
        self._stage: str | None = None
        self._due = 0.0

    def __call__(self, stage: str, fraction: float, metrics: Live) -> None:
        if self._stop.is_set():
            raise FoldStopped(f"stopped in stage {stage} at {fraction:.0%}")
        now = time.monotonic()
        if stage == self._stage and now < self._due:
            return
        self._stage, self._due = stage, now + PROGRESS_S
        plain = {n: v if isinstance(v, str) else float(v) for n, v in metrics.items()}
        self._outbox.offer(Progressed(stage, float(fraction), plain))


class _Inbox:
    """What the parent says: an order, and perhaps a stop. Its silence ends the process."""

    def __init__(self, connection: Connection) -> None:
        self.orders: Queue[bytes] = Queue()
        self.stop = Flag()
        self._connection = connection
        Thread(target=self._listen, name="inbox", daemon=True).start()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                message = self._connection.recv_bytes()
                if message == STOP:
                    self.stop.set()
                else:
                    self.orders.put(message)
        os._exit(1)  # the parent is gone: nobody would take the result


class _Outbox:
    """Sends in a thread of its own, so that a parent who does not read holds up nothing."""

    def __init__(self, connection: Connection) -> None:
        self._waiting: Queue[bytes | None] = Queue(maxsize=1)
        self._connection = connection
        self._sender = Thread(target=self._send, name="outbox", daemon=True)
        self._sender.start()

    def offer(self, message: Progressed | Ready) -> None:
        """Send it soon, instead of what could not be sent yet."""
        with suppress(Empty):
            self._waiting.get_nowait()
        self._waiting.put_nowait(pickle.dumps(message))

    def finish(self, last: Last) -> None:
        """Send the last message, and return when the parent's end has it."""
        try:
            packed = pickle.dumps(last)
        except Exception as error:  # a result that cannot travel
            packed = pickle.dumps(describe(error))
        self._waiting.put(packed)
        self._waiting.put(None)
        self._sender.join()

    def _send(self) -> None:
        while (message := self._waiting.get()) is not None:
            with suppress(OSError):  # the parent is gone: the inbox notices too
                self._connection.send_bytes(message)
