"""Speed of uploads: POST /sources beside the endpoint that FastAPI's own UploadFile invites to.

    python bench/upload_speed.py [--size MIB] [--turns N]

Each has a uvicorn of its own (uvloop, httptools), and all take a checkpoint of the same size, in
turns, from a client that writes to a plain socket. All hash the bytes and answer when these are
synced to disk under their sha256; ours also reads the header, and commits a source and its job.
UploadFile spools the file first, so that its bytes are written twice. Processor time and peak
memory are the servers'. The floor is one process that hashes, writes and syncs, with no network.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, mkstemp
from zipfile import ZipFile

import httpx
from fastapi import FastAPI, UploadFile

from bench.servers import COLUMNS, Server, parse_options, serving

LIMIT = 0.8  # seconds of POST /sources / seconds of UploadFile
FOLDER = "GRASP_BENCH_FOLDER"
MODEL = "bench"
FORM, RAW = "POST /sources, form", "POST /sources, raw body"
BOUNDARY = "------------------------bench"
MIB = 2**20


def upload_file() -> FastAPI:
    """The endpoint that most would write."""
    app = FastAPI()
    folder = Path(os.environ[FOLDER])

    @app.post("/sources")
    def create_source(file: UploadFile) -> str:
        return store(iter(lambda: file.file.read(MIB), b""), folder)

    return app


def store(pieces: Iterator[bytes], folder: Path) -> str:
    """Under its sha256, and synced; only for as long as the benchmark looks."""
    digest, (handle, name) = hashlib.sha256(), mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as out:
        for piece in pieces:
            digest.update(piece)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    Path(name).rename(folder / digest.hexdigest()).unlink()
    return digest.hexdigest()


class Checkpoint:
    """One tensor of `size` bytes, other ones every time that it is read."""

    def __init__(self, size: int) -> None:
        tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
        header = json.dumps({"weight": tensor}).encode()
        self._head = struct.pack("<Q", len(header)) + header
        self._block = os.urandom(MIB)
        self._blocks = size // MIB
        self.size = len(self._head) + size

    def pieces(self) -> Iterator[bytes]:
        yield self._head
        yield os.urandom(MIB)
        for _ in range(self._blocks - 1):
            yield self._block


def send(port: int, checkpoint: Checkpoint, *, form: bool) -> None:
    """Raises ValueError unless it is accepted."""
    before, after, kind = b"", b"", "application/octet-stream"
    if form:
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        part = 'Content-Disposition: form-data; name="file"; filename="a.safetensors"'
        before = f"--{BOUNDARY}\r\n{part}\r\n\r\n".encode()
        after = f"\r\n--{BOUNDARY}--\r\n".encode()
    length = len(before) + checkpoint.size + len(after)
    head = f"""POST /sources?model={MODEL} HTTP/1.1
Host: localhost
Content-Type: {kind}
Content-Length: {length}
Connection: close

"""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode())
        for piece in (before, *checkpoint.pieces(), after):
            connection.sendall(piece)
        answer = b"".join(iter(lambda: connection.recv(MIB), b""))
    if answer.split()[1] not in (b"200", b"202"):
        raise ValueError(f"the upload was refused: {answer.decode()}")


def make_model(server: Server) -> None:
    """Of a target that no worker ever looks at."""
    target = io.BytesIO()
    with ZipFile(target, "w") as archive:
        archive.writestr("a/1.png", b"")
    model = {"name": MODEL, "architecture": "resnet18", "target": MODEL}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http:
        files = {"file": ("target.zip", target.getvalue())}
        http.post("/targets", data={"name": MODEL}, files=files).raise_for_status()
        http.post("/models", json=model).raise_for_status()


def measure(size: int, turns: int) -> list[Server]:
    checkpoint = Checkpoint(size)
    with TemporaryDirectory(prefix="grasp-bench-") as folder, ExitStack() as stack:
        theirs = {FOLDER: folder, "TMPDIR": folder}
        servers = [
            stack.enter_context(serving("UploadFile", "bench.upload_speed:upload_file", theirs)),
            stack.enter_context(serving(FORM, "app.main:create_app", home(folder, "form"))),
            stack.enter_context(serving(RAW, "app.main:create_app", home(folder, "raw"))),
        ]
        for server in servers:
            if server.name in (FORM, RAW):
                make_model(server)
            send(server.port, checkpoint, form=server.name != RAW)  # warms up
        floor = []
        for _ in range(turns):
            floor.append(store_alone(checkpoint, Path(folder)))
            for server in servers:
                with server.turn():
                    send(server.port, checkpoint, form=server.name != RAW)
        report(servers, floor, size)
    return servers


def home(folder: str, name: str) -> dict[str, str]:
    return {"GRASP_HOME": str(Path(folder, name)), "GRASP_LOG_LEVEL": "warning"}


def store_alone(checkpoint: Checkpoint, folder: Path) -> float:
    begin = time.perf_counter()
    store(checkpoint.pieces(), folder)
    return time.perf_counter() - begin


def report(servers: list[Server], floor: list[float], size: int) -> None:
    from bench.common import print_table

    speeds = sorted(size / 1e6 / seconds for seconds in floor)
    alone = (f"{number:.0f}" for number in (median(speeds), speeds[0], speeds[-1]))
    print_table(
        f"Uploads of {size // MIB} MiB, {len(floor)} turns",
        COLUMNS,
        [("hash, write, sync", *alone, "", ""), *(server.row(size) for server in servers)],
    )


def main() -> int:
    # Here, because the servers import this module too, and their memory is measured without torch.
    from bench.common import Promise, settle

    theirs, ours, _ = measure(*parse_options(__doc__, turns=7))
    ratio = median(ours.seconds) / median(theirs.seconds)
    print(f"\na form takes POST /sources {ratio:.2f} of the time that it takes UploadFile")
    return settle([Promise("seconds of POST /sources / UploadFile", LIMIT, ratio)])


if __name__ == "__main__":
    raise SystemExit(main())
