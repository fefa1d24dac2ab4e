"""Structured logs, the same in every process: who asked (request), for what (job, model)."""

import logging
import math
import os
import sys
import time
from typing import Any

import structlog

from registry.process.console import ConsoleRenderer
from registry.process.settings import Settings

SHARED: tuple[structlog.typing.Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.StackInfoRenderer(),
)

REMIND_S = 600.0  # between two lines of the same warning


def configure_logs(settings: Settings | None = None) -> None:
    """Send structlog's and the standard library's records to stderr in one format."""
    settings = settings or Settings()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_renderers(settings),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    for noisy in ("alembic", "uvicorn", "httpx", "httpx2", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _renderers(settings: Settings) -> list[structlog.typing.Processor]:
    stamp, traceback = structlog.processors.TimeStamper, structlog.processors.format_exc_info
    terminal = sys.stderr.isatty()
    if settings.log_format == "console" or (settings.log_format == "auto" and terminal):
        colors = terminal and not os.environ.get("NO_COLOR")
        return [stamp(fmt="%H:%M:%S", utc=False), traceback, ConsoleRenderer(colors=colors)]
    return [stamp(fmt="iso", utc=True), traceback, structlog.processors.JSONRenderer()]


def get_log(name: str) -> Any:
    return structlog.stdlib.get_logger(name)


class RepeatedWarning:
    """Of what goes wrong again and again: logged when it begins or changes, and then rarely."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._logged: tuple[str, dict[str, str]] | None = None
        self._logged_at = -math.inf

    def log(self, event: str, **details: str) -> None:
        now = time.monotonic()
        if (event, details) != self._logged or now - self._logged_at > REMIND_S:
            self._log.warning(event, **details)
            self._logged, self._logged_at = (event, details), now

    def clear(self) -> None:
        """It works; said only where it did not before."""
        if self._logged is not None:
            self._log.info("that is over", trouble=self._logged[0])
            self._logged = None
