"""Downloads through a real uvicorn. The oracles are slices of the bytes, and RFC 9110 by hand."""

import base64
import hashlib
import os
import re
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from urllib.parse import unquote

import httpx
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.http import downloads
from app.http.downloads import (
    CHUNK_BYTES,
    PreconditionFailed,
    RangeNotSatisfiable,
    content_disposition,
    send_file,
)

SIZE = 1000
DATA = Random(0).randbytes(SIZE)
SHA256 = hashlib.sha256(DATA).hexdigest()
ETAG = f'"{SHA256}"'
MODIFIED = datetime(2026, 3, 1, 12, 30, 15, 678_900, tzinfo=timezone(timedelta(hours=2)))
LAST_MODIFIED = "Sun, 01 Mar 2026 10:30:15 GMT"
LATER, EARLIER = "Sun, 01 Mar 2026 10:30:16 GMT", "Sun, 01 Mar 2026 10:30:14 GMT"
OTHER = f'"{"0" * 64}"'
BIG = 64 * CHUNK_BYTES


def failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, PreconditionFailed | RangeNotSatisfiable)
    body = {"code": error.code, "hint": error.hint}
    if isinstance(error, RangeNotSatisfiable):
        return JSONResponse(body, 416, {"Content-Range": f"bytes */{error.size}"})
    return JSONResponse(body, 412)


def files_below(folder: Path) -> Starlette:
    """/{name} sends a file, /accel/{name} lets nginx send it; the query says what else."""

    def plain(request: Request) -> Response:
        path = folder / request.path_params["name"]
        modified = MODIFIED if "dated" in request.query_params else None
        return send_file(request, path, sha256=SHA256, filename="w.bin", modified=modified)

    def accel(request: Request) -> Response:
        name = request.path_params["name"]
        return send_file(
            request, folder / name, sha256=SHA256, filename="w.bin", accel_redirect=f"/blobs/{name}"
        )

    return Starlette(
        routes=[Route("/{name}", plain), Route("/accel/{name}", accel)],
        exception_handlers={PreconditionFailed: failed, RangeNotSatisfiable: failed},
    )


@contextmanager
def served(app: Starlette) -> Iterator[tuple[str, int]]:
    """The address of a uvicorn that runs in a thread, as `grasp serve` sets it up."""
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "w.bin").write_bytes(DATA)
    (folder / "empty.bin").write_bytes(b"")
    with (folder / "big.bin").open("wb") as file:
        file.truncate(BIG)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[tuple[str, int]]:
    with served(files_below(folder)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: tuple[str, int]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{address[0]}:{address[1]}", trust_env=False) as client:
        yield client


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "CHUNK_BYTES", 64)


# Whole files


def test_a_whole_file_with_all_its_headers(client: httpx.Client) -> None:
    response = client.get("/w.bin?dated")

    assert response.status_code == 200
    assert response.content == DATA
    digest = base64.b64encode(hashlib.sha256(DATA).digest()).decode()
    expected = {
        "content-length": str(SIZE),
        "content-type": "application/octet-stream",
        "content-disposition": 'attachment; filename="w.bin"',
        "etag": ETAG,
        "last-modified": LAST_MODIFIED,
        "repr-digest": f"sha-256=:{digest}:",
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "x-content-type-options": "nosniff",
    }
    assert {name: response.headers.get(name) for name in expected} == expected
    assert "content-range" not in response.headers


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 1000])
def test_every_size_around_the_chunks_arrives_whole(
    client: httpx.Client, folder: Path, size: int
) -> None:
    (folder / "sized.bin").write_bytes(DATA[:size])

    response = client.get("/sized.bin")

    assert response.content == DATA[:size]
    assert response.headers["content-length"] == str(size)


def test_without_a_date_there_is_no_last_modified(client: httpx.Client) -> None:
    assert "last-modified" not in client.get("/w.bin").headers


