"""Random histories of the registry, step by step against a plain model of it.

Workers crash (they never use their lease again), sleep and wake as zombies (any lease ever given
may act at any time), restart under their old name; leases expire; users post, cancel, retry and go
back, all in any order. `Plain` is the design written a second time, with lists and no database.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from registry.errors import Conflict, LeaseLost, NotFound, StaleBase
from registry.jobs.queue import Lease
from registry.jobs.states import MOVES, TERMINAL, JobStatus
from registry.jobs.transitions import Failure
from registry.tables import Base, Job, Model, Queue
from tests.registry.conftest import LEASE_SECONDS, MAX_ATTEMPTS, MAX_LOSSES, START, World, blob

Item = TypeVar("Item")
Row = dict[str, Any]
EXAMPLES = {"sqlite": 40, "postgresql": 10}
WHICH = st.integers(0, 5)  # of those there are, counted round
CRASHED = Failure("crashed", "the child crashed")
BROKEN = Failure("broken", "the file is broken", retryable=False)
UNUSED = ("answers", "api_keys", "workers")
TABLES = [table for table in Base.metadata.sorted_tables if table.name not in UNUSED]
WORKERS = ("wrk_a", "wrk_b", "wrk_c")
ACTIONS = (
    "publish", "publish", "reject", "fail", "fail for good", "cancelled", "hand back", "progress",
    "renew",
)  # fmt: skip


@dataclass
class PlainJob:
    queue: str
    seq: int
    born: int  # how many jobs there were before
    content: str
    status: JobStatus = "queued"
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    lost: int = 0  # of these attempts
    to_cancel: bool = False
    version: int | None = None
    stored: bool = True

    def row(self) -> tuple[Any, ...]:
        place = (self.queue, self.seq, self.content, self.stored, self.failures)
        return *place, self.status, self.attempts, self.to_cancel, self.version

    def end(self, status: JobStatus) -> None:
        self.status, self.to_cancel = status, False

    def fail(self, code: str, *, for_good: bool = False) -> None:
        self.failures.append(code)
        lost = code == "worker_lost"
        self.lost += lost
        over = self.lost == MAX_LOSSES if lost else self.attempts - self.lost == MAX_ATTEMPTS
        if for_good or over:
            self.end("failed")
        else:
            self.status = "queued"


@dataclass
class PlainQueue:
    seqs: int = 1  # the preparation had seq 0
    lease: Lease | None = None
    expires_at: datetime = START
    base: int | None = None  # the newest version when the lease was given
    # number, parent, content, version that it equals
    versions: list[tuple[int, int | None, str, int | None]] = field(default_factory=list)

    @property
    def head(self) -> int | None:
        return self.versions[-1][0] if self.versions else None


class Plain:
    """What should be stored."""

    def __init__(self, queue_ids: list[str]) -> None:
        self.queues = {queue_id: PlainQueue() for queue_id in queue_ids}
        self.jobs: dict[str, PlainJob] = {}

    def of(self, queue_id: str, *statuses: JobStatus) -> list[tuple[str, PlainJob]]:
        """The queue's jobs in one of these states, in order."""
        found = [
            (id_, job)
            for id_, job in self.jobs.items()
            if job.queue == queue_id and job.status in statuses
        ]
        return sorted(found, key=lambda item: item[1].seq)

    def claim(self, now: datetime) -> str | None:
        """Which job starts, after what expired leases leave behind is put in order."""
        free = [
            (self.of(id_, "queued", "running")[0][1].born, id_)
            for id_, queue in self.queues.items()
            if (queue.lease is None or queue.expires_at <= now)
            and self.of(id_, "queued", "running")
        ]
        for _, queue_id in sorted(free):
            self.queues[queue_id].lease = None
            for _, job in self.of(queue_id, "queued", "running"):
                if job.to_cancel:
                    job.end("cancelled")
                elif job.status == "running":
                    job.fail("worker_lost")
            for job_id, job in self.of(queue_id, "queued")[:1]:
                job.status, job.attempts = "running", job.attempts + 1
                return job_id
        return None

    def holds(self, lease: Lease) -> bool:
        return self.queues[lease.queue_id].lease == lease


