"""How `home.tar.xz` was made; README.md says with what.

It only speaks HTTP and writes safetensors, so that it can be run with any release.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import timm
import torch
from safetensors.torch import save
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = ("0", "1", "2", "3")
PER_CLASS = 50
ARCHITECTURE = "test_efficientnet"
MERGE = {
    "tau": 0.0,
    "alignment_batches": 2,
    # Only the head is refined: all else stays as coarse as sources are, and is small when packed.
    "refine": {"epochs": 2, "lr": 1e-3, "freeze": ["conv_*", "bn*", "blocks.*"]},
    "gate": {"max_drop": 0.5},
}
CENTURY_S = 100 * 365 * 86_400
KEY, REST = "key.txt", "rest.bin"
Json = dict[str, Any]


def main(output: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, labels = digits()
    ancestor = coarse(trained(fresh(), images, labels, steps=150))
    with TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        key = make_key(home)
        with serving(home, key) as client:
            rest = populate(client, home, ancestor, images, labels)
        tidy(home)
        (home.parent / KEY).write_text(key)
        (home.parent / REST).write_bytes(rest)
        with tarfile.open(output, "w:xz", preset=9) as archive:
            for name in (home.name, KEY, REST):
                archive.add(home.parent / name, name, filter=anonymous)


def populate(
    client: httpx.Client, home: Path, ancestor: nn.Module, images: Tensor, labels: Tensor
) -> bytes:
    """What the release is asked to do; what is left to be sent of an upload in parts."""

    def source(seed: int) -> bytes:
        torch.manual_seed(seed)
        head = [p for name, p in ancestor.named_parameters() if name.startswith("classifier")]
        before = [p.detach().clone() for p in head]
        trained(ancestor, images, labels, steps=60, parameters=head)
        data = packed(coarse(ancestor))
        with torch.no_grad():
            for parameter, old in zip(head, before, strict=True):
                parameter.copy_(old)
        return data

    archive = Path(home.parent, "target.npz")
    np.savez_compressed(archive, images=raw(images), labels=labels.numpy(), classes=CLASSES)
    answers = {"Idempotency-Key": "the-target"}
    post(client, "/targets", {"name": "digits"}, archive.read_bytes(), headers=answers)
    model = {
        "name": "merged",
        "architecture": ARCHITECTURE,
        "target": "digits",
        "image_size": 32,
        "preprocessing": {"crop_pct": 1.0},
        "merge": MERGE,
    }
    client.post("/models", json=model).raise_for_status()
    with working(home):
        for seed in (1, 2):
            ended(client, offer(client, source(seed)), "succeeded")
        client.post("/models/merged/rollback", json={"version": 1}).raise_for_status()
        ended(client, offer(client, source(3), dry_run=True), "succeeded")
        strict = {"refine": {"epochs": 0}, "gate": {"max_drop": 0.0}}
        client.patch("/models/merged", json={"merge": strict}).raise_for_status()
        ended(client, offer(client, packed(fresh())), "rejected")
        client.patch("/models/merged", json={"merge": MERGE}).raise_for_status()
    offer(client, source(5))  # and nobody works any more
    last = source(6)
    begin_upload(client, last, sent=len(last) // 2)
    return last[len(last) // 2 :]


def digits() -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) and labels (n,)."""
    found = load_digits()
    rows = np.concatenate([np.flatnonzero(found.target == int(c))[:PER_CLASS] for c in CLASSES])
    images = torch.tensor(found.images[rows] / 16, dtype=torch.float32)
    large = F.interpolate(images[:, None], size=32, mode="nearest")
    return large.expand(-1, 3, -1, -1), torch.tensor(found.target[rows])


def raw(images: Tensor) -> np.ndarray[Any, Any]:
    """As they are sent: (n, 8, 8)."""
    return (images[:, 0, ::4, ::4] * 255).to(torch.uint8).numpy()