def test_head_gives_the_headers_of_get_and_no_body(client: httpx.Client) -> None:
    head, get = client.head("/w.bin"), client.get("/w.bin")

    assert head.content == b""
    unlike = {"date"}
    assert {k: v for k, v in head.headers.items() if k not in unlike} == {
        k: v for k, v in get.headers.items() if k not in unlike
    }


def test_a_connection_is_used_again_after_every_kind_of_answer(address: tuple[str, int]) -> None:
    requests = [
        ("GET", {}),
        ("HEAD", {}),
        ("GET", {"Range": "bytes=5-9"}),
        ("GET", {"If-None-Match": "*"}),
        ("GET", {"Range": "bytes=5000-"}),
        ("GET", {"If-Match": OTHER}),
    ]
    with httpx.Client(base_url=f"http://{address[0]}:{address[1]}", trust_env=False) as client:
        streams = set()
        for method, headers in requests:
            response = client.request(method, "/w.bin", headers=headers)
            streams.add(response.extensions["network_stream"].get_extra_info("client_addr"))

    assert len(streams) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plain name.bin", 'attachment; filename="plain name.bin"'),
        ("größe.bin", "attachment; filename=\"gr__e.bin\"; filename*=UTF-8''gr%C3%B6%C3%9Fe.bin"),
        ('a"b\\c', "attachment; filename=\"a_b_c\"; filename*=UTF-8''a%22b%5Cc"),
        ("a\r\nX: 1", "attachment; filename=\"a__X: 1\"; filename*=UTF-8''a%0D%0AX%3A%201"),
    ],
)
def test_content_disposition(name: str, value: str) -> None:
    assert content_disposition(name) == value


@given(st.text())
def test_any_name_makes_a_header_that_can_be_sent_and_read_back(name: str) -> None:
    value = content_disposition(name)

    assert re.fullmatch("[ -~]*", value)
    quoted = re.search(r"filename\*=UTF-8''([^;]*)$", value)
    assert unquote(quoted.group(1)) == name if quoted else f'filename="{name}"' in value


# Preconditions

NONE_MATCH = {
    ETAG: 304,
    f"W/{ETAG}": 304,
    "*": 304,
    f"{OTHER}, {ETAG}": 304,
    f'"a,b",W/{ETAG},"c"': 304,
    OTHER: 200,
    SHA256: 200,  # no quotes: not an entity tag
    '""': 200,
}


@pytest.mark.parametrize(("value", "status"), NONE_MATCH.items())
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_if_none_match(client: httpx.Client, method: str, value: str, status: int) -> None:
    response = client.request(method, "/w.bin?dated", headers={"If-None-Match": value})

    assert response.status_code == status
    assert response.headers["etag"] == ETAG
    assert response.headers["cache-control"] == "private, no-cache"
    if status == 304:
        assert response.content == b""
        assert "content-length" not in response.headers


def test_if_none_match_in_several_lines(client: httpx.Client) -> None:
    headers = [("If-None-Match", OTHER), ("If-None-Match", ETAG)]

    assert client.get("/w.bin", headers=headers).status_code == 304


IF_MATCH = {
    ETAG: 200,
    "*": 200,
    f"{OTHER}, {ETAG}": 200,
    OTHER: 412,
    f"W/{ETAG}": 412,  # strong comparison
}


