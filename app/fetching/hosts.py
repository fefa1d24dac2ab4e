"""Which hosts https:// may lead to, and which of their addresses.

A name is resolved once per request. All its addresses are checked, and the connection goes to one
of them, so a second, different answer of the DNS changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpx

from app.fetching.base import FetchPolicy, Interrupted, UriNotAllowed

IpAddress = IPv4Address | IPv6Address


def checked_url(uri: str, policy: FetchPolicy, base: httpx.URL | None = None) -> httpx.URL:
    """The URL, if its scheme and host are allowed. Its addresses are another question."""
    try:
        url = base.join(uri) if base else httpx.URL(uri)
    except httpx.InvalidURL as error:
        raise UriNotAllowed("this is not a URL", hint="write https://host/path") from error
    if url.scheme != "https" or not url.raw_host:
        raise UriNotAllowed(
            f"{shown(url)} is not https://…", hint="redirects, too, must lead to https://"
        )
    if url.userinfo:
        raise UriNotAllowed(
            f"there are credentials in the URL of {_place(url)[0]}",
            hint="use an address that needs none, such as a presigned one, or upload the file",
        )
    if _place(url) not in _allowed_places(policy):
        raise UriNotAllowed(
            f"{url.netloc.decode()!r} is not one of the hosts that this server fetches from",
            hint="the operator can add it to GRASP_ALLOWED_HOSTS; or upload the file",
        )
    return url


def _place(url: httpx.URL) -> tuple[str, int]:
    return url.raw_host.decode().lower(), 443 if url.port is None else url.port


def _allowed_places(policy: FetchPolicy) -> set[tuple[str, int]]:
    places = set()
    for entry in policy.allowed_hosts:
        authority = f"[{entry}]" if isinstance(as_address(entry), IPv6Address) else entry
        with suppress(httpx.InvalidURL):  # then it is no host at all
            places.add(_place(httpx.URL(f"https://{authority}")))
    return places


def as_address(text: str) -> IpAddress | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


async def checked_addresses(url: httpx.URL, policy: FetchPolicy) -> list[IpAddress]:
    """All addresses of the URL's host, none of which leads back into this machine."""
    host, port = _place(url)
    listed = {as_address(name) for name, _ in _allowed_places(policy)}
    addresses = await _resolved(host, port, policy.timeout)
    for address in addresses:
        if address not in listed and _is_forbidden(address):
            raise UriNotAllowed(
                f"{host} has the address {address}, which is this machine's or a special one",
                hint="the operator can list the address itself in GRASP_ALLOWED_HOSTS",
            )
    return addresses


async def _resolved(host: str, port: int, timeout: float) -> list[IpAddress]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # OSError: also TimeoutError
        raise Interrupted(
            f"{host} has no address", hint="check the name, and the server's DNS"
        ) from error
    return list(dict.fromkeys(ip_address(sockaddr[0]) for *_, sockaddr in found))


def _is_forbidden(address: IpAddress) -> bool:
    """Private networks are fine, since the operator has listed the host."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return _is_forbidden(inner)
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved
    )


def shown(url: httpx.URL) -> str:
    """Without what may be secret: credentials and the query."""
    return f"{url.scheme}://{url.netloc.decode()}{url.path}"
