"""SIGTERM while requests are under way: they are told to come back, and the client does."""

import hashlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from grasp_client import Grasp
from tests.service.harness import Harness
from tests.worker.waiting import until

HEAD = "{} HTTP/1.1\r\nHost: 127.0.0.1\r\nTus-Resumable: 1.0.0\r\n"
UPLOAD = HEAD + "Content-Length: 100000\r\n\r\n"


@pytest.fixture
def harness(home: Path) -> Iterator[Harness]:
    with Harness(home, workers=0) as running:
        yield running


def open_request(harness: Harness, text: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", harness.settings.port), timeout=60)
    connection.sendall(text.encode())
    return connection


def answer_of(connection: socket.socket) -> tuple[str, dict[str, object]]:
    """The head and the problem, read until the server closes."""
    received = b""
    while data := connection.recv(65536):
        received += data
    connection.close()
    head, _, body = received.partition(b"\r\n\r\n")
    return head.decode().lower(), json.loads(body)


def test_an_upload_that_is_open_is_told_to_come_back(harness: Harness) -> None:
    kept = harness.client.post("/uploads", headers={"Upload-Length": "100000"}).json()["id"]
    part = f"PATCH /uploads/{kept}"
    headers = "Upload-Offset: 0\r\nContent-Type: application/offset+octet-stream\r\nContent-Len"
    requests = {
        "raw": UPLOAD.format("POST /targets?name=x") + "x" * 5000,
        "json": UPLOAD.format("POST /models") + "{",
        "part": UPLOAD.format(part).replace("Content-Len", headers) + "x" * 5000,
    }
    opened = [open_request(harness, text) for text in requests.values()]
    until(lambda: len(list((harness.settings.home / "blobs" / "tmp").iterdir())) == 2)

    harness.api.send(signal.SIGTERM)
    answers = [answer_of(connection) for connection in opened]

    for head, problem in answers:
        assert head.startswith("http/1.1 503 ")
        assert "content-type: application/problem+json" in head
        assert "retry-after: " in head
        assert problem["code"] == "unavailable"
    assert harness.api.wait() == 0
    assert not harness.api.says("Traceback")
    assert list((harness.settings.home / "blobs" / "tmp").iterdir()) == []
    harness.restart_api()
    harness.wait_for_api()
    assert harness.client.get(f"/uploads/{kept}").json()["received"] == 5000


@pytest.mark.parametrize("size", [5_000_000, 70_000_000], ids=["a form", "in parts"])
def test_the_client_goes_on_by_itself(harness: Harness, tmp_path: Path, size: int) -> None:
    path = tmp_path / "target.zip"
    path.write_bytes(os.urandom(size))
    sending, ended = Event(), Event()

    def progress(sent: int, _size: int) -> None:
        if sent > size // 2 and not sending.is_set():
            sending.set()
            ended.wait(60)

    def send() -> str:
        with Grasp(harness.url) as grasp:
            target: str = grasp.targets.create("faces", path, progress=progress).id
            return target

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        assert sending.wait(60)
        assert harness.api.end(signal.SIGTERM) == 0
        assert not harness.api.says("Traceback")
        harness.restart_api()
        ended.set()
        target = sent.result(120)

    stored = harness.client.get(f"/targets/{target}").json()
    assert stored["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert harness.client.get("/uploads").json()["items"] == []
