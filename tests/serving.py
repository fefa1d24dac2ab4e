"""The service as a user starts it: `grasp serve`, with a worker that really folds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

PATIENCE_S = 300  # for a slow machine; nothing here is a measurement


@contextmanager
def serving(home: Path, **environment: str) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    """`grasp serve` as a user starts it, on a port and a folder of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "GRASP_HOME": str(home),
        "GRASP_PORT": str(port),
        "GRASP_THREADS": "1",
        "GRASP_DEVICE": "cpu",
    }
    command = [str(Path(sys.executable).with_name("grasp")), "serve"]
    process = subprocess.Popen(command, env=os.environ | settings | environment)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            await_answer(client, process)
            yield client, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def await_answer(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            client.get("/healthz").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the service does not answer")
