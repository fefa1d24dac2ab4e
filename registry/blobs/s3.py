"""Blobs on S3 and stores like it; docs/adr/0009 says why it is done this way.

A blob is an object `<prefix>/<first two hex digits>/<sha256>/<generation>`. Whoever stores bytes
writes a new generation of them, even where there is one, and no object is ever overwritten. So no
lock across machines is needed: who deletes a generation cannot hit one that was written since.

What is promised:

- An object appears whole, and with the bytes its key names, or not at all.
- No generation is deleted that is younger than SAFE_AGE_S, by the store's own clock. So what is
  committed to the database in that time after its blob was begun to be uploaded is never lost.
- Of a blob that is referred to, the newest generation that is older than SAFE_AGE_S stays.

Parts of uploads that a killed process left can only be deleted by the bucket's own lifecycle rule
(AbortIncompleteMultipartUpload): the client library cannot list them.
"""

import hashlib
import os
import re
import stat
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import uuid4

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from registry.blobs.base import (
    SHA256,
    Blob,
    BlobDamaged,
    BlobMissing,
    StorageError,
    missing,
    refuse_damaged,
    storage_errors,
)
from registry.blobs.cache import BlobCache
from registry.blobs.local import LocalBlobWriter
from registry.process.logs import get_log

KEY = re.compile(r"(?P<start>[0-9a-f]{2})/(?P<sha256>(?P=start)[0-9a-f]{62})/[0-9a-f]{32}")
# S3 counts an object's age from the beginning of its upload: 20 GiB at 20 Mbit/s take 2.4 hours.
SAFE_AGE_S = 4 * 3600.0
PROBES = "tmp"  # a few empty objects, each there for a moment
PROBE_AGE_S = 86_400.0  # then whoever wrote it has died
COLLECT_S = 600.0  # every list of all objects costs money, and nothing young is deleted anyway
PART_BYTES = 8 * 2**20
MAX_PARTS = 10_000  # S3's limit
AT_ONCE = 4  # parts under way, up or down: 32 MiB in memory
READ_BYTES = 2**20

log = get_log(__name__)


class Generation(NamedTuple):
    """One of the equal objects that hold a blob; later ones compare as greater."""

    stored_at: datetime
    key: str
    size: int


class ObjectBlobWriter:
    """A local file until it is committed: its name is known only then, and S3 cannot rename."""

    def __init__(self, store: "ObjectBlobStore", staged: LocalBlobWriter) -> None:
        self._store = store
        self._staged = staged

    @property
    def size(self) -> int:
        return self._staged.size

    def write(self, data: bytes | memoryview) -> None:
        self._staged.write(data)

    def read(self, first: int, count: int) -> bytes:
        return self._staged.read(first, count)

    def sha256(self) -> str:
        return self._staged.sha256()

    def commit(self) -> Blob:
        return self._store._upload_staged(self._staged.commit())


