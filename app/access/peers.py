"""Whose process is at the other end of a connection on this machine, as far as the kernel says.

Linux is asked for the one socket (sock_diag(7), as `ss` does, in microseconds); where that is not
to be had, its table of all of them is read (/proc/net/tcp, in milliseconds). Other systems do not
say, and then nobody is recognised.
"""

import asyncio
import os
import socket
import struct
import sys
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

PEER_UID = "peer_uid"  # in the state of every request that came over a connection
NOBODY = 65534  # whom the kernel names in place of users that this namespace does not know
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

# <linux/netlink.h>, <linux/sock_diag.h>, <linux/inet_diag.h>
NETLINK_SOCK_DIAG = 4
NLM_F_REQUEST = 1
SOCK_DIAG_BY_FAMILY = 20
ANY_COOKIE = 2**32 - 1
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
QUESTION = struct.Struct("=BBBBI")  # family, protocol, extensions, padding, states
PORTS = struct.Struct("!HH")  # source, destination
INTERFACE = struct.Struct("=III")  # and a cookie of two words
ANSWER = struct.Struct("=4x48x12xII")  # uid, inode

Address = tuple[str, int]


class Socket(NamedTuple):
    uid: int
    inode: int  # 0 once no process holds it any more: then its uid is 0 as well, which says nothing


def peer_uid(transport: asyncio.BaseTransport) -> int | None:
    """The user whose process connected; None if that cannot be found out."""
    connection = transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux":
        return None
    try:
        found = _other_end(connection)
    except (OSError, ValueError):
        return None
    return found.uid if found and found.inode and found.uid != NOBODY else None


def can_recognise() -> bool:
    """Whether a connection of our own is recognised as ours."""
    try:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.enter_context(socket.create_connection(listener.getsockname()))
            accepted = stack.enter_context(listener.accept()[0])
            return peer_uid(asyncio.BaseTransport({"socket": accepted})) == os.geteuid()
    except OSError:
        return False


def _other_end(connection: socket.socket) -> Socket | None:
    """Raises OSError if it is no longer connected."""
    ours, theirs = connection.getsockname()[:2], connection.getpeername()[:2]
    for look in (_ask_kernel, _read_tables):
        found = look(theirs, ours)
        connection.getpeername()  # still connected: nobody else has had this pair of addresses
        if found:
            return found
    return None


def _ask_kernel(local: Address, remote: Address) -> Socket | None:
    """The socket with these ends, whoever has it; None also where such questions are not taken."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    question = b"".join(
        (
            QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 0),
            PORTS.pack(local[1], remote[1]),
            *(ip_address(host).packed.ljust(16, b"\0") for host, _ in (local, remote)),
            INTERFACE.pack(0, ANY_COOKIE, ANY_COOKIE),
        )
    )
    head = HEADER.pack(HEADER.size + len(question), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.send(head + question)
            answer = kernel.recv(4096)
    except OSError:
        return None
    if HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None
    return Socket(*ANSWER.unpack_from(answer, HEADER.size))


def _read_tables(local: Address, remote: Address) -> Socket | None:
    """The same. Both tables: a socket for IPv6 can have addresses of IPv4."""
    ends = [{_row_end(end, mapped=mapped) for mapped in (False, True)} for end in (local, remote)]
    for table in filter(Path.exists, TABLES):
        for row in table.read_text().splitlines()[1:]:
            fields = row.split()
            if fields[1] in ends[0] and fields[2] in ends[1]:
                return Socket(uid=int(fields[7]), inode=int(fields[9]))
    return None


def _row_end(end: Address, *, mapped: bool) -> str:
    """As the tables write it: words of the machine's byte order, in hexadecimal."""
    packed = ip_address(end[0]).packed
    if mapped and len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"
