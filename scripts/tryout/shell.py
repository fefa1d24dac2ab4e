"""One bash that all commands of a page run in, and the service that runs beside it."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Timer
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

STOP_S = 40  # a little more than `grasp serve` gives its workers


class Answer(NamedTuple):
    printed: str
    status: int


class Stuck(Exception):
    """A command did not end, or the service did not start."""


class Shell:
    """Commands share variables, folder and environment, as in one terminal."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],  # noqa: S607 - wherever the system has it
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self._mark = f"--- end {os.urandom(8).hex()}"

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._bash, signal.SIGKILL)
        self._bash.communicate()  # closes the pipes

    def run(self, command: str, seconds: float) -> Answer:
        """Raises Stuck if it takes longer. `$?` is that of the command before."""
        assert self._bash.stdin  # noqa: S101 - a pipe
        assert self._bash.stdout  # noqa: S101
        script = (
            f"eval {shlex.quote(command)} </dev/null; __status=$?;"
            f" printf '\\n%s %s\\n' '{self._mark}' $__status; (exit $__status)\n"
        )
        timer = Timer(seconds, _end, (self._bash, signal.SIGKILL))
        timer.start()
        try:
            self._bash.stdin.write(script)
            self._bash.stdin.flush()
            lines: list[str] = []
            for line in self._bash.stdout:
                if line.startswith(self._mark):
                    return Answer("".join(lines).removesuffix("\n"), int(line.split()[-1]))
                lines.append(line)
        finally:
            timer.cancel()
        raise Stuck(f"it took over {seconds:g} s, or ended the shell; it printed\n{''.join(lines)}")


class Service:
    """What `make serve` starts, until the end of the page."""

    def __init__(
        self, command: str, folder: Path, environment: Mapping[str, str], log: Path
    ) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - as the page says
                ["bash", "-c", command],  # noqa: S607
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    def wait_until_ready(self, url: str, seconds: float) -> None:
        """Raises Stuck if it ends, or is not ready so soon."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with urlopen(f"{url}/readyz", timeout=5):  # noqa: S310 - loopback
                    return
            except (URLError, OSError):
                time.sleep(0.2)
        raise Stuck(f"the service is not ready; it printed\n{self._log.read_text()}")

    def stop(self) -> None:
        _end(self._process, signal.SIGTERM)


def _end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]", number: int) -> None:
    """End a process with all that it started."""
    try:
        os.killpg(process.pid, number)
        process.wait(STOP_S)
    except ProcessLookupError:
        process.wait()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
