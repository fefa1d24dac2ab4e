"""Copies of blobs that are kept elsewhere, on this machine's disk, as many as there is room for.

It is laid out like a LocalBlobStore, and shared by all processes of a machine. Of a blob that many
ask for at once, one downloads, and the others wait for it. When room is needed, the copy that was
used longest ago goes, but never one that is in use:

- one that was asked for in the last minutes: it may not have been opened yet;
- one of the last few that a living process has asked for: it may be opened again. The process
  holds a shared lock on them, which ends with it;
- one that is being written: its writer holds a lock on it.

So the limit can be exceeded by what is in use. Deleting a file never disturbs who has it open.
"""

import fcntl
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from weakref import finalize

from registry.blobs.base import SHA256, BlobMissing, refuse_damaged, storage_errors
from registry.blobs.local import LocalBlobStore, LocalBlobWriter

HELD = 8  # a fold reads three: target, merged weights, source
OPENED_S = 600.0  # more than enough between asking for a file and opening it


class Entry(NamedTuple):
    used_at: float
    size: int
    path: Path


class BlobCache:
    """At most `max_bytes` of copies that are not in use. Raises StorageError, as stores do."""

    def __init__(self, root: Path, max_bytes: int, *, opened_s: float = OPENED_S) -> None:
        self._files = LocalBlobStore(root)
        self._max_bytes = max_bytes
        self._opened_s = opened_s
        self._held: OrderedDict[str, int] = OrderedDict()  # file descriptors by sha256
        self._lock = Lock()
        finalize(self, _close, self._held)

    def create(self) -> AbstractContextManager[LocalBlobWriter]:
        """A file to be filled, which has its place here once it is committed."""
        return self._files.create()

    def get(self, sha256: str) -> Path | None:
        """The copy, in use from now on; None if there is none."""
        with storage_errors("look at a blob"), suppress(BlobMissing):
            while not self._hold(path := self._files.fetch(sha256)):
                pass  # deleted or replaced between the look and the hold
            return path
        return None

    def fill(self, sha256: str, size: int, read: Callable[[], Iterable[bytes]]) -> Path:
        """The copy, downloaded with `read` unless it is there. Raises BlobDamaged, and keeps
        nothing, if other bytes come."""
        while (path := self.get(sha256)) is None:
            with storage_errors("keep a copy of a blob"):
                self._fill(sha256, size, read)
        return path

    def adopt(self, path: Path, sha256: str) -> None:
        """Take over a local file whose hash is known."""
        self._files.adopt(path, sha256)
        self.shrink()

    def drop(self, sha256: str) -> None:
        """Forget a copy, whoever uses it."""
        with storage_errors("delete a copy of a blob"):
            (self._files.root / sha256[:2] / sha256).unlink(missing_ok=True)

    def collect(self, is_referenced: Callable[[str], bool], min_age: float) -> None:
        """Delete copies that nothing refers to, once they were not used for so long, by anybody."""
        oldest = time.time() - max(min_age, self._opened_s)
        for entry in self._entries():
            name = entry.path.name
            if SHA256.fullmatch(name) and entry.used_at <= oldest and not is_referenced(name):
                self.drop(name)

    def clean(self) -> None:
        """Delete what writers that died left behind."""
        with storage_errors("delete a copy of a blob"):
            for path in self._files.temporary.iterdir():
                _unused_deleted(path)

    def shrink(self, room: int = 0) -> None:
        """Delete until `room` more bytes fit, as far as that is possible."""
        with storage_errors("delete a copy of a blob"):
            entries = sorted(self._entries())
            excess = sum(entry.size for entry in entries) + room - self._max_bytes
            for entry in entries:
                if excess <= 0 or time.time() - entry.used_at < self._opened_s:
                    return
                if _unused_deleted(entry.path):
                    excess -= entry.size

    def _entries(self) -> Iterator[Entry]:
        """Unfinished files as well: they take room, too."""
        for path in self._files.root.glob("*/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            yield Entry(max(status.st_atime, status.st_mtime), status.st_size, path)

    def _fill(self, sha256: str, size: int, read: Callable[[], Iterable[bytes]]) -> None:
        """Nothing, if somebody else did while this waited for its turn."""
        turn = self._files.temporary / f"{sha256}.lock"
        with turn.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_named(file, turn):
                return
            try:
                if not self._files.has(sha256):
                    self.shrink(size)
                    self._write(sha256, read)
            finally:
                turn.unlink()  # before it is unlocked: those who wait look again

    def _write(self, sha256: str, read: Callable[[], Iterable[bytes]]) -> None:
        with self.create() as writer:
            for piece in read():
                writer.write(piece)
            if writer.sha256() != sha256:
                refuse_damaged(sha256, writer.sha256())
            writer.commit()

    def _hold(self, path: Path) -> bool:
        """False if this file no longer has its name."""
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        fcntl.flock(file, fcntl.LOCK_SH)  # waits for nothing but a deletion
        status = os.fstat(file)
        if not status.st_nlink:
            os.close(file)
            return False
        # The time of change stays: by that, others recognise a file they have looked at.
        os.utime(file, ns=(time.time_ns(), status.st_mtime_ns))
        with self._lock:
            let_go = [self._held.pop(path.name)] if path.name in self._held else []
            self._held[path.name] = file
            if len(self._held) > HELD:
                let_go.append(self._held.popitem(last=False)[1])
        for other in let_go:
            os.close(other)
        return True


def _is_named(file: FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _unused_deleted(path: Path) -> bool:
    """Delete a file unless somebody holds a lock on it; whether it did."""
    try:
        with path.open("rb", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(file, path):
                path.unlink()
                return True
    except (BlockingIOError, FileNotFoundError):
        pass
    return False


def _close(held: OrderedDict[str, int]) -> None:
    for file in held.values():
        os.close(file)
