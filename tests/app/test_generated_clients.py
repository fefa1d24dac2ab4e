"""Clients that others generate from the OpenAPI document: they type-check, and they work."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from registry.jobs import queue
from registry.models import record_preparation
from registry.tables import Job, utc_now
from registry.targets import record_validation
from tests.app.world import CLASSES, MANIFEST, SUMMARY, Server, World, checkpoint

WALKS = Path(__file__).parent / "walks"
# What is in client.py does not depend on the document, and is not quite right with a newer httpx.
MYPY = "[mypy]\nstrict = True\n[mypy-merge_client.client]\nignore_errors = True\n"


@pytest.fixture
def folder(live: World, tmp_path: Path) -> Path:
    """What a walk needs: the document, the data and a checkpoint."""
    document = live.client.get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "target.zip").write_bytes(b"PK")
    (tmp_path / "source.safetensors").write_bytes(checkpoint())
    return tmp_path


@contextmanager
def working(world: World) -> Iterator[None]:
    """Somebody does the jobs meanwhile."""
    ended = Event()

    def work() -> None:
        while not ended.wait(0.05):
            with world.database.write() as session:
                lease = queue.claim(session, "wrk", utc_now(), lease_seconds=60, max_losses=1)
                kind = session.get_one(Job, lease.job_id).kind if lease else None
            if lease is None:
                continue
            if kind == "fold":
                world.publish(lease)
                continue
            with world.database.write() as session:
                if kind == "validate":
                    record_validation(session, lease, SUMMARY, utc_now())
                else:
                    manifest = MANIFEST.model_dump(mode="json")
                    record_preparation(session, lease, CLASSES, manifest, utc_now())

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run(folder: Path, *command: str | Path) -> str:
    """What it prints; it must succeed."""
    tools = Path(sys.executable).parent
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_client_of_openapi_python_client(live: World, server: Server, folder: Path) -> None:
    options = ("--path", "openapi.json", "--meta", "none", "--output-path", "merge_client")
    reported = run(folder, "openapi-python-client", "generate", *options)
    assert "will not be generated" not in reported  # no operation is left out
    shutil.copy(WALKS / "walk.py", folder)

    (folder / "mypy.ini").write_text(MYPY)
    run(folder, "mypy", "walk.py", "merge_client")
    with working(live):
        run(folder, sys.executable, "walk.py", server.url, ".")

    assert (folder / "merged.safetensors").read_bytes() == live.client.get("/models/python").content


def test_the_client_of_openapi_typescript(live: World, server: Server, folder: Path) -> None:
    tools = install_node_packages(folder)
    shutil.copy(WALKS / "walk.ts", folder)
    # By itself it takes fields with a default for required, also in requests.
    options = ("--default-non-nullable=false", "--output", "schema.d.ts")
    run(folder, tools / "openapi-typescript", "openapi.json", *options)

    target = ("--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
    run(folder, tools / "tsc", "--strict", *target, "--skipLibCheck", "walk.ts")
    with working(live):
        run(folder, "node", "walk.js", server.url, ".")

    merged = (folder / "merged.safetensors").read_bytes()
    assert merged == live.client.get("/models/typescript").content


def install_node_packages(folder: Path) -> Path:
    """Where their commands are; skips the test where they cannot be had without a network."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    shutil.copy(WALKS / "package.json", folder)
    options = ("--offline", "--no-package-lock", "--no-audit", "--no-fund", "--prefix", folder)
    done = subprocess.run(["npm", "install", *options], capture_output=True)
    if done.returncode:
        pytest.skip(f"needs, in npm's cache, what {WALKS / 'package.json'} names")
    return folder / "node_modules" / ".bin"
