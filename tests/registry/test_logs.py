"""One line per record, in one format, whichever library wrote it."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import structlog

from registry.process.logs import RepeatedWarning, configure_logs, get_log
from registry.process.settings import Settings

pytestmark = pytest.mark.usefixtures("no_settings")

Format = Literal["auto", "console", "json"]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def configured(log_format: Format, level: Literal["debug", "info", "warning", "error"]) -> None:
    configure_logs(Settings(log_format=log_format, log_level=level))


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_record_is_a_line_of_json_with_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    configured("json", "info")

    with structlog.contextvars.bound_contextvars(request="req_1", job="job_1"):
        get_log("app").info("source accepted", size=3)
        logging.getLogger("library").warning("slow %s", "query")
    get_log("app").info("outside")

    ours, theirs, outside = lines(capsys)
    assert (ours["event"], ours["size"], ours["level"]) == ("source accepted", 3, "info")
    assert (ours["request"], ours["job"], ours["logger"]) == ("req_1", "job_1", "app")
    assert (theirs["event"], theirs["level"]) == ("slow query", "warning")
    assert (theirs["request"], theirs["job"], theirs["logger"]) == ("req_1", "job_1", "library")
    assert ours["timestamp"].endswith("Z")
    assert "request" not in outside


def test_an_exception_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configured("json", "info")

    for log in (get_log("app"), logging.getLogger("library")):
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("it went wrong")

    ours, theirs = lines(capsys)
    for line in (ours, theirs):
        assert line["event"] == "it went wrong"
        assert "ValueError: broken" in line["exception"]


def test_values_that_json_does_not_know_are_written_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configured("json", "info")

    get_log("app").info("odd", value={1, 2}, text="two\nlines")

    (line,) = lines(capsys)
    assert line["text"] == "two\nlines"


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of a terminal, without the time they begin with."""
    found = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in found)
    return [line[9:] for line in found]


def test_the_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configured("console", "info")

    with structlog.contextvars.bound_contextvars(job="job_1", model="mdl_1", request_id="req_1"):
        get_log("app").info("source accepted", size=3, loss=0.123456, reason="it fits")
        logging.getLogger("library").warning("slow")

    ours, theirs = shown(capsys)
    assert ours.split()[:4] == ["info", "job_1", "source", "accepted"]
    assert ours.endswith(" size=3 loss=0.1235 reason='it fits'")
    assert theirs.split() == ["warning", "job_1", "slow", "logger=library"]


def test_lines_of_the_console_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    configured("console", "debug")
    log = get_log("app")

    with structlog.contextvars.bound_contextvars(request_id="0" * 32):
        log.debug("looked", answer=42)
    with structlog.contextvars.bound_contextvars(job="job_01m7hhfsfr6ngys6g9bgvb513x"):
        log.warning("looked", answer=42)
    log.info("looked", answer=42)

    found = shown(capsys)
    assert len({line.index("looked") for line in found}) == 1
    assert len({line.index("answer") for line in found}) == 1
    assert found[0].split()[:2] == ["debug", "0" * 32]


@pytest.mark.parametrize(
    ("event", "fields", "line"),
    [
        (
            "request",
            {"method": "GET", "path": "/models", "status": 200, "milliseconds": 1234.5},
            "info 200 GET /models milliseconds=1234",
        ),
        ("job started", {"kind": "fold", "name": "faces"}, "info fold started name=faces"),
        (
            "job ended",
            {"kind": "fold", "status": "succeeded", "version": 3, "accuracy": 0.98765},
            "info fold succeeded version=3 accuracy=0.9877",
        ),
        ("epoch", {"epoch": 2, "loss": 0.5}, "info epoch 2 loss=0.5"),
        ("request", {"only": "somebody else's"}, "info request only='somebody else's'"),
    ],
)
def test_some_events_are_sentences(
    event: str, fields: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configured("console", "info")

    get_log("app").info(event, **fields)

    (found,) = shown(capsys)
    assert found.split() == line.split()


def test_nobody_can_write_lines_of_their_own_into_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configured("console", "info")
    path = "/a\n12:00:00 info all is well\x1b[2J\x9b"

    with structlog.contextvars.bound_contextvars(request_id="\x1b[31m"):
        get_log("app").info("request", method="GET", path=path, status=404)
        get_log("app").info("odd", path=path)

    for line in shown(capsys):
        assert r"/a\n12:00:00 info all is well\x1b[2J\x9b" in line
        assert line.isprintable()


def test_a_traceback_follows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configured("console", "info")

    try:
        raise ValueError("broken")
    except ValueError:
        get_log("app").exception("it went wrong", code="x")

    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("code=x")
    assert others[0] == "Traceback (most recent call last):"
    assert others[-1] == "ValueError: broken"


@pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_has_colors_unless_it_wants_none(
    variables: dict[str, str],
    colored: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configured("auto", "info")

    get_log("app").warning("careful", size=3)

    line = capsys.readouterr().err
    assert ("\x1b[33mwarning" in line) is colored
    assert re.sub(r"\x1b\[\d+m", "", line)[9:].split() == ["warning", "careful", "size=3"]


def test_without_a_terminal_auto_means_json(capsys: pytest.CaptureFixture[str]) -> None:
    configured("auto", "info")

    get_log("app").info("hello")

    assert lines(capsys)[0]["event"] == "hello"


def test_a_level_holds_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    configured("json", "warning")

    for log in (get_log("app"), logging.getLogger("library")):
        log.info("quiet")
        log.warning("loud")
    for theirs in ("alembic", "uvicorn.error"):
        logging.getLogger(theirs).info("quiet")

    assert [line["event"] for line in lines(capsys)] == ["loud", "loud"]


def test_configuring_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    configured("json", "info")
    configured("json", "info")

    logging.getLogger("library").info("once")

    assert len(lines(capsys)) == 1


def test_a_warning_is_logged_when_it_begins_or_changes_and_when_it_is_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured("json", "info")
    now = 0.0
    monkeypatch.setattr("registry.process.logs.time.monotonic", lambda: now)
    warning = RepeatedWarning(get_log("worker"))

    def logged(error: str) -> list[str]:
        warning.log("it fails", error=error)
        return [line["error"] for line in lines(capsys)]

    warning.clear()  # there was none
    assert logged("a") == ["a"]
    assert logged("a") == []
    assert logged("b") == ["b"]
    now = 1000.0
    assert logged("b") == ["b"]  # a reminder
    warning.clear()
    warning.clear()
    assert [(line["event"], line["trouble"]) for line in lines(capsys)] == [
        ("that is over", "it fails")
    ]
    assert logged("b") == ["b"]
