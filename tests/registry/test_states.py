"""The state machine of a job, against the table of docs/architecture.md written out again."""

from typing import get_args

import pytest

from registry.jobs.states import (
    ACTIVE,
    MOVES,
    RETRIABLE,
    TERMINAL,
    JobStatus,
    after_failure,
    origins,
)

# from → to, as the design tells it: leased; ended; given back; cancelled; tried again.
EDGES = {
    ("queued", "running"),
    ("queued", "cancelled"),
    ("running", "succeeded"),
    ("running", "rejected"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("running", "queued"),
    ("rejected", "queued"),
    ("failed", "queued"),
    ("cancelled", "queued"),
}


def test_moves_are_those_of_the_design() -> None:
    assert {(before, after) for before in MOVES for after in MOVES[before]} == EDGES


def test_every_status_is_either_active_or_terminal() -> None:
    assert set(MOVES) == set(get_args(JobStatus))
    assert sorted([*ACTIVE, *TERMINAL]) == sorted(get_args(JobStatus))


def test_only_success_is_for_ever() -> None:
    assert set(TERMINAL) - set(RETRIABLE) == {"succeeded"}
    assert all(MOVES[status] == ("queued",) for status in RETRIABLE)


@pytest.mark.parametrize("status", get_args(JobStatus))
def test_origins_are_the_moves_backwards(status: JobStatus) -> None:
    assert set(origins(status)) == {before for before, after in EDGES if after == status}


@pytest.mark.parametrize(
    ("failures", "retryable", "status"),
    [
        (1, True, "queued"),
        (2, True, "queued"),
        (3, True, "failed"),
        (4, True, "failed"),
        (1, False, "failed"),
    ],
)
def test_a_failed_attempt_is_repeated_while_attempts_remain(
    failures: int, retryable: bool, status: JobStatus
) -> None:
    assert after_failure(failures, 3, retryable=retryable) == status
