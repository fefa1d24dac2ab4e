"""What /metrics asks the database, on both kinds of it."""

from datetime import timedelta
from typing import Any

from sqlalchemy import update

from registry import figures
from registry.blobs.collection import sum_bytes
from registry.jobs.queue import cancel
from registry.tables import Job, Model, Target, Upload, UploadPart, Version
from tests.registry.conftest import START, World, blob


def aged(world: World, job: Job, seconds: float) -> None:
    """As if it had been queued so long ago."""
    created = {"created_at": START - timedelta(seconds=seconds)}
    with world.database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(created))


def test_jobs_are_counted_in_every_state_of_every_kind(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a")
    rejected = world.offer(model, "b")[1]
    world.reject(world.lease_of(rejected), base=1)
    world.offer(model, "c")

    with world.database.read() as session:
        counts = figures.count_jobs(session)

    assert len(counts) == 4 * 6
    assert {key: count for key, count in counts.items() if count} == {
        ("validate", "succeeded"): 1,
        ("prepare", "succeeded"): 1,
        ("fold", "succeeded"): 1,
        ("fold", "rejected"): 1,
        ("fold", "queued"): 1,
    }


def test_queues_are_told_by_the_workers_they_want(world: World) -> None:
    wanted: dict[str, Any] = {"a": "gpu", "b": "gpu", "c": None}
    models = {name: world.ready_model(name, device_class=queue) for name, queue in wanted.items()}
    for name, age in (("a", 30.0), ("a", 10.0), ("b", 20.0), ("c", 5.0)):
        aged(world, world.offer(models[name], f"{name} {age}")[1], age)
    aged(world, world.add_target("waits for anybody")[1], 7.0)
    assert world.claim() is not None  # the oldest runs: it no longer waits

    with world.database.read() as session:
        found = figures.measure_queues(session, START)

    assert found == {"gpu": (2, 20.0), "cpu": (0, 0.0), "any": (2, 7.0)}


def test_an_empty_registry_has_nothing(world: World) -> None:
    with world.database.read() as session:
        assert not any(figures.count_jobs(session).values())
        assert set(figures.measure_queues(session, START).values()) == {(0, 0.0)}
        assert set(sum_bytes(session).values()) == {0}


def test_bytes_are_those_that_something_still_needs(world: World) -> None:
    model = world.ready_model(keep_versions=2, files={"base": blob("of eleven..")})
    for content in ("a", "bb", "ccc"):
        # Of 10, 20 and 30 bytes, with states of 100, 200 and 300; the first is pruned.
        world.fold(model, content, weights=10 * content, state=100 * content)
    world.offer(model, "dddd")
    world.try_out(model, "fffffff")
    ended = world.offer(model, "eeeee")[1]
    with world.database.write() as session:
        cancel(session, ended.id, world.now)  # its bytes are kept, to be retried
        session.add(Upload(id="up", owner="ann", size=9, details={}, expires_at=START))
        session.flush()
        session.add(UploadPart(upload_id="up", offset=0, size=6, sha256="0" * 64))
        archive = {"sha256": "1" * 64, "size": 70, "uri": None}
        session.execute(update(Target).values(archive))

    with world.database.read() as session:
        found = sum_bytes(session)

    assert found == {
        "versions": 20 + 30,
        "version_files": 200 + 300,
        "model_files": 11,
        "sources": 4 + 5,
        "candidates": 7,
        "targets": 70,
        "uploads": 6,
    }


def test_a_version_gone_back_to_has_no_bytes_of_its_own(world: World) -> None:
    model = world.ready_model()
    world.fold(model, "a", weights="1234567", state="1234")
    world.fold(model, "b", weights="12")
    world.rollback(model, 1)

    with world.database.read() as session:
        assert sum_bytes(session)["versions"] == 7 + 2
        assert sum_bytes(session)["version_files"] == 4
        assert figures.count_rows(session, Version) == 3
        assert figures.count_rows(session, Model) == 1
