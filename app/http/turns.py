"""Threads for what strangers can make large, a few at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread

from grasp_core.errors import GraspError

MAX_WAITING = 16  # a megabyte each

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Busy(GraspError):
    """Refused, though not for what it is."""

    code = "unavailable"


class Turns:
    """Threads for what strangers can make large: few at once, so that their memory has an end.

    What takes long is done one by one: two at once would take as long, and twice the memory. It
    keeps neither what is short nor other requests from their threads.
    """

    def __init__(self) -> None:
        self._long, self._short = CapacityLimiter(1), CapacityLimiter(4)
        self._waiting = 0

    @contextmanager
    def room(self) -> Iterator[None]:
        """For something large that waits for its turn. Raises Busy where many do."""
        if self._waiting >= MAX_WAITING:
            raise Busy("too many large requests at once", hint="try again in a while")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def run(self, takes_long: bool, do: Callable[[*Args], T], *args: *Args) -> T:
        limiter = self._long if takes_long else self._short
        return await to_thread.run_sync(do, *args, limiter=limiter)
