"""A damaged blob is never sent; and what lies on S3 comes from there, checked, or by a redirect."""

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.blobs.base import BlobDamaged
from registry.blobs.integrity import Verifier
from tests.app.scraping import scraped
from tests.app.world import World, checkpoint, sha256
from tests.buckets import PREFIX, Bucket, serving_s3

WEIGHTS = checkpoint(77)
TAG = f'"{sha256(WEIGHTS)}"'
HOUR = 3600.0


@pytest.fixture
def world(world: World) -> World:
    world.ready_model()
    world.fold(1, weights=WEIGHTS)
    return world


@pytest.fixture
def path(world: World) -> Path:
    """Of the newest version's blob, which is not new."""
    path = world.store.fetch(sha256(WEIGHTS))
    path.chmod(0o644)
    make_old(path)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read through to be verified."""
    read: list[str] = []
    file_digest = hashlib.file_digest

    def counted(file: Any, digest: str) -> Any:
        read.append(Path(file.name).name)
        return file_digest(file, digest)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return read


def make_old(path: Path, age: float = HOUR) -> None:
    os.utime(path, (time.time() - age,) * 2)


def damage(path: Path, bit: int) -> None:
    content = bytearray(WEIGHTS)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def assert_damaged(answer: Any) -> None:
    assert (answer.status_code, answer.json()["code"]) == (500, "blob_damaged")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "etag" not in answer.headers
    assert "scrub" in answer.json()["hint"]


# On a disk


def test_no_flipped_bit_is_sent(world: World, path: Path) -> None:
    rng = random.Random(0)
    assert world.client.get("/models/merged").content == WEIGHTS

    for byte in range(len(WEIGHTS)):
        damage(path, byte * 8 + rng.randrange(8))
        assert_damaged(world.client.get("/models/merged"))

    path.write_bytes(WEIGHTS)  # from a backup
    assert world.client.get("/models/merged").content == WEIGHTS


def test_not_even_a_sound_part_of_a_damaged_file_is_sent(world: World, path: Path) -> None:
    damage(path, len(WEIGHTS) * 8 - 1)

    assert_damaged(world.client.get("/models/merged", headers={"Range": "bytes=0-9"}))
    assert_damaged(world.client.get("/models/merged/versions/1", headers={"If-Match": TAG}))


@pytest.mark.parametrize("content", [b"", WEIGHTS[:-1], WEIGHTS + b"\0"])
def test_a_file_of_another_length_has_no_ranges(world: World, path: Path, content: bytes) -> None:
    path.write_bytes(content)

    assert_damaged(world.client.get("/models/merged"))
    last = {"Range": f"bytes={len(WEIGHTS) - 1}-"}
    assert_damaged(world.client.get("/models/merged", headers=last))
    assert world.client.head("/models/merged").status_code == 500


def test_nginx_is_not_asked_to_send_damage(make_world: Callable[..., World]) -> None:
    world = make_world(accel_redirect="/blobs")
    world.ready_model()
    world.fold(1, weights=WEIGHTS)
    path = world.store.fetch(sha256(WEIGHTS))
    path.chmod(0o644)
    assert world.client.get("/models/merged").status_code == 200

    damage(path, 100)

    assert_damaged(world.client.get("/models/merged"))


def test_a_file_is_read_through_once_until_it_changes(
    world: World, path: Path, reads: list[str]
) -> None:
    for headers in ({}, {"Range": "bytes=0-9"}, {}):
        assert world.client.get("/models/merged", headers=headers).is_success
    assert len(reads) == 1

    make_old(path, 2 * HOUR)
    assert world.client.get("/models/merged").content == WEIGHTS
    assert len(reads) == 2


def test_who_gets_no_bytes_waits_for_no_reading(world: World, path: Path, reads: list[str]) -> None:
    assert world.client.head("/models/merged").status_code == 200
    assert world.client.get("/models/merged", headers={"If-None-Match": TAG}).status_code == 304
    assert world.client.get("/models/merged", headers={"If-Match": '"x"'}).status_code == 412

    assert reads == []


# What others learn of it


def test_who_finds_damage_tells_all_and_who_finds_it_mended_too(world: World, path: Path) -> None:
    assert world.client.get("/models/merged/info").json()["held"] is None
    damage(path, 100)
    assert_damaged(world.client.get("/models/merged"))
    source = world.post_source(checkpoint(5)).json()["job"]

    info = world.client.get("/models/merged/info").json()
    [listed] = world.client.get("/models").json()["items"]
    [version] = world.client.get("/models/merged/versions").json()["items"]
    assert info["held"] == listed["held"]
    assert info["held"]["code"] == "blob_damaged"
    assert info["held"]["message"].startswith("version 1 of model 'merged' is damaged")
    assert "backup" in info["held"]["hint"]
    assert version["problem"] == "damaged"
    assert bad_blobs(world) == {"damaged": 1, "missing": 0, "unreadable": 0}
    for page in ("models/merged", "models/merged/versions/1", f"jobs/{source['id']}"):
        text = world.client.get(f"/ui/{page}").text
        assert "version 1 of model &#39;merged&#39; is damaged" in text, page
        assert "blob_damaged" in text, page

    path.write_bytes(WEIGHTS)  # from a backup
    assert world.client.get("/models/merged").content == WEIGHTS
    assert world.client.get("/models/merged/info").json()["held"] is None
    assert bad_blobs(world) == {"damaged": 0, "missing": 0, "unreadable": 0}
    assert "damaged" not in world.client.get("/ui/models/merged").text


def test_looking_often_does_not_put_off_those_who_wait(world: World, path: Path) -> None:
    damage(path, 100)
    assert_damaged(world.client.get("/models/merged"))
    [before] = world.rows()["blob_problems"]

    assert_damaged(world.client.get("/models/merged"))

    assert world.rows()["blob_problems"] == [before]


def bad_blobs(world: World) -> dict[str, float]:
    """As /metrics counts them."""
    return {key[1]: n for key, n in scraped(world).items() if key[0] == "grasp_blob_problems"}


# Going back


@pytest.mark.parametrize("lost", [False, True])
def test_nobody_goes_back_to_bad_weights(world: World, path: Path, lost: bool) -> None:
    world.fold(2)
    if lost:
        path.unlink()
    else:
        damage(path, 100)

    refused = world.client.post("/models/merged/rollback", json={"version": 1})

    expected = "blob_missing" if lost else "blob_damaged"
    assert (refused.status_code, refused.json()["code"]) == (409, expected)
    assert refused.json()["detail"].startswith("version 1 of model 'merged' is ")
    assert world.client.get("/models/merged/info").json()["version"] == 2

    path.write_bytes(WEIGHTS)
    done = world.client.post("/models/merged/rollback", json={"version": 1})
    assert (done.status_code, done.json()["number"], done.json()["problem"]) == (201, 3, None)
    assert world.client.get("/models/merged/info").json()["held"] is None


def test_no_transaction_is_open_while_a_version_is_read(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = world.app.state.service
    pool, fetch, opened = service.database.engine.pool, service.store.fetch, []

    def watched(sha256: str) -> Path:
        opened.append(pool.checkedout())
        found: Path = fetch(sha256)
        return found

    monkeypatch.setattr(service.store, "fetch", watched)
    assert world.client.post("/models/merged/rollback", json={"version": 1}).status_code == 201

    assert opened == [0]


def test_an_answer_that_was_given_is_given_again_whatever_became_of_the_bytes(
    world: World, path: Path
) -> None:
    key = {"Idempotency-Key": "once"}
    first = world.client.post("/models/merged/rollback", json={"version": 1}, headers=key)
    damage(path, 100)

    again = world.client.post("/models/merged/rollback", json={"version": 1}, headers=key)

    assert (again.status_code, again.json()) == (201, first.json())


# The memory of what was verified


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(b"data")
    make_old(file)
    return file


def test_a_change_within_a_tick_of_the_clock_is_caught(file: Path, reads: list[str]) -> None:
    verifier = Verifier()
    file.write_bytes(b"data")
    status = file.stat()
    verifier.check(file, sha256(b"data"))

    file.write_bytes(b"Data")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(BlobDamaged):
        verifier.check(file, sha256(b"data"))


def test_a_replaced_file_is_caught(file: Path, tmp_path: Path) -> None:
    verifier = Verifier()
    verifier.check(file, sha256(b"data"))
    other = tmp_path / "other"
    other.write_bytes(b"Data")
    status = file.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))

    other.rename(file)

    with pytest.raises(BlobDamaged):
        verifier.check(file, sha256(b"data"))


def test_damage_is_not_remembered_as_sound(file: Path) -> None:
    verifier = Verifier()
    for _ in range(2):
        with pytest.raises(BlobDamaged, match=sha256(b"other")):
            verifier.check(file, sha256(b"other"))


def test_what_it_remembers_is_bounded(tmp_path: Path, reads: list[str]) -> None:
    verifier = Verifier(remembered=2)
    for name in "abc":
        (tmp_path / name).write_bytes(b"data")
        make_old(tmp_path / name)

    for name in "ababcab":  # c drives out a, which drives out b
        verifier.check(tmp_path / name, sha256(b"data"))

    assert reads == ["a", "b", "c", "a", "b"]


def test_many_who_ask_at_once_read_once(
    file: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = Verifier()
    counted = hashlib.file_digest

    def slow(*args: Any) -> Any:
        time.sleep(0.1)
        return counted(*args)

    monkeypatch.setattr(hashlib, "file_digest", slow)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: verifier.check(file, sha256(b"data")), range(8)))

    assert len(reads) == 1


# On S3


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving_s3() as url:
        yield url


class Remote:
    """A service whose blobs are in a bucket, with one version."""

    def __init__(self, endpoint: str, make_world: Callable[..., World], **options: Any) -> None:
        self.bucket = Bucket.make(endpoint)
        url = f"s3://{self.bucket.name}/{PREFIX}"
        self.world = make_world(blob_url=url, blob_endpoint=endpoint, **options)
        self.store = self.world.app.state.service.store
        self.world.ready_model()
        assert self.world.post_source(checkpoint(1)).status_code == 202
        self.world.publish(weights=WEIGHTS)  # on the world's own disk, which nobody looks at
        with self.store.create() as writer:
            writer.write(WEIGHTS)
            writer.commit()
        self.client = self.world.client


def test_sources_go_to_the_bucket(endpoint: str, make_world: Callable[..., World]) -> None:
    remote = Remote(endpoint, make_world)

    assert checkpoint(1) in remote.bucket.objects().values()
    assert remote.client.get("/readyz").json()["checks"]["blobs"] == "ok"


def test_bytes_come_from_the_bucket(endpoint: str, make_world: Callable[..., World]) -> None:
    remote = Remote(endpoint, make_world)
    remote.store.drop_copy(sha256(WEIGHTS))

    answer = remote.client.get("/models/merged")
    part = remote.client.get("/models/merged", headers={"Range": "bytes=8-19"})

    assert (answer.status_code, answer.content) == (200, WEIGHTS)
    assert answer.headers["etag"] == TAG
    assert (part.status_code, part.content) == (206, WEIGHTS[8:20])


def test_a_damaged_copy_is_fetched_again(endpoint: str, make_world: Callable[..., World]) -> None:
    remote = Remote(endpoint, make_world)
    copy = remote.store.fetch(sha256(WEIGHTS))
    copy.chmod(0o644)
    for content in (b"short", bytes(len(WEIGHTS))):
        copy.write_bytes(content)
        assert remote.client.get("/models/merged").content == WEIGHTS
        copy.chmod(0o644)

    for key in remote.bucket.keys(sha256(WEIGHTS)):
        remote.bucket.put(key, bytes(len(WEIGHTS)))
    copy.write_bytes(bytes(len(WEIGHTS)))
    assert_damaged(remote.client.get("/models/merged"))


def test_clients_are_sent_to_the_bucket(endpoint: str, make_world: Callable[..., World]) -> None:
    remote = Remote(endpoint, make_world, presigned_downloads=True)

    answer = remote.client.get("/models/merged", follow_redirects=False)

    assert (answer.status_code, answer.content) == (307, b"")
    assert answer.headers["etag"] == TAG
    url = answer.headers["location"]
    assert url.startswith(f"{endpoint}/{remote.bucket.name}/{PREFIX}/")
    assert httpx.get(url).content == WEIGHTS
    assert httpx.get(url, headers={"Range": "bytes=8-19"}).content == WEIGHTS[8:20]
    head = remote.client.head("/models/merged", follow_redirects=False)
    assert head.status_code == 307
    assert httpx.head(head.headers["location"]).headers["content-length"] == str(len(WEIGHTS))


def test_conditions_are_answered_before_anyone_is_sent_away(
    endpoint: str, make_world: Callable[..., World]
) -> None:
    remote = Remote(endpoint, make_world, presigned_downloads=True)

    def get(**headers: str) -> Any:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return remote.client.get("/models/merged", headers=names, follow_redirects=False)

    assert get(If_None_Match=TAG).status_code == 304
    assert get(If_None_Match='"x"').status_code == 307
    assert get(If_Match='"x"').status_code == 412
    assert (get(If_Match=TAG).status_code, get(If_Match=TAG).content) == (200, WEIGHTS)


def test_a_disk_cannot_be_asked_by_clients(make_world: Callable[..., World]) -> None:
    world = make_world(presigned_downloads=True)
    world.ready_model()
    world.fold(1, weights=WEIGHTS)

    assert world.client.get("/models/merged", follow_redirects=False).content == WEIGHTS
