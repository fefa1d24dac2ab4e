"""Copies are whole, downloaded once, and go in order of use, but not from under anyone."""

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event

import pytest

from registry.blobs.base import BlobDamaged, StorageError
from registry.blobs.cache import HELD, BlobCache
from tests.processes import running

ROOT = Path(__file__).parents[2]
OLD = 10_000.0  # longer than a file may take to be opened


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content(n: int) -> bytes:
    return bytes([n]) * 100


def reading(data: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: [data[:7], data[7:]]


def fill(cache: BlobCache, data: bytes) -> Path:
    return cache.fill(sha256(data), len(data), reading(data))


def use_long_ago(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def kept(cache: BlobCache, count: int) -> list[int]:
    """Which of the contents are here, without using them."""
    root = cache._files.root
    return [
        n for n in range(count) if (root / sha256(content(n))[:2] / sha256(content(n))).exists()
    ]


def filled(folder: Path, count: int, max_bytes: int) -> BlobCache:
    """With copies of equal size, the first used longest ago, by a process that is gone."""
    before = BlobCache(folder, max_bytes=10**9)
    for n in range(count):
        use_long_ago(fill(before, content(n)), OLD - n)
    del before
    return BlobCache(folder, max_bytes)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_copy_is_read_only_and_has_the_bytes(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1000)
    assert cache.get(sha256(b"data")) is None

    path = fill(cache, b"data")

    assert (path.read_bytes(), path.stat().st_mode & 0o222) == (b"data", 0)
    assert cache.get(sha256(b"data")) == path
    assert files(tmp_path) == [path]


def test_it_is_not_read_again_while_it_is_here(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1000)
    path = fill(cache, b"data")

    assert cache.fill(sha256(b"data"), 4, lambda: pytest.fail("read again")) == path


@pytest.mark.parametrize("data", [b"", b"dat", b"data.", b"Data"])
def test_other_bytes_are_refused_and_not_kept(tmp_path: Path, data: bytes) -> None:
    cache = BlobCache(tmp_path, 1000)

    with pytest.raises(BlobDamaged, match=sha256(data)):
        cache.fill(sha256(b"data"), 4, lambda: [data])

    assert files(tmp_path) == []
    assert fill(cache, b"data").read_bytes() == b"data"


def test_an_error_on_the_way_keeps_nothing(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1000)

    def read() -> Iterator[bytes]:
        yield b"da"
        raise StorageError("cut off")

    with pytest.raises(StorageError, match="cut off"):
        cache.fill(sha256(b"data"), 4, read)

    assert files(tmp_path) == []


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = filled(tmp_path, 6, max_bytes=450)
    used = cache.get(sha256(content(0)))
    assert used is not None

    cache.shrink()
    assert kept(cache, 6) == [0, 3, 4, 5]
    cache.shrink(room=150)

    assert kept(cache, 6) == [0, 4, 5]


def test_room_is_made_before_a_copy_is_downloaded(tmp_path: Path) -> None:
    cache = filled(tmp_path, 4, max_bytes=400)
    before: list[list[int]] = []

    def read() -> Iterator[bytes]:
        before.append(kept(cache, 5))
        yield content(4)

    cache.fill(sha256(content(4)), 100, read)

    assert before == [[1, 2, 3]]
    assert kept(cache, 5) == [1, 2, 3, 4]


def test_a_blob_larger_than_the_cache_is_still_fetched(tmp_path: Path) -> None:
    cache = filled(tmp_path, 3, max_bytes=50)

    assert fill(cache, content(9)).read_bytes() == content(9)

    assert kept(cache, 10) == [9]


def test_being_used_does_not_look_like_a_change(tmp_path: Path) -> None:
    cache = filled(tmp_path, 1, max_bytes=1000)
    path = cache._files.fetch(sha256(content(0)))
    before = path.stat()

    cache.get(sha256(content(0)))

    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_atime > before.st_atime


def test_what_was_just_asked_for_stays(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, max_bytes=100)
    for n in range(HELD + 3):
        fill(cache, content(n))

    cache.shrink()

    assert kept(cache, HELD + 3) == list(range(HELD + 3))


def test_the_last_few_that_a_process_asked_for_stay(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, max_bytes=100)
    for n in range(HELD + 3):
        use_long_ago(fill(cache, content(n)), OLD)

    BlobCache(tmp_path, max_bytes=0).shrink()

    assert kept(cache, HELD + 3) == list(range(3, HELD + 3))


HOLDING = """
import sys
from pathlib import Path
from registry.blobs.cache import BlobCache
cache = BlobCache(Path(sys.argv[1]), 0)
assert cache.get(sys.argv[2])
print("held", flush=True)
sys.stdin.readline()
"""


def test_what_another_process_uses_stays_until_it_ends(tmp_path: Path) -> None:
    cache = filled(tmp_path, 2, max_bytes=0)
    name = sha256(content(0))
    command = [sys.executable, "-c", HOLDING, str(tmp_path), name]
    pipe = subprocess.PIPE
    with running(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        use_long_ago(cache._files.fetch(name), OLD)
        cache.shrink()
        assert kept(cache, 2) == [0]
        other.kill()

    cache.shrink()

    assert kept(cache, 2) == []


def test_who_has_a_copy_open_is_not_disturbed(tmp_path: Path) -> None:
    cache = filled(tmp_path, 1, max_bytes=0)
    with cache._files.fetch(sha256(content(0))).open("rb") as file:
        cache.shrink()

        assert kept(cache, 1) == []
        assert file.read() == content(0)


def test_what_nothing_refers_to_goes_whoever_asked_for_it(tmp_path: Path) -> None:
    cache = filled(tmp_path, 3, max_bytes=10**9)
    held = cache.get(sha256(content(0)))
    assert held is not None
    use_long_ago(held, OLD)
    fill(cache, content(3))
    needed = sha256(content(1))

    cache.collect(lambda name: name == needed, OLD + 60)
    assert kept(cache, 4) == [0, 1, 2, 3]
    cache.collect(lambda name: name == needed, 0)
    assert kept(cache, 4) == [1, 3]  # the last was just asked for


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, max_bytes=0, opened_s=0)
    shrunk: list[int] = []

    def read() -> Iterator[bytes]:
        yield b"da"
        cache.shrink()
        cache.clean()
        shrunk.append(len(files(tmp_path)))
        yield b"ta"

    assert cache.fill(sha256(b"data"), 4, read).read_bytes() == b"data"
    with cache.create() as writer:
        writer.write(b"staged")
        cache.shrink()
        cache.clean()
        writer.commit()

    assert shrunk == [2]  # what is written, and the lock of who writes it
    path = cache.get(sha256(b"staged"))
    assert path is not None
    assert path.read_bytes() == b"staged"


def test_many_threads_download_once(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 10**6)
    begun, reads = Event(), []

    def read() -> Iterator[bytes]:
        reads.append(1)
        yield b"da"
        begun.wait(0.2)  # the others come meanwhile
        yield b"ta"

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: cache.fill(sha256(b"data"), 4, read), range(8)))

    assert len(reads) == 1
    assert {path.read_bytes() for path in paths} == {b"data"}


