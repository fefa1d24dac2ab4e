"""Files that never change, sent over HTTP: validators, one byte range, bounded memory.

`send_file` looks at the request (RFC 9110: If-Match, If-None-Match, Range, and their dates) and
gives the response, or raises what the application turns into problem+json:

GraspError
├── PreconditionFailed     412: the client wants another file than this one
└── RangeNotSatisfiable    416: the file has no such bytes; `size` is for Content-Range

Chunks are large, because every read is a trip to another thread and back, and the next one is read
while the last one is sent; bench/download_speed.py measures what that gains over Starlette's
FileResponse. A client that takes its time holds three chunks and no thread.
"""

from __future__ import annotations

import asyncio
import os
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from grasp_core.errors import GraspError

CHUNK_BYTES = 2**20  # from here on, larger is hardly faster
# Threads of their own, so that a slow disk takes none from the endpoints; a read is short.
_READERS = ThreadPoolExecutor(8, thread_name_prefix="download")

_ENTITY_TAG = re.compile(r'(W/)?"([^"]*)"')
# Twenty digits hold any file's size; int() refuses numbers that go on for thousands.
_RANGE = re.compile(r"([0-9]{0,20})-([0-9]{0,20})")


class PreconditionFailed(GraspError):
    code = "precondition_failed"


class RangeNotSatisfiable(GraspError):
    code = "range_not_satisfiable"

    def __init__(self, message: str, *, hint: str, size: int) -> None:
        super().__init__(message, hint=hint)
        self.size = size


