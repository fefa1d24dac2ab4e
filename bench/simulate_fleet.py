"""The queue's policy at a scale that cannot be run: up to 100,000 models, in simulated time.

    python bench/simulate_fleet.py [--models 1000 10000 100000] [--days 2] [--plot waits.svg]

Sources arrive as a Poisson process with a daily rhythm, some of them several at once for one model.
Workers claim as `registry.jobs.queue.claim` does: the free queue whose next job is oldest, one job
of a queue at a time. A worker that crashes loses its job until the lease expires. Every run is
checked: each source is folded exactly once, or given up after as many lost attempts as are allowed,
and the sources of a model in their order.

The load on the database follows from what the code does per source and per second of a worker;
`tests/test_simulation.py` counts the same on the real code. Equal seeds give equal output.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

DAY = 86_400.0
RATIOS = (0.9, 1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0)  # workers per mean load that are tried
GOAL_S = 3_600.0  # that 95 % of the sources shall wait at most
KEPT = (1, 10, None)  # retention settings that are compared; None keeps all versions

# Transactions, by the code they are in. A read that follows nothing else is one, too.
POST_READS = 2  # app/access/auth.py: the key; app/routes/sources.py: the model, before the bytes
POST_WRITES = 1  # source and job
ATTEMPT_READS = 3  # worker/loop.py: whose job it is; worker/attempt.py: the job, known damage
ATTEMPT_WRITES = 2  # the claim; worker/loop.py: idle again
# registry/blobs/local.py: does anything else need the bytes? And under the lock? worker/loop.py:
# which decoded targets are still needed?
END_READS = 3
END_WRITES = 1  # publish
TICK_S = 1.0  # worker/attempt.py, WRITE_S: one look for a cancellation, one write of progress
CLEAN_S = 30.0  # worker/loop.py: one write, and one read for every blob


@dataclass(frozen=True)
class Fleet:
    """Models, workers and their luck. Durations are in seconds unless they say otherwise."""

    models: int = field(default=1_000, metadata={"help": "number of models"})
    workers: int = 1
    days: float = field(default=2.0, metadata={"help": "for which sources arrive"})
    per_day: float = field(default=1.0, metadata={"help": "sources of a model"})
    rhythm: float = field(default=0.5, metadata={"help": "swing of the rate over a day, 0 to 1"})
    burst_share: float = field(default=0.05, metadata={"help": "arrivals of several at once"})
    burst_size: int = field(default=5, metadata={"help": "sources in such an arrival"})
    fold_median: float = field(default=140.0, metadata={"help": "seconds of a fold"})
    fold_spread: float = field(default=0.8, metadata={"help": "deviation of its logarithm"})
    mtbf_days: float = field(default=7.0, metadata={"help": "between two crashes of a worker"})
    restart: float = field(default=60.0, metadata={"help": "seconds that a crashed worker is away"})
    lease: float = 60.0
    heartbeat: float = 15.0
    max_losses: int = 10
    poll: float = field(default=1.0, metadata={"help": "seconds between looks of an idle worker"})
    ring: float | None = field(default=None, metadata={"help": "seconds for a ring to arrive"})
    blob_mb: float = field(default=94.0, metadata={"help": "a checkpoint, in MB"})
    seed: int = 0

    @property
    def fold_mean(self) -> float:
        return self.fold_median * math.exp(self.fold_spread**2 / 2)

    @property
    def load(self) -> float:
        """Workers that would be busy all the time if nothing ever waited or crashed."""
        return self.models * self.per_day * self.fold_mean / DAY


@dataclass(frozen=True)
class Sources:
    """What arrives, in order: when, of which model, and how long its fold takes."""

    times: Sequence[float]
    models: Sequence[int]
    seconds: Sequence[float]


class Attempt(NamedTuple):
    """A fold from its start to its end; one that a crash cut short published nothing."""

    source: int
    worker: int
    start: float
    end: float
    published: bool


@dataclass
class Run:
    """What happened."""

    fleet: Fleet
    sources: Sources
    attempts: list[Attempt] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    longest_queue: int = 0

    def waits(self) -> list[float]:
        """Seconds from arrival to the start of the fold that was published, sorted."""
        times = self.sources.times
        return sorted(a.start - times[a.source] for a in self.attempts if a.published)

    def wait(self, share: float) -> float:
        waits = self.waits()
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else math.nan

    def busy(self) -> float:
        """Seconds that workers spent on folds while sources arrived."""
        horizon = self.fleet.days * DAY
        return sum(min(a.end, horizon) - min(a.start, horizon) for a in self.attempts)

    def utilisation(self) -> float:
        return self.busy() / (self.fleet.workers * self.fleet.days * DAY)


class PolicyBroken(Exception):
    """A run in which the queue's promises did not hold."""


