"""Decoded targets on a worker's disk: gone with their target, with their job, beyond a size."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from grasp_core.cache_folders import make_aside
from grasp_core.operations import ReportProgress, Result
from registry.jobs.queue import Lease
from registry.models import delete_model
from registry.process.settings import Settings
from registry.tables import Model, Target
from registry.targets import delete_target
from tests.service.fake_folds import checkpoint
from tests.service.place import Place, codes
from tests.worker.waiting import until
from worker import loop
from worker.jobs import JobSpec, read_job

FINGERPRINT = "f" * 64  # of the targets of `Place.ready_model`
OTHER = "0" * 64


@dataclass(frozen=True)
class DecodeForEver:
    cache_dir: Path

    def run(self, report: ReportProgress) -> Result:
        with make_aside(self.cache_dir, FINGERPRINT) as folder:
            (folder / "images.u8").write_bytes(b"x" * 1000)
            while True:
                report("decode", 0.5, {"pid": os.getpid()})
                time.sleep(0.02)


def decode_for_ever(session: Session, lease: Lease, settings: Settings) -> JobSpec:
    return JobSpec(lambda files: DecodeForEver(settings.cache_folder.absolute()), {})


@pytest.fixture
def only_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked for now and then."""
    monkeypatch.setattr(loop, "CLEAN_S", 3600.0)


def cached(place: Place) -> set[str]:
    return {path.name for path in place.settings.cache_folder.glob("*")}


def add_entry(place: Place, name: str, hours_ago: float = 0) -> str:
    folder = place.settings.cache_folder / name
    folder.mkdir(parents=True)
    (folder / "index.npz").write_bytes(b"x" * 1000)
    used_at = time.time() - 3600 * hours_ago
    os.utime(folder, (used_at, used_at))
    return name


def delete_all(place: Place) -> None:
    with place.database.write() as session:
        for model in place.rows(Model):
            delete_model(session, session.get_one(Model, model.id))
        for target in place.rows(Target):
            delete_target(session, session.get_one(Target, target.id))


def test_a_cancelled_job_leaves_nothing(place: Place, only_at_the_start: None) -> None:
    job = place.offer(place.ready_model(), checkpoint("a"))
    with place.working(decode_for_ever):
        place.started(job)
        assert len(cached(place)) == 1
        place.cancel(job)
        assert place.ended(job).status == "cancelled"
        until(lambda: not cached(place))


def test_a_killed_child_leaves_nothing(home: Path, only_at_the_start: None) -> None:
    place = Place(home, max_attempts=1)
    job = place.offer(place.ready_model(), checkpoint("a"))
    with place.working(decode_for_ever):
        os.kill(place.started(job), signal.SIGKILL)
        assert codes(place.ended(job)) == ["child_killed"]
        until(lambda: not cached(place))
    place.database.close()


def test_what_a_killed_worker_left_is_deleted_at_the_start(place: Place) -> None:
    place.ready_model()
    add_entry(place, f"{FINGERPRINT}-1.tmp-dead")
    add_entry(place, "validate.tmp-dead")
    whole = add_entry(place, f"{FINGERPRINT}-1")
    with place.worker() as worker:
        worker.run_next()
    assert cached(place) == {whole}


def test_with_its_target_goes_what_was_decoded_of_it(place: Place) -> None:
    place.ready_model()
    kept = {add_entry(place, f"{FINGERPRINT}-1"), add_entry(place, f"{FINGERPRINT}-2")}
    add_entry(place, f"{OTHER}-1")
    with place.worker() as worker:
        worker.run_next()
        assert cached(place) == kept
    delete_all(place)
    with place.worker() as worker:
        worker.run_next()
    assert cached(place) == set()


def test_it_goes_while_a_long_job_runs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CLEAN_S", 0.0)
    job = place.offer(place.ready_model(), checkpoint("a"))
    with place.working(decode_for_ever):
        place.started(job)
        add_entry(place, f"{OTHER}-1")
        until(lambda: f"{OTHER}-1" not in cached(place))
        assert place.job(job).status == "running"
        assert len(cached(place)) == 1
        place.cancel(job)
        place.ended(job)


def test_beyond_its_room_goes_what_was_used_longest_ago(home: Path) -> None:
    place = Place(home, decoded_cache_bytes=2500)
    place.ready_model()
    newest = {add_entry(place, f"{FINGERPRINT}-{age}", hours_ago=age) for age in (1, 2)}
    add_entry(place, f"{FINGERPRINT}-3", hours_ago=3)
    with place.worker() as worker:
        worker.run_next()
    assert cached(place) == newest
    place.database.close()


def test_every_job_knows_how_much_it_may_decode(home: Path) -> None:
    place = Place(home, decoded_target_bytes=12345)

    def limit(queue_id: str) -> tuple[str, int]:
        lease = place._lease(queue_id)
        with place.database.read() as session:
            operation: Any = read_job(session, lease, place.settings).operation
        return operation.func.__name__, operation.keywords["max_decoded_bytes"]

    model = place.ready_model()
    place.offer(model, checkpoint("a"))
    assert limit(model.id) == ("FoldSource", 12345)
    other, _ = place.add_model(place.rows(Target)[0], "other")
    assert limit(other.id) == ("PrepareModel", 12345)
    target, _ = place.add_target(b"images")
    assert limit(target.id) == ("ValidateTarget", 12345)
    place.database.close()
