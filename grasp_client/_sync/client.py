# Written by `make client` from grasp_client/_async/client.py: change that one.
"""The client: how it asks, and what it can be asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from uuid import uuid4

import httpx

from grasp_client import concurrency
from grasp_client._sync.jobs import Jobs
from grasp_client._sync.models import Models
from grasp_client._sync.sources import Sources
from grasp_client._sync.targets import Targets
from grasp_client._sync.uploads import Uploads
from grasp_client.errors import Conflict, GraspError, NotFound
from grasp_client.files import FileBody
from grasp_client.protocol import Connection, Retries, parse, refused, unreachable


class Grasp(Connection):
    """A client of the service.

    with Grasp() as g:
        source = g.sources.push("site-a.safetensors", model="faces")
        source.job.wait()
        g.models.pull("faces", "merged.safetensors")
    """

    def _connect(self, **options: Any) -> None:
        self._http = httpx.Client(**options)
        self.targets = Targets(self)
        self.models = Models(self)
        self.sources = Sources(self)
        self.jobs = Jobs(self)
        self.uploads = Uploads(self)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        body: FileBody | None = None,
    ) -> Any:
        """The JSON of the answer. Raises Unreachable or Refused, if trying again does not help.

        Every POST gets an Idempotency-Key: however often it arrives, it happens once.
        """
        key = {"Idempotency-Key": uuid4().hex} if method == "POST" else {}
        asked = {"params": params, "json": json, "headers": {**key, **(headers or {})}}
        retries = Retries(self)
        while True:
            try:
                with self.open(method, path, body=body, **asked) as response:
                    content = response.read()
                    return None if response.status_code == 204 else parse(content)
            except NotFound:
                if method == "DELETE" and retries.failed:  # the try before had reached the server
                    return None
                raise
            except Conflict as error:
                if method != "POST" or retries.failed != 1:
                    raise
                # The first try may still be at work: its answer is there once it is done.
                concurrency.sleep(retries.pause(error, passing=True))
            except GraspError as error:
                concurrency.sleep(retries.pause(error))

    @contextmanager
    def open(
        self, method: str, path: str, *, body: FileBody | None = None, **options: Any
    ) -> Iterator[httpx.Response]:
        """One try: a success whose body has not been read. Raises Unreachable, also where the
        connection breaks while it is read, and Refused."""
        request = self._http.build_request(method, path, **options)
        if body is not None:
            request.headers.update(body.headers)
            request.stream = body
        try:
            response = self._http.send(request, stream=True)
            try:
                self.reached = True
                if not response.is_success:
                    response.read()
                    raise refused(response)
                yield response
            finally:
                response.close()
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
