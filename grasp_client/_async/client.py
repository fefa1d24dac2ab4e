"""The client: how it asks, and what it can be asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from uuid import uuid4

import httpx

from grasp_client import concurrency
from grasp_client._async.jobs import AsyncJobs
from grasp_client._async.models import AsyncModels
from grasp_client._async.sources import AsyncSources
from grasp_client._async.targets import AsyncTargets
from grasp_client._async.uploads import AsyncUploads
from grasp_client.errors import Conflict, GraspError, NotFound
from grasp_client.files import FileBody
from grasp_client.protocol import Connection, Retries, parse, refused, unreachable


class AsyncGrasp(Connection):
    """A client of the service.

    async with AsyncGrasp() as g:
        source = await g.sources.push("site-a.safetensors", model="faces")
        await source.job.wait()
        await g.models.pull("faces", "merged.safetensors")
    """

    def _connect(self, **options: Any) -> None:
        self._http = httpx.AsyncClient(**options)
        self.targets = AsyncTargets(self)
        self.models = AsyncModels(self)
        self.sources = AsyncSources(self)
        self.jobs = AsyncJobs(self)
        self.uploads = AsyncUploads(self)

    async def ask(
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
                async with self.open(method, path, body=body, **asked) as response:
                    content = await response.aread()
                    return None if response.status_code == 204 else parse(content)
            except NotFound:
                if method == "DELETE" and retries.failed:  # the try before had reached the server
                    return None
                raise
            except Conflict as error:
                if method != "POST" or retries.failed != 1:
                    raise
                # The first try may still be at work: its answer is there once it is done.
                await concurrency.async_sleep(retries.pause(error, passing=True))
            except GraspError as error:
                await concurrency.async_sleep(retries.pause(error))

    @asynccontextmanager
    async def open(
        self, method: str, path: str, *, body: FileBody | None = None, **options: Any
    ) -> AsyncIterator[httpx.Response]:
        """One try: a success whose body has not been read. Raises Unreachable, also where the
        connection breaks while it is read, and Refused."""
        request = self._http.build_request(method, path, **options)
        if body is not None:
            request.headers.update(body.headers)
            request.stream = body
        try:
            response = await self._http.send(request, stream=True)
            try:
                self.reached = True
                if not response.is_success:
                    await response.aread()
                    raise refused(response)
                yield response
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise unreachable(self.url, error) from error

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
