"""Who may do what: every operation of the OpenAPI document, with every kind of wrong caller."""

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from app.access.auth import POLICY, PUBLIC, is_loopback
from app.access.tokens import token
from app.main import create_app
from app.pages import PAGES
from registry.database import Database
from registry.jobs.transitions import change
from registry.keys import revoke_key
from registry.process.settings import Settings
from registry.tables import ApiKey, Scope, utc_now
from tests.app.conftest import opened
from tests.app.world import World, checkpoint

DOCUMENT = create_app(Settings()).openapi()
OPERATIONS: dict[str, tuple[str, str]] = {
    operation["operationId"]: (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
LESSER: dict[str, Scope] = {"write": "read", "admin": "write"}
MODEL = {"name": "new", "architecture": "test_vit", "target": "faces"}
# What makes each request a sensible one, so that only the caller is wrong.
BODIES: dict[str, dict[str, Any]] = {
    "create_target": {"params": {"name": "new"}, "content": b"PK"},
    "create_model": {"json": MODEL},
    "update_model": {"json": {}},
    "rollback_model": {"json": {"version": 1}},
    "create_source": {"params": {"model": "merged"}, "content": checkpoint(9)},
    "retry_failed_jobs": {"params": {"code": "worker_lost"}},
    "create_upload": {"headers": {"Upload-Length": "9"}},
    "append_to_upload": {
        "content": b"some",
        "headers": {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"},
    },
}


@pytest.fixture(scope="module")
def anns(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A home where everything is ann's; and the values of path parameters."""
    home = tmp_path_factory.mktemp("ann") / "home"
    home.mkdir()
    shutil.copy(migrated, home / "grasp.db")
    with opened(home) as world:
        world.ready_model(files={"base": checkpoint()})
        world.fold(1, state=checkpoint(), others={"base": checkpoint()})  # so both have that name
        source = world.post_source(checkpoint(2)).json()["source"]
        upload = world.client.post("/uploads", headers={"Upload-Length": "9"}).json()
        with world.database.write() as session:
            for table in ("targets", "models", "sources", "versions", "jobs", "uploads"):
                session.connection().exec_driver_sql(f"UPDATE {table} SET owner = 'ann'")
    return home, {
        "target": "faces",
        "model": source["model"],
        "number": "1",
        "name": "base",
        "source": source["id"],
        "job": source["job"],
        "upload": upload["id"],
    }


@pytest.fixture
def owned(
    anns: tuple[Path, dict[str, str]], make_world: Callable[..., World]
) -> tuple[World, dict[str, str], dict[str, str]]:
    """A copy of it, for one test; ann's key; and the values of path parameters."""
    home, values = anns
    world = make_world(home)
    return world, world.key("ann", "admin"), values


Owned = tuple[World, dict[str, str], dict[str, str]]


def call(
    world: World, operation: str, values: dict[str, str], headers: dict[str, str] | None = None
) -> Any:
    method, path = OPERATIONS[operation]
    body = BODIES.get(operation, {})
    sent = {**body, "headers": {**body.get("headers", {}), **(headers or {})}}
    return world.client.request(method, path.format(**values), **sent)


OF_ANY_OWNER = ("get_job", "stream_job_events", "cancel_job")  # for administrators


def test_every_operation_has_a_policy() -> None:
    pages = {route.name for module in PAGES for route in module.router.routes}
    assert pages.isdisjoint(OPERATIONS)
    assert {*OPERATIONS, *pages} == set(POLICY)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_key_a_false_key_and_too_small_a_key_are_refused(owned: Owned, operation: str) -> None:
    world, _, values = owned
    needed = POLICY[operation]
    with world.nothing_left():
        without = call(world, operation, values)
        false = call(world, operation, values, {"Authorization": "Bearer grasp_false"})
        other_scheme = call(world, operation, values, {"Authorization": "Basic YTpi"})
    if needed == PUBLIC:
        assert without.status_code == false.status_code == 200
        return
    for answer in (without, false, other_scheme):
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    if needed in LESSER:
        small = world.key("ann", LESSER[needed])
        world.client.get("/jobs", headers=small)  # notes the use of the key
        with world.nothing_left():
            answer = call(world, operation, values, small)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if POLICY[name] != PUBLIC])
def test_another_owner_finds_nothing(owned: Owned, operation: str) -> None:
    world, _, values = owned
    stranger = world.key("bob", "write" if operation in OF_ANY_OWNER else "admin")
    world.client.get("/jobs", headers=stranger)
    _, path = OPERATIONS[operation]
    if operation in ("create_target", "create_upload"):  # each owner has their own
        assert call(world, operation, values, stranger).status_code in (201, 202)
        return
    with world.nothing_left():
        answer = call(world, operation, values, stranger)
    if operation.startswith("list_") or operation == "retry_failed_jobs":
        assert answer.json().get("items", []) == []
    elif "{" in path or operation in BODIES:
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if POLICY[name] != PUBLIC])
def test_the_owner_may(owned: Owned, operation: str) -> None:
    """So that the refusals above are for the caller, not for the request."""
    world, _, values = owned
    needed = POLICY[operation]
    assert needed != PUBLIC
    if operation in ("retry_job", "stream_job_events"):  # of a job that has ended
        world.client.post(f"/jobs/{values['job']}/cancel", headers=world.key("ann", "write"))
    if operation == "get_job_report":
        world.reject()
    if operation == "delete_target":
        world.client.delete(f"/models/{values['model']}", headers=world.key("ann", "write"))
    answer = call(world, operation, values, world.key("ann", needed))
    assert answer.status_code in (200, 201, 202, 204), answer.text


