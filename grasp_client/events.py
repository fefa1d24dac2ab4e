"""A job followed live, over server-sent events, whatever happens to the connection."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from grasp_client.errors import GraspError, Unreachable
from grasp_client.exchange import Tries, open_response, read_piece
from grasp_client.plans import Call, Plan, at

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

SILENCE_S = 45.0  # the server says something every 15 seconds


class Event(NamedTuple):
    id: str | None
    data: str


class Follower:
    """Gives one state of a job after the other; reconnects by itself, and goes on from there."""

    def __init__(self, client: Grasp | AsyncGrasp, job: str) -> None:
        self._client = client
        self._job = job
        self._tries = Tries(client)
        self._seen: str | None = None  # id of the last event
        self._events: EventReader | None = None  # None: not connected
        self._waiting: deque[Event] = deque()

    def next(self, silence: float = SILENCE_S) -> Plan[dict[str, Any] | None]:
        """The next state; None now and then, when there was nothing new to read.

        Raises Refused, or Unreachable if the server stays away for longer than patience lasts.
        """
        if self._waiting:
            event = self._waiting.popleft()
            self._seen = event.id
            state: dict[str, Any] = json.loads(event.data)
            return state
        try:
            if self._events is None:
                self._events = yield from self._connect(silence)
            self._waiting.extend((yield from self._read(self._events)))
        except GraspError as error:
            self._events = None
            yield from self._tries.pause(error)
        return None

    def _connect(self, silence: float) -> Plan[EventReader]:
        headers = {"Accept": "text/event-stream"}
        if self._seen is not None:
            headers["Last-Event-ID"] = self._seen
        path = at("jobs", self._job, "events")
        yield from open_response(
            self._client, Call("GET", path, headers=headers, read_timeout=silence)
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
