"""What all kinds of fetching share: errors, the policy, limits of time, going on after a break.

GraspError
└── FetchError
    ├── UriNotAllowed         this server does not fetch from there
    └── UriUnreachable        it would, but there is no such file, or no answer
        └── Interrupted       the connection failed: the rest can be asked for again
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from grasp_core.errors import GraspError

# Before each attempt to go on: together long enough for a restart of what is in between.
PAUSES_S: tuple[float, ...] = (0.2, 0.5, 1, 2, 4)
CONTROL = re.compile(r"[\x00-\x20\x7f]")
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f\\]")

Result = TypeVar("Result")


class FetchError(GraspError):
    code = "fetch_error"


class UriNotAllowed(FetchError):
    code = "uri_not_allowed"


class UriUnreachable(FetchError):
    code = "uri_unreachable"


class Interrupted(UriUnreachable):
    """Same code: for whoever asked, an attempt too many is the same as no answer."""


@dataclass(frozen=True)
class FetchPolicy:
    """From where this server fetches: nothing, unless the operator has listed it."""

    data_roots: tuple[Path, ...]
    allowed_hosts: tuple[str, ...]  # `host` or `host:port`, names or addresses
    allowed_buckets: tuple[str, ...] = ()
    s3_endpoint: str | None = None  # None: Amazon's
    timeout: float = 30  # seconds for each step: resolving, connecting, the next piece
    total_timeout: float = 3600  # 20 GiB at 50 Mbit/s
    ssl_context: ssl.SSLContext | None = None  # None: the usual authorities, or SSL_CERT_FILE


@dataclass(frozen=True)
class Fetched:
    """An open file or answer; `size` is None if the server does not say."""

    uri: str  # as it was checked: of a file, without symbolic links
    size: int | None
    filename: str
    chunks: AsyncIterator[bytes]


class Clock:
    """The time that one fetch may take in all, attempts and pauses included."""

    def __init__(self, policy: FetchPolicy) -> None:
        self._seconds = policy.total_timeout
        self._end = asyncio.get_running_loop().time() + policy.total_timeout

    async def wait(self, step: Awaitable[Result]) -> Result:
        """Raises UriUnreachable if the time is over before the step is done."""
        try:
            async with asyncio.timeout_at(self._end) as limit:
                return await step
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise UriUnreachable(
                f"fetching takes longer than {self._seconds:g} seconds",
                hint="bring the file nearer to the server, or upload it",
            ) from error


async def resumed(
    read: Callable[[int], AsyncIterator[bytes]], clock: Clock
) -> AsyncIterator[bytes]:
    """All bytes in order; after each Interrupted, `read` goes on at the position reached.

    Raises what `read` raises, and the last Interrupted if there were too many.
    """
    position = 0
    for pause in (*PAUSES_S, None):
        chunks = read(position)
        try:
            while (chunk := await clock.wait(anext(chunks, None))) is not None:
                position += len(chunk)
                yield chunk
            return
        except Interrupted:
            if pause is None:
                raise
        await clock.wait(asyncio.sleep(pause))


def clean_filename(path: str) -> str:
    """The last part of a path, fit to be shown; empty if there is none."""
    return _NOT_IN_NAMES.sub("", path.rpartition("/")[2])
