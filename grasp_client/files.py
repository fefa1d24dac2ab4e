"""Files of this machine as bodies of requests, and what is said about them."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import anyio.to_thread
import httpx

from grasp_client.errors import GraspError

LARGE_BYTES = 64 * 2**20  # from here on a cut connection should not cost all of it
PART_BYTES = 32 * 2**20  # per request; a cut costs less, as the server keeps what had arrived
LONG_FIELD = 16_000  # characters, of the 64 KiB that a field of a form may have
LONG_HEADER = 4096  # characters, of the server's 8192 in base64
PIECE_BYTES = 2**18  # small enough for a progress bar to move on a slow line
UNSAFE = re.compile(r'["\r\n]')  # in a quoted name; escaped as browsers do it
Progress = Callable[[int, int], object]  # bytes done so far, bytes in all


class FileBody(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The bytes from `start` to `stop` of a file: read in pieces, again for every try.

    `progress` is called with each piece that was sent.
    """

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


def fits_a_form(size: int, fields: Mapping[str, str]) -> bool:
    """Whether a file and what is said about it can be sent in one request."""
    return size < LARGE_BYTES and max(map(len, fields.values())) < LONG_FIELD


def metadata(path: Path, said: Mapping[str, Any]) -> dict[str, str]:
    """What an upload says of itself: by a `model`, another's checkpoint is refused at once."""
    about = {"filename": path.name, "sha256": said["sha256"]}
    checked = as_text({name: said[name] for name in ("model", "classes") if name in said})
    return about | checked if sum(map(len, checked.values())) < LONG_HEADER else about


def as_text(fields: Mapping[str, Any]) -> dict[str, str]:
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}


def existing_file(path: str | Path) -> Path:
    """Raises GraspError, and not only after the server was asked for something."""
    if not Path(path).is_file():
        raise GraspError(f"there is no file {str(path)!r}")
    return Path(path)


def zip_folder(folder: Path, archive: Path) -> None:
    """Without compressing: most data is already. Raises GraspError if there is nothing to send."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if not files:
        raise GraspError(f"there are no files in {str(folder)!r}")
    with zipfile.ZipFile(archive, "w") as file:
        for path in files:
            file.write(path, path.relative_to(folder))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_file_name(name: str) -> str:
    """Of something on the server, on this disk: tensors, unless its name says otherwise."""
    plain = name.replace("/", "-")
    return plain if "." in name.rpartition("/")[2] else f"{plain}.safetensors"
