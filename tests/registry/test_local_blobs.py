"""Blobs are whole or not there, and collected only when nothing refers to them."""

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from registry.blobs.base import Blob, BlobMissing, BlobStore, BlobWriter, StorageError, StorageFull
from registry.blobs.local import LocalBlobStore
from tests.processes import running

ROOT = Path(__file__).parents[2]
DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "blobs")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: BlobStore, data: bytes) -> Blob:
    with store.create() as writer:
        writer.write(data)
        return writer.commit()


def write_and_raise(store: BlobStore, error: Exception) -> None:
    with store.create() as writer:
        writer.write(b"half")
        raise error


def files(store: LocalBlobStore) -> dict[str, bytes]:
    """Everything in the store but its lock, by relative path."""
    found = (path for path in store.root.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(store.root)): path.read_bytes() for path in found}


def make_old(path: Path, age: float = DAY) -> None:
    os.utime(path, (time.time() - age,) * 2)


def never(_: str) -> bool:
    return False


# Writing


def test_short_writes_are_continued(store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))

    blob = put(store, b"ten bytes.")

    assert blob == Blob(sha256(b"ten bytes."), 10)
    assert store.fetch(blob.sha256).read_bytes() == b"ten bytes."


def test_the_same_bytes_are_kept_once_and_are_young_again(store: LocalBlobStore) -> None:
    path = store.fetch(put(store, b"same").sha256)
    inode = path.stat().st_ino
    make_old(path)

    assert put(store, b"same") == Blob(sha256(b"same"), 4)

    assert path.stat().st_ino == inode
    assert time.time() - path.stat().st_mtime < DAY / 2
    assert len(files(store)) == 1


