"""What a job reads is what was stored, or nothing comes of it: on a disk, and on S3."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from sqlalchemy import QueuePool

from registry.blobs.base import StorageError
from registry.blobs.buckets import open_bucket
from registry.blobs.damage import find_bad_inputs
from registry.jobs.queue import retry
from registry.tables import BlobProblem, Job, Model, utc_now
from registry.targets import create_target
from registry.versions import rollback
from tests.buckets import PREFIX, Bucket, serving_s3
from tests.service.fake_folds import chain, checkpoint, merge, states
from tests.service.place import OWNER, Place, codes
from tests.worker.waiting import until
from worker.loop import Worker

A_WHILE = 50  # ticks
HOUR = 3600.0
FIRST, SECOND, THIRD = (checkpoint(label) for label in ("a", "b", "c"))
REMEMBERED = [checkpoint(label, remembered=True) for label in ("a", "b")]


class Vault:
    """A home, and what can be done to its blobs behind its back."""

    def __init__(self, home: Path, bucket: Bucket | None) -> None:
        options: dict[str, Any] = {}
        if bucket is not None:
            url = f"s3://{bucket.name}/{PREFIX}"
            options = {"blob_url": url, "blob_endpoint": bucket.endpoint}
        self.place = Place(home, **options)
        self.bucket = bucket

    def replace(self, sha256: str, data: bytes) -> None:
        """Where it is stored; of copies nothing is left."""
        if self.bucket is None:
            overwrite(self.place.store.fetch(sha256), data)
            return
        for key in self.bucket.keys(sha256):
            self.bucket.put(key, data)
        self.place.store.drop_copy(sha256)


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    os.utime(path, (time.time() - HOUR,) * 2)


def flipped(data: bytes) -> bytes:
    """In the last bit: a checkpoint that can be read as well as any."""
    return data[:-1] + bytes([data[-1] ^ 1])


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def beheaded(data: bytes) -> bytes:
    """With a header whose length overflows."""
    return b"\xff" * 16 + data[16:]


DAMAGES: list[Callable[[bytes], bytes]] = [flipped, cut, beheaded]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving_s3() as url:
        yield url


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.proof)])
def vault(request: pytest.FixtureRequest, home: Path) -> Iterator[Vault]:
    on_s3 = request.param == "s3"
    bucket = Bucket.make(request.getfixturevalue("endpoint")) if on_s3 else None
    found = Vault(home, bucket)
    yield found
    found.place.database.close()


@pytest.fixture
def place(vault: Vault) -> Place:
    return vault.place


@pytest.fixture
def worker(place: Place) -> Iterator[Worker]:
    with place.worker() as found:
        yield found


def look_again(place: Place) -> None:
    """As if the time for it had come."""
    place.change(BlobProblem, look_at=utc_now())


def error_of(job: Job) -> str | None:
    return job.error["code"] if job.error else None


def one_version(place: Place, worker: Worker) -> tuple[Model, bytes, str]:
    """A model, the weights of its version, and their name."""
    model = place.ready_model()
    place.offer(model, FIRST)
    worker.drain()
    [sha256] = place.hashes(model)
    return model, place.store.fetch(sha256).read_bytes(), sha256


@pytest.mark.parametrize("damage", DAMAGES)
def test_nothing_is_folded_into_a_damaged_version_and_no_source_is_lost_by_it(
    vault: Vault, worker: Worker, damage: Callable[[bytes], bytes]
) -> None:
    place = vault.place
    model, weights, sha256 = one_version(place, worker)
    other = place.ready_model("other")
    vault.replace(sha256, damage(weights))
    jobs = [place.offer(model, SECOND), place.offer(model, THIRD)]
    place.offer(other, SECOND)

    assert worker.drain() == 2  # a look at the damage, and the other model's fold

    waiting = [place.job(job) for job in jobs]
    assert [(job.status, job.attempts, codes(job)) for job in waiting] == [("queued", 0, [])] * 2
    assert [error_of(job) for job in waiting] == ["blob_damaged", None]
    assert waiting[0].error is not None
    assert "version 1 of model 'merged'" in waiting[0].error["message"]
    assert "roll the model back" in waiting[0].error["hint"]
    assert place.hashes(model) == [sha256]
    assert place.hashes(other) == chain([SECOND])
    with place.database.read() as session:
        holds = find_bad_inputs(session, [session.get_one(Model, m.id) for m in (model, other)])
    assert {key: hold.code for key, hold in holds.items()} == {model.id: "blob_damaged"}

    look_again(place)
    assert worker.drain() == 1  # still damaged
    vault.replace(sha256, weights)  # from a backup
    assert worker.drain() == 0
    look_again(place)
    assert worker.drain() == 2

    ended = [place.job(job) for job in jobs]
    assert [(job.status, job.attempts, job.error) for job in ended] == [("succeeded", 1, None)] * 2
    assert place.hashes(model) == chain([FIRST, SECOND, THIRD])
    assert place.rows(BlobProblem) == []


def test_who_rolls_back_to_a_sound_version_goes_on_from_there(vault: Vault, worker: Worker) -> None:
    place = vault.place
    model, first, _ = one_version(place, worker)
    place.offer(model, SECOND)
    worker.drain()
    second = place.hashes(model)[-1]
    vault.replace(second, flipped(place.store.fetch(second).read_bytes()))
    job = place.offer(model, THIRD)
    assert worker.drain() == 1

    with place.database.write() as session:
        rollback(session, session.get_one(Model, model.id), 1, utc_now())
    assert worker.drain() == 1

    assert place.job(job).status == "succeeded"
    newest = place.versions(model)[-1]
    assert place.store.fetch(newest.sha256).read_bytes() == merge(first, THIRD, 4)


def test_nothing_is_folded_with_a_damaged_state_or_base(vault: Vault, worker: Worker) -> None:
    place = vault.place
    base = place.put(FIRST)
    model = place.ready_model(files={"base": base})
    place.offer(model, REMEMBERED[0])
    worker.drain()
    [state] = place.states(model)
    assert state is not None
    job = place.offer(model, REMEMBERED[1])

    for sha256, words in (
        (base.sha256, "base of model 'merged' is damaged"),
        (state, "state/fake of version 1 of model 'merged' is damaged"),
    ):
        sound = place.store.fetch(sha256).read_bytes()
        vault.replace(sha256, flipped(sound))
        assert worker.drain() == 1
        held = place.job(job)
        assert (held.status, held.attempts, error_of(held)) == ("queued", 0, "blob_damaged")
        assert held.error is not None
        assert held.error["message"].startswith(words)
        vault.replace(sha256, sound)
        look_again(place)

    assert worker.drain() == 1
    assert place.job(job).status == "succeeded"
    assert place.states(model) == states(REMEMBERED, base=FIRST)
    assert place.rows(BlobProblem) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_source_fails_alone_until_its_bytes_come_again(
    vault: Vault, worker: Worker, damage: Callable[[bytes], bytes]
) -> None:
    place = vault.place
    model = place.ready_model()
    bad, good = place.offer(model, FIRST), place.offer(model, SECOND)
    vault.replace(hashlib.sha256(FIRST).hexdigest(), damage(FIRST))

    assert worker.drain() == 2

    failed = place.job(bad)
    assert (failed.status, codes(failed), error_of(failed)) == (
        "failed",
        ["blob_damaged"],
        "blob_damaged",
    )
    assert failed.error is not None
    assert "the source 'source'" in failed.error["message"]
    assert "send the same file again" in failed.error["hint"]
    assert place.job(good).status == "succeeded"
    assert place.hashes(model) == chain([SECOND])
    assert [row.problem for row in place.rows(BlobProblem)] == ["damaged"]

    place.offer(model, FIRST)
    with place.database.write() as session:
        retry(session, session.get_one(Job, bad.id))
    assert worker.drain() == 1

    assert place.job(bad).status == "succeeded"
    assert place.hashes(model) == chain([SECOND, FIRST])
    assert place.rows(BlobProblem) == []


def test_all_that_needs_a_damaged_target_waits_until_it_is_stored_anew(
    vault: Vault, worker: Worker
) -> None:
    place = vault.place
    target, validation = place.add_target(b"images")
    vault.replace(hashlib.sha256(b"images").hexdigest(), b"Images")
    assert worker.drain() == 1
    assert (place.job(validation).status, error_of(place.job(validation))) == (
        "queued",
        "blob_damaged",
    )
    place.put(b"images")
    look_again(place)
    assert worker.drain() == 1

    vault.replace(hashlib.sha256(b"images").hexdigest(), b"Images")
    model, preparation = place.add_model(target)
    fold = place.offer(model, FIRST)
    assert worker.drain() == 1
    assert [place.job(job).status for job in (preparation, fold)] == ["queued", "queued"]

    with place.database.write() as session:
        create_target(session, OWNER, "again", blob=place.put(b"images"))
    assert worker.drain() == 3
    assert place.hashes(model) == chain([FIRST])


def test_damage_that_comes_while_a_fold_runs_is_not_published(vault: Vault) -> None:
    place = vault.place
    with place.worker() as worker:
        model, weights, sha256 = one_version(place, worker)
    job = place.offer(model, checkpoint("b", ticks=A_WHILE))

    with place.working() as busy:
        place.started(job)
        overwrite(busy.store.fetch(sha256), flipped(weights))
        until(lambda: place.job(job).status == "queued")

    assert error_of(place.job(job)) == "blob_damaged"
    assert place.hashes(model) == [sha256]


def test_a_version_that_is_gone_is_waited_for(vault: Vault, worker: Worker) -> None:
    place = vault.place
    model, weights, sha256 = one_version(place, worker)
    if vault.bucket is not None:
        bucket = open_bucket(vault.bucket.name, "", vault.bucket.endpoint)
        obstore.delete(bucket, vault.bucket.keys(sha256))
        place.store.drop_copy(sha256)
    else:
        place.store.fetch(sha256).unlink()
    job = place.offer(model, SECOND)

    assert worker.drain() == 1
    assert (place.job(job).status, error_of(place.job(job))) == ("queued", "blob_missing")

    place.put(weights)
    look_again(place)
    assert worker.drain() == 1
    assert place.hashes(model) == chain([FIRST, SECOND])


def test_a_damaged_copy_is_fetched_again(home: Path, endpoint: str) -> None:
    vault = Vault(home, Bucket.make(endpoint))
    place = vault.place
    with place.worker() as worker:
        model, weights, _ = one_version(place, worker)
        for label, content in {"b": flipped(weights), "c": b"short"}.items():
            newest = place.store.fetch(place.hashes(model)[-1])
            overwrite(newest, content)
            place.offer(model, checkpoint(label))
            assert worker.drain() == 1

    assert place.hashes(model) == chain([FIRST, SECOND, THIRD])
    assert place.rows(BlobProblem) == []
    place.database.close()


# What it costs


@pytest.fixture
def disk(home: Path) -> Iterator[Place]:
    place = Place(home)
    yield place
    place.database.close()


def test_a_blob_that_cannot_be_read_is_waited_for_like_a_damaged_one(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk.worker() as worker:
        model, _, sha256 = one_version(disk, worker)
        fetch = worker.store.fetch

        def fail(name: str) -> Path:
            if name == sha256:
                raise StorageError("cannot read a blob: Input/output error")
            return fetch(name)

        monkeypatch.setattr(worker.store, "fetch", fail)
        job = disk.offer(model, SECOND)
        assert worker.drain() == 1
        assert (disk.job(job).status, error_of(disk.job(job))) == ("queued", "storage_error")

        monkeypatch.undo()
        look_again(disk)
        assert worker.drain() == 1

    assert disk.hashes(model) == chain([FIRST, SECOND])


def test_no_transaction_is_open_while_bytes_are_fetched(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = disk.add_target(b"images")
    model, _ = disk.add_model(target)
    disk.offer(model, FIRST)
    disk.offer(model, SECOND)
    open_at: list[int] = []

    with disk.worker() as worker:
        fetch, pool = worker.store.fetch, worker.database.engine.pool

        def watched(sha256: str) -> Path:
            assert isinstance(pool, QueuePool)
            open_at.append(pool.checkedout())
            return fetch(sha256)

        monkeypatch.setattr(worker.store, "fetch", watched)
        assert worker.drain() == 4

    assert len(open_at) >= 1 + 1 + 2 + 3  # of a validation, a preparation and two folds
    assert not any(open_at)


def test_what_is_known_is_not_read_again(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    file_digest = hashlib.file_digest

    def counted(file: Any, digest: str) -> Any:
        read.append(Path(file.name).name)
        return file_digest(file, digest)

    with disk.worker() as worker:
        model, _, sha256 = one_version(disk, worker)
        os.utime(disk.store.fetch(sha256), (time.time() - HOUR,) * 2)
        monkeypatch.setattr(hashlib, "file_digest", counted)
        for label in "xyz":
            disk.try_out(model, checkpoint(label))
        worker.drain()

    assert read.count(sha256) == 1
