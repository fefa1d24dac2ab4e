"""What a worker has done since it started: kept in its row, and published by /metrics."""

from bisect import bisect_left
from typing import Literal

from pydantic import BaseModel, Field

from grasp_core.methods import METHODS, list_stages

Outcome = Literal["accepted", "kept", "rejected", "failed", "cancelled"]
FoldKind = Literal["fold", "dry_run"]

# The outermost are where a report warns that a method did not really choose.
SHARES = (0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
BUCKETS = len(SHARES) + 1
# What attempts are most often lost to; published from the start, so that the first is seen to come.
COMMON_FAILURES = (
    "child_crashed",
    "child_killed",
    "internal_error",
    "lease_lost",
    "out_of_memory",
    "storage_full",
)
OUTCOMES: tuple[Outcome, ...] = ("accepted", "kept", "rejected", "failed", "cancelled")
NO_OUTCOMES: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)


class Sum(BaseModel):
    """How many values there were, and what they add up to."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value


class Spread(Sum):
    """Also, how many lay up to each of `SHARES` and above the one before; then those beyond."""

    counts: list[int] = Field([0] * BUCKETS, min_length=BUCKETS, max_length=BUCKETS)

    def add(self, value: float) -> None:
        super().add(value)
        self.counts[bisect_left(SHARES, value)] += 1


def _no_seconds() -> dict[str, Sum]:
    """Of any stage that there is."""
    return {stage.name: Sum() for stage in list_stages(METHODS.values())}


class Totals(BaseModel):
    """Counts that only grow, but for the memory, which is as it was at the last heartbeat."""

    folds: dict[FoldKind, dict[Outcome, int]] = {
        "fold": {**NO_OUTCOMES},
        "dry_run": {**NO_OUTCOMES},
    }
    rejections: dict[str, int] = {"accuracy": 0, "tensors": 0}  # of folds, by what was wrong
    failures: dict[str, int] = dict.fromkeys(COMMON_FAILURES, 0)  # of attempts, by code
    stages: dict[str, Sum] = Field(default_factory=_no_seconds)
    transferred_share: Spread = Spread()
    resident_bytes: int = 0  # of the worker's own process
    child_peak_bytes: int = 0  # the most that a process of a job ever had
