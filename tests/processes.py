"""Processes that do not outlive the test that started them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

# Before a command, it starts with SIGINT ignored, as what a script starts with `&` does.
IGNORING_INTERRUPTS = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")

MARK = "TEST_RUN"  # a variable that all processes of a run inherit, whoever becomes their parent
IS_FIRST = MARK not in os.environ  # of all processes of the run
RUN = os.environ.setdefault(MARK, uuid4().hex)
LEAVE_S = 5  # for those that are about to end
OWN = "resource_tracker"  # of Python itself: ends with the process that runs the tests


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that has ended when the block has, by itself or killed."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def end_those_of_this_run() -> list[str]:
    """Kill all that the tests started and that do not end by themselves; what they were."""
    _, left = psutil.wait_procs(_of_this_run(), timeout=LEAVE_S)
    killed = []
    for process in left:
        with suppress(psutil.NoSuchProcess):
            killed.append(f"{process.pid} {' '.join(process.cmdline())}")
            process.kill()
    return killed


def _of_this_run() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            ours = process.environ().get(MARK) == RUN and process.pid != os.getpid()
            if ours and OWN not in " ".join(process.cmdline()):
                yield process