@pytest.mark.parametrize(
    "path", ["/models/{model}", "/models/{model}/versions/{number}", "/uploads/{upload}"]
)
def test_head_is_held_to_the_same(owned: Owned, path: str) -> None:
    world, ann, values = owned
    where = path.format(**values)
    assert world.client.head(where).status_code == 401
    assert world.client.head(where, headers=world.key("bob", "admin")).status_code == 404
    assert world.client.head(where, headers=ann).status_code == 200


def test_an_administrator_sees_and_stops_the_jobs_of_all(owned: Owned) -> None:
    world, ann, values = owned
    bob, admin = world.key("bob", "write"), world.key("root", "admin")
    job = f"/jobs/{values['job']}"

    assert world.client.get("/jobs?all_owners=true", headers=bob).status_code == 403
    assert world.client.get("/jobs", headers=admin).json()["items"] == []
    listed = world.client.get("/jobs?all_owners=true", headers=admin).json()["items"]
    assert {(item["id"], item["owner"]) for item in listed} >= {(values["job"], "ann")}
    assert world.client.get(job, headers=admin).json()["owner"] == "ann"
    stopped = world.client.post(f"{job}/cancel", headers=admin)
    assert (stopped.status_code, stopped.json()["status"]) == (202, "cancelled")
    assert world.client.get(job, headers=ann).json()["status"] == "cancelled"


def test_filters_do_not_find_what_is_anothers(owned: Owned) -> None:
    world, _, values = owned
    stranger = world.key("bob", "read")
    for path in ("/jobs?model={model}", "/jobs?target={target}", "/sources?model={model}"):
        assert world.client.get(path.format(**values), headers=stranger).status_code == 404
    assert world.client.get("/models?target=faces", headers=stranger).status_code == 404


def test_a_worker_does_not_show_whose_job_it_runs(owned: Owned) -> None:
    world, ann, values = owned
    world.add_worker(values["job"])

    def shown(headers: dict[str, str]) -> Any:
        worker = world.client.get("/workers", headers=headers).json()["items"][0]
        return worker["busy"], worker["job"]

    assert shown(ann) == (True, values["job"])
    assert shown(world.key("bob", "admin")) == (True, None)


def test_what_has_no_policy_nobody_may_use(world: World) -> None:
    app = create_app(world.settings)
    app.add_api_route("/forgotten", lambda: "secret", methods=["GET"])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.get("/forgotten", headers=world.key("ann", "admin"))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


# Keys


def test_an_expired_key_opens_nothing(world: World) -> None:
    valid = world.key("ann", "read", expires_at=utc_now() + timedelta(hours=1))
    expired = world.key("ann", "read", expires_at=utc_now() - timedelta(seconds=1))
    assert world.client.get("/jobs", headers=valid).status_code == 200
    assert world.client.get("/jobs", headers=expired).status_code == 401


def test_revoking_the_last_key_does_not_open_the_service(world: World) -> None:
    assert world.client.get("/jobs").status_code == 200
    key = world.key("ann", "admin")
    assert world.client.get("/jobs", headers=key).status_code == 200
    with world.database.write() as session:
        revoke_key(session, session.scalars(select(ApiKey.id)).one(), utc_now())
    assert world.client.get("/jobs", headers=key).status_code == 401
    assert world.client.get("/jobs").status_code == 401


def test_the_last_use_is_noted_once_a_minute(world: World) -> None:
    key = world.key("ann", "read")

    def used() -> Any:
        with world.database.read() as session:
            return session.scalars(select(ApiKey.last_used_at)).one()

    assert used() is None
    world.client.get("/jobs", headers=key)
    first = used()
    assert utc_now() - first < timedelta(minutes=1)
    world.client.get("/jobs", headers=key)
    assert used() == first
    with world.database.write() as session:
        old = utc_now() - timedelta(minutes=2)
        change(session, ApiKey, ApiKey.owner == "ann", {"last_used_at": old})
    world.client.get("/jobs", headers=key)
    assert used() > old


def test_what_cannot_be_written_can_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""
    key = world.key("ann", "write")

    def write(self: Database) -> Any:
        raise OperationalError("UPDATE", {}, Exception("database or disk is full"))

    monkeypatch.setattr(Database, "write", write)

    assert world.client.get("/models", headers=key).status_code == 200
    assert world.client.delete("/models/x", headers=key).status_code == 503


