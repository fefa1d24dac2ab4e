"""Whose connection it is. The oracles are the number of the client's own socket, and its user."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.access import peers
from app.access.peers import can_recognise, peer_uid
from tests.users import ANOTHER, another_user, as_root

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")

LISTENING = {  # the family and address of a server, and those that a client uses
    "IPv4": (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
    "IPv6": (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
    "mapped": (socket.AF_INET, "127.0.0.1", socket.AF_INET6, "::ffff:127.0.0.1"),
}


@contextmanager
def connected(kind: str = "IPv4") -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client, and what the server has of it."""
    family, address, clients_family, wanted = LISTENING[kind]
    try:
        listener = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {kind}")
    with listener, socket.socket(clients_family) as client:
        client.connect((wanted, listener.getsockname()[1]))
        with listener.accept()[0] as accepted:
            yield client, accepted


def uid_of(accepted: socket.socket) -> int | None:
    return peer_uid(asyncio.BaseTransport({"socket": accepted}))


@pytest.mark.parametrize("kind", LISTENING)
@pytest.mark.parametrize("look", [peers._ask_kernel, peers._read_tables])
def test_both_ways_find_the_clients_own_socket(kind: str, look: object) -> None:
    with connected(kind) as (client, accepted):
        ours, theirs = accepted.getsockname()[:2], accepted.getpeername()[:2]
        expected = (os.geteuid(), os.fstat(client.fileno()).st_ino)
        assert callable(look)
        assert look(theirs, ours) == expected
        assert uid_of(accepted) == os.geteuid()


@as_root
@pytest.mark.parametrize("kind", LISTENING)
def test_another_user_is_told_apart(kind: str) -> None:
    with connected(kind), another_user(), connected(kind) as (_, accepted):
        assert uid_of(accepted) == ANOTHER


@as_root
def test_where_the_kernel_takes_no_questions_its_table_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "NETLINK_SOCK_DIAG", 77)
    with another_user(), connected() as (_, accepted):
        assert uid_of(accepted) == ANOTHER


@pytest.mark.parametrize("reset", [False, True])
def test_who_has_hung_up_is_nobody(reset: bool) -> None:
    """The kernel says uid 0 of a socket that no process holds: a stranger would pass for root."""
    with connected() as (client, accepted):
        if reset:
            linger = (1).to_bytes(4, sys.byteorder) + (0).to_bytes(4, sys.byteorder)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.sendall(b"DELETE / HTTP/1.1")
        client.close()
        assert uid_of(accepted) is None


def test_who_only_has_no_more_to_say_is_still_known() -> None:
    with connected() as (client, accepted):
        client.shutdown(socket.SHUT_WR)
        assert uid_of(accepted) == os.geteuid()


def test_a_user_whom_the_kernel_cannot_name_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as (_, accepted):
        monkeypatch.setattr(peers, "NOBODY", os.geteuid())
        assert uid_of(accepted) is None
        assert not can_recognise()


def test_without_either_way_nobody_is_recognised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert can_recognise()
    monkeypatch.setattr(peers, "NETLINK_SOCK_DIAG", 77)
    monkeypatch.setattr(peers, "TABLES", (tmp_path / "tcp",))
    assert not can_recognise()
    with connected() as (_, accepted):
        assert uid_of(accepted) is None


def test_other_systems_do_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as (_, accepted):
        monkeypatch.setattr(sys, "platform", "darwin")
        assert uid_of(accepted) is None


def test_no_socket_no_peer() -> None:
    assert peer_uid(asyncio.BaseTransport()) is None
    with socket.socket(socket.AF_UNIX) as unix:
        assert uid_of(unix) is None
