"""Bytes of sources and targets given by URI, from where the operator has listed it.

file:// lies below data roots; https:// of listed hosts and s3:// of listed buckets have modules of
their own.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.fetching.base import (
    CONTROL,
    Fetched,
    FetchError,
    FetchPolicy,
    UriNotAllowed,
    UriUnreachable,
)
from app.fetching.https import open_https

__all__ = [
    "FetchError",
    "FetchPolicy",
    "Fetched",
    "UriNotAllowed",
    "UriUnreachable",
    "is_local",
    "local_path",
    "open_uri",
]

CHUNK_BYTES = 2**20  # each read is a trip to another thread
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
# Where the system knows O_PATH, a folder that may be passed through need not be readable.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_DIRECTORY


def open_uri(uri: str, policy: FetchPolicy) -> AbstractAsyncContextManager[Fetched]:
    """The bytes behind `uri`. Raises FetchError: here, when it is entered, or as they are read."""
    scheme = _scheme(uri)
    if is_local(uri):
        return _open_file(uri, policy)
    if scheme == "https":
        return open_https(uri, policy)
    if scheme == "s3":
        # Here, because most services fetch nothing from S3 and need no client of it.
        from app.fetching.s3 import open_s3

        return open_s3(uri, policy)
    raise UriNotAllowed(
        f"{scheme!r} is not a known scheme",
        hint="use file:// below a data root, https://, s3://, or upload the file",
    )


def is_local(uri: str) -> bool:
    return _scheme(uri) == "file"


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].lower()


@asynccontextmanager
async def _open_file(uri: str, policy: FetchPolicy) -> AsyncIterator[Fetched]:
    path = await asyncio.to_thread(local_path, uri, policy)
    file = _open_regular(path)  # here and not in a thread, where cancelling would leak it
    try:
        yield Fetched(path.as_uri(), os.fstat(file).st_size, path.name, _file_chunks(file))
    finally:
        os.close(file)


def local_path(uri: str, policy: FetchPolicy) -> Path:
    """The file or folder of a file:// URI, without symbolic links, below a data root.

    Raises UriNotAllowed, which is the same whether or not there is something outside of the roots,
    and UriUnreachable if there is nothing at that place inside of them.
    """
    try:
        path = _path_of(uri).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: symbolic links in a circle
        raise _not_below_roots(uri, policy) from error
    if not any(path.is_relative_to(root.resolve()) for root in policy.data_roots):
        raise _not_below_roots(uri, policy)
    # os.path, because pathlib raises for names that are too long.
    if not (os.path.isfile(path) or os.path.isdir(path)):  # noqa: PTH112, PTH113
        raise UriUnreachable(
            f"there is no file or folder at {str(path)!r}",
            hint="the path is the server's, not the client's",
        )
    return path


def _path_of(uri: str) -> Path:
    """As it is written: `..` and symbolic links are still in it."""
    hint = "write file:///absolute/path, special characters percent-encoded as UTF-8"
    if CONTROL.search(uri):
        raise UriNotAllowed(f"{uri!r} has spaces or control characters in it", hint=hint)
    try:
        parts = urlsplit(uri)
        path = unquote(parts.path, errors="strict")
    except ValueError as error:  # also UnicodeDecodeError
        raise UriNotAllowed(f"{uri!r} is not a URI", hint=hint) from error
    if parts.scheme != "file" or parts.query or parts.fragment or "\0" in path:
        raise UriNotAllowed(f"{uri!r} is not the URI of a file", hint=hint)
    if parts.netloc not in ("", "localhost"):
        raise UriNotAllowed(
            f"{uri!r} is a file of another machine, {parts.netloc!r}", hint="write file:///path"
        )
    if not path.startswith("/"):
        raise UriNotAllowed(f"{uri!r} is not an absolute path", hint=hint)
    return Path(path)


def _not_below_roots(uri: str, policy: FetchPolicy) -> UriNotAllowed:
    if not policy.data_roots:
        return UriNotAllowed(
            f"{uri!r}: this server has no data roots, so it reads no local files",
            hint="set GRASP_DATA_ROOTS to the folders that it may read, or upload the file",
        )
    return UriNotAllowed(
        f"{uri!r} is not below a data root of this server",
        hint="the operator can add its folder to GRASP_DATA_ROOTS; or upload the file",
    )


def _open_regular(path: Path) -> int:
    """No link and no pipe, even one that was put there since `local_path` looked."""
    try:
        file = _open_without_links(path)
    except OSError as error:
        raise UriUnreachable(
            f"{str(path)!r} cannot be opened: {error.strerror}",
            hint="the server's user must be able to read it",
        ) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UriUnreachable(
            f"{str(path)!r} is not a file", hint="pack a folder into an archive, or name a file"
        )
    return file


def _open_without_links(path: Path) -> int:
    """Step by step from the root, so that no folder on the way can be changed for a link either."""
    anchor, *folders, name = path.parts
    place = os.open(anchor, _FOLDER)
    for part, flags in [*((folder, _FOLDER) for folder in folders), (name, _FILE)]:
        try:
            inner = os.open(part, flags, dir_fd=place)
        finally:
            os.close(place)
        place = inner
    return place


async def _file_chunks(file: int) -> AsyncIterator[bytes]:
    position = 0
    while chunk := await asyncio.to_thread(os.pread, file, CHUNK_BYTES, position):
        position += len(chunk)
        yield chunk
