"""What a worker and its child process say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from grasp_core.operations import Operation, Result

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
    metrics: dict[str, float]


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
