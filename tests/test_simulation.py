"""The simulated fleet against queueing theory, and against the real code it stands for."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from bench.simulate_fleet import (
    ATTEMPT_READS,
    ATTEMPT_WRITES,
    DAY,
    END_READS,
    END_WRITES,
    POST_READS,
    POST_WRITES,
    Attempt,
    Fleet,
    PolicyBroken,
    Run,
    Sources,
    check,
    database_rates,
    draw,
    make_sources,
    simulate,
    sweep,
)
from registry.jobs import queue
from tests.app import world as http
from tests.app.conftest import opened
from tests.service.fake_folds import checkpoint
from tests.service.place import Place

NO_LUCK_NEEDED = Fleet(mtbf_days=math.inf, ring=0.0)  # nobody crashes, and rings come at once
SOURCES = 100_000


def exponential_sources(load: float, *, of_one_model: bool = False) -> Sources:
    """Folds of one second on average, `load` of them per second; each of its own model, or not."""
    random = Random(0)
    times = list(accumulate(random.expovariate(load) for _ in range(SOURCES)))
    models = [0] * SOURCES if of_one_model else range(SOURCES)
    return Sources(times, models, [random.expovariate(1.0) for _ in range(SOURCES)])


def mean_wait(run: Run) -> float:
    waits = run.waits()
    return sum(waits) / len(waits)


def erlang_c(servers: int, load: float) -> float:
    """The mean wait of an M/M/c queue whose service takes a second."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    all_busy = load**servers / math.factorial(servers) * servers / (servers - load)
    return all_busy / (sum(terms) + all_busy) / (servers - load)


@pytest.mark.parametrize(("workers", "load"), [(1, 0.6), (3, 2.1), (20, 16.0)])
def test_waits_are_those_of_an_mmc_queue(workers: int, load: float) -> None:
    fleet = replace(NO_LUCK_NEEDED, workers=workers)

    run = simulate(fleet, exponential_sources(load))

    assert mean_wait(run) == pytest.approx(erlang_c(workers, load), rel=0.06)


def test_more_workers_do_not_help_a_single_model() -> None:
    sources = exponential_sources(0.6, of_one_model=True)

    runs = [simulate(replace(NO_LUCK_NEEDED, workers=n), sources) for n in (1, 4)]

    assert mean_wait(runs[0]) == pytest.approx(erlang_c(1, 0.6), rel=0.06)
    assert runs[0].waits() == pytest.approx(runs[1].waits())


def test_the_spread_of_durations_counts_as_pollaczek_and_khinchine_say() -> None:
    fleet = replace(NO_LUCK_NEEDED, models=10**9, fold_median=1.0, fold_spread=0.6, burst_share=0.0)
    fleet = replace(fleet, rhythm=0.0, days=1.0, per_day=0.6 * DAY / 10**9 / fleet.fold_mean)
    fleet = replace(fleet, days=SOURCES * fleet.fold_mean / 0.6 / DAY)

    run = simulate(fleet)

    squared = math.exp(2 * 0.6**2)  # E[S²] of a log-normal with median 1
    rate = 0.6 / fleet.fold_mean
    assert mean_wait(run) == pytest.approx(rate * squared / (2 * (1 - 0.6)), rel=0.06)


def test_sources_arrive_as_often_as_is_said_and_in_a_rhythm() -> None:
    fleet = Fleet(models=5_000, days=4.0, per_day=2.0, rhythm=0.5, burst_share=0.1, burst_size=4)

    sources = make_sources(fleet)

    assert len(sources.times) == pytest.approx(40_000, rel=0.03)
    by_day = sum(DAY / 4 <= time % DAY < DAY * 3 / 4 for time in sources.times)
    assert by_day / len(sources.times) == pytest.approx(1 / 2 + 0.5 / math.pi, abs=0.02)
    assert sum(sources.seconds) / len(sources.seconds) == pytest.approx(fleet.fold_mean, rel=0.03)


def test_equal_seeds_give_equal_runs() -> None:
    fleet = Fleet(models=500, workers=2, mtbf_days=0.1)

    assert simulate(fleet) == simulate(fleet)
    assert simulate(fleet) != simulate(replace(fleet, seed=1))


def test_order_and_exactly_once_hold_when_workers_crash_all_the_time() -> None:
    fleet = Fleet(models=200, workers=40, per_day=20.0, mtbf_days=300 / DAY, restart=5.0)

    run = simulate(fleet)  # raises if they do not

    lost = [a for a in run.attempts if not a.published]
    assert len(lost) > len(run.sources.times) / 2
    assert len(run.failed) > 100
    assert len(run.waits()) + len(run.failed) == len(run.sources.times)