def make_sources(fleet: Fleet) -> Sources:
    """Many Poisson processes are one, with a model drawn for each arrival."""
    random = Random(fleet.seed)
    mean = 1 + fleet.burst_share * (fleet.burst_size - 1)
    highest = fleet.models * fleet.per_day / DAY / mean * (1 + fleet.rhythm)
    sources: tuple[list[float], list[int], list[float]] = ([], [], [])
    now = random.expovariate(highest)
    while now < fleet.days * DAY:
        swing = 1 - fleet.rhythm * math.cos(2 * math.pi * now / DAY)  # nights are quiet
        if random.random() * (1 + fleet.rhythm) < swing:
            model = random.randrange(fleet.models)
            for _ in range(fleet.burst_size if random.random() < fleet.burst_share else 1):
                sources[0].append(now)
                sources[1].append(model)
                sources[2].append(
                    fleet.fold_median * math.exp(random.gauss(0.0, fleet.fold_spread))
                )
        now += random.expovariate(highest)
    return Sources(*sources)


class Simulation:
    """Events in order of time, until every source is folded or given up."""

    def __init__(self, fleet: Fleet, sources: Sources) -> None:
        self.run = Run(fleet, sources)
        self._fleet = fleet
        self._sources = sources
        self._random = Random(fleet.seed + 1)
        self._serial = count()
        self._events: list[tuple[float, int, Callable[..., None], int]] = []
        self._queues: dict[int, deque[int]] = {}  # of models that have anything to do
        self._ready: list[tuple[float, int]] = []  # heads of free queues, oldest first
        self._idle: list[int] = list(range(fleet.workers))
        self._running: dict[int, tuple[int, float, int]] = {}  # by worker; what, since, event
        self._lost: Counter[int] = Counter()
        self._waiting = 0
        self._left = len(sources.times)

    def to_the_end(self) -> Run:
        for worker in range(self._fleet.workers):
            self._await_crash(0.0, worker)
        times, arrived = self._sources.times, 0
        while self._left:
            if arrived < len(times) and (not self._events or times[arrived] <= self._events[0][0]):
                self._arrive(times[arrived], arrived)
                arrived += 1
            else:
                now, serial, happen, subject = heappop(self._events)
                if happen == self._finish and self._running.get(subject, (0, 0, -1))[2] != serial:
                    continue  # its worker crashed
                happen(now, subject)
        check(self.run)
        return self.run

    def _at(self, time: float, happen: Callable[..., None], subject: int) -> int:
        serial = next(self._serial)
        heappush(self._events, (time, serial, happen, subject))
        return serial

    def _arrive(self, now: float, source: int) -> None:
        queue = self._queues.setdefault(self._sources.models[source], deque())
        queue.append(source)
        self._wait_longer(1)
        if len(queue) == 1:
            self._offer(now, source)

    def _offer(self, now: float, head: int) -> None:
        """The head of a queue that is free: some idle worker will see it."""
        heappush(self._ready, (self._sources.times[head], head))
        if self._idle:
            self._at(now + self._delay(), self._look, 0)

    def _delay(self) -> float:
        """Until the first of the idle workers looks."""
        if self._fleet.ring is not None:
            return self._fleet.ring
        return self._fleet.poll * (1 - math.pow(self._random.random(), 1 / len(self._idle)))

    def _look(self, now: float, _: int) -> None:
        if self._idle:
            self._claim(now, self._idle.pop())

    def _claim(self, now: float, worker: int) -> None:
        while self._ready:
            _, head = heappop(self._ready)
            if self._lost[head] == self._fleet.max_losses:
                self.run.failed.append(head)
                self._wait_longer(-1)
                following = self._drop_head(head)
                if following is None:
                    continue
                head = following
            self._wait_longer(-1)
            done = self._at(now + self._sources.seconds[head], self._finish, worker)
            self._running[worker] = (head, now, done)
            return
        self._idle.append(worker)

    def _finish(self, now: float, worker: int) -> None:
        source, start, _ = self._running.pop(worker)
        self.run.attempts.append(Attempt(source, worker, start, now, True))
        following = self._drop_head(source)
        if following is not None:
            self._offer(now, following)
        self._claim(now, worker)

    def _drop_head(self, source: int) -> int | None:
        """End the first job of a queue; the one that follows."""
        self._left -= 1
        model = self._sources.models[source]
        queue = self._queues[model]
        queue.popleft()
        if queue:
            return queue[0]
        del self._queues[model]
        return None

    def _await_crash(self, now: float, worker: int) -> None:
        if math.isfinite(self._fleet.mtbf_days):
            lifetime = self._random.expovariate(1 / (self._fleet.mtbf_days * DAY))
            self._at(now + lifetime, self._crash, worker)

    def _crash(self, now: float, worker: int) -> None:
        self._at(now + self._fleet.restart, self._restart, worker)
        if worker not in self._running:
            self._idle.remove(worker)
            return
        source, start, _ = self._running.pop(worker)
        self.run.attempts.append(Attempt(source, worker, start, now, False))
        beats = (now - start) // self._fleet.heartbeat
        self._at(start + beats * self._fleet.heartbeat + self._fleet.lease, self._expire, source)

    def _expire(self, now: float, source: int) -> None:
        self._lost[source] += 1
        self._wait_longer(1)
        self._offer(now, source)

    def _restart(self, now: float, worker: int) -> None:
        self._await_crash(now, worker)
        self._claim(now, worker)

    def _wait_longer(self, by: int) -> None:
        self._waiting += by
        self.run.longest_queue = max(self.run.longest_queue, self._waiting)


