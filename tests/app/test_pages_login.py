"""Signing in: the key in a cookie, which opens pages and API, but only to our own pages."""

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from app.access.browsers import COOKIE
from app.access.tokens import token
from registry.keys import revoke_key
from registry.tables import ApiKey, Scope, utc_now
from tests.app.reading import page
from tests.app.world import World, checkpoint

OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(autouse=True)
def forgotten(world: World) -> Iterator[None]:
    """The client keeps cookies, like a browser; not from test to test."""
    assert isinstance(world.client, TestClient)
    world.client.follow_redirects = False
    yield
    world.client.follow_redirects = True
    world.client.cookies.clear()


def secret(world: World, owner: str = "ann", scope: Scope = "write") -> str:
    return world.key(owner, scope)["Authorization"].removeprefix("Bearer ")


def sign_in(world: World, key: str, path: str = "/ui/login", **headers: str) -> tuple[int, str]:
    """The status, and where to go."""
    answer = world.client.post(path, data={"key": key}, headers={**OWN, **headers})
    return answer.status_code, answer.headers.get("location", "")


def test_a_page_without_a_key_asks_for_one_and_comes_back(world: World) -> None:
    key = secret(world)
    answer = world.client.get("/ui/jobs?status=failed&model=a+b")
    assert answer.status_code == 303
    login = answer.headers["location"]
    assert login == "/ui/login?next=/ui/jobs%3Fstatus%3Dfailed%26model%3Da%2Bb"
    assert 'type="password"' in page(world, login)
    assert sign_in(world, key, login) == (303, "/ui/jobs?status=failed&model=a+b")
    assert "Signed in as ann" in page(world, "/ui/jobs?status=failed")


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(world: World) -> None:
    key = secret(world)
    plain = world.client.post("/ui/login", data={"key": key}, headers=OWN)
    words = plain.headers["set-cookie"].lower().split("; ")
    assert words[0].startswith(COOKIE)
    assert {"httponly", "samesite=strict", "path=/"} <= set(words)
    assert not [word for word in words if word.startswith(("max-age", "expires"))]
    assert "secure" not in words
    app = TestClient(world.app, base_url="https://grasp.example")
    safe = app.post("/ui/login", data={"key": key}, headers=OWN, follow_redirects=False)
    assert "secure" in safe.headers["set-cookie"].lower().split("; ")


@pytest.mark.parametrize("key", ["", "grasp_false", "x" * 5000])
def test_a_wrong_key_opens_nothing(world: World, key: str) -> None:
    secret(world)
    answer = world.client.post("/ui/login", data={"key": key}, headers=OWN)
    assert answer.status_code == (413 if len(key) > 1000 else 401)
    assert answer.headers["content-type"].startswith("text/html")
    assert "set-cookie" not in answer.headers
    assert world.client.get("/").status_code == 303


def test_a_key_that_was_revoked_is_asked_for_again(world: World) -> None:
    sign_in(world, secret(world))
    page(world, "/")
    with world.database.write() as session:
        revoke_key(session, session.query(ApiKey.id).scalar(), utc_now())
    assert world.client.get("/").status_code == 303
    assert "Sign in" in page(world, "/ui/login")


