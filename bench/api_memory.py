"""How much memory whoever has a key can make the API take, and how long others wait meanwhile.

    python bench/api_memory.py [--promise 256] [--only headers]

Checks the promise that the API stays under 256 MB. One `grasp serve` without workers, on this
machine's loopback, gets one hostile thing after the other, many of each at once; beside that,
somebody asks for /healthz without pause. Linux only: the peak is the kernel's own figure.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import Manager, Process
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.api_start import serving
from grasp_core.config import MAX_CLASSES

PROMISE_MB = 256
EIGHT = 8
HELD_S = 3.0  # how long what stays open is kept so
MIB = 2**20

Attack = Callable[[int], None]  # on a port


def main() -> int:
    options = _options()
    rows: list[tuple[str, float, float, float]] = []
    with TemporaryDirectory() as folder, serving(Path(folder)) as (_, process):
        port = _port_of(process)
        time.sleep(2)
        idle = process.memory_info().rss / 1e6
        print(f"idle: {idle:.0f} MB\n")
        print(f"{'':58} peak MB   of idle   /healthz: median, longest (ms)")
        for name, attack in ATTACKS.items():
            if options.only not in name:
                continue
            _forget_peak(process)
            with asking(port) as waits:
                attack(port)
            peak = _peak_mb(process)
            rows.append((name, peak, median(waits), max(waits)))
            print(
                f"{name:58} {peak:7.0f}   {peak / idle:7.2f}   {median(waits):8.0f}"
                f" {max(waits):8.0f}",
                flush=True,
            )
        time.sleep(2)
        print(f"\nidle again: {process.memory_info().rss / 1e6:.0f} MB")
    highest = max(row[1] for row in rows)
    kept = highest < options.promise
    print(f"under {options.promise:.0f} MB: {'holds' if kept else 'BROKEN'} ({highest:.0f} MB)")
    return 0 if kept else 1


@contextmanager
def asking(port: int) -> Iterator[list[float]]:
    """Somebody asks how the service is, all the time; in the end, how long that took, in ms."""
    waits: list[float] = []
    with Manager() as manager:
        ended, found = manager.Event(), manager.list()
        # In a process of its own: the attack keeps this one busy.
        asker = Process(target=_ask, args=(port, ended, found))
        asker.start()
        try:
            yield waits
        finally:
            ended.set()
            asker.join()
            waits += found


def _ask(port: int, ended: threading.Event, waits: list[float]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        while not ended.wait(0.05):
            began = time.perf_counter()
            client.get("/healthz", timeout=60).raise_for_status()
            waits.append(1000 * (time.perf_counter() - began))


def headers_at_once(header: bytes) -> Attack:
    """As initial weights of a model, eight at once, twice."""
    file = len(header).to_bytes(8, "little") + header

    def send(port: int) -> None:
        answer = httpx.post(
            f"http://127.0.0.1:{port}/models",
            files={"file": ("w", file)},
            timeout=120,
            trust_env=False,
        )
        assert answer.status_code in (400, 422), answer.text
        assert len(answer.content) < 10_000

    def attack(port: int) -> None:
        with ThreadPoolExecutor(EIGHT) as pool:
            list(pool.map(send, [port] * 2 * EIGHT))

    return attack


def bodies_at_once(body: bytes, path: str = "/models") -> Attack:
    def send(port: int) -> None:
        with suppress(httpx.TransportError):  # turned away before all was sent
            url = f"http://127.0.0.1:{port}{path}"
            answer = httpx.post(url, content=body, timeout=120, trust_env=False)
            assert len(answer.content) < 30_000, answer.text[:100]

    def attack(port: int) -> None:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(send, [port] * 32))

    return attack


def held_open(start: bytes, count: int) -> Attack:
    """So many connections that send this and then stay as they are."""

    def attack(port: int) -> None:
        with ExitStack() as stack:
            for _ in range(count):
                connection = socket.create_connection(("127.0.0.1", port), timeout=0.5)
                stack.enter_context(connection)
                with suppress(OSError):
                    connection.sendall(start)
            time.sleep(HELD_S)

    return attack


def models_of_long_names(count: int) -> Attack:
    """Each with as many class names as a body has room for."""
    names = [f"{number:05}{FACE}".ljust(90, "x") for number in range(MAX_CLASSES)]

    def attack(port: int) -> None:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False
        ) as client:
            client.post("/targets?name=named", content=b"PK").raise_for_status()
            for number in range(count):
                fields = {"name": f"named-{number}", "architecture": "resnet18", "target": "named"}
                body = json.dumps(fields | {"classes": names}, ensure_ascii=False).encode()
                client.post("/models", content=body).raise_for_status()

    return attack


def asked_at_once(path: str, times: int = 1) -> Attack:
    """By four, each so often."""

    def ask(port: int) -> None:
        for _ in range(times):
            answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=120, trust_env=False)
            answer.raise_for_status()

    def attack(port: int) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, [port] * 4))

    return attack


def _request(line: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _header(names: Iterable[str], shape: list[int]) -> bytes:
    entry = {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}
    return json.dumps(dict.fromkeys(names, entry), ensure_ascii=False).encode()


def _form(parts: int, size: int) -> tuple[bytes, dict[str, str]]:
    part = b'--b\r\nContent-Disposition: form-data; name="x%d"\r\n\r\n%b\r\n'
    body = b"".join(part % (number, b"x" * size) for number in range(parts))
    return body, {"Content-Type": "multipart/form-data; boundary=b"}


def _upload(length: int, more: Mapping[str, str] | None = None) -> bytes:
    return _request("POST /targets?name=x", {"Content-Length": str(length), **(more or {})})


FACE = "\N{GRINNING FACE}"  # of a text that holds one, each character takes four bytes
MANY = _header(map(str, range(240_000)), [0])
WIDE = _header((f"{n:05}{FACE}".ljust(480, "x") for n in range(29_000)), [2**30, 2**31, 0])
FORM, FORM_TYPE = _form(60, 60_000)
ATTACKS: dict[str, Attack] = {
    "nothing": lambda _: time.sleep(HELD_S),
    "16 headers of 240,000 tensors, 8 at once": headers_at_once(MANY),
    "16 headers of 29,000 long names, 8 at once": headers_at_once(WIDE),
    "32 JSON bodies of 500,000 wrong names at once": bodies_at_once(
        b'{"name":"a","architecture":"a","target":"a","classes":[' + b"1," * 510_000 + b"1]}"
    ),
    "32 JSON bodies of 160,000 objects at once": bodies_at_once(
        b'{"name":[' + b'{"":1},' * 145_000 + b"1]}"
    ),
    "32 JSON bodies of 80,000 unknown fields at once": bodies_at_once(
        json.dumps({f"{n:05}": 1 for n in range(85_000)}).encode()
    ),
    "400 uploads that stop after 4 MiB": held_open(_upload(2**30) + bytes(4 * MIB), 400),
    "400 forms that stop after 3.6 MB of fields": held_open(_upload(2**30, FORM_TYPE) + FORM, 400),
    "1,000 heads that stop after 60 kB": held_open(b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000, 1000),
    "1,000 heads of 125 lines that stop": held_open(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 125, 1000),
    "1,000 heads of one byte per line": held_open(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 16_000, 1000),
    "60 models of 10,000 names each": models_of_long_names(60),
    "60 models …: four lists at once": asked_at_once("/models?limit=60", 5),
    "60 models …: four pages at once": asked_at_once("/", 5),
    "60 models …: four shown at once": asked_at_once("/models/named-1/info", 5),
}


def _forget_peak(process: psutil.Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _peak_mb(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def _port_of(process: psutil.Process) -> int:
    (listening,) = {c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"}
    return int(listening)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--promise", type=float, default=PROMISE_MB, help="MB")
    parser.add_argument("--only", default="", help="those that have this in their name")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
