"""An AsyncGrasp that is used as if it were a Grasp, so that a test can be of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from grasp_client._async.records import AsyncCollection, AsyncRecord


class Awaited:
    """Whatever is called on it is awaited at once."""

    def __init__(self, thing: Any, runner: asyncio.Runner) -> None:
        self._thing = thing
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        return self._called(value) if callable(value) else self._wrapped(value)

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if isinstance(result, AsyncIterator):
                return self._iterated(result)
            assert isinstance(result, Awaitable)
            return self._wrapped(self._runner.run(_awaited(result)))

        return call

    def _iterated(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while (item := self._runner.run(_awaited(anext(items, None)))) is not None:
            yield self._wrapped(item)

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrapped(item) for item in value]
        return (
            Awaited(value, self._runner)
            if isinstance(value, AsyncCollection | AsyncRecord)
            else value
        )


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
