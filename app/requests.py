"""Around every request: its id, its log line, and an answer whatever happens."""

import asyncio
import re
import time
from contextlib import suppress
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import unexpected
from registry.logs import get_log

SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET = ("/healthz", "/readyz", "/metrics")  # asked every few seconds by machines
HEADER = "X-Request-Id"
GONE = 499  # in the log only: the client left before it was answered
# How much is still taken from a client that was refused, so that it can see the answer.
LINGER_SECONDS, LINGER_BYTES = 1.0, 4 * 2**20


class RequestContext:
    """Gives every request an id, or keeps the caller's; logs how it ended."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        began = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
            try:
                await self.app(scope, exchange.receive, exchange.send)
            except ClientDisconnect:
                exchange.status = GONE
            except Exception as error:
                if exchange.started:
                    raise  # too late for an answer: the server cuts the connection
                await unexpected(error)(scope, exchange.receive, exchange.send)
            finally:
                _log(scope, exchange.status, time.perf_counter() - began)


class Exchange:
    """One request and its answer, watched on their way.

    An answer that comes before the body has ended refuses it, and servers would go on reading the
    rest, however large. So the connection is closed after it; not at once, because unread bytes
    make a closing machine reset the connection, and the answer can be lost with it.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        self.request_id = given if SAFE_ID.fullmatch(given) else uuid4().hex
        self.status, self.started = 500, False
        self._receive, self._send = receive, send
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        self._more_body = has_body
        self._refusing = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._more_body = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            headers = MutableHeaders(scope=message)
            headers[HEADER] = self.request_id
            self._refusing = self._more_body and self.status >= 400
            if self._refusing:
                headers["Connection"] = "close"
        elif self._refusing and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _linger(self) -> None:
        taken = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._more_body and taken < LINGER_BYTES:
                    taken += len((await self.receive()).get("body", b""))


def _log(scope: Scope, status: int, seconds: float) -> None:
    log = get_log("app.requests")
    write = log.debug if scope["path"] in QUIET and status < 500 else log.info
    write(
        "request",
        method=scope["method"],
        path=scope["path"],
        status=status,
        milliseconds=round(1000 * seconds, 1),
    )
