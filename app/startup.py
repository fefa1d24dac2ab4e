"""From the first look at the database to the first request that is served."""

import asyncio
import os
import signal
from collections.abc import Callable
from threading import Event

from starlette.responses import Response

from app.errors import RETRY_SECONDS, problem
from app.service import Service
from registry.database import wait_until_ready
from registry.errors import NotReady
from registry.process.logs import RepeatedWarning, get_log

HEALTH = ("/healthz", "/readyz")  # what is answered before
FIRST_LOOK_S = 2.0  # for a database server that is there, before the first request is let in

log = get_log(__name__)


class Refused(Exception):
    """The service does not start; the message says what to do."""


class Startup:
    """Waits for the database; until it can be used, all but health checks are turned away.

    `admit` looks at it first, and may raise Refused. Then, or if waiting was in vain, `error` says
    why, and this process is asked to end.
    """

    def __init__(self, service: Service, admit: Callable[[Service], None]) -> None:
        self.reason: str | None = "the service has not looked at its database yet"
        self.error: Exception | None = None
        self._service = service
        self._admit = admit
        self._stopping = Event()
        self._warning = RepeatedWarning(log)
        self._thread: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Return when the service is ready or, if its database is a server's, soon."""
        self._thread = asyncio.create_task(asyncio.to_thread(self._run))
        embedded = self._service.settings.embedded
        await asyncio.wait({self._thread}, timeout=None if embedded else FIRST_LOOK_S)

    async def end(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            await self._thread

    def turn_away(self, path: str) -> Response | None:
        """The answer to a request that comes too early."""
        if self.reason is None or path in HEALTH:
            return None
        headers = {"Retry-After": str(RETRY_SECONDS)}
        detail = f"the service is starting: {self.reason}"
        return problem(503, "unavailable", detail, headers=headers, hint="try again in a while")

    def _run(self) -> None:
        try:
            seconds = self._service.settings.database_wait_seconds
            wait_until_ready(self._service.database.prepare, seconds, self._tell, self._stopping)
            self._admit(self._service)
        except Exception as error:
            if not self._stopping.is_set():
                self.error = error
                log.error("the service does not start", error=str(error))
                os.kill(os.getpid(), signal.SIGTERM)
            return
        self._warning.clear()
        self.reason = None

    def _tell(self, error: NotReady) -> None:
        self.reason = error.message
        self._warning.log(error.message, error=error.hint or "", hint="it is waited for")
