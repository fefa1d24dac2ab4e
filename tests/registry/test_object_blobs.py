"""Blobs on S3: what only a store without locks and renames has to prove."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest
from obstore.store import S3Store

from registry.blobs import buckets
from registry.blobs.base import BlobDamaged, BlobMissing, BlobStore, StorageError
from registry.blobs.s3 import COLLECT_S, SAFE_AGE_S, ObjectBlobStore
from tests.buckets import PREFIX, Bucket, serving_s3

ROOT = Path(__file__).parents[2]
MIB = 2**20
HOUR = 3600.0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving_s3() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    return Bucket.make(endpoint)


@pytest.fixture
def store(bucket: Bucket, tmp_path: Path) -> ObjectBlobStore:
    return bucket.store(tmp_path / "copies")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: BlobStore, data: bytes) -> str:
    with store.create() as writer:
        writer.write(data)
        return writer.commit().sha256


def make_old(bucket: Bucket, name: str) -> None:
    for key in bucket.keys(name):
        bucket.make_old(key, SAFE_AGE_S + 60)


def never(_: str) -> bool:
    return False


def always(_: str) -> bool:
    return True


# Storing and fetching


def test_keys_begin_with_the_prefix_and_name_the_bytes(
    bucket: Bucket, store: ObjectBlobStore
) -> None:
    name = put(store, b"data")

    [key] = bucket.objects()
    assert key.startswith(f"{PREFIX}/{name[:2]}/{name}/")


def test_another_machine_downloads_once(
    bucket: Bucket, store: ObjectBlobStore, tmp_path: Path
) -> None:
    data = os.urandom(20 * MIB + 1)
    name = put(store, data)
    other = bucket.store(tmp_path / "other")

    path = other.fetch(name)
    for key in bucket.keys(name):  # from now on the copy must do
        bucket.put(key, b"changed")

    assert other.fetch(name) == path
    assert path.read_bytes() == data
    assert (tmp_path / "other") in path.parents


def test_who_stores_has_a_copy(bucket: Bucket, store: ObjectBlobStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"adopted")
    names = [put(store, b"written"), store.adopt(tmp_path / "file", sha256(b"adopted")).sha256]
    for name in names:
        bucket.put(bucket.keys(name)[0], b"changed")

    assert [store.fetch(name).read_bytes() for name in names] == [b"written", b"adopted"]


@pytest.mark.parametrize("size", [100, 20 * MIB])
def test_a_file_with_another_hash_is_refused_and_stays(
    bucket: Bucket, store: ObjectBlobStore, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size))

    with pytest.raises(StorageError, match=sha256(bytes(size))):
        store.adopt(path, sha256(b"intact"))

    assert path.read_bytes() == bytes(size)
    assert (bucket.objects(), bucket.unfinished_uploads()) == ({}, 0)


@pytest.mark.parametrize("damaged", [b"", b"datA", b"dat", b"data and more", bytes(20 * MIB)])
def test_damaged_bytes_are_not_handed_out(
    bucket: Bucket, store: ObjectBlobStore, tmp_path: Path, damaged: bytes
) -> None:
    name = put(store, b"data")
    bucket.put(bucket.keys(name)[0], damaged)
    other = bucket.store(tmp_path / "other")

    with pytest.raises(BlobDamaged, match=name):
        other.fetch(name)

    assert [path for path in (tmp_path / "other").rglob("*") if path.is_file()] == []


def test_a_sound_generation_stands_in_for_a_damaged_one(
    bucket: Bucket, store: ObjectBlobStore, tmp_path: Path
) -> None:
    name = put(store, b"data")
    [first] = bucket.keys(name)
    bucket.make_old(first, HOUR)
    put(store, b"data")
    [second] = set(bucket.keys(name)) - {first}
    bucket.put(second, b"bad!")  # which is tried first

    assert bucket.store(tmp_path / "other").fetch(name).read_bytes() == b"data"
    with pytest.raises(BlobDamaged):
        store.verify(name)

    bucket.make_old(second, 60)
    put(store, b"data")
    store.verify(name)  # what is damaged has served its time


def test_a_damaged_copy_is_replaced(bucket: Bucket, store: ObjectBlobStore) -> None:
    name = put(store, b"data")
    path = store.fetch(name)
    path.chmod(0o644)
    path.write_bytes(b"Data")

    assert store.drop_copy(name)

    assert store.fetch(name).read_bytes() == b"data"


def test_what_was_deleted_is_missing(
    bucket: Bucket, store: ObjectBlobStore, tmp_path: Path
) -> None:
    name = put(store, b"data")
    make_old(bucket, name)
    other = bucket.store(tmp_path / "other")

    assert store.discard(name, never)

    with pytest.raises(BlobMissing, match=name):
        other.fetch(name)
    with pytest.raises(BlobMissing, match=name):
        other.sign(name, 60)


# Deleting without a lock


def test_what_is_young_is_never_deleted(bucket: Bucket, store: ObjectBlobStore) -> None:
    name = put(store, b"data")
    for key in bucket.keys(name):
        bucket.make_old(key, SAFE_AGE_S - 60)

    assert store.collect(never, min_age=0) == []
    assert not store.discard(name, never)

    assert store.has(name)


def test_ages_are_told_by_the_stores_own_clock(
    store: ObjectBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = put(store, b"data")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10 * SAFE_AGE_S)  # this machine's is wrong

    assert store.collect(never, min_age=0) == []
    assert store.has(name)


@pytest.mark.parametrize("delete", ["collect", "discard"])
def test_what_is_stored_while_it_is_being_deleted_stays(
    bucket: Bucket, store: ObjectBlobStore, tmp_path: Path, delete: str
) -> None:
    """However long the deleter pauses between its last look and the deletion."""
    name = put(store, b"data")
    make_old(bucket, name)
    other = bucket.store(tmp_path / "other")

    def paused(_: str) -> bool:
        put(other, b"data")
        return False

    if delete == "collect":
        assert store.collect(paused, min_age=0) == []
    else:
        assert not store.discard(name, paused)

    assert len(bucket.keys(name)) == 1
    assert bucket.store(tmp_path / "third").fetch(name).read_bytes() == b"data"


def test_duplicates_of_what_is_referred_to_go_and_the_newest_stays(
    bucket: Bucket, store: ObjectBlobStore
) -> None:
    name = put(store, b"data")
    [first] = bucket.keys(name)
    bucket.make_old(first, SAFE_AGE_S + 2 * HOUR)
    put(store, b"data")
    [second] = set(bucket.keys(name)) - {first}

    assert store.collect(always, min_age=0) == []
    assert set(bucket.keys(name)) == {first, second}  # a reader may just have found the first
    bucket.make_old(second, SAFE_AGE_S + HOUR)
    assert store.collect(always, min_age=0) == []

    assert bucket.keys(name) == [second]


def test_nothing_referred_to_is_lost_while_all_happens_at_once(
    bucket: Bucket, store: ObjectBlobStore, tmp_path: Path
) -> None:
    rows: set[str] = set()
    done = Event()

    def collect() -> None:
        while not done.is_set():
            store.collect(rows.__contains__, min_age=0)

    def accept(n: int) -> str:
        with store.create() as writer, store.guard():
            writer.write(b"%d" % (n % 5))
            name = writer.commit().sha256
            if n % 3 == 0:
                rows.add(name)
            else:
                make_old(bucket, name)
        return name

    with ThreadPoolExecutor(4) as pool:
        collector = pool.submit(collect)
        try:
            list(pool.map(accept, range(30)))
        finally:
            done.set()
        collector.result()

    other = bucket.store(tmp_path / "other")
    assert len(rows) == 5
    assert {sha256(other.fetch(name).read_bytes()) for name in rows} == rows


def test_a_probe_that_was_left_behind_goes_after_a_day(
    bucket: Bucket, store: ObjectBlobStore
) -> None:
    for name, age in {"tmp/a": 23 * HOUR, "tmp/b": 25 * HOUR}.items():
        bucket.put(f"{PREFIX}/{name}", b"")
        bucket.make_old(f"{PREFIX}/{name}", age)

    store.collect(never, min_age=0)

    assert set(bucket.objects()) == {f"{PREFIX}/tmp/a"}


def test_objects_are_listed_no_more_often_than_needed(bucket: Bucket, tmp_path: Path) -> None:
    store = bucket.store(tmp_path / "copies")
    store._collect_every = COLLECT_S
    names = [put(store, b"one")]
    make_old(bucket, names[0])
    assert store.collect(never, min_age=0) == names
    names.append(put(store, b"two"))
    make_old(bucket, names[1])

    assert store.collect(never, min_age=0) == []

    assert store.has(names[1])


# Presigned URLs


def test_anyone_can_read_at_a_signed_url(store: ObjectBlobStore) -> None:
    name = put(store, b"signed bytes")
    url, head = store.sign(name, 60), store.sign(name, 60, "HEAD")
    assert url is not None
    assert head is not None

    assert httpx.get(url).content == b"signed bytes"
    part = httpx.get(url, headers={"Range": "bytes=7-"})
    assert (part.status_code, part.content) == (206, b"bytes")
    assert httpx.head(head).headers["content-length"] == "12"
    assert httpx.URL(url).params["X-Amz-Expires"] == "60"
    assert "secret" not in url


def test_a_url_is_not_valid_for_longer_than_its_object(store: ObjectBlobStore) -> None:
    url = store.sign(put(store, b"data"), 10 * SAFE_AGE_S)

    assert httpx.URL(str(url)).params["X-Amz-Expires"] == str(int(SAFE_AGE_S))


# Errors


def test_a_store_that_cannot_be_reached_is_told_without_its_address(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*args: object, **options: object) -> object:
        return S3Store(*args, **{**options, "retry_config": {"max_retries": 0}})  # type: ignore[arg-type]

    monkeypatch.setattr(buckets, "S3Store", impatient)
    store = Bucket("http://127.0.0.1:9", "closed").store(tmp_path / "copies")

    for attempt in (
        store.check,
        lambda: put(store, b"data"),
        lambda: store.fetch("a" * 64),
        lambda: store.has("a" * 64),
        lambda: store.collect(never, 0),
        lambda: list(store.names()),
    ):
        with pytest.raises(StorageError, match="cannot") as info:
            attempt()
        assert type(info.value) is StorageError
        assert "127.0.0.1" not in f"{info.value} {info.value.hint}"


# Memory

LARGE = """
import hashlib, sys
from pathlib import Path
from tests.buckets import Bucket

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024

