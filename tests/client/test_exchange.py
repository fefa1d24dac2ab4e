"""When a request is tried again, after how long, and with which key: plans without a network."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from grasp_client import Conflict, Grasp, GraspError, NotFound, Unavailable, Unreachable
from grasp_client.exchange import FIRST_PAUSE_S, LONGEST_PAUSE_S, ask
from grasp_client.plans import Call
from tests.client.played import LOST, Played

NOBODY = httpx.ConnectError("connection refused")
FINE = httpx.Response(200, json={"fine": True})


def problem(status: int, code: str = "code", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": "why"}, headers=headers)


@pytest.fixture
def grasp(no_settings: None) -> Iterator[Grasp]:
    with Grasp("http://127.0.0.1:1", patience=60.0) as client:
        yield client


GET, POST, DELETE = Call("GET", "/x"), Call("POST", "/x"), Call("DELETE", "/x")


@pytest.mark.parametrize("failure", [LOST, NOBODY, *(problem(s) for s in (429, 502, 503, 504))])
def test_what_passes_is_tried_again(grasp: Grasp, failure: Any) -> None:
    played = Played(failure, failure, FINE)

    assert played.run(ask(grasp, GET)).json() == {"fine": True}
    assert len(played.pauses) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500, 507])
def test_what_does_not_pass_is_not(grasp: Grasp, status: int) -> None:
    with pytest.raises(GraspError) as caught:
        Played(problem(status, "stable")).run(ask(grasp, GET))

    assert caught.value.code == "stable"


def test_pauses_grow_and_vary(grasp: Grasp) -> None:
    played = Played(*[LOST] * 8, FINE)

    played.run(ask(grasp, GET))

    longest = [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n) for n in range(8)]
    assert all(s / 2 <= p <= s for s, p in zip(longest, played.pauses, strict=True))
    assert len(set(played.pauses)) == 8


@pytest.mark.parametrize("status", [429, 503])
def test_the_server_says_when_to_come_back(grasp: Grasp, status: int) -> None:
    played = Played(problem(status, **{"Retry-After": "7"}), FINE)

    played.run(ask(grasp, GET))

    assert 7 <= played.pauses[0] <= 8


def test_it_may_say_so_with_a_date(grasp: Grasp) -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    played = Played(problem(503, **{"Retry-After": then}), FINE)

    played.run(ask(grasp, GET))

    assert 20 < played.pauses[0] <= 31


@pytest.mark.parametrize("nonsense", ["soon", "-3", "9" * 400])
def test_nonsense_is_passed_over(grasp: Grasp, nonsense: str) -> None:
    played = Played(problem(503, **{"Retry-After": nonsense}), FINE)
    if nonsense.isdecimal():  # an honest number, though longer than anybody waits
        with pytest.raises(Unavailable):
            played.run(ask(grasp, GET))
    else:
        played.run(ask(grasp, GET))
        assert played.pauses[0] < 1


def test_a_wait_that_is_longer_than_patience_is_not_begun(grasp: Grasp) -> None:
    played = Played(problem(503, **{"Retry-After": "61"}))

    with pytest.raises(Unavailable) as caught:
        played.run(ask(grasp, GET))

    assert played.pauses == []
    assert (caught.value.status, caught.value.retry_after) == (503, 61)


def test_patience_is_counted_from_the_first_failure(
    grasp: Grasp, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(*[LOST] * 30)
    monkeypatch.setattr("grasp_client.exchange.time.monotonic", lambda: sum(played.pauses))

    with pytest.raises(Unreachable):
        played.run(ask(grasp, GET))

    assert 60 - LONGEST_PAUSE_S <= sum(played.pauses) <= 60


def test_every_try_of_a_post_has_the_same_key_and_every_post_another(grasp: Grasp) -> None:
    first, second = Played(LOST, FINE), Played(FINE)

    first.run(ask(grasp, POST))
    second.run(ask(grasp, POST))

    keys = [call.headers["Idempotency-Key"] for call in (*first.calls, *second.calls)]
    assert keys[0] == keys[1] != keys[2]


def test_other_requests_need_no_key(grasp: Grasp) -> None:
    played = Played(FINE)

    played.run(ask(grasp, GET))

    assert played.calls[0].headers == {}


def test_a_deletion_that_had_arrived_is_done(grasp: Grasp) -> None:
    Played(LOST, problem(404)).run(ask(grasp, DELETE))

    with pytest.raises(NotFound):
        Played(problem(404)).run(ask(grasp, DELETE))


def test_a_first_try_that_is_still_at_work_is_waited_for(grasp: Grasp) -> None:
    """Its key is taken, or the name that it is about to give."""
    assert Played(LOST, problem(409), FINE).run(ask(grasp, POST)).json() == {"fine": True}

    with pytest.raises(Conflict):
        Played(problem(409)).run(ask(grasp, POST))
    with pytest.raises(Conflict):
        Played(LOST, problem(409), problem(409)).run(ask(grasp, POST))


def test_nobody_there_is_final_only_for_those_who_say_so(no_settings: None) -> None:
    with Grasp("http://127.0.0.1:1", wait_for_server=False) as grasp:
        with pytest.raises(Unreachable):
            Played(NOBODY).run(ask(grasp, GET))
        Played(LOST, FINE).run(ask(grasp, GET))
        Played(NOBODY, FINE).run(ask(grasp, GET))  # it was there: it will be again


@pytest.mark.parametrize("body", [b"<h1>Bad Gateway</h1>", b"[]", b'{"code": 1}', b""])
def test_an_error_that_is_none_of_the_servers_has_its_status(grasp: Grasp, body: bytes) -> None:
    with pytest.raises(GraspError) as caught:
        Played(httpx.Response(418, content=body)).run(ask(grasp, GET))

    assert (caught.value.code, caught.value.message) == ("http_418", "418 I'm a teapot")