@pytest.mark.parametrize(("value", "status"), IF_MATCH.items())
def test_if_match(client: httpx.Client, value: str, status: int) -> None:
    response = client.get("/w.bin", headers={"If-Match": value})

    assert response.status_code == status
    if status == 412:
        assert response.json()["code"] == "precondition_failed"
        assert response.json()["hint"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-Modified-Since": LAST_MODIFIED}, 304),
        ({"If-Modified-Since": LATER}, 304),
        ({"If-Modified-Since": EARLIER}, 200),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-Modified-Since": "Fri, 31 Dec 9999 23:59:59 -0100"}, 200),
        ({"If-Modified-Since": LATER, "If-None-Match": OTHER}, 200),  # the tag decides
        ({"If-Unmodified-Since": LAST_MODIFIED}, 200),
        ({"If-Unmodified-Since": LATER}, 200),
        ({"If-Unmodified-Since": EARLIER}, 412),
        ({"If-Unmodified-Since": EARLIER, "If-Match": ETAG}, 200),
        ({"If-Match": OTHER, "If-None-Match": ETAG}, 412),  # If-Match comes first
        ({"If-Match": ETAG, "If-None-Match": ETAG}, 304),
        ({"If-None-Match": ETAG, "Range": "bytes=0-0"}, 304),  # … and Range last
        ({"If-None-Match": ETAG, "Range": "bytes=5000-"}, 304),
    ],
)
def test_dates_and_precedence(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    assert client.get("/w.bin?dated", headers=headers).status_code == status


def test_dates_mean_nothing_to_a_file_without_one(client: httpx.Client) -> None:
    for name in ("If-Modified-Since", "If-Unmodified-Since"):
        assert client.get("/w.bin", headers={name: EARLIER}).status_code == 200


# Ranges


def check_slice(response: httpx.Response, start: int, expected: bytes) -> None:
    assert response.status_code == 206
    assert response.content == expected
    assert response.headers["content-length"] == str(len(expected))
    last = start + len(expected) - 1
    assert response.headers["content-range"] == f"bytes {start}-{last}/{SIZE}"
    assert response.headers["etag"] == ETAG


@pytest.mark.parametrize(
    ("value", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-499", 0, 500),
        ("bytes=500-", 500, 1000),
        ("bytes=-1", 999, 1000),
        ("bytes=-5000", 0, 1000),
        ("bytes=999-999999999999999", 999, 1000),
        ("BYTES = 5-9", 5, 10),
        ("bytes=5-9,", 5, 10),  # an empty element of a list counts for nothing
    ],
)
def test_one_range(client: httpx.Client, value: str, start: int, stop: int) -> None:
    check_slice(client.get("/w.bin", headers={"Range": value}), start, DATA[start:stop])


@pytest.mark.parametrize(
    "value", ["bytes=1000-", "bytes=1000-1001", "bytes=-0", f"bytes={'9' * 20}-"]
)
def test_a_range_outside_of_the_file(client: httpx.Client, value: str) -> None:
    response = client.get("/w.bin", headers={"Range": value})

    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{SIZE}"
    assert response.json()["code"] == "range_not_satisfiable"
    assert response.json()["hint"]


@pytest.mark.parametrize(
    "value",
    [
        "bytes=0-1,5-9",
        "lines=1-2",
        "bytes=9-5",
        "bytes=-",
        "bytes=",
        "bytes",
        "bytes=a-b",
        "bytes=+1-2",
        "bytes=1-2-3",
        "bytes=٣-٤",
        f"bytes={'1' * 5000}-",
    ],
)
def test_ranges_that_are_ignored(client: httpx.Client, value: str) -> None:
    response = client.get("/w.bin", headers={b"Range": value.encode()})

    assert response.status_code == 200
    assert response.content == DATA


def test_two_range_headers_are_several_ranges(client: httpx.Client) -> None:
    headers = [("Range", "bytes=0-1"), ("Range", "bytes=5-9")]

    assert client.get("/w.bin", headers=headers).content == DATA


def test_head_ignores_ranges(client: httpx.Client) -> None:
    response = client.head("/w.bin", headers={"Range": "bytes=0-9"})

    assert response.status_code == 200
    assert response.headers["content-length"] == str(SIZE)


@pytest.mark.parametrize(
    ("value", "status"), [("bytes=0-", 416), ("bytes=0-0", 416), ("bytes=-5", 200)]
)
def test_ranges_of_an_empty_file(client: httpx.Client, value: str, status: int) -> None:
    response = client.get("/empty.bin", headers={"Range": value})

    assert response.status_code == status
    if status == 416:
        assert response.headers["content-range"] == "bytes */0"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (ETAG, 206),
        (f"W/{ETAG}", 200),
        (OTHER, 200),
        (LAST_MODIFIED, 206),
        (LATER, 200),
        (EARLIER, 200),
        ("nonsense", 200),
    ],
)
def test_if_range(client: httpx.Client, value: str, status: int) -> None:
    response = client.get("/w.bin?dated", headers={"If-Range": value, "Range": "bytes=10-19"})

    assert response.status_code == status
    assert response.content == (DATA[10:20] if status == 206 else DATA)


