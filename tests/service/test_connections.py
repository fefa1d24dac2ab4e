"""`grasp serve` with few files to open, and many connections that want them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.http.bodies import MAX_BODIES
from registry.process.settings import Settings
from tests.service.harness import SERVE, Harness, Process, free_port, is_ready, make_key
from tests.worker.waiting import until

FILES = 160  # of which connections get fewer than one owner may send bodies at once
HALF = b"POST /models HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"
LIMITED = ("bash", "-c", f'ulimit -n {FILES}; exec "$@"', "bash", *SERVE)


@pytest.mark.parametrize("head", [b"", HALF])
def test_more_connections_than_files_do_not_make_it_unreachable(home: Path, head: bytes) -> None:
    """Silent ones make room; where none is silent, health is told, and the others to come back."""
    chosen: dict[str, Any] = {"port": free_port(), "workers": 0, "head_seconds": 60.0}
    served = Settings(home=home, **chosen)
    url = f"http://127.0.0.1:{served.port}"
    with Process(LIMITED, served) as process, ExitStack() as taken:
        with httpx.Client(base_url=url) as client:
            until(lambda: is_ready(client))
        for _ in range(FILES + 50):
            connection = socket.create_connection(("127.0.0.1", served.port), timeout=30)
            taken.enter_context(connection).sendall(head)

        health, models = (httpx.get(url + path, timeout=60) for path in ("/healthz", "/models"))
        metrics = httpx.get(f"{url}/metrics", timeout=60).text

        assert health.status_code == 200
        if head:
            assert (models.status_code, models.json()["code"]) == (503, "unavailable")
            assert int(models.headers["retry-after"]) > 0
        else:
            assert models.status_code == 200
        assert 'grasp_connections_closed_total{reason="limit"} 0.0' not in metrics
        taken.close()
        until(lambda: httpx.get(f"{url}/models").status_code == 200)
        assert process.end() == 0
    assert process.says("this process may open few files")
    assert process.says("too many connections")
    assert not process.says("Traceback")


class Uploader:
    """Sends half an upload, with or without a key."""

    def __init__(self, service: Harness, key: str | None) -> None:
        self.connection = socket.create_connection(("127.0.0.1", service.settings.port), timeout=60)
        secret = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"POST /targets?name=x HTTP/1.1\r\nHost: 127.0.0.1\r\n{secret}"
        self.connection.sendall(f"{head}Content-Length: 9000\r\n\r\nhalf".encode())

    def answer(self) -> tuple[int, bytes]:
        """Its status, and its head; the rest stays as it is."""
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.connection.recv(1)
        return int(head.split(b" ", 2)[1]), head.lower()

    def has_answer(self) -> bool:
        self.connection.setblocking(False)
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.connection.settimeout(60)


def finish(stack: ExitStack, uploader: Uploader) -> int:
    """What comes of it, once the other half is sent too."""
    stack.enter_context(uploader.connection)
    uploader.connection.sendall(bytes(9000 - len(b"half")))
    return uploader.answer()[0]


@pytest.fixture
def service(home: Path) -> Iterator[Harness]:
    with Harness(home, workers=0) as harness:
        yield harness


def test_who_has_no_key_keeps_nobody_out(service: Harness) -> None:
    """Whoever was refused may go on for a while, but in no slot."""
    _, key = make_key(service.settings)
    with ExitStack() as stack:
        for _ in range(3 * MAX_BODIES):
            stranger = Uploader(service, None)
            stack.enter_context(stranger.connection)
            assert stranger.answer()[0] == 401

        assert finish(stack, Uploader(service, key)) == 202


def test_one_owner_leaves_room_for_others(service: Harness) -> None:
    _, ann = make_key(service.settings, "ann")
    _, bob = make_key(service.settings, "bob")
    with ExitStack() as stack:
        stalled = [Uploader(service, ann) for _ in range(MAX_BODIES)]
        for each in stalled:
            stack.enter_context(each.connection)
        until(lambda: sum(each.has_answer() for each in stalled) == MAX_BODIES // 2)

        answers = [each.answer() for each in stalled if each.has_answer()]
        assert {status for status, _ in answers} == {503}
        assert all(b"\r\nretry-after: " in head for _, head in answers)
        assert finish(stack, Uploader(service, bob)) == 202