def send_file(
    request: Request,
    path: Path,
    *,
    sha256: str,
    filename: str,
    media_type: str = "application/octet-stream",
    modified: datetime | None = None,
    accel_redirect: str | None = None,
) -> Response:
    """The answer to a GET or HEAD for the file at `path`, whose content never changes.

    With `accel_redirect`, the URI of an internal location, nginx is asked to send the bytes, and to
    cut out the range. Raises PreconditionFailed, RangeNotSatisfiable, or FileNotFoundError.
    """
    size = path.stat().st_size
    modified = _utc(modified).replace(microsecond=0) if modified else None  # HTTP knows no less
    headers = {
        "ETag": f'"{sha256}"',
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    if modified is not None:
        headers["Last-Modified"] = format_datetime(modified, usegmt=True)
    _check_preconditions(request, sha256, modified)
    if _client_has_it(request, sha256, modified):
        return Response(status_code=304, headers=headers)
    headers |= {
        "Accept-Ranges": "bytes",
        "Content-Disposition": content_disposition(filename),
        "Content-Type": media_type,
        "Repr-Digest": f"sha-256=:{b64encode(bytes.fromhex(sha256)).decode()}:",
    }
    if accel_redirect is not None:
        return _left_to_nginx(accel_redirect, headers)
    wanted = _requested_range(request, size, headers)
    if wanted is None:
        return _FileSlice(path, range(size), headers)
    headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
    return _FileSlice(path, wanted, headers, status_code=206)


def send_elsewhere(
    request: Request, url: str, *, sha256: str, modified: datetime | None = None
) -> Response:
    """The answer to a GET or HEAD for a file that another server sends, whose `url` expires.

    If-None-Match is answered here: the other server knows the file by another ETag.
    """
    modified = _utc(modified).replace(microsecond=0) if modified else None
    headers = {"ETag": f'"{sha256}"', "Cache-Control": "private, no-cache"}
    if _client_has_it(request, sha256, modified):
        return Response(status_code=304, headers=headers)
    return Response(status_code=307, headers={**headers, "Location": url})


def content_disposition(filename: str) -> str:
    """`attachment` with this name (RFC 6266): all of it in UTF-8 where ASCII cannot hold it."""
    plain = re.sub(r'[^ -~]|["\\]', "_", filename)
    value = f'attachment; filename="{plain}"'
    if plain != filename:
        value += f"; filename*=UTF-8''{quote(filename, safe='', errors='replace')}"
    return value


def _left_to_nginx(uri: str, headers: Mapping[str, str]) -> Response:
    response = Response(headers={**headers, "X-Accel-Redirect": uri})
    del response.headers["Content-Length"]
    return response


def _check_preconditions(request: Request, sha256: str, modified: datetime | None) -> None:
    """If-Match, and only without it If-Unmodified-Since (RFC 9110, 13.2.2)."""
    tags = _field(request, "If-Match")
    if tags is not None:
        holds = tags.strip() == "*" or sha256 in _strong_tags(tags)
    else:
        date = _date(_field(request, "If-Unmodified-Since"))
        holds = date is None or modified is None or modified <= date
    if not holds:
        raise PreconditionFailed(
            f'the file is not the one asked for: its ETag is "{sha256}"',
            hint="ask without If-Match or If-Unmodified-Since, or with this ETag",
        )


def _client_has_it(request: Request, sha256: str, modified: datetime | None) -> bool:
    """If-None-Match, which compares weakly, and only without it If-Modified-Since."""
    tags = _field(request, "If-None-Match")
    if tags is not None:
        return tags.strip() == "*" or sha256 in (tag for _, tag in _ENTITY_TAG.findall(tags))
    date = _date(_field(request, "If-Modified-Since"))
    return date is not None and modified is not None and modified <= date


def _requested_range(request: Request, size: int, headers: Mapping[str, str]) -> range | None:
    """The bytes to send; None for all of them. Ranges are defined for GET only (RFC 9110, 14.2)."""
    asked = _field(request, "Range")
    if asked is None or request.method != "GET" or not _if_range_holds(request, headers):
        return None
    unit, _, ranges = asked.partition("=")
    parts = [part.strip() for part in ranges.split(",") if part.strip()]
    if unit.strip().lower() != "bytes" or len(parts) != 1:
        return None
    return _byte_range(parts[0], size)


def _byte_range(text: str, size: int) -> range | None:
    """`a-b`, `a-` or `-n` of `size` bytes; None if it is malformed, and so to be ignored."""
    match = _RANGE.fullmatch(text)
    if match is None or text == "-":
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(size - int(last), 0), size
        satisfiable = int(last) > 0
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
        satisfiable = start < size
    if not satisfiable:
        raise RangeNotSatisfiable(
            f"bytes {text} lie outside of the file, which has {size} bytes",
            hint=f"ask for bytes from 0 to {size - 1}" if size else "the file is empty",
            size=size,
        )
    return range(start, stop) if size else None  # the last n bytes of nothing: no range says that


def _if_range_holds(request: Request, headers: Mapping[str, str]) -> bool:
    """True too without If-Range. Both validators must match exactly (RFC 9110, 13.1.5)."""
    value = _field(request, "If-Range")
    return value is None or value.strip() in (headers["ETag"], headers.get("Last-Modified"))


def _strong_tags(tags: str) -> list[str]:
    return [tag for weak, tag in _ENTITY_TAG.findall(tags) if not weak]


def _field(request: Request, name: str) -> str | None:
    """A header that may come in several lines, as one list."""
    lines = request.headers.getlist(name)
    return ", ".join(lines) if lines else None


def _date(text: str | None) -> datetime | None:
    """None also for what is not a date: such a header is to be ignored."""
    try:
        return _utc(parsedate_to_datetime(text)) if text else None
    except (ValueError, OverflowError):
        return None


def _utc(moment: datetime) -> datetime:
    """Without a time zone it is UTC already, as in HTTP and in SQLite."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


class _FileSlice(Response):
    """Some bytes of a file, which is opened to send them and closed whatever becomes of that."""

    def __init__(
        self, path: Path, wanted: range, headers: Mapping[str, str], status_code: int = 200
    ) -> None:
        super().__init__(
            status_code=status_code, headers={**headers, "Content-Length": str(len(wanted))}
        )
        self._path = path
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        if self._wanted and scope["method"] != "HEAD":
            await self._send_body(receive, send)
        else:
            await send({"type": "http.response.body"})
        if self.background is not None:
            await self.background()

    async def _send_body(self, receive: Receive, send: Send) -> None:
        """Until the end, or until the client has gone: servers may swallow what is sent then."""
        left = len(self._wanted)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            async with aclosing(_chunks(self._path, self._wanted)) as chunks:
                async for chunk in chunks:
                    if gone.done():
                        return
                    left -= len(chunk)
                    message = {"type": "http.response.body", "body": chunk, "more_body": left > 0}
                    await send(message)
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(path: Path, wanted: range) -> AsyncGenerator[bytes, None]:
    """These bytes of a file, read in a worker thread, one chunk ahead."""
    file = os.open(path, os.O_RDONLY)

    def read(position: int) -> Future[bytes]:
        return _READERS.submit(os.pread, file, min(CHUNK_BYTES, wanted.stop - position), position)

    position = wanted.start
    ahead = read(position)
    try:
        while position < wanted.stop:
            chunk = await asyncio.wrap_future(ahead)
            if not chunk:
                raise EOFError(f"{path} ends at byte {position} of {wanted.stop}")
            position += len(chunk)
            if position < wanted.stop:
                ahead = read(position)
            yield chunk
    finally:
        # Not before: a read still under way could meet another file under the same number.
        ahead.add_done_callback(lambda _: os.close(file))
