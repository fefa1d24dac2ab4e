"""Connections as uvicorn keeps them, but with an end to what each may take: bytes, time, room.

uvicorn's own limits do not suffice: its limit_concurrency counts silent connections like others and
turns health checks away too, and it waits for ever for heads, for bodies and for readers.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from functools import cache
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from app.access.peers import PEER_UID, peer_uid
from app.errors import STATUS, problem
from app.http.bodies import Bodies, Slot
from app.http.requests import (
    LINGER_BYTES,
    LINGER_SECONDS,
    QUIET,
    REFUSED,
    SLOT,
    STOPPING,
    has_body,
    turned_away,
)
from app.metrics import CLOSED_CONNECTIONS, OPEN_CONNECTIONS
from registry.process.logs import get_log
from registry.process.settings import Settings

MAX_HEAD = 2**16  # bytes; httptools has no limit of its own, and anyone may connect
MAX_HEADERS = 128  # lines: each takes some hundred bytes, however short it is
MAX_HEADS = 2**25  # bytes of the heads of all connections together
RESERVE = 32  # connections beyond the limit, to be answered so, and for health checks
MIN_BODY = 1024  # bytes of a body in GRASP_STALL_SECONDS: less than any line that works carries
STOP_SECONDS = 4.0  # that requests under way have when the service is asked to stop
LOG_EVERY = 10.0  # seconds, however many are turned away

log = get_log(__name__)


class Limits(NamedTuple):
    connections: int
    per_address: int
    head_seconds: float
    stall_seconds: float

    @classmethod
    def of(cls, settings: Settings) -> "Limits":
        return cls(
            settings.max_connections,
            settings.max_connections_per_address,
            settings.head_seconds,
            settings.stall_seconds,
        )


class Connections:
    """All of this process: how many there are, of whom, and which of them ask for nothing.

    Where there is no room for a new one, the one that has been silent for longest makes it. So
    whoever opens many and says nothing keeps nobody out.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bodies = Bodies()
        self._open = 0
        self._by_origin: Counter[bytes] = Counter()
        self._silent: OrderedDict[BoundedProtocol, None] = OrderedDict()  # the longest first
        self._heads = 0  # bytes of all heads
        self._logged = -LOG_EVERY
        self._closed_since = 0

    @property
    def crowded(self) -> bool:
        return self._open > self.limits.connections

    def add(self, connection: "BoundedProtocol") -> bool:
        """Whether there is room for it, if need be that of a silent one."""
        self._open += 1
        self._by_origin[connection.origin] += 1
        OPEN_CONNECTIONS.set(self._open)
        if connection.origin and self._by_origin[connection.origin] > self.limits.per_address:
            others = (c for c in self._silent if c.origin == connection.origin)
            if not self._close_first(others, "address"):
                self._count("address")
                return False
        elif self.crowded and not self._close_first(iter(self._silent), "limit"):
            self._count("limit")
            if self._open > self.limits.connections + RESERVE:
                return False
        self.may_close(connection)
        return True

    def remove(self, connection: "BoundedProtocol") -> None:
        self._open -= 1
        self._by_origin[connection.origin] -= 1
        if not self._by_origin[connection.origin]:
            del self._by_origin[connection.origin]
        OPEN_CONNECTIONS.set(self._open)
        self._silent.pop(connection, None)
        self.hold(connection, 0)

    def may_close(self, connection: "BoundedProtocol") -> None:
        """It has no request under way that would be lost, from now on."""
        self._silent[connection] = None

    def keep(self, connection: "BoundedProtocol") -> None:
        self._silent.pop(connection, None)

    def hold(self, connection: "BoundedProtocol", count: int) -> None:
        """So many bytes of a head are in memory; too many of all cost the longest silent one."""
        self._heads += count - connection.held
        connection.held = count
        if self._heads > MAX_HEADS:
            self._close_first((c for c in self._silent if c.held), "limit")

    def close(self, connection: "BoundedProtocol", why: str) -> None:
        """At once: whoever does not read shall not keep it open."""
        self._count(why)
        self.keep(connection)
        connection.transport.abort()

    def _close_first(self, silent: Iterator["BoundedProtocol"], why: str) -> bool:
        longest = next(silent, None)
        if longest is not None:
            self.close(longest, why)
        return longest is not None

    def _count(self, why: str) -> None:
        CLOSED_CONNECTIONS.labels(why).inc()
        if why not in ("address", "limit"):
            return
        self._closed_since += 1
        now = time.monotonic()
        if now - self._logged >= LOG_EVERY:
            log.warning(
                "too many connections: silent ones are closed, and new ones turned away",
                open=self._open,
                closed=self._closed_since,
                reached="GRASP_MAX_CONNECTIONS"
                if why == "limit"
                else "GRASP_MAX_CONNECTIONS_PER_ADDRESS",
            )
            self._logged, self._closed_since = now, 0


