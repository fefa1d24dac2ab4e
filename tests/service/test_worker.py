"""A worker at work: what it writes, what it survives, and what it leaves."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from app.main import create_app
from registry.blobs.base import Blob, StorageError, StorageFull
from registry.blobs.collection import collect_blobs, collect_work
from registry.models import delete_model
from registry.tables import Job, Model, Upload, utc_now
from registry.uploads import create_upload
from registry.versions import rollback
from tests.service.fake_folds import (
    BAD_ARCHITECTURE,
    BAD_TARGET,
    chain,
    checkpoint,
    merge,
    read_fake_job,
)
from tests.service.harness import children_of
from tests.service.place import Place, codes
from tests.worker.waiting import is_gone, until
from worker.jobs import JobSpec
from worker.loop import NO_ROOM_S, Worker

ENDLESS = 10**6  # ticks
A_WHILE = 50  # ticks: long enough for something to happen meanwhile


def test_a_job_tells_its_stage_and_a_cancelled_one_ends_with_its_child(place: Place) -> None:
    model = place.ready_model()
    job = place.offer(model, checkpoint("a", ticks=ENDLESS))

    with place.working():
        child = place.started(job)
        running = place.job(job)
        place.cancel(job)
        ended = place.ended(job)

        assert (running.status, running.stage) == ("running", "align")
        assert ended.status == "cancelled"
        assert ended.error is not None
        assert ended.error["code"] == "cancelled"
        assert is_gone(child)
        until(lambda: not place.work())
    assert place.versions(model) == []


def test_a_job_that_takes_too_long_has_failed_and_ends_with_its_child(home: Path) -> None:
    place = Place(home, job_seconds=0.5)
    model = place.ready_model()
    job = place.offer(model, checkpoint("a", ticks=ENDLESS))

    with place.working():
        ended = place.ended(job)  # on a busy machine, before its child could report anything
        left = children_of(os.getpid())

    assert (ended.status, codes(ended)) == ("failed", ["took_too_long"])
    assert ended.error is not None
    assert "GRASP_JOB_SECONDS" in ended.error["hint"]
    assert left == []
    place.database.close()


def test_each_reason_is_kept_and_after_the_last_attempt_the_queue_goes_on(place: Place) -> None:
    model = place.ready_model()
    bad = place.offer(model, checkpoint("a", "raise", "die", "exit"))
    good = checkpoint("b")
    job = place.offer(model, good)

    with place.worker() as worker:
        assert worker.drain() == 4

    failed = place.job(bad)
    assert failed.status == "failed"
    assert codes(failed) == ["internal_error", "child_killed", "child_crashed"]
    assert [failure["attempt"] for failure in failed.failures] == [1, 2, 3]
    assert failed.error is not None
    assert failed.error["code"] == "child_crashed"
    ended = place.job(job)
    assert (ended.status, ended.stage, ended.progress) == ("succeeded", "refine", 1.0)
    assert place.hashes(model) == chain([good])
    assert place.work() == []


def test_a_child_that_needs_too_much_memory_says_so(home: Path) -> None:
    place = Place(home, job_memory_bytes=2**29, max_attempts=2)
    source = checkpoint("a", "eat")
    job = place.offer(model := place.ready_model(), source)

    with place.worker() as worker:
        worker.drain()

    assert codes(place.job(job)) == ["out_of_memory"]
    assert place.hashes(model) == chain([source])
    place.database.close()


def test_what_is_the_inputs_fault_is_not_tried_again(place: Place) -> None:
    job = place.offer(place.ready_model(), checkpoint("a", "refuse"))

    with place.worker() as worker:
        assert worker.drain() == 1

    failed = place.job(job)
    assert failed.status == "failed"
    assert failed.error == {
        "code": "invalid_checkpoint",
        "message": "this checkpoint is no good",
        "hint": "train it again",
    }


def test_a_full_disk_is_not_the_sources_fault_and_others_may_try(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = place.ready_model()
    job = place.offer(model, source := checkpoint("a"))

    with place.worker() as worker, place.worker() as other:
        waits: list[float] = []
        monkeypatch.setattr(worker.stopping, "wait", waits.append)

        def refuse(path: Path, sha256: str) -> Blob:
            raise StorageFull("no space is left")

        monkeypatch.setattr(worker.store, "adopt", refuse)
        assert worker.run_next()
        assert waits == [NO_ROOM_S]
        assert other.drain() == 1

    assert codes(place.job(job)) == ["storage_full"]
    assert place.hashes(model) == chain([source])


def test_a_store_that_is_away_costs_no_attempt_and_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = place.ready_model()
    asked: list[object] = []

    def refuse(*asking: object) -> None:
        asked.append(asking)
        raise StorageError("the store does not answer")

    with place.working() as worker, monkeypatch.context() as away:
        away.setattr(worker.store, "adopt", refuse)
        away.setattr(worker.store, "check", refuse)
        job = place.offer(model, source := checkpoint("a"))
        until(lambda: len(asked) > 3)
        waiting = place.job(job)
        adoptions = [asking for asking in asked if asking]
        away.undo()
        ended = place.ended(job)

    assert (waiting.status, waiting.attempts, len(adoptions)) == ("queued", 0, 1)
    assert (ended.status, ended.attempts, ended.failures) == ("succeeded", 1, [])
    assert place.hashes(model) == chain([source])


def test_a_database_that_cannot_be_written_is_told_once(place: Place) -> None:
    model = place.ready_model()
    looks: list[object] = []

    def forbid(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    with capture_logs() as lines, place.working() as worker:
        until(lambda: worker._idle.is_set())
        event.listen(worker.database.engine, "connect", forbid)
        worker.database.engine.dispose()
        job = place.offer(model, source := checkpoint("a"))
        event.listen(worker.database.engine, "begin", looks.append)
        until(lambda: len(looks) > 10)
        reported = [line for line in lines if line["log_level"] == "warning"]

        event.remove(worker.database.engine, "connect", forbid)  # of connections made from now on
        ended = place.ended(job)
        until(lambda: any(line["event"] == "that is over" for line in lines))

    assert [line["event"] for line in reported] == ["the database cannot be written"]
    assert "write" in reported[0]["hint"]
    assert ended.status == "succeeded"
    assert place.hashes(model) == chain([source])


def test_a_worker_without_its_device_hands_its_job_back_and_ends(place: Place) -> None:
    model = place.ready_model()
    job = place.offer(model, source := checkpoint("a", "unplug"))

    with place.worker() as broken, pytest.raises(SystemExit):
        broken.run()
    waiting = place.job(job)
    with place.worker() as other:
        assert other.drain() == 1

    assert (waiting.status, waiting.attempts, waiting.failures) == ("queued", 0, [])
    assert place.hashes(model) == chain([source])


def test_what_was_folded_onto_a_version_that_is_no_longer_newest_is_folded_again(
    place: Place,
) -> None:
    model = place.ready_model()
    first, second = checkpoint("a"), checkpoint("b")
    third = checkpoint("c", ticks=A_WHILE)
    place.offer(model, first)
    place.offer(model, second)
    job = place.offer(model, third)

    with place.working():
        place.started(job)
        with place.database.write() as session:
            rollback(session, session.get_one(Model, model.id), 1, utc_now())
        ended = place.ended(job)

    assert (ended.status, ended.version, ended.attempts) == ("succeeded", 4, 1)
    *_, back, newest = place.versions(model)
    assert (back.number, back.rollback_of) == (3, 1)
    assert newest.parent == 3
    weights = place.store.fetch(newest.sha256).read_bytes()
    assert weights == merge(merge(None, first, 1), third, 4)


def test_a_deleted_model_takes_its_running_fold_with_it(place: Place) -> None:
    model, other = place.ready_model("first"), place.ready_model("second")
    job = place.offer(model, checkpoint("a", ticks=ENDLESS))
    waiting = place.offer(other, source := checkpoint("b"))

    with place.working():
        child = place.started(job)
        with place.database.write() as session:
            delete_model(session, session.get_one(Model, model.id))
        place.ended(waiting)

        assert is_gone(child)
    assert place.hashes(other) == chain([source])
    collect_blobs(place.database, place.store, 0)
    collect_work(place.database, place.settings.work_folder)
    assert place.blobs() == set(place.hashes(other))
    assert place.work() == []


def test_a_model_is_prepared_when_its_target_is_validated_and_folds_come_after(
    place: Place,
) -> None:
    target, validation = place.add_target(b"images")
    model, preparation = place.add_model(target)
    fold = place.offer(model, checkpoint("a"))
    place.change(Job, created_at=datetime(2020, 1, 1, tzinfo=UTC))  # age alone says nothing

    with place.worker() as worker:
        assert worker.drain() == 3

    jobs = [place.job(job) for job in (validation, preparation, fold)]
    assert [job.status for job in jobs] == ["succeeded"] * 3
    times = [time for job in jobs for time in (job.started_at, job.finished_at) if time]
    assert len(times) == 6
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("images", "architecture", "expected"),
    [
        (BAD_TARGET, "test_resnet", ["invalid_target", "not_ready", "not_ready"]),
        (b"images", BAD_ARCHITECTURE, [None, "invalid_checkpoint", "not_ready"]),
    ],
)
def test_what_builds_on_something_that_failed_fails_at_once(
    place: Place, images: bytes, architecture: str, expected: list[str | None]
) -> None:
    target, validation = place.add_target(images)
    model, preparation = place.add_model(target, architecture=architecture)
    fold = place.offer(model, checkpoint("a"))

    with place.worker() as worker:
        assert worker.drain() == 3

    jobs = [place.job(job) for job in (validation, preparation, fold)]
    assert [job.error and job.error["code"] for job in jobs] == expected
    assert [job.attempts for job in jobs] == [1, 1, 1]


def test_a_dry_run_publishes_nothing_and_leaves_nothing(place: Place) -> None:
    model = place.ready_model()
    job = place.try_out(model, checkpoint("a"))

    with place.worker() as worker:
        worker.drain()

    assert place.job(job).status == "succeeded"
    assert json.loads(place.report(job))["outcome"] == "accepted"
    assert place.versions(model) == []
    assert place.blobs() == set()
    assert place.work() == []


def test_whether_it_is_a_dry_run_is_the_plans_to_say(place: Place) -> None:
    def read_dry(*given: Any) -> JobSpec:
        found = read_fake_job(*given)
        is_fold = "source" in found.inputs
        return (
            replace(found, operation=partial(found.operation, dry_run=True)) if is_fold else found
        )

    model = place.ready_model()
    job = place.offer(model, checkpoint("a"))

    worker = Worker(place.settings, read_job=read_dry, warm=False)
    worker.drain()
    worker.close()

    assert place.job(job).status == "succeeded"
    assert place.versions(model) == []
    assert not place.blobs() & set(chain([checkpoint("a")]))


@pytest.mark.parametrize("keep", [False, True])
def test_the_bytes_of_a_folded_source_go_unless_they_shall_be_kept(
    place: Place, keep: bool
) -> None:
    model = place.ready_model(keep_sources=keep)
    source = place.put(data := checkpoint("a"))
    place.offer(model, data)

    with place.worker() as worker:
        worker.drain()
    collect_blobs(place.database, place.store, 0)

    assert place.blobs() == {*chain([data]), *([source.sha256] if keep else [])}
    assert place.work() == []


def test_the_api_shows_who_works_on_what(place: Place) -> None:
    job = place.offer(place.ready_model(), checkpoint("a", ticks=ENDLESS))

    app = create_app(place.settings.model_copy(update={"open": True}))
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
        with place.working() as worker:
            place.started(job)
            [busy] = client.get("/workers").json()["items"]
            ready = client.get("/readyz").json()
        left = client.get("/workers").json()["items"]

    assert busy["id"] == worker.id
    assert (busy["pid"], busy["device"]) == (os.getpid(), "auto")
    assert (busy["alive"], busy["busy"], busy["job"]) == (True, True, job.id)
    assert ready["checks"]["workers"] == "1"
    assert left == []
    assert place.job(job).status == "queued"


def test_uploads_whose_time_is_over_are_forgotten(place: Place) -> None:
    with place.database.write() as session:
        expired = create_upload(session, "ann", 9, {}, utc_now() - timedelta(seconds=1)).id
        kept = create_upload(session, "ann", 9, {}, utc_now() + timedelta(hours=1)).id

    with place.worker() as worker:
        worker.drain()

    with place.database.read() as session:
        assert session.get(Upload, expired) is None
        assert session.get(Upload, kept) is not None
