"""A file, or a part of one, as the body of a request: read in pieces, again for every try."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import anyio.to_thread
import httpx

PIECE_BYTES = 2**18  # small enough for a progress bar to move on a slow line
UNSAFE = re.compile(r'["\r\n]')  # in a quoted name; escaped as browsers do it
Progress = Callable[[int, int], object]  # bytes done so far, bytes in all


class FileBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The bytes from `start` to `stop` of a file; `progress` hears of each piece that was sent."""

    def __init__(
        self,
        path: Path,
        start: int,
        stop: int,
        progress: Progress | None = None,
        *,
        content_type: str,
        before: bytes = b"",
        after: bytes = b"",
    ) -> None:
        self.headers = {
            "Content-Type": content_type,
            "Content-Length": str(len(before) + stop - start + len(after)),
        }
        self._path = path
        self._start, self._stop = start, stop
        self._total = path.stat().st_size
        self._progress = progress
        self._before, self._after = before, after

    def __iter__(self) -> Iterator[bytes]:
        if self._before:
            yield self._before
        with self._path.open("rb") as file:
            file.seek(self._start)
            while piece := file.read(min(PIECE_BYTES, self._stop - file.tell())):
                yield piece
                if self._progress is not None:
                    self._progress(file.tell(), self._total)
        if self._after:
            yield self._after

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self)
        while piece := await anyio.to_thread.run_sync(next, pieces, b""):
            yield piece


def form(path: Path, fields: Mapping[str, str], progress: Progress | None) -> FileBody:
    """A whole file as multipart/form-data, after the fields: what they refuse is refused early."""
    boundary = uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    filename = UNSAFE.sub(lambda found: quote(found[0]), path.name)
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="file";'
        f' filename="{filename}"\r\n\r\n'
    )
    return FileBody(
        path,
        0,
        path.stat().st_size,
        progress,
        content_type=f"multipart/form-data; boundary={boundary}",
        before="".join(parts).encode(),
        after=f"\r\n--{boundary}--\r\n".encode(),
    )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
