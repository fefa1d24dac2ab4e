"""A service without keys, as it is started: its user is let in, and nobody else."""

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from grasp_client import Grasp
from grasp_client.errors import NotAllowed
from registry.process.settings import Settings
from tests.service.harness import Harness, make_key
from tests.users import another_user, as_root
from tests.worker.waiting import until


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """Without keys: tests that make one have a service of their own."""
    with Harness(tmp_path_factory.mktemp("service") / "home", workers=0) as harness:
        yield harness


def logged(service: Harness, path: str) -> Mapping[str, Any]:
    """The line of the last request for this path."""
    lines: list[Mapping[str, Any]] = []

    def found() -> bool:
        entries = map(json.loads, service.api.log.read_text().splitlines())
        lines[:] = [e for e in entries if e["event"] == "request" and e["path"] == path]
        return bool(lines)

    until(found)
    return lines[-1]


def ask(service: Harness, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", service.settings.port), timeout=30) as client:
        client.sendall(head + b"Connection: close\r\n\r\n")
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_who_started_it_needs_nothing_at_all(service: Harness) -> None:
    for path in ("/models", "/", "/metrics"):
        assert service.client.get(path).status_code == 200
    with Grasp(service.url) as grasp:
        assert list(grasp.models.list()) == []


@as_root
def test_another_user_of_the_machine_is_refused(service: Harness) -> None:
    with another_user(), httpx.Client(base_url=service.url) as client:
        answer = client.get("/models")
        page = client.get("/", follow_redirects=True)
        assert client.get("/healthz").status_code == 200
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert "only the user who started the service is served" in answer.json()["detail"]
    assert "There are no API keys yet" in page.text
    assert service.client.get("/models").status_code == 200


@as_root
def test_whoever_has_the_token_is_let_in_and_the_client_finds_it(
    service: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on systems that do not tell who connects: here the connection is another user's."""
    monkeypatch.setenv("GRASP_HOME", str(service.settings.home))
    with Grasp(service.url, patience=0) as grasp, another_user():
        assert list(grasp.models.list()) == []
    monkeypatch.setenv("GRASP_HOME", str(tmp_path / "elsewhere"))
    with (
        Grasp(service.url, patience=0) as grasp,
        another_user(),
        pytest.raises(NotAllowed, match="only the user who started"),
    ):
        grasp.models.list()


def test_the_token_goes_to_this_machine_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    monkeypatch.setenv("GRASP_HOME", str(tmp_path))
    monkeypatch.delenv("GRASP_KEY", raising=False)

    def sent(url: str, key: str | None = None) -> str | None:
        with Grasp(url, key) as grasp:
            headers: Mapping[str, str] = grasp._http.headers
            return headers.get("authorization")

    for here in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"):
        assert sent(here) == "Bearer secret"
        assert sent(here, "grasp_key") == "Bearer grasp_key"
    for away in ("http://192.0.2.1", "https://grasp.example", "http://127.0.0.1.example"):
        assert sent(away) is None


def test_a_token_holds_for_one_run_and_is_private(service: Harness) -> None:
    path = service.settings.token_file
    first = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert first not in service.api.log.read_text()

    service.api.end()
    assert not path.exists()
    service.restart_api()
    service.wait_for_api()

    assert path.read_text() != first


def test_with_keys_there_is_no_token(home: Path) -> None:
    make_key(Settings(home=home))
    with Harness(home, workers=0) as harness:
        assert not harness.settings.token_file.exists()


@as_root
def test_an_open_service_serves_every_user(home: Path) -> None:
    with Harness(home, workers=0, open=True) as harness, another_user():
        assert httpx.get(f"{harness.url}/models").status_code == 200


def test_nothing_in_the_home_is_open_to_others(home: Path) -> None:
    home.mkdir(mode=0o755)
    with Harness(home, workers=1) as harness:
        assert harness.client.post("/targets?name=x", content=b"images").status_code == 202
        until(lambda: harness.client.get("/targets/x").json()["status"] == "ready")
        kept = [path for path in home.rglob("*") if path.suffix != ".log"]  # those are the test's
        assert [path for path in (home, *kept) if path.stat().st_mode & 0o077] == []
        assert {"grasp.db", "grasp.db-wal", "token", "blobs"} <= {path.name for path in kept}


HOST = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /models HTTP/1.1\r\n" + HOST, b"200"),
        (b"GET /models HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n", b"400"),
        (b"GET /models HTTP/1.1\r\n" + HOST + HOST, b"400"),
        (b"GET /models HTTP/1.1\r\n", b"400"),
        (b"GET /healthz HTTP/1.0\r\n", b"200"),
    ],
)
def test_a_request_names_one_host(service: Harness, head: bytes, status: bytes) -> None:
    answer = ask(service, head)
    assert answer.split(b" ", 2)[1] == status
    assert (b'"code":"invalid_host"' in answer) == (status == b"400")


def test_the_log_says_who_asked(home: Path) -> None:
    with Harness(home, workers=0) as service:
        service.client.get("/jobs", headers={"Origin": "https://evil.example"})
        service.client.get("/models")
        key, secret = make_key(service.settings)
        forged = {"X-Forwarded-For": "203.0.113.9", "Authorization": f"Bearer {secret}"}
        service.client.get("/sources", headers=forged)
        refused, local, with_key = (logged(service, p) for p in ("/jobs", "/models", "/sources"))
        everything = service.api.log.read_text()

    assert {entry["client"] for entry in (refused, local, with_key)} == {"127.0.0.1"}
    assert (local["owner"], "key" in local) == ("local", False)
    assert (with_key["owner"], with_key["key"]) == ("ann", key)
    assert refused.keys().isdisjoint(("owner", "key"))
    assert secret not in everything


def test_a_trusted_proxy_says_who_asked(home: Path) -> None:
    with Harness(home, workers=0, trusted_proxies=("127.0.0.1",)) as service:
        passed_on = {"X-Forwarded-For": "198.51.100.7, 203.0.113.9"}
        assert service.client.get("/models", headers=passed_on).status_code == 401
        assert logged(service, "/models")["client"] == "203.0.113.9"
