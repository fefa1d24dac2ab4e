"""One line per record, in one format, whichever library wrote it."""

import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import structlog

from registry.logs import configure_logs, get_log
from registry.settings import Settings

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


def test_the_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configured("console", "info")

    with structlog.contextvars.bound_contextvars(job="job_1"):
        get_log("app").info("source accepted", size=3)
        logging.getLogger("library").warning("slow")

    ours, theirs = capsys.readouterr().err.splitlines()
    assert "source accepted" in ours
    assert "size=3" in ours
    assert all("job=job_1" in line and "{" not in line for line in (ours, theirs))


def test_without_a_terminal_auto_means_json(capsys: pytest.CaptureFixture[str]) -> None:
    configured("auto", "info")

    get_log("app").info("hello")

    assert lines(capsys)[0]["event"] == "hello"


def test_a_level_holds_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    configured("json", "warning")

    for log in (get_log("app"), logging.getLogger("library")):
        log.info("quiet")
        log.warning("loud")
    logging.getLogger("alembic").info("quiet")

    assert [line["event"] for line in lines(capsys)] == ["loud", "loud"]


def test_configuring_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    configured("json", "info")
    configured("json", "info")

    logging.getLogger("library").info("once")

    assert len(lines(capsys)) == 1