# Without keys: this machine's user, and nobody else


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "127.8.8.8"}, 200),
        ({"Host": "evil.example"}, 403),  # a name that was made to resolve to this machine
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1@evil.example"}, 403),
        ({"Host": "192.168.0.7"}, 403),
        ({"Host": "["}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://127.0.0.1"}, 200),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"X-Forwarded-For": "203.0.113.9"}, 401),
        ({"X-Forwarded-Host": "grasp.example"}, 401),
        ({"X-Forwarded-Proto": "https"}, 401),
        ({"Forwarded": "for=203.0.113.9"}, 401),
        ({"X-Real-IP": "203.0.113.9"}, 401),
        ({"Via": "1.1 proxy"}, 401),
    ],
)
def test_without_keys_only_this_machine_is_served(
    world: World, headers: dict[str, str], status: int
) -> None:
    answer = world.client.get("/models", headers=headers)
    assert answer.status_code == status
    assert world.client.post("/targets?name=x", content=b"", headers=headers).status_code in (
        {422} if status == 200 else {status}
    )
    assert world.client.get("/healthz", headers=headers).status_code == 200


OURS, ROOT, ANOTHERS = 1000, 0, 33


@pytest.mark.parametrize(
    ("uid", "status"), [(OURS, 200), (ROOT, 200), (ANOTHERS, 401), (None, 401)]
)
def test_without_keys_only_who_started_the_service_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch, uid: int | None, status: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OURS)
    world.app.state.peer_uid = uid

    answer = world.client.get("/models")

    assert answer.status_code == status
    assert world.client.get("/healthz").status_code == 200
    if status == 401:
        problem = answer.json()
        assert problem["code"] == "unauthorized"
        assert "only the user who started the service" in problem["detail"]
        assert "grasp admin keys create" in problem["hint"]
        assert "GRASP_OPEN=1" in problem["hint"]


def test_where_nobody_can_be_recognised_nobody_is_served(world: World) -> None:
    """As under an ASGI server that does not tell who connected."""
    with TestClient(create_app(world.settings), base_url="http://127.0.0.1") as client:
        assert client.get("/models").status_code == 401


def test_with_a_key_it_does_not_matter_who_connects(world: World) -> None:
    world.app.state.peer_uid = ANOTHERS
    assert world.client.get("/models", headers=world.key("ann", "read")).status_code == 200


def test_the_token_of_the_service_is_as_good_as_being_its_user(world: World) -> None:
    world.app.state.peer_uid = ANOTHERS
    with token(world.settings) as secret:
        mine = {"Authorization": f"Bearer {secret}"}
        assert world.client.get("/models", headers=mine).status_code == 200
        for wrong in (secret[:-1], secret.upper(), ""):
            false = {"Authorization": f"Bearer {wrong}"}
            assert world.client.get("/models", headers=false).status_code == 401
        for passed_on in ({"X-Forwarded-For": "203.0.113.9"}, {"Host": "evil.example"}):
            assert world.client.get("/models", headers=mine | passed_on).status_code in (401, 403)
    assert world.client.get("/models", headers=mine).status_code == 401


def test_an_empty_token_opens_nothing(world: World) -> None:
    world.app.state.peer_uid = ANOTHERS
    world.settings.token_file.touch()
    assert world.client.get("/models", headers={"Authorization": "Bearer "}).status_code == 401


def test_from_the_first_key_on_the_token_opens_nothing(world: World) -> None:
    with token(world.settings) as secret:
        world.key("ann", "admin")
        mine = {"Authorization": f"Bearer {secret}"}
        assert world.client.get("/models", headers=mine).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"X-Forwarded-For": "203.0.113.9"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
    ],
)
def test_an_open_service_serves_everybody_but_foreign_pages(
    make_world: Callable[..., World], headers: dict[str, str], status: int
) -> None:
    world = make_world(open=True)
    world.app.state.peer_uid = ANOTHERS
    assert world.client.get("/models", headers=headers).status_code == status


def test_without_keys_other_addresses_of_the_server_are_not_served(world: World) -> None:
    app = world.app
    client = TestClient(app, base_url="http://192.0.2.1")
    answer = client.get("/models", headers={"Host": "127.0.0.1"})
    assert answer.status_code == 401


def test_with_a_key_host_and_origin_do_not_matter(world: World) -> None:
    headers = world.key("ann", "read") | {
        "Host": "grasp.example",
        "Origin": "https://other.example",
        "X-Forwarded-For": "203.0.113.9",
    }
    assert world.client.get("/models", headers=headers).status_code == 200


def test_the_local_user_is_one_owner_among_others(world: World) -> None:
    world.ready_target("faces")
    assert world.client.get("/metrics").status_code == 200
    key = world.key("ann", "admin")
    assert world.client.get("/targets", headers=key).json()["items"] == []
    mine = world.client.get("/targets", headers=world.key("local", "read")).json()["items"]
    assert [item["name"] for item in mine] == ["faces"]


def test_loopback_is_what_cannot_be_reached_from_outside() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    outside = ("0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org")
    assert not any(map(is_loopback, outside))