def simulate(fleet: Fleet, sources: Sources | None = None) -> Run:
    """One run; sources that are not given are drawn by the fleet's seed. Raises PolicyBroken."""
    return Simulation(fleet, make_sources(fleet) if sources is None else sources).to_the_end()


def check(run: Run) -> None:
    """Judge a run by its attempts alone. Raises PolicyBroken."""
    fleet, models, times = run.fleet, run.sources.models, run.sources.times
    free_worker = [0.0] * fleet.workers
    free_model: dict[int, float] = {}
    latest: dict[int, int] = {}
    lost, published = Counter[int](), Counter[int]()
    failed = set(run.failed)
    for source, worker, start, end, done in sorted(run.attempts, key=lambda a: a.start):
        model = models[source]
        _require(free_worker[worker] <= start, "a worker did two things at once", source)
        _require(times[source] <= start, "a fold began before its source was there", source)
        _require(free_model.get(model, 0.0) <= start, "two folds of a model at once", source)
        before = latest.get(model, source)
        ended = before == source or published[before] or before in failed
        _require(before <= source and bool(ended), "sources of a model out of order", source)
        (published if done else lost)[source] += 1
        latest[model] = source
        free_worker[worker] = end
        # A lost job is nobody's until its lease, renewed a heartbeat ago at most, expires.
        free_model[model] = end if done else end + (fleet.lease - fleet.heartbeat)
    for source in range(len(times)):
        _require(published[source] == (source not in failed), "not folded exactly once", source)
        allowed = lost[source] == fleet.max_losses or source not in failed
        _require(allowed and lost[source] <= fleet.max_losses, "given up wrongly", source)


