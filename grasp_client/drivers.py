"""Who takes the steps of plans: one way for `Grasp`, the other for `AsyncGrasp`."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any

import anyio
import anyio.to_thread
import httpx

from grasp_client.plans import Call, Course, Do, Open, Read, Sleep, Step, Tell


def tell(http: httpx.Client, course: Course[Any]) -> Iterator[Any]:
    """Take every step of a plan, and give what it tells."""
    with closing(Wire(http)) as wire:
        while course.advance():
            if isinstance(course.step, Tell):
                yield course.step.value
                course.answer(None)
                continue
            try:
                course.answer(wire.take(course.step))
            except BaseException as error:  # the plan has things to tidy up, too
                course.fail(error)


async def tell_async(http: httpx.AsyncClient, course: Course[Any]) -> AsyncIterator[Any]:
    async with aclosing(AsyncWire(http)) as wire:
        while course.advance():
            if isinstance(course.step, Tell):
                yield course.step.value
                course.answer(None)
                continue
            try:
                course.answer(await wire.take(course.step))
            except BaseException as error:
                course.fail(error)


class Wire:
    """One plan's connection: one response is open at a time."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def take(self, step: Step) -> Any:
        match step:
            case Open(call):
                return self._open(call)
            case Read():
                return next(self._pieces, b"")
            case Sleep(seconds):
                return time.sleep(seconds)
            case Do(work):
                return work()

    def _open(self, call: Call) -> httpx.Response:
        self.close()
        self._response = self._http.send(build_request(self._http, call), stream=True)
        self._pieces = self._response.iter_bytes()
        return self._response

    def close(self) -> None:
        if self._response is not None:
            self._response.close()


class AsyncWire:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def take(self, step: Step) -> Any:
        match step:
            case Open(call):
                return await self._open(call)
            case Read():
                return await anext(self._pieces, b"") if self._pieces else b""
            case Sleep(seconds):
                return await anyio.sleep(seconds)
            case Do(work):
                return await anyio.to_thread.run_sync(work)

    async def _open(self, call: Call) -> httpx.Response:
        await self.aclose()
        self._response = await self._http.send(build_request(self._http, call), stream=True)
        self._pieces = self._response.aiter_bytes()
        return self._response

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()


def build_request(http: httpx.Client | httpx.AsyncClient, call: Call) -> httpx.Request:
    headers = {**call.headers, **(call.body.headers if call.body is not None else {})}
    timeouts = {
        step: min(s or math.inf, call.timeout) for step, s in http.timeout.as_dict().items()
    }
    request = http.build_request(
        call.method,
        call.path,
        params=call.params or None,
        headers=headers,
        json=call.json,
        timeout=httpx.Timeout(**timeouts),
    )
    if call.body is not None:
        request.stream = call.body
    return request
