"""Which queue a claim takes, what it looks at to find it, and that claimers do not wait."""

from contextlib import ExitStack
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.orm import Session

from registry.jobs import queue
from registry.jobs.queue import Lease, claim, lock_queue
from registry.jobs.states import ACTIVE, MOVES
from registry.tables import Job, Queue
from tests.registry.conftest import LEASE_SECONDS, MAX_LOSSES, START, World

only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
only_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def take(session: Session, worker: str = "wrk_a") -> Lease | None:
    return claim(session, worker, START, lease_seconds=LEASE_SECONDS, max_losses=MAX_LOSSES)


def waiting_models(world: World, count: int) -> list[str]:
    """Models with a source each, the oldest first."""
    target = world.ready_target()
    models = [world.ready_model(f"model {i}", target=target) for i in range(count)]
    for model in models:
        world.offer(model, model.name)
    return [model.id for model in models]


@only_postgresql
def test_claimers_pass_by_what_another_is_just_claiming(world: World) -> None:
    expected = waiting_models(world, 5)

    with ExitStack() as open_transactions:
        taken = []
        for worker in range(6):  # all within one thread: whoever waited would wait for ever
            session = open_transactions.enter_context(world.database.write())
            session.execute(text("SET LOCAL lock_timeout = '5s'"))
            taken.append(take(session, f"wrk_{worker}"))

    assert [lease.queue_id if lease else None for lease in taken] == [*expected, None]


@only_postgresql
def test_a_queue_that_just_gets_a_source_is_passed_by_and_found_later(world: World) -> None:
    first, second = waiting_models(world, 2)

    with world.database.write() as offering:
        lock_queue(offering, first)
        lease = world.claim()

    assert lease is not None
    assert lease.queue_id == second
    later = world.claim("wrk_b")
    assert later is not None
    assert later.queue_id == first


@pytest.mark.parametrize("seed", range(3))
def test_the_free_queue_with_the_oldest_next_job_comes_first(world: World, seed: int) -> None:
    queues, jobs = random_rows(Random(seed))
    with world.database.write() as session:
        session.execute(insert(Queue), queues)
        session.execute(insert(Job), jobs)

    taken = []
    while (lease := world.claim()) is not None:
        taken.append((lease.queue_id, lease.job_id))

    assert taken == expected_claims(queues, jobs)
    assert len(taken) > 5


def random_rows(random: Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Free and held queues, some that wait for others, with jobs in all states."""
    names = [f"q{i:02}" for i in range(40)]
    queues = [
        {
            "id": name,
            "waits_for": random.choice([*[None] * 80, *names]),
            "holder": (holder := random.choice([None, None, "wrk_z"])),
            "expires_at": START + timedelta(seconds=60) if holder else None,
            "next_seq": 9,
        }
        for name in names
    ]
    jobs = [
        {
            "id": f"job_{row['id']}_{seq}",
            "owner": "ann",
            "queue_id": row["id"],
            "seq": seq,
            "kind": "dry_run",
            # One that runs in a free queue would be an orphan.
            "status": random.choice([s for s in MOVES if row["holder"] or s != "running"]),
            "created_at": START + timedelta(seconds=random.randrange(50)),
        }
        for row in queues
        for seq in range(random.randrange(6))
    ]
    return queues, jobs


def expected_claims(
    queues: list[dict[str, Any]], jobs: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    """The naive reading: what is taken stays active, so nothing else becomes free."""
    active = {
        row["id"]: [j for j in jobs if j["queue_id"] == row["id"] and j["status"] in ACTIVE]
        for row in queues
    }
    heads = [
        min(active[row["id"]], key=lambda job: int(job["seq"]))
        for row in queues
        if active[row["id"]] and not row["holder"] and not active.get(row["waits_for"])
    ]
    heads.sort(key=lambda job: (job["created_at"], job["id"]))
    return [(job["queue_id"], job["id"]) for job in heads]


@only_sqlite
def test_a_claim_sorts_nothing_and_reads_no_history(world: World) -> None:
    waiting_models(world, 2)
    statements: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, sql: str, values: Any, *_: object) -> None:
        statements.append((sql, values))

    event.listen(world.database.engine, "before_cursor_execute", note)
    world.claim()
    event.remove(world.database.engine, "before_cursor_execute", note)

    reads = [(sql, values) for sql, values in statements if "FROM" in sql and "jobs" in sql]
    with world.database.engine.connect() as connection:
        plans = [
            row[-1]
            for sql, values in reads
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)
        ]
    assert "SCAN jobs USING INDEX ix_jobs_active" in plans
    of_jobs = [plan for plan in plans if "jobs" in plan]
    assert all("ix_jobs_active" in plan for plan in of_jobs if "SCAN" in plan)
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]


def test_a_claim_gives_up_after_some_queues_that_lost_their_last_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "CANDIDATES", 2)
    dead = waiting_models(world, 3)
    for attempt in range(MAX_LOSSES):
        leases = [world.claim(f"wrk_{attempt}") for _ in dead]
        assert all(leases)
        world.later(LEASE_SECONDS + 1)

    assert [world.claim(), world.claim()] == [None, None]  # two queues are closed, then the third
    assert {world.queue(name).holder for name in dead} == {None}
