"""The tests themselves: none runs for ever, and none leaves a process behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import MARK
from tests.worker.waiting import is_gone, until

ROOT = Path(__file__).parents[1]
BAD_TESTS = """
import subprocess, time
from contextlib import suppress
from pathlib import Path
from tests.processes import running

def note(process):
    Path(f"{process.pid}.pid").touch()

def test_that_forgets():
    process = subprocess.Popen(["sleep", "1001"])
    note(process)
    process.returncode = 0  # or Python itself would complain

def test_that_waits():
    with running(["sleep", "1002"]) as process:
        note(process)
        process.wait()

def test_that_cannot_be_stopped():
    note(subprocess.Popen(["sleep", "1003"]))
    while True:
        with suppress(BaseException):
            time.sleep(1000)
"""


@pytest.mark.proof
def test_bad_tests_fail_and_are_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run of their own, with the settings of this one but for shorter limits."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    (tmp_path / "test_bad.py").write_text(BAD_TESTS)
    monkeypatch.delenv(MARK)
    limits = ("-o", "timeout=2", "-o", "faulthandler_timeout=4")

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", "-c", ROOT / "pyproject.toml", *limits, tmp_path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    said = run.stdout + run.stderr
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, said
    assert (
        "2 failed, 1 passed" in said
    )  # who forgot a process cannot be known, so the run has failed
    assert "Failed: Timeout (>2.0s) from pytest-timeout" in said
    assert "while running 'test_bad.py::test_that_cannot_be_stopped'" in said
    assert "in test_that_cannot_be_stopped" in said  # a line of its stack
    left = said.partition("not ended by it:")[2]
    assert ("sleep 1001" in left, "sleep 1002" in left, "sleep 1003" in left) == (True, False, True)
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 3
    until(lambda: all(map(is_gone, pids)))