def test_signing_out_forgets_the_key(world: World) -> None:
    sign_in(world, secret(world))
    page(world, "/")
    answer = world.client.post("/ui/logout", headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login")
    assert COOKIE not in world.client.cookies
    assert world.client.get("/").status_code == 303


def test_whoever_is_signed_in_already_goes_on(world: World) -> None:
    sign_in(world, secret(world))
    answer = world.client.get("/ui/login?next=/ui/jobs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")


def test_without_keys_there_is_nothing_to_sign_in_to(world: World) -> None:
    answer = world.client.get("/ui/login?next=/ui/jobs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    assert "Sign out" not in page(world, "/")


def test_without_keys_a_stranger_is_told_why_and_not_sent_in_circles(world: World) -> None:
    away = {"X-Forwarded-For": "203.0.113.9"}
    answer = world.client.get("/", headers=away)
    assert answer.headers["location"].startswith("/ui/login")
    assert "grasp admin keys create" in page(world, "/ui/login", 401, headers=away)


def test_the_address_that_serve_shows_signs_its_user_in(world: World) -> None:
    world.app.state.peer_uid = None
    with token(world.settings) as right:
        assert "in the service's home" in page(world, "/ui/login")
        typed = {"Sec-Fetch-Site": "none"}
        wrong = world.client.get("/ui/login?token=wrong", headers=typed)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (200, False)
        lured = {"Sec-Fetch-Site": "cross-site"}
        elsewhere = world.client.get(f"/ui/login?token={right}", headers=lured)
        assert "set-cookie" not in elsewhere.headers

        answer = world.client.get(f"/ui/login?token={right}&next=/ui/jobs", headers=typed)

        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
        assert {"httponly", "samesite=strict"} <= set(
            answer.headers["set-cookie"].lower().split("; ")
        )
        page(world, "/ui/jobs")
        world.client.cookies.clear()
        assert sign_in(world, right) == (303, "/")


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "evil", "http:evil", "///x"],
)
def test_nobody_is_sent_elsewhere(world: World, wanted: str) -> None:
    key = secret(world)
    path = f"/ui/login?{urlencode({'next': wanted})}"
    assert sign_in(world, key, path) == (303, "/")
    assert world.client.get(path).headers["location"] == "/"


# What the cookie opens


def test_the_cookie_opens_the_api_as_far_as_its_key_does(world: World) -> None:
    sign_in(world, secret(world, scope="read"))
    assert world.client.get("/models", headers=OWN).status_code == 200
    answer = world.client.post("/targets?name=x", content=b"PK", headers=OWN)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "needs a key of scope write" in page(world, "/ui/upload", 403)
    assert "/ui/upload" not in page(world, "/")


def test_with_the_cookie_a_whole_day_of_work_is_done(world: World) -> None:
    sign_in(world, secret(world))
    world.client.headers.update(OWN)
    try:
        world.ready_model()
        assert world.fold(1) == 1
        assert world.post_source(checkpoint(2)).status_code == 202
        assert world.client.get("/models/merged").status_code == 200
        assert "merged" in page(world, "/ui/models/merged")
    finally:
        del world.client.headers["sec-fetch-site"]


@pytest.mark.parametrize(
    ("headers", "read", "write"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True, True),
        ({"Sec-Fetch-Site": "none"}, True, False),  # typed into the address bar
        ({"Sec-Fetch-Site": "same-site"}, False, False),  # another port of this machine
        ({"Sec-Fetch-Site": "cross-site"}, False, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"}, False, False),
        ({"Origin": "http://127.0.0.1"}, True, True),
        ({"Origin": "http://127.0.0.1:3000"}, False, False),
        ({"Origin": "https://evil.example"}, False, False),
        ({"Origin": "null"}, False, False),
        ({"Origin": "http://["}, False, False),
        ({}, True, False),
    ],
)
def test_the_cookie_counts_only_where_our_own_pages_ask(
    world: World, headers: dict[str, str], read: bool, write: bool
) -> None:
    sign_in(world, secret(world))
    assert (world.client.get("/models", headers=headers).status_code == 200) == read
    assert (world.client.get("/ui/jobs", headers=headers).status_code == 200) == read
    posted = world.client.post("/targets?name=x", content=b"PK", headers=headers)
    assert posted.status_code == (202 if write else 401)


@pytest.mark.parametrize("path", ["/ui/login", "/ui/logout"])
def test_another_site_signs_nobody_in_or_out(world: World, path: str) -> None:
    key = secret(world)
    away = {"Sec-Fetch-Site": "cross-site"}
    answer = world.client.post(path, data={"key": key}, headers=away)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_key_in_the_header_comes_before_the_cookie(world: World) -> None:
    sign_in(world, secret(world, "ann"))
    bob = world.key("bob", "write")
    world.client.post("/targets?name=bobs", content=b"PK", headers=bob)
    assert world.client.get("/targets/bobs", headers=bob).status_code == 200
    assert world.client.get("/targets/bobs", headers=OWN).status_code == 404
    wrong = {"Authorization": "Bearer grasp_false", **OWN}
    assert world.client.get("/targets", headers=wrong).status_code == 401
