"""Bytes over https://, from listed hosts: redirects, and the rest of what broke off.

Each request, also one after a redirect or a break, is checked like the first. The connection goes
to a checked address; certificate, SNI and Host are still the name's.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import parsedate_to_datetime
from functools import cache
from typing import NamedTuple

import httpx

from app.fetching.base import (
    Clock,
    Fetched,
    FetchPolicy,
    Interrupted,
    UriUnreachable,
    clean_filename,
    resumed,
)
from app.fetching.hosts import IpAddress, as_address, checked_addresses, checked_url, shown

MAX_REDIRECTS = 5
HEADERS = {"User-Agent": "grasp-merge", "Accept-Encoding": "identity"}  # bytes as they are stored
SETTLED_S = 60  # a file changed within its Date's minute may change again in the same second
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]*"')


@asynccontextmanager
async def open_https(uri: str, policy: FetchPolicy) -> AsyncIterator[Fetched]:
    first = checked_url(uri, policy)
    clock = Clock(policy)
    async with AsyncExitStack() as stack:
        download = _Download(first, policy, stack)
        await clock.wait(download.begin())
        filename = clean_filename(first.path) or first.host
        yield Fetched(str(first), download.size, filename, resumed(download.read, clock))


class _Validator(NamedTuple):
    """The header that is the same as long as the bytes are."""

    name: str
    value: str


class _Download:
    """One file, from as many answers as it takes; `stack` holds the one that is open."""

    def __init__(self, first: httpx.URL, policy: FetchPolicy, stack: AsyncExitStack) -> None:
        self.size: int | None = None
        self._first = first
        self._policy = policy
        self._stack = stack
        self._validator: _Validator | None = None
        self._unread: httpx.Response | None = None

    async def begin(self) -> None:
        """Raises FetchError."""
        self._unread = response = await self._ask({})
        self.size = _checked_size(response, self._first)
        self._validator = _validator(response.headers)

    async def read(self, position: int) -> AsyncIterator[bytes]:
        """The bytes from there on. Raises Interrupted, or UriUnreachable if they are lost."""
        response = self._unread or await self._rest(position)
        self._unread = None
        try:
            async for chunk in response.aiter_raw():
                position += len(chunk)
                if self.size is not None and position > self.size:
                    raise UriUnreachable(
                        f"{shown(self._first)} gives more bytes than the {self.size} it announced",
                        hint="the server must tell the right size, or none",
                    )
                yield chunk
        except httpx.HTTPError as error:
            raise self._broken(position, str(error) or type(error).__name__) from error
        if self.size is not None and position < self.size:
            raise self._broken(position, f"{self.size} bytes were announced")

    async def _ask(self, headers: Mapping[str, str]) -> httpx.Response:
        answer = _last_answer(self._first, self._policy, headers)
        return await self._stack.enter_async_context(answer)

    async def _rest(self, position: int) -> httpx.Response:
        """Raises UriUnreachable unless it is the rest of the same file."""
        if self._validator is None:  # never: without it nothing is Interrupted
            raise self._broken(position, "it cannot be resumed")
        await self._stack.aclose()
        asked = {"Range": f"bytes={position}-", "If-Range": self._validator.value}
        response = await self._ask(asked)
        total = _total_of_rest(response, position)
        name, value = self._validator
        same_file = response.headers.get(name, value) == value and self.size in (None, total)
        if total is None or not same_file or not _is_identity(response):
            raise UriUnreachable(
                f"{shown(self._first)} broke off after {position} bytes, and the server does not "
                f"give the rest of the same file (status {response.status_code})",
                hint="it may have changed, or ranges are not supported: try again",
            )
        self.size = total
        return response

    def _broken(self, position: int, reason: str) -> UriUnreachable:
        message = f"{shown(self._first)} cannot be fetched: it broke off after {position} bytes: "
        if self._validator is not None:
            return Interrupted(message + reason, hint="try again later, or upload the file")
        return UriUnreachable(
            message + reason,
            hint="try again; a server that sends a strong ETag would be asked for the rest",
        )


@asynccontextmanager
async def _last_answer(
    first: httpx.URL, policy: FetchPolicy, headers: Mapping[str, str]
) -> AsyncIterator[httpx.Response]:
    """What the redirects lead to, each of them checked."""
    url = first
    for _ in range(MAX_REDIRECTS + 1):
        async with _answer(url, policy, headers) as response:
            if not response.has_redirect_location:
                yield response
                return
            location = response.headers["Location"]
        url = checked_url(location, policy, base=url)
    raise UriUnreachable(
        f"{shown(first)} is redirected more than {MAX_REDIRECTS} times",
        hint="use the address that the redirects lead to",
    )


@asynccontextmanager
async def _answer(
    url: httpx.URL, policy: FetchPolicy, headers: Mapping[str, str]
) -> AsyncIterator[httpx.Response]:
    """One request, redirects not followed; a client of its own, so that no cookie is kept."""
    addresses = await checked_addresses(url, policy)
    context = policy.ssl_context
    if context is None:
        context = await asyncio.to_thread(_usual_ssl_context)
    async with httpx.AsyncClient(
        verify=context, trust_env=False, timeout=policy.timeout, headers={**HEADERS, **headers}
    ) as client:
        response = await _first_answer(client, url, addresses)
        try:
            yield response
        finally:
            await response.aclose()


async def _first_answer(
    client: httpx.AsyncClient, url: httpx.URL, addresses: Sequence[IpAddress]
) -> httpx.Response:
    """From the first address that can be connected to."""
    reason: httpx.HTTPError | None = None
    for address in addresses:
        try:
            return await client.send(_request(client, url, address), stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = error
        except httpx.HTTPError as error:
            raise _unreachable(url, error) from error
    raise _unreachable(url, reason) from reason


def _request(client: httpx.AsyncClient, url: httpx.URL, address: IpAddress) -> httpx.Request:
    """To an address, in the name of its host: Host, SNI and certificate are the name's."""
    host = url.raw_host.decode()
    return client.build_request(
        "GET",
        url.copy_with(host=str(address), fragment=None),
        headers={"Host": url.netloc.decode()},
        extensions={} if as_address(host) else {"sni_hostname": host},
    )