def test_bytes_are_on_disk_before_the_name_and_the_name_before_the_answer(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def watched_fsync(file: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{file}').readlink().parent.name}")
        fsync(file)

    def watched_rename(path: Path, target: Path) -> Path:
        events.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    put(store, b"safe")

    parent_of_shard, parent_of_root = store.root.name, store.root.parent.name
    assert events == ["sync tmp", "rename", f"sync {parent_of_shard}", f"sync {parent_of_root}"]


# Full and broken disks


def failing(code: int, after: int = 0) -> Callable[..., int]:
    """An os.write or os.fsync that fails once it was called `after` times."""
    real, calls = os.write, iter(range(after))

    def call(file: int, data: bytes = b"") -> int:
        if next(calls, None) is None:
            raise OSError(code, os.strerror(code))
        return real(file, data[:5])

    return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize(("function", "after"), [("write", 0), ("write", 1), ("fsync", 0)])
def test_a_full_disk_is_told_as_such_and_leaves_nothing(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch, code: int, function: str, after: int
) -> None:
    monkeypatch.setattr(os, function, failing(code, after))

    with pytest.raises(StorageFull, match=os.strerror(code)) as info:
        put(store, b"too much for it")

    assert info.value.code == "storage_full"
    assert info.value.hint
    assert str(store.root) not in str(info.value)
    assert files(store) == {}


def test_another_error_is_a_storage_error(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", failing(errno.EIO))

    with pytest.raises(StorageError) as info:
        put(store, b"data")

    assert (type(info.value), info.value.code) == (StorageError, "storage_error")
    assert files(store) == {}


def test_a_filesystem_without_locks_is_told_and_nothing_is_left(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(StorageError, match="No locks available"):
        put(store, b"data")
    with pytest.raises(StorageError, match="No locks available"), store.guard():
        pass

    assert files(store) == {}


def test_the_callers_own_os_errors_pass_unchanged(store: LocalBlobStore) -> None:
    with pytest.raises(ConnectionResetError):
        write_and_raise(store, ConnectionResetError())
    with pytest.raises(ConnectionResetError), store.guard():
        raise ConnectionResetError

    assert files(store) == {}


def run(code: str, root: Path, **pipes: Any) -> AbstractContextManager[subprocess.Popen[str]]:
    return running(
        [sys.executable, "-c", code, str(root)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        **pipes,
    )


LIMITED = """
import resource, signal, sys
from pathlib import Path
from registry.blobs.base import StorageFull
from registry.blobs.local import LocalBlobStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with LocalBlobStore(Path(sys.argv[1])).create() as writer:
    try:
        for _ in range(20):
            writer.write(bytes(7_000))
    except StorageFull as error:
        print(writer.size, error.__cause__.errno)
"""


def test_a_real_limit_of_the_file_size_is_storage_full(store: LocalBlobStore) -> None:
    with run(LIMITED, store.root) as process:
        answer, _ = process.communicate()

    assert answer.split() == ["100000", str(errno.EFBIG)]
    assert process.returncode == 0
    assert files(store) == {}


def test_check_passes_on_a_good_store_and_leaves_nothing(store: LocalBlobStore) -> None:
    store.check()

    assert files(store) == {}


def test_check_fails_on_a_full_or_vanished_disk(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        with pytest.raises(StorageFull):
            store.check()
    shutil.rmtree(store.root)

    with pytest.raises(StorageError, match="No such file"):
        store.check()

    assert not store.root.exists()


def test_a_store_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="cannot make the folder"):
        LocalBlobStore(tmp_path / "file" / "blobs")


# Names

BAD_NAMES = [
    *("", ".", "..", "../../etc/passwd", "/etc/passwd", "tmp", "lock", "a" * 63, "a" * 65),
    *("A" * 64, "g" * 64, "a" * 64 + "\n", "../" + "a" * 61, "a" * 62 + "/a", "\0" * 64, "٣" * 64),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_only_hashes_become_paths(store: LocalBlobStore, tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")

    with pytest.raises(BlobMissing):
        store.fetch(name)
    with pytest.raises(BlobMissing):
        store.adopt(path, name)
    assert not store.discard(name, lambda _: False)

    assert not store.has(name)
    assert path.exists()
    assert (store.root / "tmp").is_dir()


def test_a_blob_is_discarded_once_unless_it_is_referred_to(store: LocalBlobStore) -> None:
    name = put(store, b"data").sha256

    assert not store.discard(name, lambda _: True)
    assert store.has(name)
    assert store.discard(name, lambda _: False)
    assert not store.discard(name, lambda _: False)

    assert not store.has(name)
    with pytest.raises(BlobMissing) as info:
        store.fetch(name)
    assert info.value.code == "blob_missing"


# Adoption


@pytest.fixture(params=["same filesystem", "simulated", "real"])
def elsewhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder on the store's filesystem or, as far as rename can tell, on another one."""
    with tempfile.TemporaryDirectory(dir=other_filesystem(request.param, tmp_path)) as name:
        if request.param == "simulated":
            rename = Path.rename

            def refuse(path: Path, target: Path) -> Path:
                if path.parent == Path(name):
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                return rename(path, target)

            monkeypatch.setattr(Path, "rename", refuse)
        yield Path(name)


def other_filesystem(kind: str, tmp_path: Path) -> Path:
    if kind != "real":
        return tmp_path
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK) or folder.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem to write to")
    return folder


def test_a_finished_file_is_taken_over(store: LocalBlobStore, elsewhere: Path) -> None:
    path = elsewhere / "upload"
    path.write_bytes(b"finished" * 300_000)
    make_old(path)
    name = sha256(b"finished" * 300_000)

    blob = store.adopt(path, name)

    assert blob == Blob(name, 2_400_000)
    assert files(store) == {f"{name[:2]}/{name}": b"finished" * 300_000}
    assert not path.exists()
    assert store.fetch(name).stat().st_mode & 0o777 == 0o444
    assert store.collect(never, min_age=DAY / 2) == []


@pytest.mark.parametrize(("folder", "blob"), [(0o700, 0o400), (0o750, 0o440), (0o755, 0o444)])
def test_whoever_may_look_into_the_folder_may_read_the_blobs(
    tmp_path: Path, folder: int, blob: int
) -> None:
    """And nobody may write; an operator who made the folder says so by its permissions."""
    root = tmp_path / "blobs"
    root.mkdir()
    root.chmod(folder)
    os.umask(0o077)

    path = LocalBlobStore(root).fetch(put(LocalBlobStore(root), b"shared").sha256)

    assert path.stat().st_mode & 0o777 == blob
    assert path.parent.stat().st_mode & 0o777 == folder


def test_a_file_that_is_stored_already_is_dropped(store: LocalBlobStore, elsewhere: Path) -> None:
    kept = store.fetch(put(store, b"twice").sha256)
    make_old(kept)
    path = elsewhere / "upload"
    path.write_bytes(b"twice")

    assert store.adopt(path, sha256(b"twice")) == Blob(sha256(b"twice"), 5)

    assert not path.exists()
    assert len(files(store)) == 1
    assert store.collect(never, min_age=DAY / 2) == []


def test_no_byte_is_copied_within_a_filesystem(store: LocalBlobStore, tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_bytes(b"large")
    inode = path.stat().st_ino

    store.adopt(path, sha256(b"large"))

    assert store.fetch(sha256(b"large")).stat().st_ino == inode


@pytest.mark.parametrize("elsewhere", ["simulated", "real"], indirect=True)
def test_a_copy_with_another_hash_is_refused(store: LocalBlobStore, elsewhere: Path) -> None:
    path = elsewhere / "upload"
    path.write_bytes(b"damaged")

    with pytest.raises(StorageError, match=sha256(b"damaged")):
        store.adopt(path, sha256(b"intact"))

    assert path.read_bytes() == b"damaged"
    assert files(store) == {}


def test_a_file_that_cannot_be_taken_over_stays(
    store: LocalBlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "upload"
    path.write_bytes(b"data")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))

    with pytest.raises(StorageError, match="cannot take over upload"):
        store.adopt(path, sha256(b"data"))

    assert path.read_bytes() == b"data"
    assert files(store) == {}


# Collection


def test_a_failing_question_deletes_nothing_and_leaves_no_lock(store: LocalBlobStore) -> None:
    put(store, b"data")
    answers = iter([False])  # and then no more: the second question, under the lock, fails

    with pytest.raises(StopIteration):
        store.collect(lambda _: next(answers), min_age=0)

    assert len(files(store)) == 1
    assert store.collect(never, min_age=0) == [sha256(b"data")]


def test_what_another_collector_deleted_is_not_claimed(store: LocalBlobStore) -> None:
    name = put(store, b"data").sha256
    others: list[str] = []

    def slow(_: str) -> bool:
        others.extend(store.collect(never, min_age=0))
        return False

    assert store.collect(slow, min_age=0) == []
    assert others == [name]


def test_the_last_question_is_asked_while_nobody_can_hold_the_guard(store: LocalBlobStore) -> None:
    put(store, b"data")
    free: list[bool] = []

    def watch(_: str) -> bool:
        with (store.root / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                free.append(True)
            except BlockingIOError:
                free.append(False)
        return False

    store.collect(watch, min_age=0)

    assert free == [True, False]


@contextmanager
def collecting(store: LocalBlobStore, rows: set[str], min_age: float) -> Iterator[list[str]]:
    """Collect in a thread, which in the block has found a blob to delete, and waits."""
    asked = threading.Event()
    deleted: list[str] = []

    def is_referenced(name: str) -> bool:
        answer = name in rows
        asked.set()
        return answer

    thread = threading.Thread(target=lambda: deleted.extend(store.collect(is_referenced, min_age)))
    with store.guard(), store.guard():  # shared: many may hold it
        thread.start()
        assert asked.wait(60)
        thread.join(0.1)
        assert thread.is_alive()
        yield deleted
    thread.join(60)
    assert not thread.is_alive()


def test_what_is_referred_to_under_the_guard_survives(store: LocalBlobStore) -> None:
    name = put(store, b"data").sha256
    rows: set[str] = set()

    with collecting(store, rows, min_age=0) as deleted:
        rows.add(name)

    assert deleted == []
    assert store.has(name)


def test_what_is_stored_again_under_the_guard_is_young(store: LocalBlobStore) -> None:
    name = put(store, b"data").sha256
    make_old(store.fetch(name))

    with collecting(store, set(), min_age=DAY / 2) as deleted:
        put(store, b"data")

    assert deleted == []
    assert store.has(name)


def test_what_the_guard_was_not_held_for_is_deleted_after_it(store: LocalBlobStore) -> None:
    name = put(store, b"data").sha256

    with collecting(store, set(), min_age=0) as deleted:
        assert store.has(name)

    assert deleted == [name]


def test_nothing_referred_to_is_lost_while_all_happens_at_once(store: LocalBlobStore) -> None:
    rows: set[str] = set()
    done = threading.Event()

    def collect() -> None:
        while not done.is_set():
            store.collect(rows.__contains__, min_age=0)

    def accept(n: int) -> str:
        with store.create() as writer:
            writer.write(b"%d" % (n % 7))
            with store.guard():
                name = writer.commit().sha256
                assert store.has(name)
                if n % 3 == 0:
                    rows.add(name)
        return name

    with ThreadPoolExecutor(5) as pool:
        collectors = [pool.submit(collect) for _ in range(2)]
        try:
            names = list(pool.map(accept, range(200)))
        finally:
            done.set()
        for collector in collectors:
            collector.result()
    store.collect(rows.__contains__, min_age=0)

    assert rows == {name for n, name in enumerate(names) if n % 3 == 0}
    assert {Path(name).name for name in files(store)} == rows


# Writers that die

WRITING = """
import sys
from pathlib import Path
from registry.blobs.local import LocalBlobStore
with LocalBlobStore(Path(sys.argv[1])).create() as writer:
    writer.write(b"from another process")
    print("writing", flush=True)
    sys.stdin.readline()
    writer.commit()
"""


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_not_disturbed(
    store: LocalBlobStore,
) -> None:
    with (
        run(WRITING, store.root, stdin=subprocess.PIPE) as victim,
        run(WRITING, store.root, stdin=subprocess.PIPE) as survivor,
    ):
        for process in (victim, survivor):
            assert process.stdout
            assert process.stdout.readline() == "writing\n"
        assert len(files(store)) == 2
        victim.send_signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL
        assert len(files(store)) == 2

        assert store.collect(never, min_age=DAY) == []
        assert len(files(store)) == 1
        survivor.communicate("commit\n")

    assert survivor.returncode == 0
    assert list(files(store).values()) == [b"from another process"]
    assert store.has(sha256(b"from another process"))


def test_a_writer_of_this_process_is_not_disturbed(store: LocalBlobStore) -> None:
    with store.create() as writer:
        writer.write(b"slow ")
        store.collect(never, min_age=0)
        writer.write(b"upload")
        blob = writer.commit()

    assert store.fetch(blob.sha256).read_bytes() == b"slow upload"


def test_a_writer_taken_for_dead_before_it_could_lock_its_file_begins_again(
    store: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    collected: list[int] = []

    def late(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not collected:
            collected.append(len(files(store)))
            store.collect(never, min_age=0)
            assert files(store) == {}
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    blob = put(store, b"data")

    assert collected == [1]
    assert store.fetch(blob.sha256).read_bytes() == b"data"
    assert len(files(store)) == 1


# Against a model


class Interleavings(RuleBasedStateMachine):
    """Any order of calls, against a dict: what is stored, and how old it is."""

    contents = st.sampled_from([b"", b"a", b"bb", b"ccc"])
    ages = st.sampled_from([0.0, DAY / 2])

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = LocalBlobStore(self.folder / "blobs")
        self.stored: dict[str, tuple[bytes, float]] = {}  # bytes, age
        self.rows: set[str] = set()
        self.writing: list[tuple[AbstractContextManager[BlobWriter], BlobWriter, bytes]] = []
        self.orphans = 0

    def teardown(self) -> None:
        while self.writing:
            self.give_up()
        shutil.rmtree(self.folder)

    @rule(data=contents)
    def start_writing(self, data: bytes) -> None:
        context = self.store.create()
        writer = context.__enter__()
        writer.write(data)
        self.writing.append((context, writer, data))

    @rule()
    def finish_writing(self) -> None:
        if self.writing:
            context, writer, data = self.writing.pop(0)
            with self.store.guard():
                assert writer.commit() == Blob(sha256(data), len(data))
            context.__exit__(None, None, None)
            self.stored[sha256(data)] = (data, 0)

    @rule()
    def give_up(self) -> None:
        if self.writing:
            context, _, _ = self.writing.pop()
            with suppress(KeyError):
                context.__exit__(KeyError, KeyError(), None)

    @rule(data=contents)
    def adopt(self, data: bytes) -> None:
        path = self.folder / "upload"
        path.write_bytes(data)
        make_old(path)
        assert self.store.adopt(path, sha256(data)) == Blob(sha256(data), len(data))
        self.stored[sha256(data)] = (data, 0)

    @rule(data=contents)
    def refer(self, data: bytes) -> None:
        if self.store.has(sha256(data)):
            self.rows.add(sha256(data))

    @rule(data=contents)
    def unrefer(self, data: bytes) -> None:
        self.rows.discard(sha256(data))

    @rule(data=contents)
    def grow_old(self, data: bytes) -> None:
        if sha256(data) in self.stored:
            make_old(self.store.fetch(sha256(data)))
            self.stored[sha256(data)] = (data, DAY)

    @rule(data=contents)
    def discard(self, data: bytes) -> None:
        discarded = self.store.discard(sha256(data), lambda name: name in self.rows)
        assert discarded == (sha256(data) in self.stored and sha256(data) not in self.rows)
        if discarded:
            del self.stored[sha256(data)]

    @rule()
    def die_while_writing(self) -> None:
        self.orphans += 1
        (self.store.root / "tmp" / f"orphan{self.orphans}").write_bytes(b"half")

    @rule(min_age=ages)
    def collect(self, min_age: float) -> None:
        gone = {n for n, (_, age) in self.stored.items() if n not in self.rows and age >= min_age}

        assert set(self.store.collect(self.rows.__contains__, min_age)) == gone

        self.stored = {n: blob for n, blob in self.stored.items() if n not in gone}
        self.orphans = 0

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        found = files(self.store)
        temporary = [found.pop(name) for name in list(found) if name.startswith("tmp/")]
        assert found == {f"{n[:2]}/{n}": data for n, (data, _) in self.stored.items()}
        assert len(temporary) == len(self.writing) + self.orphans
        assert self.rows <= self.stored.keys()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=50, stateful_step_count=40)
