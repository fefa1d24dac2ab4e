"""The service as real processes: started, killed, started again, and all gone at the end."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from registry.database import Database
from registry.keys import create_key
from registry.process.settings import Settings
from tests.worker.waiting import PATIENCE_S, until

ROOT = Path(__file__).parent.parent.parent
GRASP = (sys.executable, "-c", "from grasp_cli.main import main; main()")
SERVE = (*GRASP, "serve")
WORKER = (sys.executable, "-m", "tests.service.fake_worker")
_numbers = itertools.count()


def environment(settings: Settings) -> dict[str, str]:
    """What makes another process read these settings."""
    others = {k: v for k, v in os.environ.items() if not k.upper().startswith("GRASP_")}
    given = {
        f"GRASP_{name.upper()}": ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in settings.model_dump(exclude_unset=True).items()
    }
    return others | given | {"PYTHONPATH": str(ROOT), "GRASP_LOG_FORMAT": "json"}


def processes_of(home: Path) -> list[psutil.Process]:
    """All that were started for this home, by anybody, and still run."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("GRASP_HOME") == str(home)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def free_port() -> int:
    """Below those that the system gives to clients, who could take it while the API is down."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as chosen:
            try:
                chosen.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def make_key(settings: Settings, owner: str = "ann") -> tuple[str, str]:
    """Its id, and the key."""
    database = Database(settings.database)
    database.migrate()
    with database.write() as session:
        key, secret = create_key(session, owner, "write")
    database.close()
    return key.id, secret


def is_ready(http: httpx.Client) -> bool:
    """Whether an API answers, and has all that it needs."""
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


class Process:
    """A process of its own, with a pipe for its standard input and a file for its words."""

    def __init__(self, command: tuple[str, ...], settings: Settings) -> None:
        settings.home.mkdir(exist_ok=True)
        self.log = settings.home / f"{next(_numbers)}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment(settings),
                cwd=settings.home,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
            )
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def says(self, text: str) -> bool:
        return text in self.log.read_text()

    def wait(self) -> int:
        """Its exit code."""
        code = self._process.wait(PATIENCE_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        return code

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.alive:
            self._process.kill()
        self.wait()


class Harness:
    """The real API and some fake workers, beside one home."""

    def __init__(self, home: Path, *, workers: int, **options: Any) -> None:
        chosen: dict[str, Any] = {"poll_seconds": 0.05, "warm_spare": False}
        self.settings = Settings(home=home, port=free_port(), workers=0, **chosen | options)
        self.url = f"http://127.0.0.1:{self.settings.port}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        self.api = Process(SERVE, self.settings)
        self.wait_for_api()
        self.workers = [Process(WORKER, self.settings) for _ in range(workers)]

    def wait_for_api(self) -> None:
        until(self._answers)

    def _answers(self) -> bool:
        assert self.api.alive, self.api.log.read_text()
        return is_ready(self.client)

    def restart_api(self) -> None:
        """As whatever looks after it would, once it died."""
        self.api.wait()
        self.api = Process(SERVE, self.settings)

    def restart_worker(self, number: int) -> None:
        self.workers[number].wait()
        self.workers[number] = Process(WORKER, self.settings)

    def children(self) -> list[psutil.Process]:
        """The processes that run jobs."""
        return [child for worker in self.workers for child in children_of(worker.pid)]

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        """End all; a process that stays is a failure of the test."""
        self.client.close()
        for process in (*self.workers, self.api):
            if process.alive:
                process.send(signal.SIGCONT)
                process.send(signal.SIGTERM)
        for process in (*self.workers, self.api):
            process.wait()
        with none_left(self.settings.home):
            pass


def children_of(pid: int) -> list[psutil.Process]:
    """The processes that run jobs for this worker."""
    return [child for child in _children(pid) if "spawn_main" in " ".join(command_of(child))]


def _children(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
    return found


def command_of(process: psutil.Process) -> list[str]:
    """Empty once it is gone."""
    try:
        words: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return words


@contextmanager
def none_left(home: Path) -> Iterator[None]:
    """In the end no process of this home is left."""
    try:
        yield
        until(lambda: not processes_of(home))
    finally:
        for process in processes_of(home):
            process.kill()
