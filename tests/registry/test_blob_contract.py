"""What every blob store promises, asked of both: on a disk, and on S3."""

import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.blobs.base import Blob, BlobDamaged, BlobMissing, BlobStore, StorageError
from registry.blobs.local import LocalBlobStore
from tests.buckets import Bucket, serving_s3

DAY = 86_400.0


class Place(ABC):
    """A store, and what can be done to it behind its back."""

    store: BlobStore

    @abstractmethod
    def make_old(self, sha256: str) -> None:
        """By two days."""

    @abstractmethod
    def replace(self, sha256: str, data: bytes) -> None: ...

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Something that is not a blob."""

    @abstractmethod
    def content(self) -> dict[str, bytes]: ...

    @abstractmethod
    def destroy(self) -> None: ...


class Disk(Place):
    def __init__(self, root: Path) -> None:
        self.store = LocalBlobStore(root)
        self.root = root

    def make_old(self, sha256: str) -> None:
        os.utime(self.root / sha256[:2] / sha256, (time.time() - 2 * DAY,) * 2)

    def replace(self, sha256: str, data: bytes) -> None:
        path = self.root / sha256[:2] / sha256
        path.chmod(0o644)
        path.write_bytes(data)

    def put(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (0, 0))

    def content(self) -> dict[str, bytes]:
        found = (path for path in self.root.rglob("*") if path.is_file() and path.name != "lock")
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found}

    def destroy(self) -> None:
        self.root.rename(self.root.with_name("away"))


class S3(Place):
    def __init__(self, endpoint: str, folder: Path) -> None:
        self.bucket = Bucket.make(endpoint)
        self.store = self.bucket.store(folder)

    def make_old(self, sha256: str) -> None:
        for key in self.bucket.keys(sha256):
            self.bucket.make_old(key, 2 * DAY)

    def replace(self, sha256: str, data: bytes) -> None:
        for key in self.bucket.keys(sha256):
            self.bucket.put(key, data)

    def put(self, name: str, data: bytes) -> None:
        self.bucket.put(f"some/where/{name}", data)
        self.bucket.make_old(f"some/where/{name}", 2 * DAY)

    def content(self) -> dict[str, bytes]:
        return self.bucket.objects()

    def destroy(self) -> None:
        self.store = Bucket(self.bucket.endpoint, "no-such-bucket").store(Path("elsewhere"))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving_s3() as url:
        yield url


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    if request.param == "disk":
        return Disk(tmp_path / "blobs")
    return S3(request.getfixturevalue("endpoint"), tmp_path / "copies")


@pytest.fixture
def store(place: Place) -> BlobStore:
    return place.store


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: BlobStore, data: bytes) -> str:
    with store.create() as writer:
        writer.write(data)
        return writer.commit().sha256


def never(_: str) -> bool:
    return False


@pytest.mark.parametrize(
    "chunks", [[], [b""], [b"one"], [b"one", b"", b"two"], [bytes(20_000_000), b"x"]]
)
def test_a_blob_is_found_under_the_hash_of_its_bytes(place: Place, chunks: list[bytes]) -> None:
    data = b"".join(chunks)

    with place.store.create() as writer:
        for chunk in chunks:
            writer.write(memoryview(chunk))
        assert (writer.size, writer.sha256()) == (len(data), sha256(data))
        blob = writer.commit()

    assert blob == Blob(sha256(data), len(data))
    assert place.store.has(blob.sha256)
    assert list(place.store.names()) == [blob.sha256]
    assert list(place.content().values()) == [data]
    path = place.store.fetch(blob.sha256)
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o444
    place.store.verify(blob.sha256)


def test_nothing_has_its_name_before_commit(store: BlobStore) -> None:
    with store.create() as writer:
        writer.write(b"half")
        assert not store.has(sha256(b"half"))
        with pytest.raises(BlobMissing, match=sha256(b"half")):
            store.fetch(sha256(b"half"))


def test_nothing_is_left_without_commit_or_after_an_error(place: Place, tmp_path: Path) -> None:
    def fail() -> None:
        with place.store.create() as writer:
            writer.write(b"half")
            raise ConnectionResetError

    with place.store.create() as writer:
        writer.write(b"forgotten")
    with pytest.raises(ConnectionResetError):  # the caller's own errors pass unchanged
        fail()

    assert place.content() == {}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_committed_blob_cannot_be_written_any_more(store: BlobStore) -> None:
    with store.create() as writer:
        writer.write(b"done")
        blob = writer.commit()
        with pytest.raises(ValueError, match="closed"):
            writer.write(b" and more")
        with pytest.raises(ValueError, match="closed"):
            writer.commit()

    assert store.fetch(blob.sha256).read_bytes() == b"done"


def test_writers_of_the_same_bytes_do_not_disturb_each_other(store: BlobStore) -> None:
    data = [bytes([n]) * 100_000 for n in range(3)]
    with ThreadPoolExecutor(6) as pool:
        names = list(pool.map(lambda n: put(store, data[n % 3]), range(18)))

    assert names == [sha256(data[n % 3]) for n in range(18)]
    assert sorted(store.names()) == sorted(set(names))
    assert [store.fetch(name).read_bytes() for name in names[:3]] == data


BAD_NAMES = ["", "..", "../../etc/passwd", "tmp", "a" * 63, "A" * 64, "a" * 64 + "\n", "٣" * 64]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_only_hashes_are_names(place: Place, tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")

    for ask in (place.store.fetch, place.store.verify):
        with pytest.raises(BlobMissing):
            ask(name)
    with pytest.raises(BlobMissing):
        place.store.adopt(path, name)

    assert not place.store.has(name)
    assert not place.store.discard(name, never)
    assert path.exists()
    assert place.content() == {}


@pytest.mark.parametrize("size", [0, 5, 20_000_000])
def test_a_finished_file_is_taken_over(place: Place, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = tmp_path / "finished"
    for _ in range(2):  # the second is there already
        path.write_bytes(data)
        assert place.store.adopt(path, sha256(data)) == Blob(sha256(data), size)
        assert not path.exists()

    assert set(place.content().values()) == {data}
    assert place.store.fetch(sha256(data)).read_bytes() == data


def test_only_regular_files_are_taken_over(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").mkdir()

    for name, problem in {"link": "regular", "folder": "regular", "none": "No such file"}.items():
        with pytest.raises(StorageError, match=problem):
            place.store.adopt(tmp_path / name, sha256(b"secret"))

    assert place.content() == {}


def test_only_what_is_old_and_unreferenced_is_collected(place: Place) -> None:
    names = {}
    for kind in ("old", "old, referenced", "young", "young, referenced"):
        names[kind] = put(place.store, kind.encode())
        if kind.startswith("old"):
            place.make_old(names[kind])
    referenced = {name for kind, name in names.items() if "referenced" in kind}

    assert place.store.collect(referenced.__contains__, min_age=DAY) == [names["old"]]
    assert set(place.store.names()) == set(names.values()) - {names["old"]}
    assert place.store.collect(referenced.__contains__, min_age=DAY) == []


def test_what_is_stored_again_is_young(place: Place, tmp_path: Path) -> None:
    written, adopted = put(place.store, b"written"), put(place.store, b"adopted")
    for name in (written, adopted):
        place.make_old(name)

    put(place.store, b"written")
    (tmp_path / "file").write_bytes(b"adopted")
    place.store.adopt(tmp_path / "file", adopted)

    assert place.store.collect(never, min_age=DAY) == []
    assert {place.store.has(written), place.store.has(adopted)} == {True}


def test_what_is_no_blob_is_not_collected(place: Place) -> None:
    name = put(place.store, b"data")
    place.make_old(name)
    wrong = "00" if name[:2] != "00" else "01"
    for other in ("README", f"{wrong}/notes.txt", f"{wrong}/{name}"):
        place.put(other, b"mine")

    assert place.store.collect(never, min_age=DAY) == [name]
    assert list(place.content().values()) == [b"mine"] * 3


def test_an_old_blob_is_discarded_once_unless_it_is_referred_to(place: Place) -> None:
    name = put(place.store, b"data")
    place.make_old(name)

    assert not place.store.discard(name, lambda _: True)
    assert place.store.has(name)
    assert place.store.discard(name, never)
    assert not place.store.discard(name, never)

    assert not place.store.has(name)
    with pytest.raises(BlobMissing):
        place.store.verify(name)


def test_a_failing_question_deletes_nothing(place: Place) -> None:
    name = put(place.store, b"data")
    place.make_old(name)

    def fail(_: str) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        place.store.collect(fail, min_age=DAY)

    assert place.store.has(name)
    assert place.store.collect(never, min_age=DAY) == [name]


def test_check_leaves_nothing_and_fails_on_a_store_that_is_gone(place: Place) -> None:
    place.store.check()
    assert place.content() == {}

    place.destroy()

    with pytest.raises(StorageError) as info:
        place.store.check()
    assert info.value.hint


def test_damage_is_found_where_the_blob_is_stored(place: Place) -> None:
    name, sound = put(place.store, b"data"), put(place.store, b"sound")
    for damaged in (b"Data", b"dat", b"data.", b""):
        place.replace(name, damaged)
        with pytest.raises(BlobDamaged, match=sha256(damaged)) as info:
            place.store.verify(name)
        assert "scrub" in str(info.value.hint)

    place.store.verify(sound)


@pytest.mark.parametrize("damaged", [b"Data", b"dat", b""])
@pytest.mark.parametrize("again", ["written", "adopted"])
def test_who_stores_the_same_bytes_again_repairs_them(
    place: Place, tmp_path: Path, damaged: bytes, again: str
) -> None:
    name = put(place.store, b"data")
    place.replace(name, damaged)
    copy = place.store.fetch(name)  # of this machine, or the blob itself
    copy.chmod(0o644)
    copy.write_bytes(damaged)

    if again == "written":
        put(place.store, b"data")
    else:
        (tmp_path / "file").write_bytes(b"data")
        place.store.adopt(tmp_path / "file", name)

    path = place.store.fetch(name)
    assert path.read_bytes() == b"data"
    assert path.stat().st_mode & 0o777 == 0o444
    place.store.drop_copy(name)
    assert place.store.fetch(name).read_bytes() == b"data"
