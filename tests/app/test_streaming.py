"""What only a live server shows: early refusals, clients that leave, memory, logs."""

import socket
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.app.world import Server, World, checkpoint, large_header, wait_until

MIB = 2**20
LARGE = 300 * MIB
SEEN_LATE = 64 * MIB  # what buffers on both sides can hold, and some more


class Counted:
    """Bytes of a body as they are sent."""

    def __init__(self, start: bytes, size: int = LARGE) -> None:
        self.start, self.size = start, size
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        yield self.start
        chunk = b"\0" * MIB
        for _ in range(self.size // MIB):
            self.sent += len(chunk)
            yield chunk


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (b"PK\3\4" + b"\0" * 100, "invalid_checkpoint"),
        (large_header(LARGE), "checkpoint_mismatch"),
    ],
    ids=["an archive", "another model"],
)
@pytest.mark.parametrize("as_form", [False, True])
def test_a_wrong_file_is_refused_before_it_has_arrived(
    live: World, start: bytes, code: str, as_form: bool
) -> None:
    """Also for a client that reads no answer before it has sent everything."""
    name = f"early-{code}-{as_form}"
    live.ready_model(name, f"of-{name}")
    body = Counted(form_start(name) + start if as_form else start)
    kind = {"content-type": "multipart/form-data; boundary=b"} if as_form else {}
    with live.nothing_left():
        answer = live.client.post(f"/sources?model={name}", content=body, headers=kind)
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert answer.headers["connection"] == "close"
    assert body.sent < SEEN_LATE


def test_the_refusal_comes_while_the_client_still_sends(live: World, server: Server) -> None:
    live.ready_model("sends", "of-sends")
    head = (
        f"POST /sources?model=sends HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {2**28}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode() + b"\x80\x04" + b"\0" * 1000)
        answer = b""
        while chunk := client.recv(65536):  # until the server closes
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 422 ")
    assert b'"code":"invalid_checkpoint"' in answer


def test_an_announced_length_beyond_the_limit_is_refused_at_once(server: Server) -> None:
    head = f"POST /targets?name=x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {2**40}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_stranger_is_refused_before_the_body(server: Server) -> None:
    """A body that FastAPI would have read whole, before looking at anything else."""
    body = Counted(b'{"name": "')
    headers = {"Host": "evil.example", "content-type": "application/json"}
    answer = httpx.patch(f"{server.url}/models/x", content=body, headers=headers, timeout=60)
    assert answer.status_code == 403
    assert body.sent < SEEN_LATE


def test_a_small_refused_body_is_answered_too(live: World) -> None:
    for _ in range(3):
        answer = live.client.post("/sources?model=none", content=checkpoint())
        assert answer.status_code == 404


def test_a_client_that_leaves_takes_its_bytes_along(live: World, server: Server) -> None:
    live.ready_target("of-leaves")
    live.post_model("leaves", "of-leaves")
    head = (
        "POST /sources?model=leaves HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: leaver\r\n"
        f"Content-Length: {LARGE}\r\n\r\n"
    )
    with live.nothing_left():
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(head.encode() + large_header(LARGE) + b"\0" * 4 * MIB)
            wait_until(lambda: any(name.startswith("tmp") for name in live.files()))
        wait_until(lambda: not any(name.startswith("tmp") for name in live.files()))
    wait_until(lambda: bool(server.logged(request_id="leaver", status=499)))
    assert live.client.get("/healthz").status_code == 200
    live.client.delete("/models/leaves")
    assert not server.logged(level="error")


def test_nobody_waits_for_a_client_that_has_left(live: World, server: Server) -> None:
    live.ready_target("of-waits")
    job = live.post_model("waits", "of-waits").json()["job"]["id"]
    head = f"GET /jobs/{job}?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: waiter\r\n\r\n"
    with server.connect() as client:
        client.sendall(head.encode())
    wait_until(lambda: bool(server.logged(request_id="waiter")))
    live.client.delete("/models/waits")

    assert server.logged(request_id="waiter", status=499)


@pytest.mark.parametrize("as_form", [False, True])
def test_memory_does_not_grow_with_the_upload(live: World, server: Server, as_form: bool) -> None:
    name = f"memory-{as_form}"
    live.ready_target(f"of-{name}")
    live.post_model(name, f"of-{name}")  # not prepared: any tensors will do
    live.post_source(checkpoint(), name)  # what is loaded with the first upload is loaded
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    peak = 0

    def body() -> Iterator[bytes]:
        nonlocal peak
        if as_form:
            yield form_start(name)
        yield large_header(LARGE)
        for _ in range(LARGE // MIB):
            peak = max(peak, process.memory_info().rss)
            yield bytes(MIB)
        if as_form:
            yield b"\r\n--b--\r\n"

    kind = {"content-type": "multipart/form-data; boundary=b"} if as_form else {}
    answer = live.client.post(f"/sources?model={name}", content=body(), headers=kind)

    peak = max(peak, process.memory_info().rss)
    source = answer.json()["source"]
    live.store.fetch(source["sha256"]).unlink()  # nobody needs it; it would stay for days
    live.client.delete(f"/models/{name}")
    assert answer.status_code == 202
    assert source["size"] == LARGE + len(large_header(LARGE))
    assert peak - before < 40 * MIB


def test_log_lines_carry_the_request_id(live: World, server: Server) -> None:
    live.client.get("/models", headers={"X-Request-Id": "trace-9"})
    wait_until(lambda: bool(server.logged(request_id="trace-9")))
    (line,) = server.logged(request_id="trace-9")
    assert (line["event"], line["path"], line["status"]) == ("request", "/models", 200)
    live.client.get("/healthz", headers={"X-Request-Id": "trace-10"})
    live.client.get("/nope", headers={"X-Request-Id": "trace-11"})
    wait_until(lambda: bool(server.logged(request_id="trace-11")))
    assert not server.logged(request_id="trace-10")  # machines ask that all the time


def form_start(model: str) -> bytes:
    return (
        f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'
        '--b\r\nContent-Disposition: form-data; name="file"; filename="x.safetensors"\r\n\r\n'
    ).encode()
