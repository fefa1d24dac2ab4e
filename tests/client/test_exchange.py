"""When a request is tried again, after how long, and with which key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from grasp_client import Conflict, GraspError, NotFound, Unavailable, Unreachable
from grasp_client.protocol import FIRST_PAUSE_S, LONGEST_PAUSE_S
from tests.client.played import LOST, Play, Played
from tests.client.played import play as play

NOBODY = httpx.ConnectError("connection refused")
FINE = httpx.Response(200, json={"fine": True})


def problem(status: int, code: str = "code", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": "why"}, headers=headers)


GET, POST, DELETE = ("GET", "/x"), ("POST", "/x"), ("DELETE", "/x")


@pytest.mark.parametrize("failure", [LOST, NOBODY, *(problem(s) for s in (429, 502, 503, 504))])
def test_what_passes_is_tried_again(play: Play, failure: Any) -> None:
    played = Played(failure, failure, FINE)

    assert play(played).ask(*GET) == {"fine": True}
    assert len(played.pauses) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500, 507])
def test_what_does_not_pass_is_not(play: Play, status: int) -> None:
    with pytest.raises(GraspError) as caught:
        play(Played(problem(status, "stable"))).ask(*GET)

    assert caught.value.code == "stable"


def test_pauses_grow_and_vary(play: Play) -> None:
    played = Played(*[LOST] * 8, FINE)

    play(played).ask(*GET)

    longest = [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n) for n in range(8)]
    assert all(s / 2 <= p <= s for s, p in zip(longest, played.pauses, strict=True))
    assert len(set(played.pauses)) == 8


@pytest.mark.parametrize("status", [429, 503])
def test_the_server_says_when_to_come_back(play: Play, status: int) -> None:
    played = Played(problem(status, **{"Retry-After": "7"}), FINE)

    play(played).ask(*GET)

    assert 7 <= played.pauses[0] <= 8


def test_it_may_say_so_with_a_date(play: Play) -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    played = Played(problem(503, **{"Retry-After": then}), FINE)

    play(played).ask(*GET)

    assert 20 < played.pauses[0] <= 31


@pytest.mark.parametrize("nonsense", ["soon", "-3", "9" * 400])
def test_nonsense_is_passed_over(play: Play, nonsense: str) -> None:
    played = Played(problem(503, **{"Retry-After": nonsense}), FINE)
    if nonsense.isdecimal():  # an honest number, though longer than anybody waits
        with pytest.raises(Unavailable):
            play(played).ask(*GET)
    else:
        play(played).ask(*GET)
        assert played.pauses[0] < 1


def test_a_wait_that_is_longer_than_patience_is_not_begun(play: Play) -> None:
    played = Played(problem(503, **{"Retry-After": "61"}))

    with pytest.raises(Unavailable) as caught:
        play(played).ask(*GET)

    assert played.pauses == []
    assert (caught.value.status, caught.value.retry_after) == (503, 61)


def test_patience_is_counted_from_the_first_failure(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(*[LOST] * 30)
    monkeypatch.setattr("grasp_client.protocol.time.monotonic", lambda: sum(played.pauses))

    with pytest.raises(Unreachable):
        play(played).ask(*GET)

    assert 60 - LONGEST_PAUSE_S <= sum(played.pauses) <= 60


def test_every_try_of_a_post_has_the_same_key_and_every_post_another(play: Play) -> None:
    first, second = Played(LOST, FINE), Played(FINE)

    play(first).ask(*POST)
    play(second).ask(*POST)

    keys = [each.headers["Idempotency-Key"] for each in (*first.requests, *second.requests)]
    assert keys[0] == keys[1] != keys[2]


def test_other_requests_need_no_key(play: Play) -> None:
    played = Played(FINE)

    play(played).ask(*GET)

    assert "Idempotency-Key" not in played.requests[0].headers


def test_a_deletion_that_had_arrived_is_done(play: Play) -> None:
    play(Played(LOST, problem(404))).ask(*DELETE)

    with pytest.raises(NotFound):
        play(Played(problem(404))).ask(*DELETE)


def test_a_first_try_that_is_still_at_work_is_waited_for(play: Play) -> None:
    """Its key is taken, or the name that it is about to give."""
    assert play(Played(LOST, problem(409), FINE)).ask(*POST) == {"fine": True}

    with pytest.raises(Conflict):
        play(Played(problem(409))).ask(*POST)
    with pytest.raises(Conflict):
        play(Played(LOST, problem(409), problem(409))).ask(*POST)


def test_nobody_there_is_final_only_for_those_who_say_so(play: Play) -> None:
    with pytest.raises(Unreachable):
        play(Played(NOBODY), wait_for_server=False).ask(*GET)

    client = play(Played(LOST, FINE, NOBODY, FINE), wait_for_server=False)
    client.ask(*GET)
    client.ask(*GET)  # it was there: it will be again


@pytest.mark.parametrize("body", [b"<h1>Bad Gateway</h1>", b"[]", b'{"code": 1}', b""])
def test_an_error_that_is_none_of_the_servers_has_its_status(play: Play, body: bytes) -> None:
    with pytest.raises(GraspError) as caught:
        play(Played(httpx.Response(418, content=body))).ask(*GET)

    assert (caught.value.code, caught.value.message) == ("http_418", "418 I'm a teapot")