def put(store, mib):
    with store.create() as writer:
        for n in range(mib):
            writer.write(bytes([n % 251]) * 2**20)
        return writer.commit().sha256

bucket, folder = Bucket(*sys.argv[1:3]), Path(sys.argv[3])
first, second = bucket.store(folder / "first"), bucket.store(folder / "second")
second.fetch(put(first, 1))
before = peak()
name = put(first, 200)
print(peak() - before)
assert hashlib.file_digest(second.fetch(name).open("rb"), "sha256").hexdigest() == name
print(peak() - before)
"""


def test_a_large_blob_is_never_whole_in_memory(bucket: Bucket, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LARGE, bucket.endpoint, bucket.name, str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)

    assert ran.returncode == 0, ran.stderr
    uploaded, downloaded = map(int, ran.stdout.split())
    assert uploaded < 100, "MiB on top, for 200 MiB up"
    assert downloaded < 120, "MiB on top, for 200 MiB down"


def test_a_machines_copy_goes_with_the_blob(bucket: Bucket, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    name = put(bucket.store(folder), b"data")
    [copy] = folder.glob("??/*")
    os.utime(copy, (time.time() - HOUR,) * 2)

    bucket.store(folder).collect(always, 0)
    assert copy.exists()
    bucket.store(folder).collect(never, 0)
    assert not copy.exists()
    assert bucket.keys(name)  # too young to go from the bucket
