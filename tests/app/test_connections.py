"""Connections that say nothing, stop half way or never read: each has an end, and keeps nobody out.

The server is uvicorn with our protocol, in this process; time limits are short, and what must
outlast them goes on for several of them.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.http.bodies import MAX_BODIES, MAX_UNKNOWN, Bodies, Slot
from app.http.connections import RESERVE, BoundedProtocol, Connections, Limits
from app.http.requests import REFUSED, SLOT
from app.http.turns import Busy
from app.metrics import CLOSED_CONNECTIONS
from registry.process.settings import Settings
from tests.worker.waiting import until


def limited(**changes: Any) -> Limits:
    """The limits that are usual, but for these."""
    return Limits.of(Settings())._replace(**changes)


BRIEF = limited(head_seconds=0.3, stall_seconds=0.4)
UPLOAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
DOWNLOAD = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 30_000_000  # more than the buffers of both ends hold


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body; then sends a short answer, or a long one."""
    while (await receive()).get("more_body"):
        pass
    size = LARGE if scope["path"] == "/large" else 4
    headers = [(b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(0, size, 1_000_000):
        body = b"x" * min(size, 1_000_000)
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


@contextmanager
def serving(limits: Limits) -> Iterator[Callable[[], socket.socket]]:
    """A server, as what connects to it."""
    config = uvicorn.Config(
        application,
        http=partial(BoundedProtocol, connections=Connections(limits)),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        thread = threading.Thread(target=partial(server.run, sockets=[listening]))
        thread.start()
        try:
            yield lambda: socket.create_connection(address, timeout=30)
        finally:
            server.should_exit = True
            thread.join()


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes it."""
    received = b""
    try:
        while data := connection.recv(2**20):
            received += data
    except ConnectionResetError:
        pass
    return received


def closed(reason: str) -> float:
    value: float = CLOSED_CONNECTIONS.labels(reason)._value.get()
    return value


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-More: "])
def test_a_head_that_does_not_come_ends_its_connection(head: bytes) -> None:
    before = closed("head")
    with serving(BRIEF) as connect, connect() as connection:
        connection.sendall(head)

        assert read_all(connection) == b""

    assert closed("head") == before + 1


def test_bytes_one_by_one_do_not_keep_a_head_open() -> None:
    def send_bytes(connection: socket.socket) -> None:
        for _ in range(3000):
            connection.sendall(b"x")
            time.sleep(0.01)

    with serving(BRIEF) as connect, connect() as connection, pytest.raises(ConnectionError):
        send_bytes(connection)


def test_a_head_after_an_answer_has_the_same_time() -> None:
    with serving(BRIEF) as connect, connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT")

        answer = read_all(connection)

    assert answer.count(b"200 OK") == 1


def test_a_body_that_stops_is_answered_and_ends() -> None:
    with serving(BRIEF) as connect, connect() as connection:
        connection.sendall(UPLOAD + b"x" * 500)

        head, _, body = read_all(connection).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == "too_slow"


def test_a_reader_that_takes_nothing_ends() -> None:
    before = closed("reader")
    with serving(BRIEF) as connect, connect() as connection:
        connection.sendall(DOWNLOAD)
        until(lambda: closed("reader") == before + 1)

        assert len(read_all(connection)) < LARGE


def test_silent_connections_make_room() -> None:
    before = closed("limit")
    with serving(limited(connections=5)) as connect:
        silent = [connect() for _ in range(50)]
        with connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 200 OK")
        for connection in silent:
            connection.close()
    assert closed("limit") >= before + 45


class Wire(asyncio.Transport):
    """A connection from elsewhere, of which both ends are here."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 4711)})
        self.sent, self.ended = b"", False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close

    def pause_reading(self) -> None:
        """What comes, comes from the test."""

    resume_reading = pause_reading


class Visitors:
    """Connections from any address, none of which is a real one."""

    def __init__(self, limits: Limits) -> None:
        self.config = uvicorn.Config(application, lifespan="off", log_config=None)
        self.connections = Connections(limits)
        self.state = ServerState()

    def connect(self, address: str, data: bytes = b"") -> tuple[BoundedProtocol, Wire]:
        protocol = BoundedProtocol(self.config, self.state, {}, connections=self.connections)
        wire = Wire(address)
        protocol.connection_made(wire)
        if data and not wire.is_closing():
            protocol.data_received(data)
        return protocol, wire


def in_a_loop(test: Callable[[], None]) -> None:
    async def run() -> None:
        test()

    asyncio.run(run())


def test_a_slow_body_arrives() -> None:
    def test() -> None:
        protocol, wire = Visitors(limited()).connect("203.0.113.7", UPLOAD)
        for _ in range(20):  # each time that somebody looks, there is a little more
            protocol.data_received(b"x" * 1024)
            protocol._look()
        assert not wire.is_closing()

        protocol._look()
        assert wire.sent.startswith(b"HTTP/1.1 408 ")
        protocol.connection_lost(None)

    in_a_loop(test)


def test_a_reader_that_takes_its_time_gets_all() -> None:
    def test() -> None:
        protocol, wire = Visitors(limited()).connect("203.0.113.7", DOWNLOAD)
        protocol.pause_writing()
        for wire.unsent in range(2000, 1000, -50):
            protocol._look()
        assert not wire.is_closing()

        protocol._look()
        assert wire.is_closing()
        protocol.connection_lost(None)

    in_a_loop(test)


@pytest.mark.parametrize(
    ("address", "neighbour", "stranger"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.2"),
    ],
)
def test_one_address_has_its_share(address: str, neighbour: str, stranger: str) -> None:
    def test() -> None:
        visitors = Visitors(limited(per_address=2))
        first, second = (visitors.connect(address)[1] for _ in range(2))
        _, other = visitors.connect(stranger)
        _, third = visitors.connect(neighbour)
        assert [wire.ended for wire in (first, second, third, other)] == [True, False, False, False]

    in_a_loop(test)


def test_one_address_with_requests_under_way_gets_no_more() -> None:
    def test() -> None:
        visitors = Visitors(limited(per_address=2))
        busy = [visitors.connect("192.0.2.1", UPLOAD)[1] for _ in range(2)]
        _, third = visitors.connect("192.0.2.1")
        assert [wire.ended for wire in (*busy, third)] == [False, False, True]
        assert third.sent.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: " in third.sent

    in_a_loop(test)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_this_machine_may_be_a_proxy_for_everyone(address: str) -> None:
    def test() -> None:
        visitors = Visitors(limited(per_address=1))
        assert not any(visitors.connect(address)[1].ended for _ in range(5))

    in_a_loop(test)


def test_beyond_the_limit_only_health_is_told() -> None:
    def test() -> None:
        visitors = Visitors(limited(connections=3))
        busy = [visitors.connect("192.0.2.1", UPLOAD) for _ in range(3)]
        health, _ = visitors.connect("192.0.2.2", b"GET /healthz?x HTTP/1.1\r\n\r\n")
        model, _ = visitors.connect("192.0.2.2", b"GET /models HTTP/1.1\r\n\r\n")
        assert not any(protocol.scope["state"].get(REFUSED) for protocol, _ in busy)
        assert not health.scope["state"].get(REFUSED)
        assert model.scope["state"].get(REFUSED)
        for _ in range(RESERVE - 2):
            assert not visitors.connect("192.0.2.3", b"GET /readyz HTTP/1.1\r\n\r\n")[1].ended
        _, last = visitors.connect("192.0.2.3")
        assert last.sent.startswith(b"HTTP/1.1 503 ")
        assert not any(wire.ended for _, wire in busy)

    in_a_loop(test)


def test_so_many_bodies_at_once() -> None:
    def test() -> None:
        visitors = Visitors(limited())
        sending = [visitors.connect("192.0.2.1", UPLOAD)[0] for _ in range(MAX_UNKNOWN)]
        too_many, _ = visitors.connect("192.0.2.1", UPLOAD)
        reading, _ = visitors.connect("192.0.2.1", DOWNLOAD)
        assert not any(protocol.scope["state"].get(REFUSED) for protocol in (*sending, reading))
        assert too_many.scope["state"].get(REFUSED)
        sending[0].connection_lost(None)
        too_many.connection_lost(None)
        next_one, _ = visitors.connect("192.0.2.1", UPLOAD)
        assert not next_one.scope["state"].get(REFUSED)

    in_a_loop(test)


def test_a_body_has_its_slot_until_all_of_it_came() -> None:
    def test() -> None:
        visitors = Visitors(limited())
        protocol, _ = visitors.connect("192.0.2.1", UPLOAD)
        bodies = visitors.connections.bodies
        protocol.scope["state"][SLOT].assign("ann")
        assert [*bodies.owners.values()] == ["ann"]
        protocol.data_received(bytes(99_999))
        assert [*bodies.owners.values()] == ["ann"]
        protocol.data_received(b"x")
        assert not bodies.owners
        protocol.scope["state"][SLOT].assign("ann")
        assert not bodies.owners

    in_a_loop(test)


def test_what_comes_of_a_refused_body_is_dropped_and_has_an_end() -> None:
    def test() -> None:
        protocol, _ = Visitors(limited()).connect(
            "192.0.2.1", UPLOAD.replace(b"100000", b"10000000")
        )
        protocol.scope["state"][REFUSED] = True
        for _ in range(6):
            protocol.data_received(bytes(2**20))
        assert not protocol.cycle.body
        assert protocol.flow.read_paused

    in_a_loop(test)


def assign(bodies: Bodies, owner: str) -> Slot | None:
    slot = bodies.add()
    assert slot is not None
    try:
        slot.assign(owner)
    except Busy:
        slot.release()
        return None
    return slot


def fill(bodies: Bodies, owner: str) -> int:
    """How many more this owner gets."""
    count = 0
    while assign(bodies, owner):
        count += 1
    return count


def test_an_owner_has_half_of_what_others_leave() -> None:
    bodies = Bodies()
    assert [fill(bodies, owner) for owner in "abcdefg"] == [24, 12, 6, 3, 2, 1, 0]
    assert len(bodies.owners) == MAX_BODIES
    for slot in [slot for slot, owner in bodies.owners.items() if owner == "a"]:
        slot.release()
    assert [fill(bodies, owner) for owner in "ga"] == [12, 6]


def test_whose_keys_are_unknown_take_nothing_from_others() -> None:
    bodies = Bodies()
    while bodies.add():
        pass
    assert len(bodies.owners) == MAX_UNKNOWN
    next(iter(bodies.owners)).assign("ann")
    assert fill(bodies, "ann") == MAX_BODIES // 2 - 1


def test_a_target_that_is_a_whole_uri_names_the_host() -> None:
    def test() -> None:
        visitors = Visitors(limited())
        head = b"GET http://evil.test:80/models HTTP/1.1\r\nX: y\r\nHost: 127.0.0.1\r\n\r\n"
        absolute, _ = visitors.connect("127.0.0.1", head)
        usual, _ = visitors.connect("127.0.0.1", DOWNLOAD)
        assert absolute.scope["path"] == "/models"
        assert absolute.scope["headers"] == [(b"x", b"y"), (b"host", b"evil.test:80")]
        assert usual.scope["headers"] == [(b"host", b"x")]

    in_a_loop(test)


def test_heads_of_all_together_have_an_end() -> None:
    def test() -> None:
        visitors = Visitors(limited())
        begun = b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 60_000
        wires = [visitors.connect("192.0.2.1", begun)[1] for _ in range(1000)]
        ended = [wire.ended for wire in wires]
        assert ended == sorted(ended, reverse=True)  # the first to come
        assert ended.count(False) * len(begun) < 2**25

    in_a_loop(test)
