"""Servers side by side, each in a process of its own, and what they need."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

COLUMNS = ("", "MB/s", "slowest", "fastest", "processor s/GB", "peak MiB")


def parse_options(about: str, turns: int) -> tuple[int, int]:
    """The size of what is sent, in bytes, and how often."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="MiB (default 256)")
    parser.add_argument("--turns", type=int, default=turns, help=f"that count (default {turns})")
    options = parser.parse_args()
    return options.size * 2**20, options.turns


@dataclass
class Server:
    """A uvicorn process, and what each turn of its work took."""

    name: str
    port: int
    process: int
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)

    @contextmanager
    def turn(self) -> Iterator[None]:
        before, begin = self._processor_seconds(), time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - begin)
        self.processor_seconds.append(self._processor_seconds() - before)

    def row(self, size: int) -> tuple[str, ...]:
        """Under COLUMNS, of turns that moved `size` bytes each."""
        speeds = [size / 1e6 / seconds for seconds in self.seconds]
        per_gb = sum(self.processor_seconds) / len(self.processor_seconds) / size * 1e9
        numbers = (median(speeds), min(speeds), max(speeds))
        figures = (f"{number:.0f}" for number in numbers)
        return (self.name, *figures, f"{per_gb:.2f}", f"{self._peak_mib():.0f}")

    def _peak_mib(self) -> float:
        status = Path(f"/proc/{self.process}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def _processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user + system


PROTOCOL = "app.http.connections:BoundedProtocol"  # httptools, as `grasp serve` uses it


@contextmanager
def serving(name: str, factory: str, environment: Mapping[str, str]) -> Iterator[Server]:
    """A server that listens already, since it inherits the socket; uvloop and httptools."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", "uvicorn", "--factory", factory]
        command += ["--fd", str(listening.fileno()), "--loop", "uvloop", "--http", PROTOCOL]
        command += ["--log-level", "warning", "--no-access-log"]
        process = subprocess.Popen(
            command, pass_fds=[listening.fileno()], env={**os.environ, **environment}
        )
        try:
            yield Server(name, listening.getsockname()[1], process.pid)
        finally:
            process.terminate()
            process.wait()