def _require(holds: bool, promise: str, source: int) -> None:
    if not holds:
        raise PolicyBroken(f"{promise}: source {source}")


class Rates(NamedTuple):
    """Transactions per second."""

    reads: float
    writes: float
    polls: float  # of the writes: claims that found nothing
    cleanings: float  # each is one read for every stored blob


def database_rates(run: Run) -> Rates:
    """What the run would have cost a real database, clients that follow their jobs apart."""
    fleet = run.fleet
    seconds = fleet.days * DAY
    idle = max(0.0, fleet.workers * seconds - run.busy())
    posts, attempts, ends = len(run.sources.times), len(run.attempts), len(run.waits())
    ticks = run.busy() / TICK_S
    polls = idle / fleet.poll
    cleanings = idle / max(CLEAN_S, fleet.poll) + attempts
    reads = posts * POST_READS + attempts * ATTEMPT_READS + ends * END_READS + ticks
    writes = posts * POST_WRITES + attempts * ATTEMPT_WRITES + ends * END_WRITES + ticks
    writes += polls + idle / max(fleet.heartbeat, fleet.poll) + cleanings
    return Rates(*(total / seconds for total in (reads, writes, polls, cleanings)))


def stored_mb(fleet: Fleet, days: float, keep_versions: int | None) -> float:
    """Bytes of all versions after some days of which every fold was accepted; sources are gone."""
    versions = fleet.per_day * days
    return fleet.models * fleet.blob_mb * min(versions, keep_versions or versions)