class ObjectBlobStore:
    """Blobs in a bucket, and copies of those in use on this machine's disk."""

    def __init__(
        self, bucket: S3Store, cache: BlobCache, *, collect_every: float = COLLECT_S
    ) -> None:
        self._bucket = bucket
        self._cache = cache
        self._collect_every = collect_every
        self._collected_at: float | None = None

    @contextmanager
    def create(self) -> Iterator[ObjectBlobWriter]:
        with self._cache.create() as staged:
            yield ObjectBlobWriter(self, staged)

    def adopt(self, path: Path, sha256: str) -> Blob:
        """The hash is checked on the way. The file becomes this machine's copy."""
        if not SHA256.fullmatch(sha256):
            raise missing(sha256)
        with storage_errors(f"take over {path.name}"):
            status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"cannot take over {path.name}: it is not a regular file")
        self._upload(path, sha256)
        try:
            self._cache.adopt(path, sha256)
        except StorageError as error:  # it is stored, and that is what was asked for
            log.warning("a blob could not be kept as a copy", error=str(error))
            with suppress(OSError):
                path.unlink()
        return Blob(sha256, status.st_size)

    def fetch(self, sha256: str) -> Path:
        """Downloaded, unless this machine has a copy. Raises BlobMissing, BlobDamaged."""
        path = self._cache.get(sha256)
        return path if path is not None else self._download(sha256)

    def has(self, sha256: str) -> bool:
        return bool(self._generations(sha256))

    def discard(self, sha256: str, is_referenced: Callable[[str], bool]) -> bool:
        """As far as it is old enough; what is not is collected later."""
        generations = self._generations(sha256)
        if not generations:
            return False
        limit = self._now() - timedelta(seconds=SAFE_AGE_S)
        return self._collected(sha256, generations, is_referenced, limit)

    def guard(self) -> AbstractContextManager[None]:
        """Nothing to hold: what was stored lately is not deleted."""
        return nullcontext()

    def collect(self, is_referenced: Callable[[str], bool], min_age: float) -> list[str]:
        """At most every COLLECT_S. Of a blob that is referred to, old duplicates go."""
        begun = time.monotonic()
        if self._collected_at is not None and begun - self._collected_at < self._collect_every:
            return []
        self._cache.clean()
        self._cache.collect(is_referenced, min_age)
        now = self._now()
        self._delete_probes(now - timedelta(seconds=PROBE_AGE_S))
        limit = now - timedelta(seconds=max(min_age, SAFE_AGE_S))
        deleted = [
            sha256
            for sha256, generations in self._all_generations().items()
            if self._collected(sha256, generations, is_referenced, limit)
        ]
        self._collected_at = begun
        return deleted

    def check(self) -> None:
        self._now()

    def names(self) -> Iterator[str]:
        yield from self._all_generations()

    def verify(self, sha256: str) -> None:
        """The newest generation, which is the one that stays."""
        generations = self._generations(sha256)
        if not generations:
            raise missing(sha256)
        digest = hashlib.sha256()
        for piece in self._read(generations[0]):
            digest.update(piece)
        if digest.hexdigest() != sha256:
            refuse_damaged(sha256, digest.hexdigest())

    def drop_copy(self, sha256: str) -> bool:
        self._cache.drop(sha256)
        return True

    def sign(
        self, sha256: str, seconds: float, method: Literal["GET", "HEAD"] = "GET"
    ) -> str | None:
        """Valid for less than SAFE_AGE_S, so that what it names stays. Raises BlobMissing."""
        generations = self._generations(sha256)
        if not generations:
            raise missing(sha256)
        lifetime = timedelta(seconds=min(seconds, SAFE_AGE_S))
        with _object_errors("sign a URL"):
            return obstore.sign(self._bucket, method, generations[0].key, lifetime)

    def _upload_staged(self, blob: Blob) -> Blob:
        path = self._cache.get(blob.sha256)
        if path is None:
            raise missing(blob.sha256)
        self._upload(path, blob.sha256)
        self._cache.shrink()
        return blob

    def _upload(self, path: Path, sha256: str) -> None:
        """As a new generation; nothing if the file has another hash."""
        key = f"{sha256[:2]}/{sha256}/{uuid4().hex}"
        with _object_errors("store a blob"), _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            part = max(PART_BYTES, -(-size // MAX_PARTS))
            pieces = _checked(file, sha256)
            if size <= part:
                obstore.put(self._bucket, key, b"".join(pieces), use_multipart=False)
            else:  # an error raised by `pieces` aborts it
                obstore.put(self._bucket, key, pieces, chunk_size=part, max_concurrency=AT_ONCE)

    def _download(self, sha256: str) -> Path:
        problem: StorageError = missing(sha256)
        for generation in self._generations(sha256):
            try:
                return self._cache.fill(sha256, generation.size, partial(self._read, generation))
            except (BlobMissing, BlobDamaged) as error:
                log.warning("a blob cannot be read", key=generation.key, error=str(error))
                problem = error
        raise problem

    def _read(self, generation: Generation) -> Iterator[bytes]:
        """Its bytes in order, the next few requested ahead. Raises BlobMissing."""

        def request(start: int) -> bytes:
            end = min(start + PART_BYTES, generation.size)
            with _object_errors("read a blob"):
                try:
                    piece = obstore.get_range(self._bucket, generation.key, start=start, end=end)
                except FileNotFoundError as error:
                    raise missing(generation.key.split("/")[1]) from error
            return piece.to_bytes()

        waiting: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="blob") as pool:
            for start in range(0, generation.size, PART_BYTES):
                waiting.append(pool.submit(request, start))
                if len(waiting) == AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _generations(self, sha256: str) -> list[Generation]:
        """Newest first."""
        if not SHA256.fullmatch(sha256):
            return []
        found = self._list(f"{sha256[:2]}/{sha256}")
        return sorted((g for g in found if KEY.fullmatch(g.key)), reverse=True)

    def _all_generations(self) -> dict[str, list[Generation]]:
        found: defaultdict[str, list[Generation]] = defaultdict(list)
        for generation in self._list(None):
            if match := KEY.fullmatch(generation.key):
                found[match["sha256"]].append(generation)
        return found

    def _list(self, prefix: str | None) -> Iterator[Generation]:
        with _object_errors("list the blobs"):
            for chunk in obstore.list(self._bucket, prefix, chunk_size=1000):
                for meta in chunk:
                    yield Generation(meta["last_modified"], meta["path"], meta["size"])

    def _collected(
        self,
        sha256: str,
        generations: list[Generation],
        is_referenced: Callable[[str], bool],
        limit: datetime,
    ) -> bool:
        """Delete those stored before `limit` that nobody needs; whether nothing is left."""
        old = sorted(g for g in generations if g.stored_at <= limit)
        doomed = old[:-1] if old and is_referenced(sha256) else old
        self._delete([g.key for g in doomed])
        return len(doomed) == len(generations) and not self.has(sha256)

    def _now(self) -> datetime:
        """By the store's clock. Raises StorageError unless it can be written, read and deleted."""
        key = f"{PROBES}/{uuid4().hex}"
        with _object_errors("write to the object store"):
            obstore.put(self._bucket, key, b"", use_multipart=False)
            now = obstore.head(self._bucket, key)["last_modified"]
        self._delete([key])
        return now

    def _delete_probes(self, limit: datetime) -> None:
        self._delete([probe.key for probe in self._list(PROBES) if probe.stored_at <= limit])

    def _delete(self, keys: list[str]) -> None:
        if keys:
            with _object_errors("delete blobs"):
                obstore.delete(self._bucket, keys)


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    with storage_errors(f"read {path.name}"):
        file = path.open("rb")
    with file:
        yield file


def _checked(file: BufferedReader, sha256: str) -> Iterator[bytes]:
    """All of a file. Raises StorageError after the last byte if they have another hash."""
    digest = hashlib.sha256()
    while chunk := file.read(READ_BYTES):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise StorageError(
            f"{Path(file.name).name} has the sha256 {digest.hexdigest()} instead of {sha256}",
            hint="it was changed or damaged on the way: send it again",
        )


@contextmanager
def _object_errors(doing: str) -> Iterator[None]:
    """The client's errors as StorageErrors, without addresses: those go to the log."""
    try:
        yield
    except (BaseError, OSError) as error:
        log.warning("the object store failed", doing=doing, error=str(error)[:1000])
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            message = f"cannot {doing}: the object store refuses it"
            hint = "the credentials must allow to list, get, put and delete objects of the bucket"
        else:
            message = f"cannot {doing}: the object store does not do it"
            hint = "the bucket must exist, and GRASP_BLOB_ENDPOINT be reached; the log says more"
        raise StorageError(message, hint=hint) from error
