"""Clients without a network: their requests get prepared answers, and they sleep no time at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import httpx
import pytest

from grasp_client import AsyncGrasp, Grasp, concurrency
from tests.client.awaited import Awaited

LOST = httpx.ReadError("the line is dead")
URL = "http://127.0.0.1:1"


class Server(Protocol):
    """What stands in for one."""

    def __call__(self, request: httpx.Request) -> httpx.Response: ...

    def sleep(self, seconds: float) -> None: ...


Play = Callable[..., Any]  # of a server, and of options for the client, a client


@pytest.fixture(params=["sync", "async"])
def play(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, no_settings: None
) -> Iterator[Play]:
    """Makes clients of either kind, used as a Grasp is, whose requests go to a server like this."""

    def make(server: Server, **options: Any) -> Any:
        async def sleep(seconds: float) -> None:
            server.sleep(seconds)

        monkeypatch.setattr(concurrency, "sleep", server.sleep)
        monkeypatch.setattr(concurrency, "async_sleep", sleep)
        transport = httpx.MockTransport(server)
        if request.param == "sync":
            return at_once(transport)(URL, **options)
        return Awaited(awaited(transport)(URL, **options), runner)

    with asyncio.Runner() as runner:
        yield make


def at_once(transport: httpx.MockTransport) -> type[Grasp]:
    class Client(Grasp):
        def _connect(self, **options: Any) -> None:
            super()._connect(transport=transport, **options)

    return Client


def awaited(transport: httpx.MockTransport) -> type[AsyncGrasp]:
    class Client(AsyncGrasp):
        def _connect(self, **options: Any) -> None:
            super()._connect(transport=transport, **options)

    return Client


class Played:
    """Has its answers prepared; a transport error among them is raised."""

    def __init__(self, *answers: httpx.Response | httpx.TransportError) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, httpx.TransportError):
            raise answer
        if not answer.is_stream_consumed:  # and not prepared for more than one test
            return answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


class Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body whose pieces are made when they are read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def cut(beginning: bytes) -> Stream:
    """A body of which only the beginning arrives."""

    def pieces() -> Iterator[bytes]:
        yield beginning
        raise LOST

    return Stream(pieces())
