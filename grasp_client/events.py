"""A job followed live, over server-sent events, whatever happens to the connection."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from grasp_client.errors import GraspError, Unreachable
from grasp_client.exchange import Tries, open_response, read_piece
from grasp_client.plans import Call, Plan, at

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

HEARTBEAT_S = 15.0  # the server says something at least as often
SILENCE_S = 3 * HEARTBEAT_S  # then the connection is dead
LATE_S = 0.5  # how much later than asked is in time


class Event(NamedTuple):
    id: str | None
    data: str


class Follower:
    """Gives one state of a job after the other; reconnects by itself, and goes on from there."""

    def __init__(self, client: Grasp | AsyncGrasp, job: str, until: float = math.inf) -> None:
        """`until`, by time.monotonic(): what is read after it comes too late."""
        self._client = client
        self._job = job
        self._until = until
        self._tries = Tries(client)
        self._seen: str | None = None  # id of the last event
        self._events: EventReader | None = None  # None: not connected
        self._silence = SILENCE_S  # how long this connection may say nothing
        self._waiting: deque[Event] = deque()

    @property
    def left(self) -> float:
        """Seconds, until nobody listens any more."""
        return self._until - time.monotonic()

    def next(self) -> Plan[dict[str, Any] | None]:
        """The next state; None now and then, when there was nothing new to read.

        Raises Refused, or Unreachable if the server stays away for longer than patience lasts.
        """
        if not self._waiting:
            yield from self._listen()
        if not self._waiting:
            return None
        event = self._waiting.popleft()
        self._seen = event.id
        state: dict[str, Any] = json.loads(event.data)
        return state

    def _listen(self) -> Plan[None]:
        try:
            if self._events is None or min(self._silence, HEARTBEAT_S) > self.left + LATE_S:
                self._events = yield from self._connect()
            self._waiting.extend((yield from self._read(self._events)))
        except GraspError as error:
            self._events = None
            yield from self._tries.pause(error, until=self._until)

    def _connect(self) -> Plan[EventReader]:
        self._silence = min(SILENCE_S, max(LATE_S, self.left))
        headers = {"Accept": "text/event-stream"}
        if self._seen is not None:
            headers["Last-Event-ID"] = self._seen
        path = at("jobs", self._job, "events")
        yield from open_response(
            self._client, Call("GET", path, headers=headers, timeout=self._silence)
        )
        return EventReader()

    def _read(self, events: EventReader) -> Plan[list[Event]]:
        piece = yield from read_piece(self._client)
        if not piece:
            raise Unreachable(f"{self._client.url} ended the events of {self._job}")
        self._tries.progress()
        return list(events.feed(piece))


class EventReader:
    """Bytes to events, as far as the server uses the format."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        *blocks, self._unread = (self._unread + piece).split(b"\n\n")
        for block in blocks:
            pairs = [line.partition(": ") for line in block.decode().split("\n")]
            fields = {name: value for name, _, value in pairs}
            if "data" in fields:  # and not a comment, which keeps the connection alive
                yield Event(fields.get("id"), fields["data"])