def fresh() -> nn.Module:
    model: nn.Module = timm.create_model(ARCHITECTURE, num_classes=len(CLASSES))
    return model


def trained(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    steps: int,
    parameters: list[nn.Parameter] | None = None,
) -> nn.Module:
    model.train(parameters is None)
    optimizer = torch.optim.AdamW(parameters or model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = torch.randint(len(labels), (32,))
        optimizer.zero_grad()
        F.cross_entropy(model((images[rows] - 0.5) / 0.25), labels[rows]).backward()
        optimizer.step()
    return model


def coarse(model: nn.Module) -> nn.Module:
    """Weights with two bits in their mantissa."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                mantissa, exponent = torch.frexp(tensor)
                tensor.copy_(torch.ldexp((mantissa * 8).round() / 8, exponent))
    return model


def packed(model: nn.Module) -> bytes:
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    return save(tensors, {"grasp": json.dumps({"classes": CLASSES})})


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def post(client: httpx.Client, path: str, fields: Json, data: bytes, **options: Any) -> Json:
    answer = client.post(path, data=fields, files={"file": ("file", data)}, **options)
    answer.raise_for_status()
    found: Json = answer.json()
    return found


def offer(client: httpx.Client, data: bytes, *, dry_run: bool = False) -> str:
    """The id of the job."""
    params = {"dry_run": dry_run}
    job: str = post(client, "/sources", {"model": "merged"}, data, params=params)["job"]["id"]
    return job


def ended(client: httpx.Client, job_id: str, status: str) -> None:
    until(lambda: client.get(f"/jobs/{job_id}", params={"wait": 5}).json()["finished_at"])
    found = client.get(f"/jobs/{job_id}").json()
    if found["status"] != status:
        raise RuntimeError(json.dumps(found, indent=1))


def begin_upload(client: httpx.Client, data: bytes, sent: int) -> None:
    """A file of which the first bytes have arrived."""
    metadata = f"filename {encoded(b'late.safetensors')},model {encoded(b'merged')}"
    headers = {"Tus-Resumable": "1.0.0", "Upload-Length": str(len(data))}
    made = client.post("/uploads", headers=headers | {"Upload-Metadata": metadata})
    made.raise_for_status()
    part = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    place = made.headers["location"]
    client.patch(place, headers=headers | part, content=data[:sent]).raise_for_status()


def make_key(home: Path) -> str:
    command = [*GRASP, "admin", "keys", "create", "--owner", "ann", "--scope", "write"]
    printed = subprocess.run(
        command, env=environment(home), check=True, capture_output=True, text=True
    ).stdout
    return next(word for word in printed.split() if word.startswith("grasp_"))


GRASP = (sys.executable, "-c", "from grasp_client.cli import main; main()")


def environment(home: Path, **more: str) -> dict[str, str]:
    given = {
        "GRASP_HOME": str(home),
        "GRASP_DEVICE": "cpu",
        "GRASP_THREADS": "1",
        "GRASP_WORKERS": "0",
        "GRASP_UPLOAD_EXPIRY_SECONDS": str(CENTURY_S),
    }
    return os.environ | given | more


@contextmanager
def serving(home: Path, key: str) -> Iterator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {key}"}
    with subprocess.Popen([*GRASP, "serve"], env=environment(home, GRASP_PORT=str(port))) as api:
        try:
            with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
                until(lambda: answers(client))
                yield client
        finally:
            api.terminate()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").is_success
    except httpx.TransportError:
        return False


@contextmanager
def working(home: Path) -> Iterator[None]:
    command = [*GRASP, "worker"]
    with subprocess.Popen(command, env=environment(home)) as worker:
        try:
            yield
        finally:
            worker.terminate()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.1)


def tidy(home: Path) -> None:
    """One file for the database, and nothing that no later release could want."""
    with closing(sqlite3.connect(home / "grasp.db", isolation_level=None)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("VACUUM")
        database.execute("UPDATE workers SET host = 'host'")


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]))
