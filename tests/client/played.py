"""Plans without a network: their requests get prepared answers, and they sleep no time at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import httpx

from grasp_client.plans import Call, Course, Do, Open, Plan, Read, Sleep, Step

Result = TypeVar("Result")
LOST = httpx.ReadError("the line is dead")


class Player(ABC):
    """Takes the steps of a plan; a transport error that a step raises is the plan's."""

    def run(self, plan: Plan[Result]) -> Result:
        course = Course(plan)
        while course.advance():
            try:
                course.answer(self._take(course.step))
            except httpx.TransportError as error:
                course.fail(error)
        return course.result

    @abstractmethod
    def _take(self, step: Step) -> Any: ...


class Played(Player):
    """Has its answers prepared; a transport error among them is raised, also by a body."""

    def __init__(self, *answers: httpx.Response | httpx.TransportError) -> None:
        self.answers = list(answers)
        self.calls: list[Call] = []
        self.pauses: list[float] = []
        self._pieces: Iterator[bytes] = iter(())

    def run(self, plan: Plan[Result]) -> Result:
        result = super().run(plan)
        assert self.answers == [], "it gave up too early"
        return result

    def _take(self, step: Step) -> Any:
        match step:
            case Open(call):
                self.calls.append(call)
                return self._open(self.answers.pop(0))
            case Read():
                return next(self._pieces, b"")
            case Sleep(seconds):
                return self.pauses.append(seconds)
            case Do(work):
                return work()

    def _open(self, answer: httpx.Response | httpx.TransportError) -> httpx.Response:
        if isinstance(answer, httpx.TransportError):
            raise answer
        self._pieces = answer.iter_bytes()
        return answer


class Cut(httpx.SyncByteStream):
    """A body of which only the beginning arrives."""

    def __init__(self, beginning: bytes) -> None:
        self._beginning = beginning

    def __iter__(self) -> Iterator[bytes]:
        yield self._beginning
        raise LOST
