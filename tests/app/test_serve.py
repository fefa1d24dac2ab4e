"""`grasp serve`: what it refuses to start with, and connections that never come to a request."""

import asyncio
import signal
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from uvicorn.server import ServerState

from app.http.connections import MAX_HEAD, MAX_HEADERS, BoundedProtocol, Connections, Limits
from app.serve import serve
from app.startup import Refused
from registry.process.settings import Settings

START = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
ENDLESS = {  # how it begins, and what is repeated
    "a path": (b"GET /", b"x" * 1000),
    "a header": (START + b"X-Long: ", b"x" * 1000),
    "headers": (START, b"X-More: and more\r\n" * 50),
    "trailers": (CHUNKED, b"X-More: and more\r\n" * 50),
}


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """`serve` takes those of this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("content", [None, b"not a database" * 100])
def test_an_unusable_home_is_named(tmp_path: Path, content: bytes | None) -> None:
    home = tmp_path / "home"
    if content is None:
        home.touch()
    else:
        home.mkdir()
        (home / "grasp.db").write_bytes(content)

    with pytest.raises(Refused, match="cannot be used") as refusal:
        serve(Settings(home=home))

    assert str(home) in str(refusal.value)
    assert "GRASP_HOME" in str(refusal.value)


@pytest.mark.usefixtures("no_settings")
def test_a_database_that_is_away_is_named_without_its_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    url = f"postgresql://user:secret@127.0.0.1:{port}/grasp"

    with pytest.raises(Refused, match="GRASP_DATABASE_URL") as refusal:
        serve(Settings(database_url=url, port=0, database_wait_seconds=0))

    assert "secret" not in str(refusal.value)


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("recognised", [True, False])
def test_the_token_is_told_where_it_is_needed_and_only_to_who_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, recognised: bool
) -> None:
    """A log can have other readers than the home."""
    said: list[str] = []
    token = ""

    def run(self: uvicorn.Server, sockets: Any) -> None:
        nonlocal token
        assert isinstance(self.config.app, FastAPI)
        with TestClient(self.config.app):
            token = settings.token_file.read_text()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr("app.serve.can_recognise", lambda: recognised)
    monkeypatch.setattr("app.serve.log.info", lambda *event, **fields: said.append(f"{fields}"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    settings = Settings(home=tmp_path / "home", port=0, workers=0)
    serve(settings)

    assert token
    assert any(f"/ui/login?token={token}" in line for line in said) == (terminal and not recognised)
    assert any(str(settings.token_file) in line for line in said) == (
        not terminal and not recognised
    )
    assert any(token in line for line in said) == (terminal and not recognised)


@pytest.mark.parametrize(("begin", "more"), ENDLESS.values(), ids=ENDLESS)
def test_a_head_that_does_not_end_is_refused(begin: bytes, more: bytes) -> None:
    wire = send([begin, *[more] * (10 * MAX_HEAD // len(more))])

    assert wire.sent.startswith(b"HTTP/1.1 431 Request Header Fields Too Large")
    assert b"application/problem+json" in wire.sent
    assert wire.received < MAX_HEAD + len(begin) + len(more)


WHOLE = {  # heads that come in one read
    "a path": b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * MAX_HEAD),
    "a header": START + b"X-Long: %s\r\nContent-Length: 0\r\n\r\n" % (b"x" * MAX_HEAD),
    "headers": START + b"X-More: %s\r\n" % (b"x" * 1000) * 70 + b"\r\n",
    "short headers": START + b"a:\r\n" * MAX_HEADERS + b"\r\n",
    "trailers": CHUNKED + b"a:\r\n" * MAX_HEADERS + b"\r\n",
}


@pytest.mark.parametrize("head", WHOLE.values(), ids=WHOLE)
def test_a_head_that_is_too_large_is_refused_in_one_read(head: bytes) -> None:
    assert len(head) < 2 * MAX_HEAD

    assert send([head]).sent.startswith(b"HTTP/1.1 431 ")


def test_large_heads_and_bodies_pass() -> None:
    head = START + b"X-Long: " + b"x" * (MAX_HEAD // 2) + b"\r\n"
    body = b"x" * MAX_HEAD
    request = [head, b"Content-Length: %d\r\n\r\n" % (4 * MAX_HEAD), *[body] * 4]

    wire = send(request * 3)

    assert wire.sent.count(b"200 OK") == 3
    assert not wire.is_closing()


class Wire(asyncio.Transport):
    """A connection of which both ends are here."""

    def __init__(self) -> None:
        super().__init__()
        self.received, self.sent, self.closed = 0, b"", False

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Whoever sends lets others run after every piece."""

    def resume_reading(self) -> None: ...


def send(pieces: Iterable[bytes]) -> Wire:
    """To a server with our protocol, until it closes the connection."""

    async def run() -> Wire:
        config = uvicorn.Config(answer, lifespan="off", log_config=None)
        connections = Connections(Limits.of(Settings()))
        protocol = BoundedProtocol(config, ServerState(), {}, connections=connections)
        wire = Wire()
        protocol.connection_made(wire)
        for piece in pieces:
            if not wire.is_closing():
                wire.received += len(piece)
                protocol.data_received(piece)
                await asyncio.sleep(0.001)
        return wire

    return asyncio.run(run())


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    """An application that reads its body first."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"done"})
