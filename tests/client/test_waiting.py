"""How long a wait lasts, whatever the server does, on a clock of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from grasp_client import JobUnfinished, NotFound, Unavailable
from grasp_client.protocol import HEARTBEAT_S, LATE_S, SILENCE_S
from tests.client.played import Play, Stream
from tests.client.played import play as play

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
Wait = Callable[..., float]


class Clock:
    """A server that sends a state of the job every so many seconds; it takes no time at all."""

    def __init__(self, every: float = HEARTBEAT_S, ends: float = 1e9) -> None:
        self.now = 0.0
        self.every = every
        self.ends = ends
        self.timeouts: list[float] = []  # of each connection
        self.refusal: httpx.Response | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.timeouts.append(request.extensions["timeout"]["read"])
        if self.refusal is not None:
            return httpx.Response(self.refusal.status_code, headers=self.refusal.headers)
        return httpx.Response(200, stream=Stream(self._states(self.timeouts[-1])))

    def _states(self, timeout: float) -> Iterator[bytes]:
        while True:
            silence = min(timeout, self.every)
            self.now += silence
            if silence < self.every:
                raise httpx.ReadTimeout("silence")
            state = {**JOB, "status": "succeeded" if self.now >= self.ends else "running"}
            yield b"id: 1\ndata: " + json.dumps(state).encode() + b"\n\n"

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def wait(play: Play, monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Wait with a timeout; gives how long that was on the clock."""

    def wait(clock: Clock, timeout: float | None, **options: float) -> float:
        client = play(clock, **options)
        monkeypatch.setattr("grasp_client.protocol.time.monotonic", lambda: clock.now)
        client.jobs.wait("job_1", timeout=timeout)
        return clock.now

    return wait


@pytest.mark.parametrize("timeout", [0.0, 2.0, 20.0, 100.0])
@pytest.mark.parametrize("every", [0.25, 7.0, HEARTBEAT_S])
def test_a_wait_ends_in_time(wait: Wait, timeout: float, every: float) -> None:
    clock = Clock(every)

    with pytest.raises(JobUnfinished, match=f"within {timeout:g} seconds"):
        wait(clock, timeout)

    assert timeout <= clock.now <= timeout + LATE_S
    assert len(clock.timeouts) <= 2 + HEARTBEAT_S / LATE_S


def test_without_a_timeout_one_connection_lasts(wait: Wait) -> None:
    clock = Clock(every=1.0, ends=200.0)

    assert wait(clock, None) == 200
    assert clock.timeouts == [SILENCE_S]


def test_a_long_one_is_connected_anew_only_near_its_end(wait: Wait) -> None:
    clock = Clock(every=1.0, ends=70.0)

    assert wait(clock, 100) == 70
    assert len(clock.timeouts) == 1


def test_a_server_that_is_away_is_waited_for_no_longer(wait: Wait) -> None:
    clock = Clock()
    clock.refusal = httpx.Response(503, headers={"Retry-After": "90"})

    with pytest.raises(JobUnfinished):
        wait(clock, 10.0)

    assert clock.now == 10


def test_patience_may_end_before(wait: Wait) -> None:
    clock = Clock()
    clock.refusal = httpx.Response(503)

    with pytest.raises(Unavailable):
        wait(clock, 10.0, patience=1.0)

    assert clock.now <= 1


def test_what_is_read_at_the_last_moment_counts(wait: Wait) -> None:
    assert wait(Clock(every=0.4, ends=0.4), 0.3) == 0.4


def test_silence_at_the_end_is_no_fault_of_the_server(wait: Wait) -> None:
    with pytest.raises(JobUnfinished):
        wait(Clock(), 3.0, patience=0.0)


def test_a_job_that_is_not_there_is_not_waited_for(wait: Wait) -> None:
    clock = Clock()
    clock.refusal = httpx.Response(404)

    with pytest.raises(NotFound):
        wait(clock, 10.0)
