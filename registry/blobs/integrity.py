"""Files against the hash they are named by, before anyone relies on them.

A file is read through once, and then known by its path, size, time of change and inode: whatever
is written to it changes one of them. What a failing disk does to a file without writing to it is
found by `grasp admin scrub`, or after the next start.
"""

import hashlib
import time
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

from registry.blobs.base import BlobDamaged, BlobStore, refuse_damaged, storage_errors

REMEMBERED = 10_000  # files, in about 3 MB
# A file changed so lately could change again within the same tick of its filesystem's clock.
SETTLED_NS = 2_000_000_000


class Identity(NamedTuple):
    path: str
    size: int
    changed_ns: int
    inode: int


class Verifier:
    """Remembers which files are as they should be. For many threads at once."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._sound: OrderedDict[Identity, None] = OrderedDict()
        self._turns: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._lock = Lock()

    def fetch(self, store: BlobStore, sha256: str) -> Path:
        """A local file with these bytes, and no others: a damaged copy is fetched again.

        Raises BlobMissing, BlobDamaged, StorageError.
        """
        path = store.fetch(sha256)
        try:
            self.check(path, sha256)
        except BlobDamaged:
            if not store.drop_copy(sha256):
                raise
            path = store.fetch(sha256)
            self.check(path, sha256)
        return path

    def check(self, path: Path, sha256: str) -> None:
        """Raises BlobDamaged unless the file has this hash, StorageError if it cannot be read."""
        with storage_errors("read a blob"):
            if self._knows(_identity(path)):
                return
            with self._turn(sha256):  # of many who ask at once, one reads
                identity = _identity(path)
                if not self._knows(identity):
                    self._read(path, sha256, identity)

    def _read(self, path: Path, sha256: str, identity: Identity) -> None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            refuse_damaged(sha256, found)
        settled = time.time_ns() - identity.changed_ns > SETTLED_NS
        if settled and _identity(path) == identity:
            with self._lock:
                self._sound[identity] = None
                if len(self._sound) > self._remembered:
                    self._sound.popitem(last=False)

    def _knows(self, identity: Identity) -> bool:
        with self._lock:
            known = identity in self._sound
            if known:
                self._sound.move_to_end(identity)
            return known

    def _turn(self, sha256: str) -> Lock:
        with self._lock:
            return self._turns.setdefault(sha256, Lock())


def _identity(path: Path) -> Identity:
    status = path.stat()
    return Identity(str(path), status.st_size, status.st_mtime_ns, status.st_ino)
