"""Processes that do not outlive the test that started them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before a command, it starts with SIGINT ignored, as what a script starts with `&` does.
IGNORING_INTERRUPTS = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


@contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that has ended when the block has, by itself or killed."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
