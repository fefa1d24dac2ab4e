"""How long a wait lasts, whatever the server does: plans without a network, on a clock of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from grasp_client import Grasp, JobUnfinished, NotFound, Unavailable
from grasp_client.events import HEARTBEAT_S, LATE_S, SILENCE_S
from grasp_client.jobs import wait_for
from grasp_client.plans import Call, Open, Read, Sleep, Step
from tests.client.played import Player

JOB = {
    "id": "job_1",
    "kind": "fold",
    "status": "running",
    "stage": "refine",
    "progress": 0.5,
    "metrics": {},
    "attempts": 1,
    "failures": [],
    "model": None,
    "target": None,
    "source": None,
    "version": None,
    "error": None,
    "revision": 1,
    "created_at": "2026-01-01T00:00:00Z",
    "started_at": None,
    "finished_at": None,
}
Play = Callable[..., float]


class Clock(Player):
    """A server that sends a state of the job every so many seconds; it takes no time at all."""

    def __init__(self, every: float = HEARTBEAT_S, ends: float = 1e9) -> None:
        self.now = 0.0
        self.every = every
        self.ends = ends
        self.opened: list[Call] = []
        self.refusal: httpx.Response | None = None

    def _take(self, step: Step) -> Any:
        match step:
            case Open(call):
                self.opened.append(call)
                return self.refusal or httpx.Response(200)
            case Sleep(seconds):
                self.now += seconds
            case Read():
                return b"" if self.refusal else self._read()
        return None

    def _read(self) -> bytes:
        silence = min(self.opened[-1].timeout, self.every)
        self.now += silence
        if silence < self.every:
            raise httpx.ReadTimeout("silence")
        state = {**JOB, "status": "succeeded" if self.now >= self.ends else "running"}
        return b"id: 1\ndata: " + json.dumps(state).encode() + b"\n\n"


@pytest.fixture
def grasp(no_settings: None) -> Iterator[Grasp]:
    with Grasp("http://127.0.0.1:1") as client:
        yield client


@pytest.fixture
def play(grasp: Grasp, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Wait with a timeout; gives how long that was on the clock."""

    def play(clock: Clock, timeout: float | None) -> float:
        monkeypatch.setattr("grasp_client.events.time.monotonic", lambda: clock.now)
        clock.run(wait_for(grasp, "job_1", timeout=timeout))
        return clock.now

    return play


@pytest.mark.parametrize("timeout", [0.0, 2.0, 20.0, 100.0])
@pytest.mark.parametrize("every", [0.25, 7.0, HEARTBEAT_S])
def test_a_wait_ends_in_time(play: Play, timeout: float, every: float) -> None:
    clock = Clock(every)

    with pytest.raises(JobUnfinished, match=f"within {timeout:g} seconds"):
        play(clock, timeout)

    assert timeout <= clock.now <= timeout + LATE_S
    assert len(clock.opened) <= 2 + HEARTBEAT_S / LATE_S


def test_without_a_timeout_one_connection_lasts(play: Play) -> None:
    clock = Clock(every=1.0, ends=200.0)

    assert play(clock, None) == 200
    assert [call.timeout for call in clock.opened] == [SILENCE_S]


def test_a_long_one_is_connected_anew_only_near_its_end(play: Play) -> None:
    clock = Clock(every=1.0, ends=70.0)

    assert play(clock, 100) == 70
    assert len(clock.opened) == 1


def test_a_server_that_is_away_is_waited_for_no_longer(play: Play) -> None:
    clock = Clock()
    clock.refusal = httpx.Response(503, headers={"Retry-After": "90"})

    with pytest.raises(JobUnfinished):
        play(clock, 10.0)

    assert clock.now == 10


def test_patience_may_end_before(play: Play, grasp: Grasp) -> None:
    grasp.patience = 1.0
    clock = Clock()
    clock.refusal = httpx.Response(503)

    with pytest.raises(Unavailable):
        play(clock, 10.0)

    assert clock.now <= 1


def test_what_is_read_at_the_last_moment_counts(play: Play) -> None:
    assert play(Clock(every=0.4, ends=0.4), 0.3) == 0.4


def test_silence_at_the_end_is_no_fault_of_the_server(play: Play, grasp: Grasp) -> None:
    grasp.patience = 0.0

    with pytest.raises(JobUnfinished):
        play(Clock(), 3.0)


def test_a_job_that_is_not_there_is_not_waited_for(play: Play) -> None:
    clock = Clock()
    clock.refusal = httpx.Response(404)

    with pytest.raises(NotFound):
        play(clock, 10.0)
