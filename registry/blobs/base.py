"""Blobs: files that are named by the sha256 of their bytes, and never change.

A blob appears under its name whole and on disk, or not at all; one that was damaged later is whole
again when its bytes are stored anew. Whoever stores something that a row will refer to holds
`guard()` from before `commit()` until the row is committed; `collect()` deletes what no row refers
to, and nothing while it is guarded.

StorageError         the store cannot do what it was asked
├── StorageFull      … because there is no room left
├── BlobMissing      … because it holds no such blob
└── BlobDamaged      … because the bytes it holds are not those that were stored
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, Protocol

from grasp_core.errors import GraspError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # disk, quota, limit of a file's size
SHA256 = re.compile(r"[0-9a-f]{64}")  # nothing else ever becomes a path


class StorageError(GraspError):
    code = "storage_error"


class StorageFull(StorageError):
    code = "storage_full"


class BlobMissing(StorageError):
    code = "blob_missing"


class BlobDamaged(StorageError):
    code = "blob_damaged"


class Blob(NamedTuple):
    sha256: str
    size: int


class BlobWriter(Protocol):
    """A blob in the making, for one thread at a time."""

    @property
    def size(self) -> int:
        """Bytes written so far."""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Raises StorageFull if there is no room; then the writer is of no more use."""
        ...

    def read(self, first: int, count: int) -> bytes:
        """At most so many of the bytes written so far, from this one on."""
        ...

    def sha256(self) -> str:
        """Of what was written so far."""
        ...

    def commit(self) -> Blob:
        """Give the blob its name; when this returns, it survives a power cut. The last call."""
        ...


class BlobStore(Protocol):
    """Where blobs live. All of it may be called from many threads and processes at once."""

    def create(self) -> AbstractContextManager[BlobWriter]:
        """A new blob, of which nothing is left behind unless it is committed."""
        ...

    def adopt(self, path: Path, sha256: str) -> Blob:
        """Take over a finished local file, whose hash the caller knows; `path` is gone after."""
        ...

    def fetch(self, sha256: str) -> Path:
        """A local file with these bytes, only to be read. Raises BlobMissing."""
        ...

    def has(self, sha256: str) -> bool: ...

    def discard(self, sha256: str, is_referenced: Callable[[str], bool]) -> bool:
        """Delete one blob now unless something refers to it; whether it did. Not under a guard."""
        ...

    def guard(self) -> AbstractContextManager[None]:
        """While held, no blob is deleted: `collect` and `discard` wait. For the time from storing
        a blob to the commit of what first refers to it."""
        ...

    def collect(self, is_referenced: Callable[[str], bool], min_age: float) -> list[str]:
        """Delete blobs nobody stored for `min_age` seconds and nothing refers to; return them.

        What writers that died left behind goes too, whatever its age.
        """
        ...

    def check(self) -> None:
        """Raises StorageError unless blobs can be written."""
        ...

    def names(self) -> Iterator[str]:
        """The sha256 of every blob that is stored, in no order."""
        ...

    def verify(self, sha256: str) -> None:
        """Read where it is stored, past all copies. Raises BlobMissing, BlobDamaged."""
        ...

    def drop_copy(self, sha256: str) -> bool:
        """Throw away what `fetch` would give if that is a copy; False if it is the blob itself."""
        ...

    def sign(
        self, sha256: str, seconds: float, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        """A URL at which anyone can read it for so long; None if this store cannot be asked."""
        ...


def missing(sha256: str) -> BlobMissing:
    return BlobMissing(
        f"there is no blob {sha256[:64]!r}", hint="it was deleted, or never completely stored"
    )


def refuse_damaged(sha256: str, found: str) -> NoReturn:
    raise BlobDamaged(
        f"the blob {sha256} is damaged: its bytes have the sha256 {found}",
        hint="an administrator can find all such blobs with `grasp admin scrub`, and restore them "
        "from a backup",
    )


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """OSErrors as StorageErrors, without the paths: clients may read them."""
    try:
        yield
    except OSError as error:
        message = f"cannot {doing}: {error.strerror or error}"
        if error.errno in FULL:
            raise StorageFull(
                message, hint="make room where the service keeps its blobs, or raise its quota"
            ) from error
        raise StorageError(
            message, hint="the folder of the blobs must exist, and the service may write to it"
        ) from error
