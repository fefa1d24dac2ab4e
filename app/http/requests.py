"""Around every request: its id, its log line, its count, its span, and an answer in any case."""

import asyncio
import math
import re
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from traceback import clear_frames
from typing import Any, TypeVar
from uuid import uuid4

import structlog
from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import RETRY_SECONDS, problem, unexpected
from app.http.bodies import Slot
from app.metrics import OTHER, RequestMetrics, route_of
from app.startup import Startup
from registry.process.logs import get_log
from registry.process.tracing import log_context, set_attributes, set_failed, traced

SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET = ("/healthz", "/readyz", "/metrics")  # asked every few seconds by machines
HEADER = "X-Request-Id"
# Of every answer that does not say otherwise: what an owner may read, caches on the way keep not.
UNLESS_SAID = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# In the scope's state:
REFUSED = "refused"  # nobody wants what is still to come of its body
SLOT = "slot"  # of its body, if it has one and the server counts them
STOPPING = "stopping"  # the service ends, and has said so to the client
GONE = 499  # in the log only: the client left before it was answered
# How much is still taken from a client that was refused, so that it can see the answer.
LINGER_SECONDS, LINGER_BYTES = 1.0, 4 * 2**20
NOBODY = ""  # whose bodies those are that need no key
Result = TypeVar("Result")


class RequestContext:
    """Gives every request an id, or keeps the caller's; logs, counts and traces how it ended."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})
        exchange = Exchange(scope, receive, send, self._metrics)
        scope["state"]["request_id"] = exchange.request_id
        with _traced(scope, exchange) as ids, structlog.contextvars.bound_contextvars(**ids):
            app = _refusal(scope) or self.app
            try:
                await app(scope, exchange.receive, exchange.send)
            except ClientDisconnect:
                exchange.status = GONE
            except asyncio.CancelledError:
                if not scope["state"].get(STOPPING):
                    raise
                exchange.status = GONE
            except Exception as error:
                if exchange.started:
                    raise  # too late for an answer: the server cuts the connection
                await unexpected(error)(scope, exchange.receive, exchange.send)
            finally:
                exchange.end()
                self._metrics.answered(scope, exchange.status, exchange.seconds_to_answer)
                _log(scope, exchange.status, exchange.seconds)


class Exchange:
    """One request and its answer, watched on their way.

    An answer that comes before the body has ended refuses it, and servers would go on reading the
    rest, however large. So the connection is closed after it; not at once, because unread bytes
    make a closing machine reset the connection, and the answer can be lost with it.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, metrics: RequestMetrics) -> None:
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        self.request_id = given if SAFE_ID.fullmatch(given) else uuid4().hex
        self.status, self.started = 500, False
        self._receive, self._send, self._metrics = receive, send, metrics
        self._began, self._answered = time.perf_counter(), math.inf
        self._more_body = has_body(headers)
        self._refusing = False
        self._state = scope["state"]

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def seconds_to_answer(self) -> float:
        """Until the answer began: how long all of it takes is also the client's doing."""
        return min(self.seconds, self._answered - self._began)

    async def receive(self) -> Message:
        """Raises Busy where the caller sends as many bodies as they may."""
        slot: Slot | None = self._state.get(SLOT)
        if slot is not None and not self.started:
            caller = self._state.get("caller")
            slot.assign(caller.owner if caller else NOBODY)
        message = await self._receive()
        self._more_body = message["type"] == "http.request" and message.get("more_body", False)
        self._metrics.received(len(message.get("body", b"")))
        return message

    async def send(self, message: Message) -> None:
        self._metrics.sent(len(message.get("body", b"")))
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            self._answered = time.perf_counter()
            headers = MutableHeaders(scope=message)
            headers[HEADER] = self.request_id
            for name, value in UNLESS_SAID.items():
                headers.setdefault(name, value)
            self._refusing = self._more_body and self.status >= 400
            if self._refusing:
                headers["Connection"] = "close"
                self._state[REFUSED] = True
                self.end()
        elif self._refusing and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body"}
        await self._send(message)

    def end(self) -> None:
        """What still comes of the body takes no room from others."""
        slot: Slot | None = self._state.get(SLOT)
        if slot is not None:
            slot.release()

    async def _linger(self) -> None:
        _forget_frames(sys.exception())
        taken = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._more_body and taken < LINGER_BYTES:
                    taken += len((await self.receive()).get("body", b""))


def _forget_frames(error: BaseException | None) -> None:
    """Of an error that is being answered: they hold what came of the body, for as long as it is."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__context__


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What comes of the work. Raises ClientDisconnect as soon as nobody is there to hear it."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_client_leaves(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await leaving  # which raises Busy where its body is one too many
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _client_leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refusal(scope: Scope) -> ASGIApp | None:
    """The answer to a request that does not reach the application."""
    if scope["state"].get(REFUSED):
        return turned_away()
    if not _names_one_host(scope):
        return problem(400, "invalid_host", "a request has exactly one Host header")
    startup: Startup = scope["app"].state.startup
    return startup.turn_away(scope["path"])


def _names_one_host(scope: Scope) -> bool:
    """Of two, a proxy may have believed one and we the other (RFC 9112, 3.2)."""
    hosts = len(Headers(scope=scope).getlist("host"))
    return hosts == 1 or (hosts == 0 and scope["http_version"] == "1.0")


def turned_away(
    detail: str = "the service has as many connections as it can serve",
) -> Response:
    """The answer to one who comes at a bad moment."""
    headers = {"Retry-After": str(RETRY_SECONDS), "Connection": "close"}
    return problem(503, "unavailable", detail, headers=headers, hint="try again in a while")


def has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


@contextmanager
def _traced(scope: Scope, exchange: Exchange) -> Iterator[dict[str, str]]:
    """A span around the request, unless a machine asks; gives the ids for its log lines."""
    ids = {"request_id": exchange.request_id}
    if scope["path"] in QUIET:
        yield ids
        return
    method = scope["method"]
    about = {
        "http.request.method": method,
        "url.path": scope["path"],
        "grasp.request_id": exchange.request_id,
    }
    with traced(
        method, parent=Headers(scope=scope), kind=SpanKind.SERVER, attributes=about
    ) as span:
        try:
            yield ids | log_context(span)
        finally:
            route, status = route_of(scope), exchange.status
            span.update_name(f"{method} {route}")
            known = None if route == OTHER else route
            set_attributes(span, {"http.route": known, "http.response.status_code": status})
            if status >= 500:
                set_failed(span, str(status))


def _log(scope: Scope, status: int, seconds: float) -> None:
    log = get_log("app.http.requests")
    write = log.debug if scope["path"] in QUIET and status < 500 else log.info
    client, caller = scope.get("client"), scope["state"].get("caller")
    who = {
        "client": client[0] if client else None,
        "owner": caller.owner if caller else None,
        "key": caller.key if caller else None,
    }
    write(
        "request",
        method=scope["method"],
        path=scope["path"],
        status=status,
        milliseconds=round(1000 * seconds, 1),
        **{name: value for name, value in who.items() if value},
    )
