"""The same request twice: once done, twice answered."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.app.world import World, checkpoint

KEY = {"Idempotency-Key": "0f1e-2d3c"}


def assert_replayed(first: Any, second: Any) -> None:
    assert second.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert (second.status_code, second.json()) == (first.status_code, first.json())
    assert second.headers.get("location") == first.headers.get("location")


def test_a_target_is_made_once(world: World) -> None:
    first = world.post_target("faces", headers=KEY)
    with world.nothing_left():
        second = world.post_target("faces", headers=KEY)
    assert first.status_code == 202
    assert_replayed(first, second)


def test_a_model_is_made_once(world: World) -> None:
    world.ready_target("faces")
    body = {"name": "merged", "architecture": "test_vit", "target": "faces"}
    first = world.client.post("/models", json=body, headers=KEY)
    with world.nothing_left():
        second = world.client.post("/models", json=body, headers=KEY)
    assert first.status_code == 201
    assert_replayed(first, second)


def test_a_source_is_answered_as_before_though_the_world_went_on(world: World) -> None:
    world.ready_model()
    first = world.post_source(headers=KEY)
    world.publish()
    second = world.post_source(headers=KEY)
    assert first.status_code == 202
    assert_replayed(first, second)


def test_a_rollback_happens_once(world: World) -> None:
    world.ready_model()
    world.fold(1)
    world.fold(2)
    answers = [
        world.client.post("/models/merged/rollback", json={"version": 1}, headers=KEY)
        for _ in range(2)
    ]
    assert_replayed(*answers)
    assert world.client.get("/models/merged/info").json()["version"] == 3


def test_cancel_and_retry_can_be_repeated(world: World) -> None:
    world.ready_model()
    job = world.post_source().json()["job"]["id"]
    for action in ("cancel", "retry"):
        headers = {"Idempotency-Key": action}
        answers = [world.client.post(f"/jobs/{job}/{action}", headers=headers) for _ in range(2)]
        assert answers[0].status_code == 202
        assert_replayed(*answers)


def test_a_dry_run_with_a_key_is_one_job(world: World) -> None:
    world.ready_model()
    params = {"dry_run": "true"}
    answers = [world.post_raw(checkpoint(), params=params, headers=KEY) for _ in range(2)]
    assert_replayed(*answers)
    assert len(world.client.get("/jobs?kind=dry_run").json()["items"]) == 1


@pytest.mark.parametrize("change", ["bytes", "field", "query", "path"])
def test_a_key_with_another_request_is_refused(world: World, change: str) -> None:
    world.ready_model()
    world.post_source(headers=KEY)
    with world.nothing_left():
        answer = {
            "bytes": lambda: world.post_source(checkpoint(5), headers=KEY),
            "field": lambda: world.post_source(headers=KEY, fields={"name": "other"}),
            "query": lambda: world.post_source(headers=KEY, params={"dry_run": "true"}),
            "path": lambda: world.post_target("new", headers=KEY),
        }[change]()
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")


def test_a_refusal_is_not_remembered(world: World) -> None:
    refused = world.client.post(
        "/models", json={"name": "m", "architecture": "test_vit", "target": "faces"}, headers=KEY
    )
    world.ready_target("faces")
    accepted = world.client.post(
        "/models", json={"name": "m", "architecture": "test_vit", "target": "faces"}, headers=KEY
    )
    assert (refused.status_code, accepted.status_code) == (404, 201)


def test_keys_are_each_owners_own(world: World) -> None:
    ann, bob = world.key("ann", "write"), world.key("bob", "write")
    answers = [world.post_target("faces", headers=KEY | owner) for owner in (ann, bob, ann)]
    assert [answer.status_code for answer in answers] == [202] * 3
    first, other, again = (answer.json()["target"]["id"] for answer in answers)
    assert first == again != other


@pytest.mark.parametrize("key", ["", "x" * 256, "with space", "é"])
def test_a_key_that_is_none(world: World, key: str) -> None:
    answer = world.post_target("x", headers={"Idempotency-Key": key.encode("latin-1")})
    assert answer.status_code == 422


@pytest.mark.parametrize("keyed", [True, False])
def test_requests_at_the_same_time_happen_once(world: World, keyed: bool) -> None:
    """The same bytes are one source, with or without a key; exactly one answer says it is new."""
    world.ready_model()
    headers = KEY if keyed else {}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: world.post_source(headers=headers), range(8)))
    assert {answer.status_code for answer in answers} == ({202} if keyed else {200, 202})
    assert len({answer.json()["source"]["id"] for answer in answers}) == 1
    new = [
        answer
        for answer in answers
        if answer.status_code == 202 and "idempotency-replayed" not in answer.headers
    ]
    assert len(new) == 1
    assert len(world.client.get("/sources").json()["items"]) == 1
    assert len(world.client.get("/jobs?kind=fold").json()["items"]) == 1


def test_a_name_is_given_once_however_many_ask(world: World) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: world.post_target("faces"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 7
