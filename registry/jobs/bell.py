"""The doorbell: says to workers, through a broker, that a queue has work. It may be lost or late.

What there is to do is in the database alone, where idle workers look now and then by themselves.
So ringing never fails a request, and never holds one up.
"""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.orm import Session

from registry.process.logs import get_log
from registry.tables import DeviceClass

if TYPE_CHECKING:
    from celery import Celery
    from kombu.connection import Connection

RING = "grasp.ring"  # the task's name: the sender does not import the worker
ANY_DEVICE = "grasp"
CONNECT_S = 2.0
ENOUGH = 100  # rings in a broker's queue: each wakes a worker, who then does all there is
# Small messages that nobody waits for, and that do no harm when there are too many.
CELERY: dict[str, Any] = {
    "accept_content": ["json"],
    "task_serializer": "json",
    "task_ignore_result": True,
    "task_acks_late": False,  # the lease carries the safety, not the message
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,  # a ring waits for an idle worker, not in a busy one
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,  # a worker outlives its broker, however long it is away
    "broker_connection_timeout": CONNECT_S,
    "broker_transport_options": {
        "socket_timeout": 30.0,
        "socket_connect_timeout": CONNECT_S,
        "visibility_timeout": 3600,
    },
    "task_default_queue": ANY_DEVICE,
}

log = get_log(__name__)


class Ring(NamedTuple):
    """Which queue has work, and what kind of worker it wants; None: any."""

    queue_id: str
    device_class: DeviceClass | None


Bell = Callable[[Ring], None]


def ring_after_commit(session: Session, ring: Ring) -> None:
    """Note that this transaction gives a queue work."""
    session.info.setdefault(RING, set()).add(ring)


def rings_of(session: Session) -> set[Ring]:
    noted: set[Ring] = session.info.get(RING, set())
    return noted


def silence(_ring: Ring) -> None:
    """The bell without a broker: workers look often enough."""


def celery_queue(device_class: DeviceClass | None) -> str:
    return f"{ANY_DEVICE}.{device_class}" if device_class else ANY_DEVICE


class CeleryBell:
    """Rings through Celery, in a thread of its own."""

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._waiting: SimpleQueue[Ring] = SimpleQueue()
        self._thread: Thread | None = None

    def __call__(self, ring: Ring) -> None:
        self._waiting.put(ring)
        if self._thread is None:
            self._thread = Thread(target=self._send_all, name="bell", daemon=True)
            self._thread.start()

    def _send_all(self) -> None:
        from celery import Celery  # slow to import, and not needed before the first ring

        client = Celery(broker=self._broker_url)
        client.conf.update(CELERY)
        while True:
            rings = self._take()
            try:
                with client.pool.acquire(block=True) as connection:
                    for ring in rings:
                        _send(client, connection, ring)
            except Exception as error:  # whatever the transport raises; all others would, too
                log.warning("the broker does not answer", error=str(error))

    def _take(self) -> set[Ring]:
        """What waits, each once; waits until something does."""
        rings = {self._waiting.get()}
        while True:
            try:
                rings.add(self._waiting.get_nowait())
            except Empty:
                return rings


def _send(client: "Celery", connection: "Connection", ring: Ring) -> None:
    """Unless enough wait already: where no such worker runs, nobody ever takes them away."""
    queue = celery_queue(ring.device_class)
    channel = connection.default_channel
    waiting = channel.queue_declare(queue, durable=True, auto_delete=False)  # type: ignore[no-untyped-call]
    if waiting.message_count < ENOUGH:
        client.send_task(
            RING, args=[ring.queue_id], queue=queue, retry=False, connection=connection
        )


def broker_answers(broker_url: str) -> bool:
    from kombu.connection import Connection
    from kombu.exceptions import OperationalError

    with Connection(broker_url, connect_timeout=CONNECT_S) as connection:  # type: ignore[no-untyped-call]
        try:
            connection.ensure_connection(max_retries=1, timeout=CONNECT_S)
        except OperationalError:
            return False
    return True


def open_bell(broker_url: str | None) -> Bell:
    return CeleryBell(broker_url) if broker_url else silence
