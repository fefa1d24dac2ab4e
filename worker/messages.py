"""What a worker and its child process say to each other, and what the end of a child means for its
job: a stable code, a message and a hint.
"""

from __future__ import annotations

import errno
import signal
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from grasp_core.errors import GraspError
from grasp_core.operations import Operation, Result
from registry.blobs.base import FULL, StorageFull

STOP = b"stop"  # to the child: the one message that is no order


@dataclass(frozen=True)
class Order:
    """To the child: its one operation."""

    operation: Operation
    log_context: dict[str, str]
    memory_limit: int | None


@dataclass(frozen=True)
class Ready:
    """Everything is loaded; what it will compute on, if that is known."""

    device: str | None


@dataclass(frozen=True)
class Progressed:
    stage: str
    fraction: float
    metrics: dict[str, float | str]


@dataclass(frozen=True)
class Finished:
    result: Result


@dataclass(frozen=True)
class Stopped:
    """It was asked to stop, and did; the same operation can be given to another child to go on."""


@dataclass(frozen=True)
class Failed:
    code: str
    message: str
    hint: str | None
    retryable: bool  # may another attempt at the same end otherwise?
    traceback: str | None


Last = Finished | Stopped | Failed
Event = Progressed | Last


# How torch's allocators, C++, Python's threads and oneDNN say that there is no memory.
MEMORY_TEXTS = (
    "allocate memory",
    "bad_alloc",
    "can't start new thread",
    "could not create a primitive",
    "not enough memory",
    "out of memory",
)
MEMORY_HINT = (
    "raise GRASP_JOB_MEMORY_BYTES, or fold with a micro_batch, smaller batches or smaller examples"
)

INSTRUCTION_HINT = (
    "the processor claims an instruction that it cannot run, as virtual machines do with AMX: start"
    " the worker with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, or fold with precision float32"
)


def describe(error: Exception) -> Failed:
    """What an exception means for the job. A lack of memory or space counts before its effects."""
    story = "".join(traceback.format_exception(error))
    line = "".join(traceback.format_exception_only(error)).strip()
    causes = list(_causes(error))
    if any(_lacks_memory(cause) for cause in causes):
        message = f"the job needed more memory than it may have: {line}"
        return Failed("out_of_memory", message, MEMORY_HINT, True, story)
    if any(isinstance(cause, OSError) and cause.errno in FULL for cause in causes):
        hint = "free some space where the service keeps its data"
        return Failed(StorageFull.code, f"no space is left to write to: {line}", hint, True, story)
    if isinstance(error, GraspError):  # its input is at fault, and will be the next time
        return Failed(error.code, error.message, error.hint, False, None)
    return Failed("internal_error", line, None, True, story)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError):
        return any(text in str(error).lower() for text in MEMORY_TEXTS)
    return isinstance(error, MemoryError)


def post_mortem(exit_code: int | None, *, limited: bool) -> Failed:
    """What the end of a process without a last word means."""
    if exit_code == -signal.SIGKILL:
        message = "the job was killed from outside, most often by the system's out-of-memory killer"
        return Failed("child_killed", message, MEMORY_HINT, True, None)
    how = f"exit code {exit_code}"
    if exit_code is not None and exit_code < 0:
        how = f"signal {-exit_code}"
        with suppress(ValueError):  # real-time signals have no names
            how = signal.Signals(-exit_code).name
    # Libraries that cannot handle a failed allocation give up instead.
    hint = f"if memory was short: {MEMORY_HINT}" if limited else None
    if exit_code == -signal.SIGILL:
        hint = INSTRUCTION_HINT
    return Failed("child_crashed", f"the job's process ended with {how}", hint, True, None)