@cache
def _usual_ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _checked_size(response: httpx.Response, url: httpx.URL) -> int | None:
    if response.status_code != 200:
        raise UriUnreachable(
            f"{shown(url)} answers with status {response.status_code}",
            hint="the address must give the file without cookies or credentials",
        )
    if not _is_identity(response):
        raise UriUnreachable(
            f"{shown(url)} answers with compressed bytes, which nobody asked for",
            hint="serve the file as it is stored",
        )
    length = response.headers.get("Content-Length")
    return int(length) if length and length.isdecimal() else None


def _is_identity(response: httpx.Response) -> bool:
    return bool(response.headers.get("Content-Encoding", "identity").lower() == "identity")


def _validator(headers: httpx.Headers) -> _Validator | None:
    """A strong one, as If-Range demands (RFC 9110, 8.8.2.2 and 13.1.5)."""
    etag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if STRONG_ETAG.fullmatch(etag):
        return _Validator("ETag", etag)
    try:
        age = parsedate_to_datetime(headers.get("Date", "")) - parsedate_to_datetime(modified)
    except (ValueError, OverflowError, TypeError):  # TypeError: only one of them has a time zone
        return None
    return _Validator("Last-Modified", modified) if age.total_seconds() >= SETTLED_S else None


def _total_of_rest(response: httpx.Response, position: int) -> int | None:
    """The size of the whole file; None unless the answer is all of it from `position` on."""
    found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code != 206 or found is None:
        return None
    start, last, total = map(int, found.groups())
    return total if (start, last + 1) == (position, total) else None


def _unreachable(url: httpx.URL, error: Exception | None) -> Interrupted:
    reason = str(error) or type(error).__name__
    return Interrupted(
        f"{shown(url)} cannot be fetched: {reason}", hint="try again later, or upload the file"
    )
