"""Connections as uvicorn keeps them, but with an end to what may come before a request's body."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.peers import PEER_UID, peer_uid

MAX_HEAD = 2**16  # bytes; httptools has no limit of its own, and anyone may connect


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose request line, headers or trailers go on and on."""

    _held = 0  # bytes that came since the application last got something of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER_UID: peer_uid(transport)}  # of every request

    def data_received(self, data: bytes) -> None:
        self._held += len(data)
        super().data_received(data)
        if self._held > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The head of a request may have {MAX_HEAD} bytes.")

    def on_headers_complete(self) -> None:
        self._held = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._held = 0
        super().on_body(body)
