"""Operations that end in every way an operation can; a spawned child imports them from here."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from grasp_core.errors import CheckpointError, TargetError
from grasp_core.operations import FoldSource, Live, ReportProgress


class Unpicklable(Exception):
    """Neither it nor what it holds can be sent to another process."""

    def __init__(self, number: int, other: object) -> None:
        super().__init__(f"number {number}")
        self.held = lambda: other

    def __reduce__(self) -> Any:
        raise TypeError("not me")


@dataclass(frozen=True)
class Echo:
    """Reports a few steps, and returns what the child knows of itself."""

    steps: int = 3
    value: object = None

    def run(self, report: ReportProgress) -> Any:
        for step in range(self.steps):
            report(f"step {step}", step / self.steps, {"step": step})
        return {
            "value": self.value,
            "pid": os.getpid(),
            "loaded": "torch" in sys.modules,
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "context": structlog.contextvars.get_contextvars(),
            "interrupt": signal.getsignal(signal.SIGINT),
            "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        }


@dataclass(frozen=True)
class Chatter:
    """Reports one stage far more often than anyone reads."""

    seconds: float

    def run(self, report: ReportProgress) -> Any:
        begin, count = time.monotonic(), 0
        while (spent := time.monotonic() - begin) < self.seconds:
            report("talk", spent / self.seconds, {})
            count += 1
        return {"count": count, "seconds": spent}


@dataclass(frozen=True)
class ChangingStages:
    """Every report is of a new stage, so none may be left out for being too early."""

    count: int
    done: Path

    def run(self, report: ReportProgress) -> Any:
        for number in range(self.count):
            report(f"{number} " + "x" * 1000, number / self.count, {})
        self.done.touch()
        return self.count


@dataclass(frozen=True)
class Forever:
    """Ticks until it is stopped; `began` appears when it runs."""

    began: Path

    def run(self, report: ReportProgress) -> Any:
        while True:
            report("wait", 0.5, {})
            self.began.write_text(str(os.getpid()))
            time.sleep(0.01)


@dataclass(frozen=True)
class LongOperation:
    """One call into torch that takes minutes."""

    began: Path

    def run(self, report: ReportProgress) -> Any:
        import torch

        matrix = torch.randn(6000, 6000, dtype=torch.float64)
        self.began.write_text(str(os.getpid()))
        return torch.linalg.svd(matrix)


@dataclass(frozen=True)
class PauseInEpoch:
    """A real fold that stands still in the middle of its refinement."""

    operation: FoldSource
    epoch: int
    began: Path

    def run(self, report: ReportProgress) -> Any:
        def pausing(stage: str, fraction: float, metrics: Live) -> None:
            report(stage, fraction, metrics)
            if metrics.get("epoch") == self.epoch:
                self.began.touch()
                time.sleep(600)

        return self.operation.run(pausing)


@dataclass(frozen=True)
class Raise:
    """Raises one of the errors below."""

    kind: str

    def run(self, report: ReportProgress) -> Any:
        raise ERRORS[self.kind]


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ERRORS: dict[str, Exception] = {
    "value": ValueError("three"),
    "target": TargetError("no images", hint="add some"),
    "unpicklable": Unpicklable(3, object()),
    "memory": MemoryError(),
    "torch memory": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
    ),
    "cuda memory": RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "unmapped": _caused(
        CheckpointError("cannot read a.safetensors"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ),
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "limited": OSError(errno.EFBIG, "File too large"),
    "missing": FileNotFoundError(errno.ENOENT, "No such file or directory"),
}


@dataclass(frozen=True)
class Die:
    """Ends the process: by a signal, by exit, or by a real fault."""

    how: str

    def run(self, report: ReportProgress) -> Any:
        report("die", 0.0, {})
        if self.how == "fault":
            ctypes.string_at(0)
        elif self.how == "exit":
            sys.exit(3)
        elif self.how == "_exit":
            os._exit(0)
        os.kill(os.getpid(), getattr(signal, self.how))
        time.sleep(60)


@dataclass(frozen=True)
class Allocate:
    """Real tensors of so many bytes, one after the other; each that was had is reported."""

    sizes: tuple[int, ...]

    def run(self, report: ReportProgress) -> Any:
        import torch

        for size in self.sizes:
            report(f"{size} bytes", 0.0, {"sum": int(torch.ones(size, dtype=torch.uint8).sum())})
        return len(self.sizes)


@dataclass(frozen=True)
class ReturnLambda:
    def run(self, report: ReportProgress) -> Any:
        return lambda: None


@dataclass(frozen=True)
class CannotLoad:
    """Pickles in the parent, and not back in the child."""

    def __reduce__(self) -> Any:
        return _refuse, ()

    def run(self, report: ReportProgress) -> Any:
        raise NotImplementedError


def _refuse() -> object:
    raise LookupError("not here")


def mark_setup() -> None:
    structlog.contextvars.bind_contextvars(setup="done", torch=str("torch" in sys.modules))


def fail_setup() -> None:
    raise ValueError("no logs today")
