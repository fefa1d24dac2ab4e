"""Worker processes that are kept running, and end with the process that keeps them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from threading import Event, Thread

from registry.process.logs import get_log

STOP_S = 30  # for workers to hand back what they run
RESTART_S = (1, 2, 5, 10, 30)  # pauses before a worker that keeps dying is started again
HEALTHY_S = 60  # a worker that lived so long does not keep dying

log = get_log(__name__)


class Workers:
    """One worker for each of the given environments, which are added to our own."""

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self._stop = Event()
        self._threads = [
            Thread(target=self._keep_one, args=(environment,), name=f"worker-{number}")
            for number, environment in enumerate(environments)
        ]

    def __enter__(self) -> "Workers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _keep_one(self, environment: Mapping[str, str]) -> None:
        deaths = 0
        while not self._stop.is_set():
            began = time.monotonic()
            code = self._run_one(environment)
            if self._stop.is_set():
                return
            deaths = 0 if time.monotonic() - began > HEALTHY_S else deaths
            pause = RESTART_S[min(deaths, len(RESTART_S) - 1)]
            log.error("a worker died; starting another", exit_code=code, after_seconds=pause)
            deaths += 1
            self._stop.wait(pause)

    def _run_one(self, environment: Mapping[str, str]) -> int | None:
        """Its exit code; None if it could not be started at all."""
        command = [sys.executable, "-m", "worker"]
        try:
            # The worker reads its standard input to its end, which comes with ours.
            process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            log.error("cannot start a worker", error=str(error))
            return None
        return self._wait(process)

    def _wait(self, process: "subprocess.Popen[bytes]") -> int:
        while process.poll() is None and not self._stop.wait(0.2):
            pass
        if process.stdin is not None:
            process.stdin.close()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return process.wait()
