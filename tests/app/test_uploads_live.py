"""Uploads in parts on a live server: cut connections, a killed server, memory."""

import hashlib
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.intake.uploads import PIECE_BYTES
from registry.database import Database
from registry.process.settings import Settings
from tests.app.world import Server, World, checkpoint, large_header, sha256, wait_until

MIB = 2**20
BYTES = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


def begin(client: httpx.Client, size: int) -> str:
    headers = {"Tus-Resumable": "1.0.0", "Upload-Length": str(size)}
    return str(client.post("/uploads", headers=headers).headers["location"])


def offset(client: httpx.Client, path: str) -> int:
    return int(client.head(path).headers["upload-offset"])


def connect(
    server: Server, path: str, place: int, length: int, request_id: str = "any"
) -> socket.socket:
    """A PATCH whose headers are sent."""
    lines = [f"PATCH {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in BYTES.items()]
    lines += [f"Upload-Offset: {place}", f"X-Request-Id: {request_id}", "", ""]
    connection = server.connect()
    connection.sendall("\r\n".join(lines).encode())
    return connection


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_is_cut_and_the_upload_goes_on(
    live: World, server: Server, reset: bool
) -> None:
    assert isinstance(live.client, httpx.Client)
    content = os.urandom(3 * MIB + 17)
    path = begin(live.client, len(content))
    cut = f"cut-{reset}"
    with connect(server, path, 0, len(content), cut) as connection:
        connection.sendall(content[: 2 * MIB + 5])
        if reset:  # as by a machine that has forgotten it: what is not read yet can be lost
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wait_until(lambda: bool(server.logged(request_id=cut, status=499)))
    place = offset(live.client, path)
    assert place == 2 * MIB + 5 or (reset and place < 2 * MIB + 5)
    headers = {**BYTES, "Upload-Offset": str(place)}
    assert live.client.patch(path, content=content[place:], headers=headers).status_code == 204
    body = {"name": cut, "upload": path.rpartition("/")[2]}
    target = live.client.post("/targets", json=body).json()["target"]
    assert target["sha256"] == sha256(content)
    assert not server.logged(level="error")


def test_a_refusal_comes_before_the_bytes(live: World, server: Server) -> None:
    assert isinstance(live.client, httpx.Client)
    path = begin(live.client, 2**28)
    with connect(server, path, 5, 2**28 - 5) as connection:
        connection.sendall(b"some")
        assert connection.recv(65536).startswith(b"HTTP/1.1 409 ")


def test_a_killed_server_loses_a_piece_at_most(migrated: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated, home / "grasp.db")
    content = large_header(2 * PIECE_BYTES) + os.urandom(MIB) * (2 * PIECE_BYTES // MIB)

    first = Server(home)
    with httpx.Client(base_url=first.url, timeout=60) as client:
        path = begin(client, len(content))
        with connect(first, path, 0, len(content)) as connection:
            connection.sendall(content[: PIECE_BYTES + 5 * MIB])
            wait_until(lambda: offset(client, path) > 0)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(30)

    second = Server(home)
    database = Database(Settings(home=home).database)
    with httpx.Client(base_url=second.url, timeout=60) as client:
        place = offset(client, path)
        assert PIECE_BYTES <= place <= PIECE_BYTES + 5 * MIB
        headers = {**BYTES, "Upload-Offset": str(place)}
        assert client.patch(path, content=content[place:], headers=headers).status_code == 204
        world = World(client, Settings(home=home), database)
        world.ready_target()
        world.post_model()  # not prepared: any tensors will do
        body = {"model": "merged", "upload": path.rpartition("/")[2]}
        source = client.post("/sources", json=body).json()["source"]
    database.close()
    second.stop()
    assert source["sha256"] == sha256(content)


def test_memory_does_not_grow_with_the_upload(live: World, server: Server) -> None:
    assert isinstance(live.client, httpx.Client)
    live.ready_target("of-memory")
    live.post_model("memory", "of-memory")
    live.post_source(checkpoint(), "memory")  # what is loaded with the first upload is loaded
    size = 5 * PIECE_BYTES
    digest = hashlib.sha256()
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    peak = 0

    def body() -> Iterator[bytes]:
        nonlocal peak
        for data in (large_header(size), *[bytes(MIB)] * (size // MIB)):
            digest.update(data)
            peak = max(peak, process.memory_info().rss)
            yield data

    path = begin(live.client, len(large_header(size)) + size)
    sent = live.client.patch(path, content=body(), headers={**BYTES, "Upload-Offset": "0"})
    peak = max(peak, process.memory_info().rss)
    offered = {"model": "memory", "upload": path.rpartition("/")[2]}
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(live.client.post, "/sources", json=offered)
        while not made.done():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.01)
    answer: Any = made.result()
    source = answer.json()["source"]
    live.store.fetch(source["sha256"]).unlink()  # nobody needs it; it would stay for days
    live.client.delete("/models/memory")
    assert sent.status_code == 204
    assert source["sha256"] == digest.hexdigest()
    assert peak - before < 40 * MIB