def test_if_range_that_fails_spares_the_416(client: httpx.Client) -> None:
    headers = {"If-Range": OTHER, "Range": "bytes=5000-"}

    assert client.get("/w.bin", headers=headers).status_code == 200


POSITIONS = st.integers(0, SIZE + 100)


@given(first=POSITIONS, last=st.none() | POSITIONS)
def test_any_range_from_the_front_is_a_slice(
    client: httpx.Client, first: int, last: int | None
) -> None:
    response = client.get(
        "/w.bin", headers={"Range": f"bytes={first}-{'' if last is None else last}"}
    )

    if last is not None and last < first:
        assert (response.status_code, response.content) == (200, DATA)
    elif first >= SIZE:
        assert response.status_code == 416
    else:
        check_slice(response, first, DATA[first:] if last is None else DATA[first : last + 1])


@given(count=st.integers(1, SIZE + 100))
def test_any_range_from_the_back_is_a_slice(client: httpx.Client, count: int) -> None:
    response = client.get("/w.bin", headers={"Range": f"bytes=-{count}"})

    check_slice(response, max(SIZE - count, 0), DATA[-count:])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("first", "last"), [(0, 63), (0, 64), (1, 64), (63, 128), (100, 900)])
def test_a_range_of_many_chunks(client: httpx.Client, first: int, last: int) -> None:
    response = client.get("/w.bin", headers={"Range": f"bytes={first}-{last}"})

    check_slice(response, first, DATA[first : last + 1])


# nginx


def test_nginx_is_asked_to_send_the_bytes(client: httpx.Client) -> None:
    ours, plain = client.get("/accel/w.bin"), client.get("/w.bin")

    assert ours.status_code == 200
    assert ours.content == b""
    assert ours.headers["x-accel-redirect"] == "/blobs/w.bin"
    assert "content-length" not in ours.headers
    kept = plain.headers.keys() - {"date", "content-length"}
    assert {name: ours.headers[name] for name in kept} == {
        name: plain.headers[name] for name in kept
    }


def test_with_nginx_the_validators_are_still_ours_and_the_range_is_not(
    client: httpx.Client,
) -> None:
    def status(**headers: str) -> int:
        return client.get(
            "/accel/w.bin", headers={k.replace("_", "-"): v for k, v in headers.items()}
        ).status_code

    assert status(If_None_Match=ETAG) == 304
    assert status(If_Match=OTHER) == 412
    assert status(Range="bytes=0-9") == 200
    assert status(Range="bytes=5000-") == 200


# Slow clients, lost clients, broken files


