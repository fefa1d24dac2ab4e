"""The service from both sides: a client of its HTTP, and a hand that plays the worker."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save
from starlette.testclient import TestClient

from grasp_core.manifest import Manifest, TensorSpec
from registry.blobs.base import Blob
from registry.blobs.local import LocalBlobStore
from registry.database import Database
from registry.jobs import queue
from registry.jobs.queue import Lease
from registry.jobs.transitions import Failure
from registry.keys import create_key
from registry.models import record_preparation
from registry.process.settings import Settings
from registry.tables import Base, Job, Model, Scope, Worker, utc_now
from registry.targets import record_validation
from registry.versions import FoldResult, publish, record_trial, reject

ROOT = Path(__file__).parents[2]
CLASSES = ("F", "M")
SHAPES: dict[str, tuple[int, ...]] = {
    "stem.weight": (4, 3),
    "head.weight": (2, 4),
    "head.bias": (2,),
}
MANIFEST = Manifest(
    architecture="test_vit",
    classes=len(CLASSES),
    tensors={
        name: TensorSpec(shape=shape, dtype="F32", kind="parameter", head=name.startswith("head"))
        for name, shape in SHAPES.items()
    },
)
SUMMARY = {
    "classes": list(CLASSES),
    "counts": {"train": {"F": 3, "M": 3}},
    "images": 6,
    "broken": [],
    "broken_count": 0,
    "fingerprint": "0" * 64,
}


def checkpoint(seed: int = 0, **changes: tuple[int, ...] | None) -> bytes:
    """A safetensors file of the tiny model; `changes` are other shapes, or None to leave out."""
    shapes = {**SHAPES, **{name.replace("__", "."): shape for name, shape in changes.items()}}
    rng = np.random.default_rng(seed)
    return save(
        {
            name: rng.standard_normal(shape, dtype=np.float32)
            for name, shape in shapes.items()
            if shape is not None
        }
    )


def large_header(size: int) -> bytes:
    """The start of a valid safetensors file whose one tensor has `size` bytes."""
    entry = {"stem.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = json.dumps(entry).encode()
    return len(header).to_bytes(8, "little") + header


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class World:
    """One service with its home; `client` is whoever asks."""

    client: TestClient | httpx.Client
    settings: Settings
    database: Database

    @property
    def app(self) -> Any:
        assert isinstance(self.client, TestClient)
        return self.client.app

    @property
    def store(self) -> LocalBlobStore:
        return LocalBlobStore(self.settings.blob_folder)

    # What a user does

    def post_target(self, name: str = "faces", **options: Any) -> Any:
        files = {"file": ("faces.zip", b"PK" + name.encode())}
        return self._post("/targets", data={"name": name}, files=files, **options)

    def post_model(
        self,
        name: str = "merged",
        target: str = "faces",
        files: Mapping[str, bytes] | None = None,
        fields: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Any:
        """As JSON; with files, as a form that begins with it."""
        body = {"name": name, "architecture": "test_vit", "target": target, **options}
        if files is None:
            return self._post("/models", json=body)
        parts = {part: (f"{part}.safetensors", content) for part, content in files.items()}
        return self._post(
            "/models", data={"model": json.dumps(body), **(fields or {})}, files=parts
        )

    def post_source(
        self, content: bytes | None = None, model: str = "merged", **options: Any
    ) -> Any:
        """As a form, the fields before the file."""
        data = {"model": model, **options.pop("fields", {})}
        files = {"file": (options.pop("filename", "site-a.safetensors"), content or checkpoint())}
        return self._post("/sources", data=data, files=files, **options)

    def post_raw(self, content: Any, model: str = "merged", **options: Any) -> Any:
        params = {"model": model, **options.pop("params", {})}
        return self._post("/sources", content=content, params=params, **options)

    def _post(self, path: str, **options: Any) -> Any:
        return self.client.post(path, **options)

    # What a worker does

    def claim(self) -> Lease:
        with self.database.write() as session:
            # An hour: what is told once is looked at by all tests of a process.
            lease = queue.claim(session, "wrk_a", utc_now(), lease_seconds=3600, max_losses=3)
        assert lease is not None
        return lease

    def validate(self, samples: Sequence[Mapping[str, str]] = (), **summary: Any) -> None:
        lease = self.claim()
        with self.database.write() as session:
            record_validation(session, lease, SUMMARY | summary, utc_now(), samples=samples)

    def prepare(self) -> None:
        lease = self.claim()
        with self.database.write() as session:
            manifest = MANIFEST.model_dump(mode="json")
            record_preparation(session, lease, CLASSES, manifest, utc_now())

    def progress(self, lease: Lease, stage: str, share: float, **metrics: float | str) -> None:
        with self.database.write() as session:
            queue.record_progress(session, lease, stage, share, metrics)

    def put(self, content: bytes) -> Blob:
        with self.store.create() as writer:
            writer.write(content)
            return writer.commit()

    def publish(
        self,
        lease: Lease | None = None,
        weights: bytes | None = None,
        state: bytes | None = None,
        method: str = "grasp",
        others: Mapping[str, bytes] | None = None,
        **reported: Any,
    ) -> int:
        lease = lease or self.claim()
        with self.database.read() as session:
            base = session.get_one(Model, lease.queue_id).version
            source = session.get_one(Job, lease.job_id).source_id
        result = FoldResult(
            base,
            report(source or "?", **reported),
            {"accuracy": 0.9},
            {"weights": self.put(weights or checkpoint(1000 + (base or 0)))}
            | ({f"state/{method}": self.put(state)} if state else {})
            | {name: self.put(content) for name, content in (others or {}).items()},
            method,
        )
        with self.database.write() as session:
            return publish(session, lease, result, utc_now())

    def reject(self, lease: Lease | None = None, *, cause: str | None = "fall") -> None:
        lease = lease or self.claim()
        with self.database.write() as session:
            base = session.get_one(Model, lease.queue_id).version
            verdict = {"outcome": "rejected", "reason": "accuracy fell", "cause": cause}
            result = FoldResult(base, report("?"), {"accuracy": 0.1}, verdict=verdict)
            reject(session, lease, result, utc_now())

    def try_out(self, *, refused: bool = False, metrics: dict[str, Any] | None = None) -> None:
        verdict = {
            "outcome": "rejected" if refused else "accepted",
            "reason": "accuracy fell" if refused else None,
            "change": {"count": 100, "lost": 42, "gained": 1, "trend": "down"} if refused else None,
        }
        result = FoldResult(None, report("?"), metrics or {"accuracy": 0.5}, verdict=verdict)
        lease = self.claim()
        with self.database.write() as session:
            record_trial(session, lease, result, utc_now())

    def fail(self, lease: Lease | None = None, *, attempts: int = 1) -> None:
        failure = Failure("out_of_memory", "it did not fit", hint="a smaller batch")
        with self.database.write() as session:
            queue.fail(session, lease or self.claim(), failure, utc_now(), max_attempts=attempts)

    def add_worker(self, job_id: str | None = None, **fields: Any) -> Worker:
        values = {"id": "wrk_a", "host": "h", "pid": 1, "device": "cpu", "release": "0"} | fields
        with self.database.write() as session:
            worker = Worker(job_id=job_id, memory_bytes=None, **values)
            session.add(worker)
        return worker

    # Both together

    def ready_target(self, name: str = "faces", **summary: Any) -> str:
        created = self.post_target(name)
        assert created.status_code == 202, created.text
        self.validate(**summary)
        return str(created.json()["target"]["id"])

    def ready_model(self, name: str = "merged", target: str = "faces", **options: Any) -> str:
        if self.client.get(f"/targets/{target}").status_code == 404:
            self.ready_target(target)
        created = self.post_model(name, target, **options)
        assert created.status_code == 201, created.text
        self.prepare()
        return str(created.json()["model"]["id"])

    def fold(
        self,
        seed: int,
        model: str = "merged",
        weights: bytes | None = None,
        state: bytes | None = None,
        others: Mapping[str, bytes] | None = None,
    ) -> int:
        assert self.post_source(checkpoint(seed), model).status_code == 202
        return self.publish(weights=weights, state=state, others=others)

    # Looking

    def key(self, owner: str, scope: Scope, **options: Any) -> dict[str, str]:
        """The header of a new key."""
        with self.database.write() as session:
            _, secret = create_key(session, owner, scope, **options)
        return {"Authorization": f"Bearer {secret}"}

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        with self.database.read() as session:
            return {
                table.name: sorted(map(tuple, session.execute(table.select())), key=repr)
                for table in Base.metadata.sorted_tables
            }

    def files(self) -> set[str]:
        """All that lies in the blob store, half-written things included."""
        root = self.settings.blob_folder
        found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        return found - {"lock"}

    @contextmanager
    def nothing_left(self) -> Iterator[None]:
        """What happens inside leaves neither a file nor a row."""
        files, rows = self.files(), self.rows()
        yield
        assert self.files() == files
        assert self.rows() == rows


def report(source: str, **reported: Any) -> str:
    shares = {name: {sha256(b"one"): 0.75, sha256(b"two"): 0.25} for name in SHAPES}
    parameters = [{"name": name, "size": int(np.prod(shape))} for name, shape in SHAPES.items()]
    return json.dumps(
        {
            "schema": 1,
            "source": source,
            "parameters": parameters,
            "provenance": {"shares": shares},
            **reported,
        }
    )


class Server:
    """A live server in a process of its own."""

    def __init__(self, home: Path, **variables: str) -> None:
        # Warnings are errors in the tests; a server of its own is to be what users run.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GRASP_")}
        environment |= {"GRASP_HOME": str(home), "PYTHONPATH": str(ROOT), **variables}
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "app.main:app", "--fd", str(listener.fileno())]
        self.log = home.parent / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--http", "app.http.connections:BoundedProtocol", "--no-access-log"],
                env=environment,
                cwd=home.parent,
                pass_fds=[listener.fileno()],
                stderr=log,
                stdout=log,
            )
        listener.close()  # the server has its own
        self.url = f"http://127.0.0.1:{self.port}"
        try:
            wait_until(self._answers)
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/healthz", timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    def connect(self) -> socket.socket:
        """A connection that was accepted: if it is cut before, nobody can say whose it was."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):  # what is left unread would make a reset of closing it
            answer += connection.recv(65536)
        return connection

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)

    def logged(self, **fields: Any) -> list[Mapping[str, Any]]:
        """The lines of the log that have these fields."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if fields.items() <= entry.items()]


def wait_until(holds: Any, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.02)
