"""From values to places on a drawing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEPS = (1, 2, 2.5, 5, 10)
SMALLEST = 1e-6  # differences that no drawing shows


@dataclass(frozen=True)
class Scale:
    """Maps the values from `low` to `high` to places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round values that enclose everything from `low` to `high`."""
    about = max(abs(low), abs(high), SMALLEST)
    spread = high - low
    step = _round_up(spread / count if spread > SMALLEST * max(about, 1.0) else about)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(i * step, 10) for i in range(first, last + 1)]


def accuracy_ticks(values: Iterable[float]) -> list[float]:
    """The same for shares: never below 0 or above 1, and never less than a tenth."""
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    return ticks(max(0.0, min(low, high - 0.1)), min(1.0, max(high, 0.1)))


def thinned(values: Sequence[int], most: int) -> Sequence[int]:
    """At most so many of them, evenly spaced, the last one included."""
    step = max(1, math.ceil(len(values) / most))
    return values[::-1][::step][::-1]


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(s for s in STEPS if s * power >= step - 1e-12)
