"""Objects of listed buckets, read part by part, so that a break costs one part at most.

Every part is asked for with the ETag of the first look (If-Match), so parts of two objects are
never mixed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import obstore
from obstore.exceptions import (
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from app.fetching.base import (
    CONTROL,
    Clock,
    Fetched,
    FetchPolicy,
    Interrupted,
    UriNotAllowed,
    UriUnreachable,
    clean_filename,
    resumed,
)
from registry.blobs.base import StorageError
from registry.blobs.buckets import open_bucket
from registry.process.logs import get_log

PART_BYTES = 4 * 2**20  # in memory; within a step's 30 seconds at 1.2 Mbit/s

log = get_log(__name__)
Result = TypeVar("Result")


@asynccontextmanager
async def open_s3(uri: str, policy: FetchPolicy) -> AsyncIterator[Fetched]:
    bucket, key = _checked_parts(uri, policy)
    clock = Clock(policy)
    opening = asyncio.to_thread(open_bucket, bucket, "", policy.s3_endpoint)
    store = await _done(opening, uri, policy.timeout)
    found = await clock.wait(_look(store, uri, key, policy.timeout))
    yield Fetched(
        f"s3://{bucket}/{key}", found.size, clean_filename(key), resumed(found.read, clock)
    )


def _checked_parts(uri: str, policy: FetchPolicy) -> tuple[str, str]:
    """Bucket and key, the key as it is: `%20` is no space. Raises UriNotAllowed."""
    bucket, _, key = uri[len("s3:") :].removeprefix("//").partition("/")
    if not uri[len("s3:") :].startswith("//") or not bucket or CONTROL.search(bucket):
        raise UriNotAllowed(f"{uri!r} names no bucket", hint="write s3://bucket/key")
    if bucket not in policy.allowed_buckets:
        raise UriNotAllowed(
            f"{bucket!r} is not one of the buckets that this server fetches from",
            hint="the operator can add it to GRASP_ALLOWED_BUCKETS; or upload the file",
        )
    if {"", ".", ".."} & set(key.split("/")) or CONTROL.search(key.replace(" ", "")):
        raise UriNotAllowed(
            f"{uri!r} names no object that this server can fetch",
            hint="write s3://bucket/key, without empty parts, dots as parts, control characters",
        )
    return bucket, key


@dataclass(frozen=True)
class _Object:
    """One state of an object."""

    store: S3Store
    uri: str
    key: str
    size: int
    etag: str
    timeout: float

    async def read(self, position: int) -> AsyncIterator[bytes]:
        """The bytes from there on, in parts. Raises Interrupted, UriUnreachable."""
        while position < self.size:
            end = min(position + PART_BYTES, self.size)
            part = await _done(self._part(position, end), self.uri, self.timeout)
            if len(part) != end - position:
                raise Interrupted(f"{self.uri} gives {len(part)} bytes from {position} to {end}")
            position = end
            yield part

    async def _part(self, start: int, end: int) -> bytes:
        answer = await obstore.get_async(
            self.store, self.key, options={"range": (start, end), "if_match": self.etag}
        )
        return (await answer.bytes_async()).to_bytes()


async def _look(store: S3Store, uri: str, key: str, timeout: float) -> _Object:
    meta = await _done(obstore.head_async(store, key), uri, timeout)
    if meta["e_tag"] is None:
        raise UriUnreachable(
            f"the store gives no ETag of {uri}", hint="without one, a change would not be noticed"
        )
    return _Object(store, uri, key, meta["size"], meta["e_tag"], timeout)


async def _done(step: Awaitable[Result], uri: str, timeout: float) -> Result:
    """The client's errors as FetchErrors, without addresses: those go to the log."""
    try:
        async with asyncio.timeout(timeout):
            return await step
    except (BaseError, StorageError, OSError, ValueError) as error:  # also TimeoutError
        log.warning("an object cannot be fetched", uri=uri, error=str(error)[:1000])
        raise _fetch_error(uri, error) from error


def _fetch_error(uri: str, error: Exception) -> UriUnreachable:
    if isinstance(error, FileNotFoundError):
        return UriUnreachable(f"there is no {uri}", hint="check the bucket and the key")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return UriUnreachable(
            f"the store does not let this server read {uri}",
            hint="its credentials must allow s3:GetObject; without s3:ListBucket, a key that is "
            "missing is refused in the same way",
        )
    if isinstance(error, PreconditionError):
        return UriUnreachable(f"{uri} has changed while it was fetched", hint="try again")
    return Interrupted(
        f"{uri} cannot be fetched: the store does not answer as it should",
        hint="GRASP_BLOB_ENDPOINT must be reached, and credentials be found; the log says more",
    )
