"""Weights on their way to a file: gone on with after a cut, verified, and there whole or not."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

import httpx

from grasp_client.bodies import Progress
from grasp_client.errors import Damaged, GraspError
from grasp_client.exchange import Tries, open_response, read_piece
from grasp_client.plans import Call, Do, Plan

if TYPE_CHECKING:
    from grasp_client.client import AsyncGrasp, Grasp

SHA256_TAG = re.compile(r'"([0-9a-f]{64})"')


def download(
    client: Grasp | AsyncGrasp, place: str, path: Path, progress: Progress | None
) -> Plan[Path]:
    """What is at `place`, in a file that appears at `path` when all of it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part")
    try:
        with part.open("xb") as file:
            yield from Download(client, place, file, progress).finish()
            yield Do(lambda: os.fsync(file.fileno()))
        part.replace(path)
    except OSError as error:
        error.filename = str(path)  # and not the part, which nobody has named
        raise
    finally:
        part.unlink(missing_ok=True)
    return path


class Download:
    """The bytes of a version that have arrived so far."""

    def __init__(
        self,
        client: Grasp | AsyncGrasp,
        place: str,
        file: IO[bytes],
        progress: Progress | None,
    ) -> None:
        self._client = client
        self._place = place
        self._file = file
        self._progress = progress
        self._expected: str | None = None  # sha256, once the server has said it
        self._start_over()

    def finish(self) -> Plan[None]:
        """Get the rest, in as many requests as it takes. Raises Unreachable, Refused, Damaged."""
        tries = Tries(self._client)
        while True:
            try:
                yield from self._get_rest(tries)
                break
            except GraspError as error:
                yield from tries.pause(error)
        if self._digest.hexdigest() != self._expected:
            raise Damaged(
                f"the bytes that arrived have sha256 {self._digest.hexdigest()}, not"
                f" {self._expected}",
                hint="they were changed on their way: try again",
            )

    def _get_rest(self, tries: Tries) -> Plan[None]:
        # Not compressed, since ranges count in bytes of the file.
        headers = {"Accept-Encoding": "identity"}
        if self._arrived:
            headers["Range"] = f"bytes={self._arrived}-"
        response = yield from open_response(self._client, Call("GET", self._place, headers=headers))
        sha256 = _sha256_of(response)
        if self._arrived and (sha256 != self._expected or not self._continues(response)):
            self._start_over()
            if response.status_code == httpx.codes.PARTIAL_CONTENT:
                return (yield from self._get_rest(tries))
        self._expected = sha256
        total = self._arrived + int(response.headers["content-length"])
        while piece := (yield from read_piece(self._client)):
            self._take(piece, total)
            tries.progress()
        return None

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


def _sha256_of(response: httpx.Response) -> str:
    """From the ETag of our server's own answer: it may have sent us on to another one."""
    answer = [*response.history, response][0]
    found = SHA256_TAG.search(answer.headers.get("etag", ""))
    if found is None:
        raise Damaged(f"the answer of {answer.url} has no ETag with its sha256")
    return found[1]
