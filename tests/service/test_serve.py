"""`grasp serve` as a process, with the real worker: how it comes, goes, and refuses to come."""

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import psutil

from registry.process.settings import Settings
from tests.service.harness import (
    GRASP,
    ROOT,
    SERVE,
    Process,
    environment,
    free_port,
    make_key,
    processes_of,
)
from tests.worker.waiting import is_gone, until


def settings(home: Path, **options: Any) -> Settings:
    chosen: dict[str, Any] = {"port": free_port(), "warm_spare": False, "workers": 1}
    return Settings(home=home, **chosen | options)


def workers_of(served: Settings) -> str | None:
    """How many workers the service says it has; None while it does not answer."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{served.port}/readyz")
    except httpx.TransportError:
        return None
    if answer.status_code != 200:
        return None
    count: str = answer.json()["checks"]["workers"]
    return count


def family(process: Process) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return found


def refusal(served: Settings) -> str:
    """The words of a service that does not start."""
    ended = subprocess.run(
        SERVE, env=environment(served), cwd=served.home.parent, capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_it_comes_up_with_a_worker_and_goes_down_with_it(home: Path) -> None:
    served = settings(home)

    with Process(SERVE, served) as process:
        until(lambda: workers_of(served) == "1")
        workers = family(process)
        os.kill(workers[0].pid, signal.SIGKILL)
        until(lambda: process.says("a worker died; starting another"))
        until(lambda: {p.pid for p in family(process)} - {p.pid for p in workers})
        assert process.end(signal.SIGTERM) == 0

    assert processes_of(home) == []
    assert process.says("worker stopped")


def test_its_worker_ends_when_it_is_killed(home: Path) -> None:
    served = settings(home)

    with Process(SERVE, served) as process:
        until(lambda: workers_of(served) == "1")
        workers = family(process)
        process.end(signal.SIGKILL)

    assert workers
    until(lambda: all(is_gone(worker.pid) for worker in workers))
    assert process.says("worker stopped")  # it was not torn away, but ended by itself


def test_a_broken_package_keeps_nobody_from_serving(home: Path, tmp_path: Path) -> None:
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[grasp.methods]\nechoes = broken:A\n[grasp.kinds]\nsounds = broken:B\n"
    (about / "entry_points.txt").write_text(points)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')")
    served = settings(home)
    installed = ("env", f"PYTHONPATH={tmp_path}{os.pathsep}{ROOT}")

    with Process((*installed, *SERVE), served) as process:
        until(lambda: workers_of(served) == "1")
        document = httpx.get(f"http://127.0.0.1:{served.port}/openapi.json").json()
        assert process.end(signal.SIGTERM) == 0

    assert {"GraspConfig", "Augmentation"} <= document["components"]["schemas"].keys()
    for name in ("echoes", "sounds"):
        assert process.says(f"RuntimeWarning: '{name}' of broken cannot be loaded: RuntimeError")
    assert process.says("repair or uninstall broken")


def test_a_signal_that_comes_before_it_serves_is_heeded(home: Path) -> None:
    served = settings(home, workers=0)

    with Process(SERVE, served) as process:
        until(lambda: process.says('"event": "serving"'))
        assert process.end(signal.SIGINT) == 0


def test_a_home_has_one_service_at_a_time(home: Path) -> None:
    served = settings(home, workers=0)

    with Process(SERVE, served) as process:
        until(lambda: workers_of(served) == "0")
        token = served.token_file.read_text()
        words = refusal(settings(home, workers=0))
        assert served.token_file.read_text() == token
        assert process.end() == 0

    assert f"another `grasp serve` runs in {home}" in words
    assert not served.token_file.exists()


def test_clients_in_its_folder_find_it(home: Path) -> None:
    served = settings(home, port=0, workers=0)

    with Process(SERVE, served) as process:
        until(lambda: process.says('"event": "serving"'))
        url = served.address_file.read_text()
        assert served.address_file.stat().st_mode & 0o777 == 0o600
        assert list_models(home).returncode == 0
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert process.end() == 0
    assert not served.address_file.exists()

    with Process(SERVE, served) as process:
        until(lambda: served.address_file.exists())
        process.end(signal.SIGKILL)
    url = served.address_file.read_text()
    assert url not in list_models(home).stderr  # nobody tries to reach it there


def list_models(home: Path) -> subprocess.CompletedProcess[str]:
    """As somebody types it who says nothing of the server but where its home is."""
    return subprocess.run(
        (*GRASP, "models"),
        env=environment(Settings(home=home)),
        cwd=home.parent,
        capture_output=True,
        text=True,
    )


def test_who_listens_everywhere_is_found_on_loopback(home: Path) -> None:
    make_key(Settings(home=home))
    for host, here in (("0.0.0.0", "http://127.0.0.1:"), ("::", "http://[::1]:")):
        served = settings(home, host=host, port=0, workers=0)
        with Process(SERVE, served) as process:
            until(lambda: process.says('"event": "serving"'))
            url = served.address_file.read_text()
            assert process.end() == 0
        assert url.startswith(here)


def test_a_token_that_cannot_be_deleted_ends_nothing(home: Path) -> None:
    """As on a disk that can no longer be written."""
    served = settings(home, workers=0)

    with Process(SERVE, served) as process:
        until(lambda: workers_of(served) == "0")
        served.token_file.unlink()
        served.token_file.mkdir()
        assert process.end() == 0

    assert not process.says("Traceback")


def test_a_port_that_is_taken_is_named(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        words = refusal(settings(home, port=port))

    assert f"cannot listen on 127.0.0.1:{port}" in words
    assert "--port or GRASP_PORT chooses another port" in words


def test_without_keys_it_serves_nobody_but_this_machine(home: Path) -> None:
    served = settings(home, host="0.0.0.0", workers=0)

    words = refusal(served)
    made = subprocess.run(
        (*GRASP, "admin", "keys", "create", "--owner", "ann", "--scope", "admin"),
        env=environment(served),
        cwd=home.parent,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "grasp admin keys create" in words
    assert "GRASP_HOST" in words
    with Process(SERVE, served) as process:
        until(lambda: workers_of(served) == "0")
        url = f"http://127.0.0.1:{served.port}/models"
        assert httpx.get(url).status_code == 401
        key = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert httpx.get(url, headers=key).json() == {"items": [], "next_cursor": None}
        assert process.end() == 0