@cache
def all_connections() -> Connections:
    """Of a process that another program than `grasp serve` started, with this protocol."""
    return Connections(Limits.of(Settings()))


class HeadTooLarge(Exception):
    """Ends the parsing of a head."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose head, body and reader come to an end, or it does."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.origin = b""  # whoever it counts for; nobody on this machine, where proxies are
        self.held = 0  # bytes of the head, while it is in memory
        self._all = connections or all_connections()
        self._asking = False  # a request is under way
        self._answered = False  # in the application's place, and will close
        self._slot: Slot | None = None  # of the body that arrives; of those before, all has come
        self._fresh = 0  # bytes that came since the application last got something of them
        self._dropped = 0  # bytes of a body that was refused
        self._head_bytes = self._head_lines = 0
        self._heads = self._received = self._drained = 0  # what moves on, if anything does
        self._mark: tuple[object, ...] = ("head", 0)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER_UID: peer_uid(transport)}  # of every request
        self.origin = _origin(self.client[0] if self.client else "")
        if not self._all.add(self):
            self._answer(turned_away())
        self._timer = self.loop.call_later(self._all.limits.head_seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._all.remove(self)
        self._release()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self._asking:
            self.loop.call_later(STOP_SECONDS, self._stop)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._fresh += len(data)
        super().data_received(data)
        if self._fresh > MAX_HEAD and not self.transport.is_closing():
            self._refuse_head()
        if not self._asking:
            self._all.hold(self, self._fresh)

    def send_400_response(self, msg: str) -> None:
        """Where the parser gave up: because of us, or because it is no HTTP."""
        if self._head_bytes > MAX_HEAD or self._head_lines > MAX_HEADERS:
            self._refuse_head()
        else:
            self._answer(_problem("invalid_http", msg))

    def on_message_begin(self) -> None:
        self._head_bytes = self._head_lines = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_lines += 1
        self._count_head(len(name) + len(value) + 4)  # ": " and the end of the line
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._fresh = 0
        self._heads += 1
        self._asking = True
        self._all.keep(self)
        self._all.hold(self, self._head_bytes)
        self._look_at_crowd()
        self._believe_target()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._fresh = 0
        self._received += len(body)
        if not self.scope["state"].get(REFUSED):
            super().on_body(body)
        else:
            self._drop(len(body))

    def on_message_complete(self) -> None:
        self._release()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._asking = False
            self._all.hold(self, self._fresh)
            self._all.may_close(self)
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._drained += 1
        super().resume_writing()

    def _look_at_crowd(self) -> None:
        """The application turns away what is too many; its health can be asked for always."""
        sends_body = has_body(Headers(raw=self.headers))
        asked = self.url.partition(b"?")[0].decode("latin-1")
        self._slot = self._all.bodies.add() if sends_body else None
        crowded = self._all.crowded or (sends_body and self._slot is None)
        if crowded and asked not in QUIET:
            self._release()
            self.scope["state"][REFUSED] = True
            self._all.may_close(self)  # its answer matters less than whoever comes next
        else:
            self.scope["state"][SLOT] = self._slot

    def _believe_target(self) -> None:
        """A target that is a whole URI names the host, whatever Host says (RFC 9112, 3.2.2)."""
        if self.url[:1] not in (b"/", b"*"):
            authority = urlsplit(self.url).netloc
            self.headers[:] = [
                (name, authority if name == b"host" else value) for name, value in self.headers
            ]

    def _drop(self, count: int) -> None:
        """A body that nobody wants is taken for a while, for its sender to see the answer."""
        self._dropped += count
        if self._dropped > LINGER_BYTES:
            self.flow.pause_reading()

    def _release(self) -> None:
        if self._slot is not None:
            self._slot.release()

    def _count_head(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > MAX_HEAD or self._head_lines > MAX_HEADERS:
            raise HeadTooLarge

    def _look(self) -> None:
        """Close what has not moved on since the last look; then look again later."""
        limits = self._all.limits
        before, self._mark = self._mark, self._moved()
        waits_for = str(self._mark[0])
        if self._mark == before and waits_for != "server":
            self._give_up(waits_for)
        seconds = limits.head_seconds if waits_for == "head" else limits.stall_seconds
        self._timer = self.loop.call_later(seconds, self._look)

    def _moved(self) -> tuple[object, ...]:
        """Who has to do something now, and how far they are."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and (self.flow.write_paused or self.transport.is_closing()):
            return "reader", self._drained, unsent
        if self._answered:
            return ("server",)
        if not self._asking:
            return "head", self._heads
        if self.cycle.more_body and not (
            self.flow.read_paused or self.cycle.waiting_for_100_continue
        ):
            return "body", self._heads, self._received // MIN_BODY
        return ("server",)

    def _give_up(self, waits_for: str) -> None:
        if waits_for == "body" and not self.cycle.response_started:
            CLOSED_CONNECTIONS.labels("body").inc()
            detail = f"too little of the body came: a stalled upload needs {MIN_BODY} bytes every"
            detail += f" {self._all.limits.stall_seconds:g} seconds"
            self._answer_request(_problem("too_slow", detail))
        else:
            self._all.close(self, waits_for)

    def _stop(self) -> None:
        """End what is still under way, so that whoever asked can ask again elsewhere or later."""
        if not self._asking or self._answered or self.transport.is_closing():
            return
        self.cycle.scope["state"][STOPPING] = True
        if self.cycle.response_started:
            self.transport.abort()
        else:
            self._answer_request(turned_away("the service is stopping"))

    def _refuse_head(self) -> None:
        detail = f"the head of a request may have {MAX_HEAD} bytes and {MAX_HEADERS} headers"
        self._answer(_problem("head_too_large", detail))

    def _answer_request(self, answer: Response) -> None:
        """The application sees that the client is gone. The rest of a body is awaited for a while:
        a machine that closes with bytes unread resets the connection, and its answer is lost."""
        self._answer(answer, LINGER_SECONDS if self.cycle.more_body else 0.0)
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self.flow.resume_reading()

    def _answer(self, answer: Response, linger: float = 0.0) -> None:
        """In the application's place, and close."""
        self._answered = True
        lines = [STATUS_LINE[answer.status_code]]
        for name, value in (*self.server_state.default_headers, *answer.raw_headers):
            lines += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*lines, b"\r\n", bytes(answer.body)]))
        if linger:
            self.loop.call_later(linger, self.transport.close)
        else:
            self.transport.close()


def _problem(code: str, detail: str) -> Response:
    return problem(STATUS[code], code, detail, headers={"Connection": "close"})


def _origin(address: str) -> bytes:
    """Of IPv6 the network that one customer gets; of this machine nothing."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:  # a socket of this machine has none
        return b""
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    return b"" if found.is_loopback else found.packed[:8]
