"""Every error as problem+json, with a request id and nothing that should stay inside."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import InterfaceError, NoResultFound, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import STATUS
from grasp_core.errors import GraspError
from registry.database import Database
from registry.errors import RegistryError
from tests.app.world import World, checkpoint
from tests.servers import serving_postgres

REQUIRED = {"type", "title", "status", "detail", "code", "request_id"}


def assert_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert problem.keys() >= REQUIRED
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem


def raising(world: World, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Any:
    """The answer to a request in which this is raised."""

    def read(self: Database) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Database, "read", read)
        return world.client.get("/models")


def test_an_unknown_path(world: World) -> None:
    problem = assert_problem(world.client.get("/nowhere"), 404, "not_found")
    assert problem["hint"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/models/x", "DELETE, GET, HEAD, PATCH"),
        ("DELETE", "/jobs", "GET"),
        ("PATCH", "/targets", "GET, POST"),
        ("POST", "/healthz", "GET"),
        ("OPTIONS", "/sources", "GET, POST"),
    ],
)
def test_a_wrong_method_names_all_right_ones(
    world: World, method: str, path: str, allowed: str
) -> None:
    answer = world.client.request(method, path)
    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


def test_wrong_parameters_are_listed(world: World) -> None:
    problem = assert_problem(world.client.get("/jobs?limit=0&status=x"), 422, "invalid_request")
    assert {error["where"] for error in problem["errors"]} == {"query.limit", "query.status"}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"nul", b'"\xff"'])
@pytest.mark.parametrize("path", ["/models", "/models/x/rollback"])
def test_what_is_not_json(world: World, path: str, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = world.client.post(path, content=content, headers=headers)
    assert_problem(answer, 400, "invalid_json")


def test_text_that_cannot_be_encoded_does_no_harm(world: World) -> None:
    world.ready_target("faces")
    body = b'{"name": "m", "architecture": "test_vit", "target": "faces", "classes": ["\\ud800"]}'
    assert_problem(world.client.post("/models", content=body), 422, "invalid_request")
    body = b'{"name": "m", "architecture": "test_vit", "target": "faces", "merge": {"\\udfff": 1}}'
    assert_problem(world.client.post("/models", content=body), 422, "invalid_request")
    uri = b'{"name": "m", "uri": "file:///\\ud800"}'
    headers = {"content-type": "application/json"}
    answer = world.client.post("/targets", content=uri, headers=headers)
    assert_problem(answer, 422, "invalid_request")
    uri = b'{"model": "m", "uri": "file:///\\ud800"}'
    assert world.client.post("/sources", content=uri, headers=headers).status_code < 500


def test_an_unhandled_error_says_nothing_of_the_inside(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = raising(world, monkeypatch, RuntimeError("password=hunter2"))
    problem = assert_problem(answer, 500, "internal_error")
    for secret in ("hunter2", "Traceback", "RuntimeError", ".py"):
        assert secret not in answer.text
    logged: Any = [record.msg for record in caplog.records if record.name == "app.errors"]
    assert [entry["request_id"] for entry in logged] == [problem["request_id"]]
    assert world.client.get("/models").status_code == 200


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("SELECT secret", {}, Exception("server closed the connection")),
        InterfaceError("SELECT secret", {}, Exception("connection already closed")),
        PoolTimeout("QueuePool limit reached"),
    ],
)
def test_a_database_that_does_not_answer_is_503(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answer = raising(world, monkeypatch, error)
    problem = assert_problem(answer, 503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "secret" not in json.dumps(problem)


def test_what_is_deleted_while_it_is_asked_for_is_404(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_problem(raising(world, monkeypatch, NoResultFound()), 404, "not_found")


def test_a_database_that_is_gone(make_world: Callable[..., World]) -> None:
    """The real thing: the file is replaced by something that is no database."""
    world = make_world()
    world.database.close()
    service = world.app.state.service
    service.database.close()
    for path in world.settings.home.glob("grasp.db*"):
        path.unlink()
    (world.settings.home / "grasp.db").mkdir()
    assert_problem(world.client.get("/models"), 503, "unavailable")
    answer = world.client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]) == (503, "OperationalError")
    assert world.client.get("/healthz").status_code == 200


def test_a_database_that_cannot_be_written(world: World) -> None:
    """What can be read is, and the rest says why not."""

    def forbid(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    engine = world.app.state.service.database.engine
    event.listen(engine, "connect", forbid)
    engine.dispose()

    assert world.client.get("/models").status_code == 200
    problem = assert_problem(world.post_target(), 503, "unavailable")
    assert problem["detail"] == "the database cannot be written"
    assert "write" in problem["hint"]
    answer = world.client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["database"]) == (503, "cannot be written")


def test_a_database_without_tables(make_world: Callable[..., World]) -> None:
    with serving_postgres() as server:
        world = make_world(database_url=server.url())

        problem = assert_problem(world.client.get("/models"), 503, "unavailable")
        ready = world.client.get("/readyz")

        assert "`grasp admin migrate`" in problem["detail"]
        assert ready.status_code == 503
        assert "`grasp admin migrate`" in ready.json()["checks"]["database"]
        world.app.state.service.database.close()


def test_a_disk_that_is_gone(world: World) -> None:
    world.ready_model()
    blobs: Path = world.settings.blob_folder
    blobs.rename(blobs.with_name("unmounted"))
    answer = world.post_source()
    problem = assert_problem(answer, 503, "storage_error")
    assert str(world.settings.home) not in problem["detail"]
    assert answer.headers["retry-after"]
    ready = world.client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["blobs"]) == (503, "StorageError")


def test_every_error_of_ours_has_a_status(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, status in STATUS.items():
        kind = type("Raised", (RegistryError,), {"code": code})
        answer = raising(world, monkeypatch, kind("why", hint="how"))
        problem = assert_problem(answer, status, code)
        assert (problem["detail"], problem["hint"]) == ("why", "how")


def test_an_error_without_a_status_is_one_of_the_server(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_problem(raising(world, monkeypatch, GraspError("odd")), 500, "grasp_error")


# Request ids


def test_a_request_id_is_made_or_kept(world: World) -> None:
    first, second = (world.client.get("/healthz").headers["x-request-id"] for _ in range(2))
    assert len(first) == 32
    assert first != second
    mine = world.client.get("/healthz", headers={"X-Request-Id": "trace-1.a_B"})
    assert mine.headers["x-request-id"] == "trace-1.a_B"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "a\tb", '{"a":1}', "é"])
def test_a_request_id_that_could_do_harm_is_replaced(world: World, given: str) -> None:
    answer = world.client.get("/healthz", headers={b"X-Request-Id": given.encode("latin-1")})
    assert len(answer.headers["x-request-id"]) == 32


def test_jobs_remember_who_asked(world: World) -> None:
    answer = world.client.post(
        "/targets?name=x", content=b"PK", headers={"X-Request-Id": "trace-7"}
    )
    ids = {row.id: row.request_id for row in _jobs(world)}
    assert ids == {answer.json()["job"]["id"]: "trace-7"}


def _jobs(world: World) -> list[Any]:
    from registry.tables import Job

    with world.database.read() as session:
        return list(session.query(Job))


# A client that goes away


def test_a_client_that_leaves_in_the_middle_leaves_nothing(world: World) -> None:
    world.ready_model()
    app = world.app
    sent: list[Any] = []
    messages = iter(
        [
            {"type": "http.request", "body": checkpoint()[:20], "more_body": True},
            {"type": "http.disconnect"},
        ]
    )

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sources",
        "query_string": b"model=merged",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"1000")],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 9),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }
    with world.nothing_left():
        asyncio.run(app(scope, receive, send))
    assert sent == []


def test_programs_are_told_in_fields_what_people_are_told_in_words(world: World) -> None:
    missing = assert_problem(world.client.get("/models/faces"), 404, "not_found")
    world.ready_model()
    pickled = world.post_raw(b"\x80\x04" * 99)
    other = world.post_raw(b"no weights" * 99)

    assert missing["missing"] == {"kind": "model", "name": "faces"}
    assert assert_problem(pickled, 422, "invalid_checkpoint")["convertible"] is True
    assert "convertible" not in assert_problem(other, 422, "invalid_checkpoint")
