"""Followers of jobs: one look for all of them, and none misses how a job ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest
import structlog
from sqlalchemy import delete, event
from sqlalchemy.exc import OperationalError

from app.http import following as module
from app.http.following import FollowedJob, Following, JobState
from registry.lookup import find
from registry.tables import Job
from tests.app.world import World

Result = TypeVar("Result")


@pytest.fixture
def following(world: World, monkeypatch: pytest.MonkeyPatch) -> Following:
    """It looks when a test says so."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 3600)
    return Following(world.database)


@pytest.fixture
def jobs(world: World) -> list[str]:
    """Five that wait."""
    return [world.post_target(f"target-{n}").json()["job"]["id"] for n in range(5)]


def load(world: World, job: str) -> JobState:
    with world.database.read() as session:
        return JobState(find(session, Job, "local", job))


def remove(world: World, job: str) -> None:
    with world.database.write() as session:
        session.execute(delete(Job).where(Job.id == job))


@contextmanager
def statements(world: World) -> Iterator[list[str]]:
    """What the database is asked meanwhile."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            asked.append(statement)

    event.listen(world.database.engine, "before_cursor_execute", note)
    yield asked
    event.remove(world.database.engine, "before_cursor_execute", note)


def run(test: Callable[[], Awaitable[Result]]) -> Result:
    async def limited() -> Result:
        async with asyncio.timeout(60):
            return await test()

    return asyncio.run(limited())


async def waiting(*work: Any) -> list[asyncio.Task[Any]]:
    """Tasks that have come as far as they can by themselves."""
    tasks = [asyncio.create_task(each) for each in work]
    await asyncio.sleep(0)
    return tasks


def test_a_look_costs_the_same_however_many_follow(
    world: World, following: Following, jobs: list[str]
) -> None:
    async def follow() -> tuple[list[str], list[str], list[JobState | None]]:
        states = [load(world, job) for job in jobs]
        with ExitStack() as stack:
            followed = [stack.enter_context(following.follow(s)) for s in states for _ in range(40)]
            tasks = await waiting(*(job.after(job.state.revision) for job in followed))
            with statements(world) as quiet:
                await following.look()
            assert not any(task.done() for task in tasks)
            world.client.post(f"/jobs/{jobs[0]}/cancel")
            with statements(world) as changed:
                await following.look()
            return quiet, changed, [await task for task in tasks[:40]]

    quiet, changed, reported = run(follow)
    assert len(quiet) == 1  # the revisions of all
    assert len(changed) == 2  # and what is new
    assert len({id(state) for state in reported}) == 1  # so it is serialised once
    assert reported[0] is not None
    assert reported[0].status == "cancelled"
    assert reported[0].event is reported[0].event


def test_more_jobs_than_a_statement_may_name(
    world: World, following: Following, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDS_PER_QUERY", 2)

    async def follow() -> list[JobState | None]:
        with ExitStack() as stack:
            followed = [stack.enter_context(following.follow(load(world, job))) for job in jobs]
            for job in jobs:
                world.client.post(f"/jobs/{job}/cancel")
            with statements(world) as asked:
                await following.look()
            assert len(asked) == 6
            return [await job.ended() for job in followed]

    assert [state and state.id for state in run(follow)] == jobs


def test_all_are_woken_though_they_are_many(
    world: World, following: Following, jobs: list[str]
) -> None:
    async def follow() -> list[JobState | None]:
        with following.follow(load(world, jobs[0])) as job:
            count = 3 * module.WOKEN_AT_ONCE + 1
            tasks = await waiting(*(job.ended() for _ in range(count)))
            world.client.post(f"/jobs/{jobs[0]}/cancel")
            await following.look()
            return list(await asyncio.gather(*tasks))

    reported = run(follow)
    assert len(reported) == 3 * module.WOKEN_AT_ONCE + 1
    assert {state and state.status for state in reported} == {"cancelled"}


def test_who_was_busy_when_it_changed_is_told_too(
    world: World, following: Following, jobs: list[str]
) -> None:
    async def follow() -> JobState | None:
        first = load(world, jobs[0])
        with following.follow(first) as job:
            world.client.post(f"/jobs/{jobs[0]}/cancel")
            await following.look()
            return await job.after(first.revision)

    state = run(follow)
    assert state is not None
    assert state.ended


def test_who_comes_late_is_told_what_came_between(
    world: World, following: Following, jobs: list[str]
) -> None:
    """It was loaded before the change that the others were told of already."""

    async def follow() -> JobState | None:
        first = load(world, jobs[0])
        with following.follow(first):
            world.client.post(f"/jobs/{jobs[0]}/cancel")
            await following.look()
            with following.follow(first) as late:
                return await late.ended()

    state = run(follow)
    assert state is not None
    assert state.ended


def test_a_deleted_job_ends_its_followers(
    world: World, following: Following, jobs: list[str]
) -> None:
    async def follow() -> list[JobState | None]:
        with following.follow(load(world, jobs[0])) as job:
            tasks = await waiting(job.after(job.state.revision), job.ended())
            remove(world, jobs[0])
            await following.look()
            with statements(world) as asked:
                await following.look()
            assert asked == []  # it does not come back
            return list(await asyncio.gather(*tasks))

    assert run(follow) == [None, None]


def test_followers_that_leave_leave_nothing(
    world: World, following: Following, jobs: list[str]
) -> None:
    async def watch(job: FollowedJob) -> None:
        await job.ended()

    async def follow() -> None:
        with following.follow(load(world, jobs[0])) as job:
            tasks = await waiting(*(watch(job) for _ in range(10)))
            assert len(job._waiting) == 10
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert job._waiting == set()
        assert following._jobs == {}

    run(follow)


def test_nobody_looks_where_nobody_follows(
    world: World, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    following = Following(world.database)

    async def follow() -> None:
        with following.follow(load(world, jobs[0])):
            looking = following._looking
        assert looking is not None
        await looking  # to its end
        world.client.post(f"/jobs/{jobs[1]}/cancel")
        with following.follow(load(world, jobs[1])) as job:  # and again, where somebody does
            assert await job.ended()

    run(follow)


def test_a_database_that_is_away_is_waited_for(
    world: World, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    following = Following(world.database)
    load_changed = following._load_changed
    looks: list[int] = []

    def unreliable(known: Any) -> Any:
        looks.append(1)
        if len(looks) < 10:
            raise OperationalError("SELECT", {}, Exception("away"))
        return load_changed(known)

    monkeypatch.setattr(following, "_load_changed", unreliable)

    async def follow() -> JobState | None:
        with following.follow(load(world, jobs[0])) as job:
            world.client.post(f"/jobs/{jobs[0]}/cancel")
            return await job.ended()

    with structlog.testing.capture_logs() as lines:
        assert run(follow)
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert warnings == ["followed jobs cannot be looked at"]  # once


@pytest.mark.parametrize(("path", "query"), [("/events", b""), ("", b"wait=60")])
def test_a_client_that_leaves_is_forgotten_at_once(
    world: World, jobs: list[str], path: str, query: bytes
) -> None:
    following: Following = world.app.state.following
    followers: list[int] = []

    async def receive() -> Any:
        while not following._jobs:
            await asyncio.sleep(0.001)
        followers.extend(job.followers for job in following._jobs.values())
        return {"type": "http.disconnect"}

    async def answer(_message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # as uvicorn's
        "method": "GET",
        "path": f"/jobs/{jobs[0]}{path}",
        "query_string": query,
        "headers": [(b"host", b"127.0.0.1")],
        "server": ("127.0.0.1", 80),
    }
    run(lambda: world.app(scope, receive, answer))
    assert followers == [1]
    assert following._jobs == {}
