"""Speed of downloads: app.http.downloads.send_file beside Starlette's FileResponse.

    python bench/download_speed.py [--size MIB] [--turns N]

Each has a uvicorn of its own (uvloop, httptools), and both send the same file, in turns, to a
client that reads from a plain socket and keeps nothing. The file is in the page cache, so this is
the cost of sending, not of the disk. Processor time and peak memory are the servers'.

A third server verifies the file first, as the API does: its first download reads it twice, and the
later ones recognise it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from app.http.downloads import send_file
from bench.servers import COLUMNS, Server, parse_options, serving
from registry.blobs.integrity import Verifier

LIMIT = 0.5  # seconds of send_file / seconds of FileResponse: at least twice as fast
FILE = "GRASP_BENCH_FILE"
MIB = 2**20


def application() -> Starlette:
    """What the servers run: the same file, sent in two ways."""
    path = Path(os.environ[FILE])
    digest = hashlib.sha256().hexdigest()  # of nothing: two send the file without looking at it
    verifier = Verifier()

    async def theirs(_: Request) -> Response:
        return FileResponse(path, filename="file.bin")

    async def ours(request: Request) -> Response:
        return send_file(request, path, sha256=digest, filename="file.bin")

    def verified(request: Request) -> Response:  # in a thread, as the API's
        verifier.check(path, path.name)
        return send_file(request, path, sha256=path.name, filename="file.bin")

    routes = {"FileResponse": theirs, "send_file": ours, "verified": verified}
    return Starlette(routes=[Route(f"/{name}", route) for name, route in routes.items()])


def fetch(port: int, path: str) -> int:
    """The number of bytes of the whole answer, headers included."""
    buffer, received = bytearray(MIB), 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n".encode())
        while count := connection.recv_into(buffer):
            received += count
    return received


def measure(size: int, turns: int) -> list[Server]:
    with TemporaryDirectory(prefix="grasp-bench-") as folder, ExitStack() as stack:
        file = write_file(Path(folder), size)
        names = ("FileResponse", "send_file", "verified")
        factory, environment = "bench.download_speed:application", {FILE: str(file)}
        servers = [stack.enter_context(serving(name, factory, environment)) for name in names]
        for server in servers:  # warm up, also the page cache
            begin = time.perf_counter()
            fetch(server.port, f"/{server.name}")
            first = time.perf_counter() - begin
        for _ in range(turns):
            for server in servers:
                with server.turn():
                    received = fetch(server.port, f"/{server.name}")
                assert received > size, f"{server.name} sent {received} bytes of {size}"
        report(servers, size)
        print(f"\nthe first download, with the verification: {first:.2f} s")
    return servers


def write_file(folder: Path, size: int) -> Path:
    """Named by its sha256, and not new: a new file is verified again and again."""
    file, digest = folder / "file.bin", hashlib.sha256()
    with file.open("wb") as out:
        for _ in range(size // MIB):
            chunk = os.urandom(MIB)
            digest.update(chunk)
            out.write(chunk)
    os.utime(file, (0, 0))
    return file.rename(folder / digest.hexdigest())


def report(servers: list[Server], size: int) -> None:
    from bench.common import print_table

    print_table(
        f"Downloads of {size // MIB} MiB, {len(servers[0].seconds)} turns",
        COLUMNS,
        [server.row(size) for server in servers],
    )


def main() -> int:
    # Here, because the servers import this module too, and their memory is measured without torch.
    from bench.common import Promise, settle

    theirs, ours, _ = measure(*parse_options(__doc__, turns=9))
    ratio = median(ours.seconds) / median(theirs.seconds)
    print(f"\nsend_file is {1 / ratio:.1f} times as fast as FileResponse")
    return settle([Promise("seconds of send_file / FileResponse", LIMIT, ratio)])


if __name__ == "__main__":
    raise SystemExit(main())