FILLING = """
import sys, time
from pathlib import Path
from registry.blobs.cache import BlobCache

def read():
    with open(sys.argv[3], "a") as log:
        log.write("read\\n")
    yield b"da"
    print("reading", flush=True)
    time.sleep(float(sys.argv[4]))
    yield b"ta"

print(BlobCache(Path(sys.argv[1]), 10**6).fill(sys.argv[2], 4, read).read_bytes())
"""


def start_filling(
    folder: Path, log: Path, seconds: float
) -> AbstractContextManager[subprocess.Popen[str]]:
    arguments = [str(folder), sha256(b"data"), str(log), str(seconds)]
    command = [sys.executable, "-c", FILLING, *arguments]
    return running(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def test_many_processes_download_once(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    with (
        start_filling(folder, log, 0.3) as first,
        start_filling(folder, log, 0.3) as second,
        start_filling(folder, log, 0.3) as third,
    ):
        answers = [process.communicate()[0].split()[-1] for process in (first, second, third)]

    assert answers == ["b'data'"] * 3
    assert log.read_text() == "read\n"


def test_a_killed_download_is_done_again_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    for again in (True, False):
        with start_filling(folder, tmp_path / "log", 60) as victim:
            assert victim.stdout
            assert victim.stdout.readline() == "reading\n"
            victim.kill()
        assert b"da" in [path.read_bytes() for path in files(folder)]
        cache = BlobCache(folder, 1000)
        if again:
            assert fill(cache, b"data").read_bytes() == b"data"
            cache.drop(sha256(b"data"))
        cache.clean()
        assert files(folder) == []


def test_of_two_who_wait_the_second_begins_anew_when_the_first_fails(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 1000)
    begun, waits = Event(), Event()

    def broken() -> Iterator[bytes]:
        begun.set()
        yield b"bad"
        waits.wait(10)
        time.sleep(0.05)  # until it really waits for the lock

    def second() -> Path:
        begun.wait(10)
        waits.set()
        return fill(cache, b"data")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.fill, sha256(b"data"), 4, broken)
        other = pool.submit(second)
        with pytest.raises(BlobDamaged):
            first.result()
        assert other.result().read_bytes() == b"data"


def test_a_copy_deleted_between_the_look_and_the_hold_is_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled(tmp_path, 1, max_bytes=1000)
    flock = fcntl.flock

    def late(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", flock)
            cache.drop(sha256(content(0)))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)

    assert cache.get(sha256(content(0))) is None
    assert fill(cache, content(0)).read_bytes() == content(0)