def test_a_lost_fold_begins_again_when_its_lease_expires() -> None:
    sources = Sources([0.0], [0], [1_000.0])
    fleet = Fleet(workers=50, mtbf_days=600 / DAY, ring=0.0, max_losses=99)

    attempts = simulate(fleet, sources).attempts

    assert [attempt.published for attempt in attempts] == [*[False] * (len(attempts) - 1), True]
    assert len(attempts) > 1
    for lost, following in pairwise(attempts):
        renewals = (lost.end - lost.start) // 15
        assert following.start == pytest.approx(lost.start + 15 * renewals + 60)


@pytest.mark.parametrize(
    ("attempts", "promise"),
    [
        ([Attempt(0, 0, 0, 5, True)], "exactly once"),
        ([Attempt(0, 0, 0, 5, True), Attempt(1, 1, 4, 9, True)], "at once"),
        ([Attempt(1, 0, 1, 5, True), Attempt(0, 0, 5, 9, True)], "out of order"),
        ([Attempt(0, 0, 0, 5, False), Attempt(1, 1, 99, 100, True)], "out of order"),
        ([Attempt(0, 0, 0, 5, False), Attempt(0, 1, 40, 41, True)], "at once"),
        ([Attempt(0, 0, 0, 5, True), Attempt(0, 0, 5, 9, True)], "exactly once"),
    ],
)
def test_broken_promises_are_found(attempts: list[Attempt], promise: str) -> None:
    sources = Sources([0.0, 1.0], [7, 7], [5.0, 5.0])

    with pytest.raises(PolicyBroken, match=promise):
        check(Run(Fleet(workers=2), sources, attempts))


def test_the_fewest_workers_that_reach_the_goal_are_found() -> None:
    fleet = Fleet(models=2_000, days=1.0)

    runs = sweep(fleet)

    good = [workers for workers, run in runs.items() if run.wait(0.95) <= 3_600]
    assert min(good) - 1 in runs
    assert fleet.load < min(good) < 2 * fleet.load + 1
    assert draw({2_000: runs}).count("<polyline") == 1


def test_an_idle_fleet_costs_the_database_its_polls() -> None:
    sources = Sources([0.0], [0], [0.0])
    often, seldom = (
        database_rates(simulate(Fleet(workers=10, poll=poll, mtbf_days=math.inf), sources))
        for poll in (1.0, 30.0)
    )

    assert often.polls == pytest.approx(10.0)
    assert seldom.polls == pytest.approx(10 / 30)
    assert seldom.writes == pytest.approx(10 / 30 * 3, rel=0.01)  # claim, register, clean


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """The transactions that this process begins meanwhile."""
    found: Counter[str] = Counter()

    def note(connection: Connection) -> None:
        found["write" if connection.get_execution_options().get("write") else "read"] += 1

    event.listen(Engine, "begin", note)
    try:
        yield found
    finally:
        event.remove(Engine, "begin", note)


def test_accepting_a_source_costs_as_many_transactions(tmp_path: Path, no_settings: None) -> None:
    Place(tmp_path / "home").database.close()
    with opened(tmp_path / "home") as world:
        world.ready_target()
        world.ready_model()
        headers = world.key("local", "write")
        world.post_source(http.checkpoint(1), headers=headers)  # which notes that the key is used

        with counted() as found:
            world.post_source(http.checkpoint(2), headers=headers)

    assert found == {"read": POST_READS, "write": POST_WRITES}


def test_an_attempt_costs_as_many_transactions(
    tmp_path: Path, no_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: Counter[str] = Counter()
    look, write = queue.wants_cancel, queue.record_progress

    def counting_look(*given: Any) -> bool:
        ticks["read"] += 1
        return look(*given)

    def counting_write(*given: Any) -> None:
        ticks["write"] += 1
        write(*given)

    monkeypatch.setattr(queue, "wants_cancel", counting_look)
    monkeypatch.setattr(queue, "record_progress", counting_write)
    place = Place(tmp_path / "home")
    model = place.ready_model()
    with place.worker() as worker:
        assert not worker.run_next()  # it cleans, and makes itself known
        job = place.offer(model, checkpoint("a"))
        with counted() as found:
            assert worker.run_next()
        assert place.job(job).status == "succeeded"
    place.database.close()

    assert found["write"] - ticks["write"] == ATTEMPT_WRITES + END_WRITES
    assert found["read"] - ticks["read"] == ATTEMPT_READS + END_READS + 1  # SQLite: who is dead