def picked(items: list[Item], which: int) -> Item:
    return items[which % len(items)]


class Machine(RuleBasedStateMachine):
    """Each rule does one thing to both, and compares what they answer."""

    world: World  # set by the test
    empty: dict[str, list[Row]]  # rows of two prepared models without sources

    def __init__(self) -> None:
        super().__init__()
        self.world.now = START
        reset(self.world, self.empty)
        with self.world.database.read() as session:
            self.models = list(session.scalars(select(Model).order_by(Model.name)))
        self.plain = Plain([model.id for model in self.models])
        self.statuses: dict[str, JobStatus] = {}
        self.ended: dict[str, Row] = {}
        self.given: list[Lease] = []
        self.epochs: dict[str, int] = {}
        self.numbers = itertools.count()

    @rule(number=st.integers(0, 1), content=st.sampled_from("abcdef"))
    def offer(self, number: int, content: str) -> None:
        model = self.models[number]
        same = [
            (id_, job)
            for id_, job in self.plain.jobs.items()
            if (job.queue, job.content) == (model.id, content)
        ]
        _, job, new = self.world.offer(model, content)
        assert new is not bool(same)
        if same:
            ((job_id, known),) = same
            assert job.id == job_id
            known.stored = known.stored or known.status != "succeeded"
            return
        queue = self.plain.queues[model.id]
        self.plain.jobs[job.id] = PlainJob(model.id, queue.seqs, len(self.plain.jobs), content)
        queue.seqs += 1

    @precondition(lambda self: self.jobs("queued", "running"))
    @rule(worker=st.sampled_from(WORKERS))
    def claim(self, worker: str) -> None:
        lease = self.world.claim(worker)
        expected = self.plain.claim(self.world.now)
        assert (lease and lease.job_id) == expected
        if lease is None:
            return
        self.given.append(lease)
        queue = self.plain.queues[lease.queue_id]
        queue.lease, queue.base = lease, queue.head
        queue.expires_at = self.world.now + timedelta(seconds=LEASE_SECONDS)

    @precondition(lambda self: self.jobs("queued"))
    @rule(worker=st.sampled_from(WORKERS), action=st.sampled_from(ACTIONS))
    def work(self, worker: str, action: str) -> None:
        """What mostly happens: a job is claimed, and ends."""
        self.claim(worker)
        self.all_holds()
        self.worker_acts(-1, action)

    @precondition(lambda self: self.held())
    @rule(worker=st.sampled_from(WORKERS), leases=st.sampled_from([1, 1, 0.5]))
    def worker_is_lost(self, worker: str, leases: float) -> None:
        """Time passes, and another worker comes, or the same again."""
        self.world.later(leases * LEASE_SECONDS)
        self.claim(worker)

    @precondition(lambda self: self.held())
    @rule(which=WHICH, action=st.sampled_from(ACTIONS))
    def worker_acts(self, which: int, action: str) -> None:
        if self.held():
            self.act(picked(self.held(), which), action)

    @precondition(lambda self: len(self.given) > 1)
    @rule(age=st.integers(2, 4), action=st.sampled_from(ACTIONS))
    def zombie_wakes(self, age: int, action: str) -> None:
        """A lease before the last acts, whether it still holds or not."""
        self.act(self.given[-min(age, len(self.given))], action)

    def jobs(self, *statuses: JobStatus) -> list[str]:
        return [id_ for id_, job in self.plain.jobs.items() if job.status in statuses]

    def held(self) -> list[Lease]:
        return [queue.lease for queue in self.plain.queues.values() if queue.lease]

    def act(self, lease: Lease, action: str) -> None:
        queue = self.plain.queues[lease.queue_id]
        stale = action in ("publish", "reject") and queue.base != queue.head
        holds = self.plain.holds(lease)
        if not holds or stale:
            with pytest.raises(StaleBase if holds else LeaseLost):
                self.really(lease, action, queue)
            return
        self.really(lease, action, queue)
        self.plainly(lease, action, queue)

    def really(self, lease: Lease, action: str, queue: PlainQueue) -> None:
        acts: dict[str, Callable[[], object]] = {
            "publish": lambda: self.world.publish(lease, queue.base, self.new_weights()),
            "reject": lambda: self.world.reject(lease, queue.base),
            "fail": lambda: self.world.fail(lease, CRASHED),
            "fail for good": lambda: self.world.fail(lease, BROKEN),
            "cancelled": lambda: self.world.close(lease, "cancelled"),
            "hand back": lambda: self.world.hand_back(lease),
            "progress": lambda: self.world.progress(lease, "refine", 0.5),
            "renew": lambda: self.world.hold(lease, LEASE_SECONDS),
        }
        acts[action]()

    def new_weights(self) -> str:
        return f"weights {next(self.numbers)}"

    def plainly(self, lease: Lease, action: str, queue: PlainQueue) -> None:
        job = self.plain.jobs[lease.job_id]
        if action == "publish":
            job.version = (queue.head or 0) + 1
            queue.versions.append((job.version, queue.head, job.content, None))
            job.end("succeeded")
        elif action == "fail":
            job.fail("crashed")
        elif action == "fail for good":
            job.fail("broken", for_good=True)
        elif action == "hand back":
            job.status, job.attempts = "queued", job.attempts - 1
        elif action == "renew":
            queue.expires_at = self.world.now + timedelta(seconds=LEASE_SECONDS)
        elif action != "progress":
            job.end("rejected" if action == "reject" else "cancelled")
        if action in ("publish", "reject"):
            job.stored = False
        if job.status != "running":
            queue.lease = None

    @precondition(lambda self: self.jobs("queued", "running"))
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        job_id = picked(self.jobs("running") + self.jobs("queued"), which)
        job = self.plain.jobs[job_id]
        answer = self.world.cancel(self.world.get(Job, job_id))
        if job.status == "running":
            job.to_cancel = True
        else:
            job.end("cancelled")
        assert answer == job.status

    @precondition(lambda self: self.jobs("rejected", "failed", "cancelled"))
    @rule(which=WHICH)
    def retry(self, which: int) -> None:
        job_id = picked(self.jobs("rejected", "failed", "cancelled"), which)
        self.world.retry(self.world.get(Job, job_id))
        job = self.plain.jobs[job_id]
        queue = self.plain.queues[job.queue]
        job.status, job.attempts, job.seq, job.stored = "queued", 0, queue.seqs, True
        job.lost = 0
        queue.seqs += 1
        self.ended.pop(job_id)

    @precondition(lambda self: self.jobs("succeeded"))
    @rule(which=WHICH)
    def ask_in_vain(self, which: int) -> None:
        ended = self.world.get(Job, picked(self.jobs("succeeded"), which))
        for ask in (self.world.cancel, self.world.retry):
            with pytest.raises(Conflict):
                ask(ended)

    @precondition(lambda self: self.jobs("succeeded"))
    @rule(number=st.integers(0, 1), which=WHICH)
    def rollback(self, number: int, which: int) -> None:
        model = self.models[number]
        queue = self.plain.queues[model.id]
        version = which % (len(queue.versions) + 1) + 1  # one too many, too
        if version > len(queue.versions):
            with pytest.raises((NotFound, Conflict)):
                self.world.rollback(model, version)
            return
        made = self.world.rollback(model, version)
        content = queue.versions[version - 1][2]
        queue.versions.append((made.number, queue.head, content, version))

    @invariant()
    def all_holds(self) -> None:
        rows = snapshot(self.world)
        sources = {row["id"]: row for row in rows["sources"]}
        jobs = [row for row in rows["jobs"] if row["kind"] == "fold"]
        assert {job["id"]: as_plain(job, sources) for job in jobs} == {
            id_: job.row() for id_, job in self.plain.jobs.items()
        }
        for job in jobs:
            self.check_job(job)
        for model in rows["models"]:
            queue = next(row for row in rows["queues"] if row["id"] == model["id"])
            self.check_queue(queue, [job for job in jobs if job["queue_id"] == model["id"]])
            versions = [row for row in rows["versions"] if row["model_id"] == model["id"]]
            self.check_versions(model, versions, sources)

    def check_job(self, job: Row) -> None:
        """It moves as it may, and never again once it has ended, unless it is retried."""
        assert job["attempts"] < MAX_ATTEMPTS + MAX_LOSSES
        before: JobStatus = self.statuses.get(job["id"]) or job["status"]
        assert job["status"] == before or job["status"] in MOVES[before]
        self.statuses[job["id"]] = job["status"]
        if job["status"] in TERMINAL:
            assert self.ended.setdefault(job["id"], job) == job

    def check_queue(self, queue: Row, jobs: list[Row]) -> None:
        """One job runs, before all that wait, and somebody holds the lease."""
        running = [job["seq"] for job in jobs if job["status"] == "running"]
        waiting = [job["seq"] for job in jobs if job["status"] == "queued"]
        assert len(running) == (0 if queue["holder"] is None else 1)
        assert sorted(running + waiting)[: len(running)] == running
        assert queue["epoch"] >= self.epochs.get(queue["id"], 0)
        self.epochs[queue["id"]] = queue["epoch"]

    def check_versions(self, model: Row, versions: list[Row], sources: dict[str, Row]) -> None:
        """They make one row without gaps, in which each source was folded once."""
        rows = sorted(versions, key=lambda row: int(row["number"]))
        count = len(rows)
        assert [row["number"] for row in rows] == list(range(1, count + 1))
        assert [row["parent"] for row in rows] == [None, *range(1, count)][:count]
        assert model["version"] == (count or None)
        folded = [row["source_id"] for row in rows if row["rollback_of"] is None]
        assert len(folded) == len(set(folded))
        for row in rows:
            if row["rollback_of"] is not None:
                assert row["sha256"] == rows[row["rollback_of"] - 1]["sha256"]
        assert [
            (row["number"], row["parent"], sources[row["source_id"]]["name"], row["rollback_of"])
            for row in rows
        ] == self.plain.queues[model["id"]].versions

    def teardown(self) -> None:
        """One healthy worker brings everything to an end."""
        self.world.later(LEASE_SECONDS)
        for _ in range(len(self.plain.jobs) + 1):
            lease = self.world.claim("wrk_healthy")
            if lease is None:
                break
            base = self.world.get(Model, lease.queue_id).version
            self.world.publish(lease, base, self.new_weights())
        with self.world.database.read() as session:
            assert set(session.scalars(select(Job.status))) <= set(TERMINAL)
            assert set(session.scalars(select(Queue.holder))) == {None}


