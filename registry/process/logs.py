"""Structured logs, the same in every process: who asked (request), for what (job, model).

JSON lines have everything; a line in a terminal has what fits, in an order that lines up: when,
how grave, of which job or request, what, and figures.
"""

import logging
import math
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

import structlog

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


# Events that read better as a sentence; what the sentence uses is not printed again beside it.
SENTENCES = {
    "request": "{status} {method} {path}",
    "serving": "serving on {url}",
    "job started": "{kind} started",
    "job ended": "{kind} {status}",
    "stage": "stage {stage}",
    "epoch": "epoch {epoch}",
}
IDS = ("job", "request_id", "worker")  # of these the first that is there is printed
OF_A_JOB = ("model", "source")  # ids that follow from a job's
ELSEWHERE = (*IDS, "timestamp", "level", "event")
BLOCKS = ("stack", "traceback", "exception")  # written below the line
OURS = ("app", "registry", "worker", "grasp_core", "grasp_client", "grasp_cli")
LEVEL_WIDTH, ID_WIDTH, SENTENCE_WIDTH = 7, 32, 28
BOLD, DIM, RED, GREEN, YELLOW, RESET = (f"\x1b[{code}m" for code in (1, 2, 31, 32, 33, 0))
LEVEL_STYLES = {"debug": DIM, "info": GREEN, "warning": YELLOW}
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a terminal would obey them


class ConsoleRenderer:
    """The last of structlog's processors, where a terminal shows the lines."""

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: object, _method: str, record: structlog.typing.EventDict) -> str:
        level = str(record.get("level", ""))
        sentence, said = _sentence(record)
        figures = [
            self._styled(DIM, f"{name}=") + _short(value)
            for name, value in _figures(record, said).items()
        ]
        line = (
            self._styled(DIM, str(record.get("timestamp", ""))),
            self._styled(LEVEL_STYLES.get(level, RED), level.ljust(LEVEL_WIDTH)),
            self._styled(DIM, _id(record).ljust(ID_WIDTH)),
            self._styled(BOLD, sentence.ljust(SENTENCE_WIDTH if figures else 0)),
            *figures,
        )
        blocks = [_safe(str(record[name]).rstrip()) for name in BLOCKS if record.get(name)]
        return "\n".join([" ".join(line), *blocks])

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{RESET}" if self._colors else text


def _id(record: Mapping[str, Any]) -> str:
    return next((_line(str(record[name])) for name in IDS if record.get(name)), "")


def _sentence(record: Mapping[str, Any]) -> tuple[str, set[str]]:
    """What happened, and the names of what that says."""
    event = str(record.get("event", ""))
    template = SENTENCES.get(event, "")
    said = {name for name in record if f"{{{name}}}" in template}
    try:
        return _line(template.format_map(record) or event), said
    except KeyError:  # somebody else's event of this name
        return _line(event), set()


def _figures(record: Mapping[str, Any], said: set[str]) -> dict[str, Any]:
    hidden = {*ELSEWHERE, *BLOCKS, *said}
    if "job" in record:
        hidden.update(OF_A_JOB)
    if str(record.get("logger", "")).partition(".")[0] in OURS:
        hidden.add("logger")
    return {name: value for name, value in record.items() if name not in hidden}


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    text = _line(str(value))
    return f"'{text}'" if " " in text else text


def _line(text: str) -> str:
    return _safe(text).replace("\n", "\\n").replace("\t", "\\t")


def _safe(text: str) -> str:
    return UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