def sweep(fleet: Fleet) -> dict[int, Run]:
    """Runs with ever more workers, and closer ones around the fewest that reach the goal."""
    sources = make_sources(fleet)
    runs: dict[int, Run] = {}

    def reaches(workers: int) -> bool:
        if workers not in runs:
            runs[workers] = simulate(replace(fleet, workers=workers), sources)
        return runs[workers].wait(0.95) <= GOAL_S

    counts = sorted({max(1, math.ceil(fleet.load * ratio)) for ratio in RATIOS})
    for enough in counts:
        if reaches(enough):
            break
    too_few = max((n for n in counts if n < enough), default=0)
    while enough - too_few > max(1, enough // 100):  # to one in a hundred
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if reaches(middle) else (middle, enough)
    for more in (enough * 11 // 10, enough * 5 // 4):
        reaches(max(enough + 1, more))
    return dict(sorted(runs.items()))


def enough_of(runs: dict[int, Run]) -> Run:
    """The fewest workers that reach the goal."""
    return next((r for r in runs.values() if r.wait(0.95) <= GOAL_S), runs[max(runs)])


ROWS: dict[str, Callable[[Run], str]] = {
    "sources": lambda run: f"{len(run.sources.times):,}",
    "mean load, in workers": lambda run: f"{run.fleet.load:.1f}",
    "workers for 95 % under an hour": lambda run: f"{run.fleet.workers:,}",
    "utilisation": lambda run: f"{run.utilisation():.0%}",
    "wait, median": lambda run: clock(run.wait(0.5)),
    "wait, 95 %": lambda run: clock(run.wait(0.95)),
    "wait, 99 %": lambda run: clock(run.wait(0.99)),
    "longest queue": lambda run: f"{run.longest_queue:,}",
    "folds repeated after crashes": lambda run: f"{len(run.attempts) - len(run.waits()):,}",
    "sources given up": lambda run: f"{len(run.failed):,}",
    "database reads /s": lambda run: f"{database_rates(run).reads:,.1f}",
    "database writes /s": lambda run: f"{database_rates(run).writes:,.1f}",
    "  of them polls /s": lambda run: f"{database_rates(run).polls:,.1f}",
    "sweeps over all blobs /s": lambda run: f"{database_rates(run).cleanings:,.2f}",
    "bytes received a day": lambda run: size(stored_mb(run.fleet, 1.0, None)),
} | {
    f"stored after a year, keeping {kept or 'all'}": (
        lambda run, kept=kept: size(stored_mb(run.fleet, 365.0, kept))
    )
    for kept in KEPT
}


def clock(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3_600:.1f} h"


def size(mb: float) -> str:
    for unit in ("MB", "GB", "TB"):
        if mb < 1_000:
            return f"{mb:,.0f} {unit}"
        mb /= 1_000
    return f"{mb:,.1f} PB"


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    cells = [list(heads), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *others = (c.rjust(w) for c, w in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]))


def print_bars(models: int, runs: dict[int, Run]) -> None:
    """The 95 % wait by number of workers, on a logarithmic scale from a second to ten days."""
    print(f"\n{models:,} models: 95 % wait at most … with so many workers")
    for workers, run in runs.items():
        wait = run.wait(0.95)
        bar = "█" * max(1, round(50 * math.log10(max(1.0, wait)) / 6))
        mark = "" if wait <= GOAL_S else "  over an hour"
        print(f"{workers:>7,} {clock(wait):>9} {bar}{mark}")


def draw(sweeps: dict[int, dict[int, Run]]) -> str:
    """An SVG of the same: workers per mean load to the right, the 95 % wait upwards."""
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 400" font-size="13"']
    parts[0] += ' font-family="sans-serif"><rect width="640" height="400" fill="white"/>'
    for label, seconds in (("1 s", 1.0), ("1 min", 60.0), ("1 h", 3_600.0), ("1 day", DAY)):
        y = _height(seconds)
        parts.append(f'<path d="M70 {y:.0f}H610" stroke="#ccc"/>')
        parts.append(f'<text x="62" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
    for ratio in (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0):
        x = _across(ratio)
        parts.append(f'<text x="{x:.0f}" y="366" text-anchor="middle">{ratio:.1f}</text>')
    parts.append('<text x="340" y="390" text-anchor="middle">workers / mean load</text>')
    parts.append('<text x="70" y="18">95 % of the sources wait at most …</text>')
    for colour, (models, runs) in zip(
        ("#c33", "#36c", "#282", "#a60"), sweeps.items(), strict=False
    ):
        points = [(_across(n / run.fleet.load), _height(run.wait(0.95))) for n, run in runs.items()]
        points = [(x, y) for x, y in points if 70 <= x <= 610]
        line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        row = 40 + 18 * len([p for p in parts if "polyline" in p])
        parts.append(
            f'<text x="600" y="{row}" text-anchor="end" fill="{colour}">{models:,} models</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _across(ratio: float) -> float:
    return 70 + (ratio - 0.8) / 1.2 * 540


def _height(seconds: float) -> float:
    return 345 - 310 * math.log10(max(1.0, seconds)) / math.log10(2 * DAY)


def main() -> int:
    options = _options()
    given = {f.name: getattr(options, f.name) for f in fields(Fleet) if hasattr(options, f.name)}
    sweeps = {n: sweep(Fleet(**given | {"models": n})) for n in options.models}
    enough = [enough_of(runs) for runs in sweeps.values()]
    print_table(
        ["models", *(f"{models:,}" for models in sweeps)],
        ([name, *map(show, enough)] for name, show in ROWS.items()),
    )
    for models, runs in sweeps.items():
        print_bars(models, runs)
    if options.plot:
        options.plot.write_text(draw(sweeps))
    total = sum(len(runs) for runs in sweeps.values())
    print(
        f"\n{total} runs; in each, every source was folded once and in order, or given up rightly"
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", type=Path, help="write an SVG there")
    parser.add_argument("--models", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    for f in fields(Fleet):
        if f.name not in ("models", "workers"):
            kind = float if f.default is None else type(f.default)
            name = f"--{f.name.replace('_', '-')}"
            parser.add_argument(name, type=kind, default=f.default, help=f.metadata.get("help"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
