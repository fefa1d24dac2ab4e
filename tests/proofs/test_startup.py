"""A service that starts before its database waits for it, and serves nobody until it knows keys."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from registry.database import NO_TABLES_YET, Database
from registry.process.settings import Settings
from tests.servers import Postgres, serving_postgres
from tests.service.harness import (
    GRASP,
    SERVE,
    Process,
    environment,
    free_port,
    is_ready,
    make_key,
    none_left,
)
from tests.worker.waiting import until

MIGRATE = (*GRASP, "admin", "migrate")


@pytest.fixture
def server() -> Iterator[Postgres]:
    """Of its own: it is stopped and started."""
    with serving_postgres() as server:
        yield server


@pytest.fixture
def settings(no_settings: None, server: Postgres, tmp_path: Path) -> Iterator[Settings]:
    home = tmp_path / "home"
    with none_left(home):
        yield Settings(home=home, port=free_port(), workers=0, database_url=server.url("grasp"))


def ask(settings: Settings, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{settings.port}{path}")


def answers(settings: Settings) -> bool:
    try:
        return ask(settings, "/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_it_waits_for_the_server_then_for_its_tables_then_serves(
    server: Postgres, settings: Settings
) -> None:
    server.create_database("grasp")
    server.stop()
    with Process(SERVE, settings) as process:
        until(lambda: answers(settings))
        assert_waits(settings, "the database cannot be used")
        migrating = Process(MIGRATE, settings)
        until(lambda: migrating.says("waiting"))
        migrating.end(signal.SIGKILL)

        server.start()
        until(lambda: "tables" in ask(settings, "/readyz").json()["checks"]["database"])
        assert_waits(settings, NO_TABLES_YET)

        _, key = make_key(settings)
        until(lambda: ask(settings, "/readyz").status_code == 200)
        assert ask(settings, "/models").status_code == 401  # it knows that there are keys
        with httpx.Client(
            base_url=f"http://127.0.0.1:{settings.port}", headers={"Authorization": f"Bearer {key}"}
        ) as http:
            assert is_ready(http)
            assert http.get("/models").status_code == 200
        assert process.end() == 0
    assert "relation" not in process.log.read_text()


def assert_waits(settings: Settings, reason: str) -> None:
    ready, refused = ask(settings, "/readyz"), ask(settings, "/models")
    assert ready.status_code == 503
    assert ready.json()["checks"]["database"] == reason
    assert refused.status_code == 503
    assert refused.json()["detail"] == f"the service is starting: {reason}"
    assert int(refused.headers["Retry-After"]) > 0
    assert ask(settings, "/healthz").status_code == 200


@pytest.mark.proof
def test_migrate_waits_likewise(server: Postgres, settings: Settings) -> None:
    server.create_database("grasp")
    server.stop()
    with Process(MIGRATE, settings) as process:
        until(lambda: process.says("waiting"))
        server.start()
        assert process.wait() == 0
    database = Database(settings.database)
    database.check()
    database.close()


@pytest.mark.proof
def test_it_ends_in_order_while_it_waits(settings: Settings) -> None:
    with Process(SERVE, settings) as process:  # there is no such database
        until(lambda: process.says("it is waited for"))
        until(lambda: answers(settings))
        assert process.end() == 0
        assert not process.says("Traceback")


@pytest.mark.proof
@pytest.mark.parametrize("fault", ["credentials", "nobody waits"])
@pytest.mark.parametrize("command", [SERVE, MIGRATE], ids=["serve", "migrate"])
def test_what_waiting_cannot_mend_ends_it_at_once(
    fault: str, command: tuple[str, ...], server: Postgres, settings: Settings
) -> None:
    changes: dict[str, object] = {"database_wait_seconds": 0.0}
    if fault == "credentials":
        changes = {"database_url": server.lock_out("locked")}
    ended = subprocess.run(
        command,
        env=environment(settings.model_copy(update=changes)),
        cwd=settings.home.parent,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended.stderr
    assert "the database cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "wrong-secret" not in ended.stderr