def raw_request(address: tuple[str, int], path: str) -> socket.socket:
    """Ask, and read no more than the first bytes; a small window makes the server wait."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    connection.settimeout(30)
    connection.connect(address)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.1 200")
    return connection


def read_to_end(connection: socket.socket) -> int:
    count = 0
    while received := connection.recv(2**20):
        count += len(received)
    return count


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def is_open(path: Path) -> bool:
    """Whether this process, which is also the server's, has the file open."""
    numbers = Path("/proc/self/fd")
    opened = set()
    for number in numbers.iterdir():
        try:
            opened.add(number.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
    return path in opened


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of every read so far."""
    threads: list[str] = []
    pread = os.pread

    def recording(*args: int) -> bytes:
        threads.append(threading.current_thread().name)
        return pread(*args)

    monkeypatch.setattr(os, "pread", recording)
    return threads


@needs_proc
@pytest.mark.parametrize("abruptly", [True, False])
def test_the_file_is_closed_when_the_client_goes_away(
    address: tuple[str, int], folder: Path, reads: list[str], abruptly: bool
) -> None:
    path = (folder / "big.bin").resolve()
    connection = raw_request(address, "/big.bin")
    wait_until(lambda: is_open(path))

    if abruptly:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

    wait_until(lambda: not is_open(path))
    assert len(reads) < BIG // CHUNK_BYTES  # and the rest is not read for nobody


@needs_proc
def test_the_file_is_closed_after_a_whole_download(client: httpx.Client, folder: Path) -> None:
    assert len(client.get("/big.bin").content) == BIG

    wait_until(lambda: not is_open((folder / "big.bin").resolve()))


def test_the_event_loop_never_reads(client: httpx.Client, reads: list[str]) -> None:
    client.get("/big.bin")

    assert len(reads) == BIG // CHUNK_BYTES
    assert {name.rpartition("_")[0] for name in reads} == {"download"}


def test_slow_clients_hold_few_chunks_and_no_thread(
    address: tuple[str, int], client: httpx.Client, reads: list[str]
) -> None:
    clients = 12  # more than there are threads

    def stalled() -> bool:
        before = len(reads)
        time.sleep(0.2)
        return before == len(reads)

    tracemalloc.start()
    try:
        with ExitStack() as stack:
            for _ in range(clients):
                stack.enter_context(raw_request(address, "/big.bin"))
            wait_until(stalled)
            held, _ = tracemalloc.get_traced_memory()
            assert client.get("/w.bin").content == DATA
    finally:
        tracemalloc.stop()

    assert clients * CHUNK_BYTES < held < clients * 4 * CHUNK_BYTES


def test_a_file_that_shrinks_ends_the_connection(address: tuple[str, int], folder: Path) -> None:
    path = folder / "shrinking.bin"
    with path.open("wb") as file:
        file.truncate(BIG)
    with raw_request(address, "/shrinking.bin") as connection:
        os.truncate(path, 0)

        assert read_to_end(connection) < BIG


def test_many_downloads_at_once_do_not_mix(folder: Path, address: tuple[str, int]) -> None:
    """Each client gets its own file; more of them than threads."""
    contents = [bytes([n]) * (3 * CHUNK_BYTES + n) for n in range(20)]
    received: dict[int, bytes] = {}
    for n, content in enumerate(contents):
        (folder / f"many-{n}.bin").write_bytes(content)

    def download(n: int) -> None:
        url = f"http://{address[0]}:{address[1]}/many-{n}.bin"
        received[n] = httpx.get(url, trust_env=False).content

    threads = [threading.Thread(target=download, args=(n,)) for n in range(len(contents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [received[n] for n in range(len(contents))] == contents


def test_a_missing_file_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    request = Request({"type": "http", "method": "GET", "headers": []})

    with pytest.raises(FileNotFoundError):
        send_file(request, tmp_path / "missing", sha256=SHA256, filename="w.bin")


def test_a_date_without_time_zone_is_utc(folder: Path) -> None:
    request = Request({"type": "http", "method": "GET", "headers": []})
    modified = MODIFIED.astimezone(UTC).replace(tzinfo=None)

    response = send_file(
        request, folder / "w.bin", sha256=SHA256, filename="w.bin", modified=modified
    )

    assert response.headers["last-modified"] == LAST_MODIFIED


def test_background_tasks_run_after_the_last_byte(folder: Path) -> None:
    done = threading.Event()

    def endpoint(request: Request) -> Response:
        response = send_file(request, folder / "w.bin", sha256=SHA256, filename="w.bin")
        response.background = BackgroundTask(done.set)
        return response

    with served(Starlette(routes=[Route("/", endpoint)])) as (host, port):
        assert httpx.get(f"http://{host}:{port}/", trust_env=False).content == DATA
        assert done.wait(30)
