"""Weights on their way to a file: gone on with after a cut, verified, and there whole or not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

import httpx

from grasp_client import concurrency
from grasp_client.errors import Damaged, GraspError
from grasp_client.files import Progress
from grasp_client.protocol import Retries, sha256_tag

if TYPE_CHECKING:
    from grasp_client._async.client import AsyncGrasp


class AsyncDownload:
    """The bytes of a version that have arrived so far."""

    _file: IO[bytes]

    def __init__(self, client: AsyncGrasp, place: str, progress: Progress | None) -> None:
        self._client = client
        self._place = place
        self._progress = progress
        self._expected: str | None = None  # sha256, once the server has said it

    async def write(self, path: Path) -> Path:
        """What is at the place, in a file that appears at `path` when all of it is there.

        Raises Unreachable, Refused, Damaged.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part")
        try:
            with part.open("xb") as self._file:
                self._start_over()
                await self._get_all()
                await concurrency.async_run(os.fsync, self._file.fileno())
            part.replace(path)
        except OSError as error:
            error.filename = str(path)  # and not the part, which nobody has named
            raise
        finally:
            part.unlink(missing_ok=True)
        return path

    async def _get_all(self) -> None:
        """In as many requests as it takes."""
        retries = Retries(self._client)
        while True:
            try:
                if await self._get_rest(retries):
                    break
            except GraspError as error:
                await concurrency.async_sleep(retries.pause(error))
        if self._digest.hexdigest() != self._expected:
            raise Damaged(
                f"the bytes that arrived have sha256 {self._digest.hexdigest()}, not"
                f" {self._expected}",
                hint="they were changed on their way: try again",
            )

    async def _get_rest(self, retries: Retries) -> bool:
        """Whether that was all; if not, it is to be begun anew."""
        # Not compressed, since ranges count in bytes of the file.
        headers = {"Accept-Encoding": "identity"}
        if self._arrived:
            headers["Range"] = f"bytes={self._arrived}-"
        async with self._client.open("GET", self._place, headers=headers) as response:
            sha256 = sha256_tag(response)
            if self._arrived and (sha256 != self._expected or not self._continues(response)):
                self._start_over()
                if response.status_code == httpx.codes.PARTIAL_CONTENT:
                    return False
            self._expected = sha256
            total = self._arrived + int(response.headers["content-length"])
            async for piece in response.aiter_bytes():
                self._take(piece, total)
                retries.progress()
        return True

    def _continues(self, response: httpx.Response) -> bool:
        given: str = response.headers.get("content-range", "")
        return given.startswith(f"bytes {self._arrived}-")

    def _take(self, piece: bytes, total: int) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self._arrived += len(piece)
        if self._progress is not None:
            self._progress(self._arrived, total)

    def _start_over(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self._arrived = 0
