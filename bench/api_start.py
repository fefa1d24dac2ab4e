"""How long the API takes from its start to its first answer, and what memory it needs idle.

    python bench/api_start.py [--turns 5]

Checks the two promises: under 2 s, and under 120 MB. Each turn starts `grasp serve` on a data
directory of its own, first a new one (the database is made), then the same again.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx
import psutil

MAX_SECONDS = 2.0
MAX_BYTES = 120e6
IDLE_S = 3.0  # before memory is read


def main() -> int:
    options = _options()
    first: list[float] = []
    again: list[float] = []
    memory: list[int] = []
    processor: list[float] = []
    for turn in range(1, options.turns + 1):
        with TemporaryDirectory() as folder:
            for times in (first, again):
                with serving(Path(folder)) as (seconds, process):
                    times.append(seconds)
                    time.sleep(IDLE_S)
                    memory.append(process.memory_info().rss)
                    times_used = process.cpu_times()
                    processor.append(times_used.user + times_used.system)
        print(
            f"turn {turn}: first start {first[-1]:.2f} s, again {again[-1]:.2f} s,"
            f" {processor[-1]:.2f} s of processor time, idle {memory[-1] / 1e6:.0f} MB",
            flush=True,
        )
    return report(median(first), median(again), max(memory))


def report(first: float, again: float, memory: int) -> int:
    kept = max(first, again) < MAX_SECONDS and memory < MAX_BYTES
    print(f"\nfirst answer   {first:.2f} s (new data), {again:.2f} s (old data)")
    print(f"idle           {memory / 1e6:.0f} MB at most")
    promise = f"under {MAX_SECONDS:.0f} s and {MAX_BYTES / 1e6:.0f} MB"
    print(f"{promise}: {'holds' if kept else 'BROKEN'}")
    return 0 if kept else 1


@contextmanager
def serving(home: Path) -> Iterator[tuple[float, psutil.Process]]:
    """`grasp serve` without workers, and the seconds to its first answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"GRASP_HOME": str(home), "GRASP_PORT": str(port), "GRASP_WORKERS": "0"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("grasp"), "serve"],
        env=os.environ | settings,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            while not answers(client):
                time.sleep(0.01)
            yield time.perf_counter() - began, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
