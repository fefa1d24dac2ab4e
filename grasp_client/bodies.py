"""A file, or a part of one, as the body of a request: read in pieces, again for every try."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio.to_thread
import httpx

PIECE_BYTES = 2**18  # small enough for a progress bar to move on a slow line
Progress = Callable[[int, int], object]  # bytes done so far, bytes in all


class FileBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The bytes from `start` to `stop` of a file; `progress` hears of each piece that was sent."""

    def __init__(self, path: Path, start: int, stop: int, progress: Progress | None = None) -> None:
        self.path = path
        self.start = start
        self.stop = stop
        self.total = path.stat().st_size
        self._progress = progress

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            while piece := file.read(min(PIECE_BYTES, self.stop - file.tell())):
                yield piece
                self._tell(file.tell())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self)
        while piece := await anyio.to_thread.run_sync(next, pieces, b""):
            yield piece

    def _tell(self, position: int) -> None:
        if self._progress is not None:
            self._progress(position, self.total)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