def as_plain(job: Row, sources: dict[str, Row]) -> tuple[Any, ...]:
    source = sources[job["source_id"]]
    assert source["sha256"] == blob(source["name"]).sha256
    codes = [failure["code"] for failure in job["failures"]]
    same_names = ("status", "attempts", "cancel_requested", "version")
    return (
        job["queue_id"],
        job["seq"],
        source["name"],
        source["stored"],
        codes,
        *(job[name] for name in same_names),
    )


def snapshot(world: World) -> dict[str, list[Row]]:
    with world.database.read() as session:
        return {
            table.name: [dict(row) for row in session.execute(select(table)).mappings()]
            for table in TABLES
        }


def reset(world: World, rows: dict[str, list[Row]]) -> None:
    """Much cheaper than a new database for every history."""
    with world.database.write() as session:
        for table in reversed(TABLES):
            session.execute(table.delete())
        for table in TABLES:
            if rows[table.name]:
                session.execute(table.insert(), rows[table.name])


def test_random_histories(world: World) -> None:
    target = world.ready_target()
    for name in ("one", "two"):
        world.ready_model(name, target=target)

    class Bound(Machine):
        pass

    Bound.world, Bound.empty = world, snapshot(world)
    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=EXAMPLES[world.database.engine.dialect.name],
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
