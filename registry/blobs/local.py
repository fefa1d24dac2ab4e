"""Blobs on a local disk: named by a rename, kept from deletion by a lock."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Literal
from uuid import uuid4

from registry.blobs.base import (
    SHA256,
    Blob,
    BlobMissing,
    StorageError,
    missing,
    refuse_damaged,
    storage_errors,
)

READ_ONLY = 0o444  # a slip of the hand cannot change a blob; the folder says who may read it
COPIED_AT_ONCE = 1 << 20  # bytes


class LocalBlobWriter:
    """A temporary file, locked as long as its writer lives."""

    def __init__(self, store: LocalBlobStore, path: Path, file: FileIO) -> None:
        self._store = store
        self._path = path
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        with storage_errors("write a blob"):
            while rest:
                count = os.write(self._file.fileno(), rest)
                self._digest.update(rest[:count])
                self.size += count
                rest = rest[count:]

    def read(self, first: int, count: int) -> bytes:
        with storage_errors("read a blob"):
            return os.pread(self._file.fileno(), count, first)

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def commit(self) -> Blob:
        blob = Blob(self.sha256(), self.size)
        with storage_errors("store a blob"):
            self._store._name(self._path, self._file.fileno(), blob.sha256)
            self._file.close()  # nothing can be written to it any more
        return blob

    def _discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)  # missing once committed


class LocalBlobStore:
    """Blobs on a local disk: `<root>/<first two hex digits>/<sha256>`, beside `tmp/` and `lock`.

    Whoever may look into the root may read the blobs, such as an nginx that sends them.

    The folders are made here and not later: a disk that was unmounted shall be missed, not
    replaced. Raises StorageError if they cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.temporary = root / "tmp"
        with storage_errors("make the folder of the blobs"):
            self.temporary.mkdir(parents=True, exist_ok=True)
            self._mode = stat.S_IMODE(root.stat().st_mode)

    @contextmanager
    def create(self) -> Iterator[LocalBlobWriter]:
        with storage_errors("begin a blob"):
            writer = self._new_writer()
        try:
            yield writer
        finally:
            writer._discard()

    def adopt(self, path: Path, sha256: str) -> Blob:
        """A rename within a filesystem; from another one a copy, which must have this hash."""
        self._path(sha256)
        with storage_errors(f"take over {path.name}"):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"cannot take over {path.name}: it is not a regular file")
            try:
                with path.open("rb") as file:
                    self._name(path, file.fileno(), sha256)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                return self._copy(path, sha256)
        return Blob(sha256, status.st_size)

    def fetch(self, sha256: str) -> Path:
        path = self._path(sha256)
        with storage_errors("look at a blob"):
            if not path.is_file():
                raise missing(sha256)
        return path

    def has(self, sha256: str) -> bool:
        try:
            self.fetch(sha256)
        except BlobMissing:
            return False
        return True

    def discard(self, sha256: str, is_referenced: Callable[[str], bool]) -> bool:
        return self.has(sha256) and self._collected(sha256, is_referenced, min_age=0.0)

    @contextmanager
    def guard(self) -> Iterator[None]:
        with self._locked(fcntl.LOCK_SH):
            yield

    def collect(self, is_referenced: Callable[[str], bool], min_age: float) -> list[str]:
        with storage_errors("list the blobs"):
            self._remove_orphans()
            names = list(self.names())
        return [name for name in names if self._collected(name, is_referenced, min_age)]

    def check(self) -> None:
        with self.create() as writer:
            writer.write(b"writable?")

    def names(self) -> Iterator[str]:
        return (p.name for p in self.root.glob("??/*") if SHA256.fullmatch(p.name))

    def verify(self, sha256: str) -> None:
        path = self.fetch(sha256)
        with storage_errors("read a blob"):
            try:
                with path.open("rb") as file:
                    if hasattr(os, "posix_fadvise"):  # ask the disk, not the page cache
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError as error:
                raise missing(sha256) from error
        if found != sha256:
            refuse_damaged(sha256, found)

    def drop_copy(self, sha256: str) -> bool:  # noqa: ARG002
        return False

    def sign(
        self,
        sha256: str,  # noqa: ARG002
        seconds: float,  # noqa: ARG002
        method: Literal["GET", "HEAD"] = "GET",  # noqa: ARG002
    ) -> str | None:
        return None

    def _path(self, sha256: str) -> Path:
        if not SHA256.fullmatch(sha256):
            raise missing(sha256)
        return self.root / sha256[:2] / sha256

    def _new_writer(self) -> LocalBlobWriter:
        while True:
            path = self.temporary / uuid4().hex
            file = path.open("x+b", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                # While it was not locked yet, `collect` may have taken it for an orphan.
                if os.fstat(file.fileno()).st_nlink:
                    return LocalBlobWriter(self, path, file)
            except BaseException:
                path.unlink(missing_ok=True)
                file.close()
                raise
            file.close()

    def _name(self, path: Path, file: int, sha256: str) -> None:
        """Turn the complete file `path`, open as `file`, into a blob that survives a power cut.

        A blob of that name that is damaged gives way to it.
        """
        blob = self._path(sha256)
        if not blob.parent.exists():
            blob.parent.mkdir(exist_ok=True)
            blob.parent.chmod(self._mode)
        if _touched(blob) and _is_sound(blob, sha256):
            path.unlink()
        else:
            os.fchmod(file, READ_ONLY & self._mode)
            os.utime(file)  # an adopted file may be old, but is a young blob
            os.fsync(file)
            path.rename(blob)
        # Always, because another thread may have made the blob or its folder, and not synced yet.
        _sync_folder(blob.parent)
        _sync_folder(self.root)

    def _copy(self, path: Path, sha256: str) -> Blob:
        with path.open("rb") as file, self.create() as writer:
            while chunk := file.read(COPIED_AT_ONCE):
                writer.write(chunk)
            if writer.sha256() != sha256:
                raise StorageError(
                    f"{path.name} has the sha256 {writer.sha256()} instead of {sha256}",
                    hint="it was changed or damaged on the way: send it again",
                )
            blob = writer.commit()
        path.unlink()
        return blob

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        with storage_errors("lock the blobs"):
            file = (self.root / "lock").open("ab")
        with file:
            with storage_errors("lock the blobs"):
                fcntl.flock(file, kind)
            yield

    def _collected(self, sha256: str, is_referenced: Callable[[str], bool], min_age: float) -> bool:
        path = self._path(sha256)
        if not _older(path, min_age) or is_referenced(sha256):
            return False
        with self._locked(fcntl.LOCK_EX):
            # Again: a guard that was held until now may have stored it, or referred to it.
            if not _older(path, min_age) or is_referenced(sha256):
                return False
            with storage_errors("delete a blob"):
                path.unlink(missing_ok=True)
        return True

    def _remove_orphans(self) -> None:
        for path in self.temporary.iterdir():
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            except (BlockingIOError, FileNotFoundError):
                continue  # its writer lives, or has just finished


def _touched(blob: Path) -> bool:
    """Make the blob young again; False if there is none."""
    try:
        os.utime(blob)
    except FileNotFoundError:
        return False
    return True


def _is_sound(blob: Path, sha256: str) -> bool:
    """False too if it cannot be read: whoever brings the bytes anew replaces it."""
    try:
        with blob.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def _older(blob: Path, seconds: float) -> bool:
    """Whether nobody stored it for so long; False if it is gone."""
    with storage_errors("look at a blob"):
        try:
            stored = blob.stat().st_mtime
        except FileNotFoundError:
            return False
    return time.time() - stored >= seconds


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
