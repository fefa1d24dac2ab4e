"""`grasp serve` with few files to open, and many connections that want them."""

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.process.settings import Settings
from tests.service.harness import SERVE, Process, free_port, is_ready
from tests.worker.waiting import until

FILES = 192  # of which connections get fewer than bodies may arrive at once
HALF = b"POST /models HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"
LIMITED = ("bash", "-c", f'ulimit -n {FILES}; exec "$@"', "bash", *SERVE)


@pytest.mark.parametrize("head", [b"", HALF])
def test_more_connections_than_files_do_not_make_it_unreachable(home: Path, head: bytes) -> None:
    """Silent ones make room; where none is silent, health is told, and the others to come back."""
    chosen: dict[str, Any] = {"port": free_port(), "workers": 0, "head_seconds": 60.0}
    served = Settings(home=home, **chosen)
    url = f"http://127.0.0.1:{served.port}"
    with Process(LIMITED, served) as process, ExitStack() as taken:
        with httpx.Client(base_url=url) as client:
            until(lambda: is_ready(client))
        for _ in range(FILES + 50):
            connection = socket.create_connection(("127.0.0.1", served.port), timeout=30)
            taken.enter_context(connection).sendall(head)

        health, models = (httpx.get(url + path, timeout=60) for path in ("/healthz", "/models"))
        metrics = httpx.get(f"{url}/metrics", timeout=60).text

        assert health.status_code == 200
        if head:
            assert (models.status_code, models.json()["code"]) == (503, "unavailable")
            assert int(models.headers["retry-after"]) > 0
        else:
            assert models.status_code == 200
        assert 'grasp_connections_closed_total{reason="limit"} 0.0' not in metrics
        taken.close()
        until(lambda: httpx.get(f"{url}/models").status_code == 200)
        assert process.end() == 0
    assert process.says("this process may open few files")
    assert process.says("too many connections")
    assert not process.says("Traceback")
