"""Behind a real nginx: its defaults open nothing, and ours of the docs let everything through."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from registry.process.settings import Settings
from tests.service.client import Client
from tests.service.fake_folds import checkpoint
from tests.service.harness import Harness, free_port, make_key
from tests.users import as_root
from tests.worker.waiting import PATIENCE_S, until

NGINX = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
DEPLOYING = Path(__file__).parents[2] / "docs" / "deploy.md"
MIB = 2**20
DEFAULT = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {api}; }} }}"

pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine")


def documented(port: int, api: str) -> str:
    """The server of docs/deploy.md; without its certificate, and on this machine only."""
    (server,) = re.findall(r"^server \{.*?^\}", DEPLOYING.read_text(), re.DOTALL | re.MULTILINE)
    kept = [line for line in server.splitlines() if "ssl_certificate" not in line]
    changed = "\n".join(kept).replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    return changed.replace("http://127.0.0.1:8000", api)


@contextmanager
def nginx(server: str, port: int) -> Iterator[httpx.Client]:
    """nginx with this server, as a user of its own if it can; and a client of it."""
    with TemporaryDirectory() as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        paths = [
            f"{of}_temp_path {folder}/{of};"
            for of in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        ]
        user = "user www-data;" if os.geteuid() == 0 else ""
        http = f"http {{ access_log off; {' '.join(paths)} {server} }}"
        config = Path(folder, "nginx.conf")
        config.write_text(f"{user} daemon off; pid {folder}/pid; events {{}} {http}")
        assert NGINX is not None
        process = subprocess.Popen([NGINX, "-c", str(config), "-e", "stderr"])
        try:
            until(lambda: _listens(port))
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
                yield client
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@as_root
def test_a_default_proxy_opens_nothing_without_keys(home: Path) -> None:
    port = free_port()
    with (
        Harness(home, workers=0) as service,
        nginx(DEFAULT.format(port=port, api=service.url), port) as stranger,
    ):
        assert stranger.get("/healthz").status_code == 200
        for method, path in (("GET", "/models"), ("GET", "/metrics"), ("POST", "/targets?name=x")):
            answer = stranger.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert "only the user who started the service" in answer.json()["detail"]
            assert "grasp admin keys create" in answer.json()["hint"]
        page = stranger.get("/", headers={"Host": f"127.0.0.1:{port}"}, follow_redirects=True)
        assert "There are no API keys yet" in page.text
        assert service.client.get("/models").status_code == 200


def test_the_documented_proxy_opens_nothing_without_keys(home: Path) -> None:
    """Whoever it runs as: it says that it passes requests on."""
    port = free_port()
    with (
        Harness(home, workers=0) as service,
        nginx(documented(port, service.url), port) as stranger,
    ):
        answer = stranger.get("/models")
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


def test_with_keys_the_documented_proxy_lets_everything_through(home: Path) -> None:
    _, secret = make_key(Settings(home=home))
    port = free_port()
    with (
        Harness(home, workers=0) as service,
        nginx(documented(port, service.url), port) as client,
    ):
        assert client.get("/models").status_code == 401
        client.headers["Authorization"] = f"Bearer {secret}"
        assert client.get("/models").status_code == 200
        assert client.get("/").status_code == 200

        sent = _upload_that_is_cut(client, port, secret)
        assert sent > 0

        posted = client.post("/targets?name=x", content=b"PK" + bytes(2 * MIB))
        assert posted.status_code == 202
        job = posted.json()["job"]["id"]
        with client.stream("GET", f"/jobs/{job}/events") as events:  # of a job that never ends
            assert next(events.iter_lines()).startswith(("event:", "id:", "data:"))


def test_nginx_sends_blobs_of_a_folder_that_is_open_to_it(home: Path) -> None:
    _, secret = make_key(Settings(home=home))
    port, data = free_port(), checkpoint("a")
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        chosen = {"blob_url": f"file://{folder}", "accel_redirect": "/blobs"}
        with Harness(home, workers=1, **chosen) as service:
            server = documented(port, service.url).replace(
                "location / ", f"location /blobs/ {{ internal; alias {folder}/; }}\nlocation / "
            )
            with nginx(server, port) as http:
                http.headers["Authorization"] = f"Bearer {secret}"
                client = Client(http)
                [model] = client.make_models(1)
                client.ended(client.offer(model, "a", data)["job"]["id"])
                assert (
                    "x-accel-redirect"
                    in service.client.get(f"/models/{model}", headers=http.headers).headers
                )
                client.check_chain(service.settings, model, [data])


def _upload_that_is_cut(client: httpx.Client, port: int, secret: str) -> int:
    """How much of it had reached the service: nothing, where a proxy stores uploads first."""
    size = 3 * MIB
    upload = client.post("/uploads", headers={"Upload-Length": str(size)}).headers["location"]
    head = [
        f"PATCH {upload} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {secret}",
        "Tus-Resumable: 1.0.0",
        "Content-Type: application/offset+octet-stream",
        "Upload-Offset: 0",
        f"Content-Length: {size}",
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + bytes(2 * MIB))
    kept = 0

    def arrived() -> bool:
        nonlocal kept
        kept = int(client.head(upload).headers["upload-offset"])
        return kept > 0

    until(arrived)
    return kept
