"""A proxy on the way to the server, which does to its connections what networks do."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

Alter = Callable[[int, bytes], bytes | None]  # bytes so far, the next ones; None cuts the line


def unchanged(_so_far: int, data: bytes) -> bytes:
    return data


def cut_after(count: int) -> Alter:
    """All is well for so many bytes; then the line is dead."""
    return lambda so_far, data: None if so_far + len(data) > count else data


def flip_after(count: int) -> Alter:
    """One wrong byte after so many right ones."""

    def flip(so_far: int, data: bytes) -> bytes:
        place = count - so_far
        if not 0 <= place < len(data):
            return data
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return flip


class Proxy:
    """Connections go on to `port`; those that come first as `plan` says, and the others whole."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.up: deque[Alter] = deque()  # for what clients send, a connection each
        self.down: deque[Alter] = deque()  # for what they get
        self.sent = self.got = 0  # bytes, on all connections
        self.connections = 0
        self.beginnings: list[bytes] = []  # what clients sent first, a connection each
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [client, server]
            up = self.up.popleft() if self.up else unchanged
            down = self.down.popleft() if self.down else unchanged
            self._start(self._pump, client, server, up, "sent")
            self._start(self._pump, server, client, down, "got")

    def _pump(self, here: socket.socket, there: socket.socket, alter: Alter, counter: str) -> None:
        so_far = 0
        with suppress(OSError):
            while data := here.recv(2**16):
                if counter == "sent" and not so_far:
                    self.beginnings.append(data)
                altered = alter(so_far, data)
                if altered is None:
                    break
                there.sendall(altered)
                so_far += len(data)
                setattr(self, counter, getattr(self, counter) + len(data))
        for end in (here, there):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Cut all connections that there are."""
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Refuse new ones, too."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
