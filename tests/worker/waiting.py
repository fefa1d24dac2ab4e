"""Waiting for children, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from grasp_core.operations import Operation
from worker.child import Child
from worker.messages import Event, Finished, Progressed

PATIENCE_S = 600.0  # for a process to come or go on a busy machine; nothing waits that long


def drained(child: Child) -> list[Event]:
    """All events up to the last."""
    events: list[Event] = []
    while not events or isinstance(events[-1], Progressed):
        event = child.poll(PATIENCE_S)
        assert event is not None
        events.append(event)
    return events


def last(child: Child, operation: Operation) -> Event:
    child.start(operation, {})
    return drained(child)[-1]


def result(event: Event) -> Any:
    assert isinstance(event, Finished), event
    return event.result


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)  # its parent was killed
    except psutil.NoSuchProcess:
        return True
