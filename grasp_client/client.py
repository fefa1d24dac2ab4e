"""The two clients: the same operations, done at once or awaited."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from grasp_client.drivers import tell, tell_async
from grasp_client.errors import GraspError
from grasp_client.jobs import Jobs
from grasp_client.models import Models
from grasp_client.plans import Course, Item, Plan, Result, Telling
from grasp_client.sources import Sources
from grasp_client.targets import Targets
from grasp_client.uploads import Uploads

DEFAULT_URL = "http://127.0.0.1:8000"
PATIENCE_S = 60.0  # a server that is restarted, or moved to another machine, is back by then
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
# A proxy that the environment names is not asked for what runs on this machine.
NO_PROXY = {f"all://{f'[{host}]' if ':' in host else host}": None for host in THIS_MACHINE}


class _Client:
    """What both have in common: where the server is, who asks, and how patiently."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        patience: float = PATIENCE_S,
        wait_for_server: bool = True,
    ) -> None:
        """Without `url` and `key`, GRASP_URL and GRASP_KEY are used; and on this machine, where a
        service has no keys, the token in its home (GRASP_HOME).

        What fails for reasons that pass is tried again for `patience` seconds. Without
        `wait_for_server`, a server that has not answered yet is given up at once.
        """
        self.url = _checked(url or os.environ.get("GRASP_URL") or DEFAULT_URL)
        self.patience = patience
        self.wait_for_server = wait_for_server
        self.reached = False  # whether it has ever answered
        self._open(
            base_url=self.url,
            headers=_authorization(key or os.environ.get("GRASP_KEY") or _token(self.url)),
            timeout=TIMEOUT,
            follow_redirects=True,  # to a bucket that sends the weights itself
            mounts=NO_PROXY,
        )

    def _open(self, **options: Any) -> None:
        raise NotImplementedError


class Grasp(_Client):
    """A client of the service.

    with Grasp() as g:
        source = g.sources.push("site-a.safetensors", model="faces")
        source.job.wait()
        g.models.pull("faces", "merged.safetensors")
    """

    def _open(self, **options: Any) -> None:
        self._http = httpx.Client(**options)
        self.targets: Targets[Grasp] = Targets(self)
        self.models: Models[Grasp] = Models(self)
        self.sources: Sources[Grasp] = Sources(self)
        self.jobs: Jobs[Grasp] = Jobs(self)
        self.uploads: Uploads[Grasp] = Uploads(self)

    def run(self, plan: Plan[Result]) -> Result:
        course = Course(plan)
        for _ in tell(self._http, course):
            pass
        return course.result

    def iterate(self, plan: Telling[Item]) -> Iterator[Item]:
        return tell(self._http, Course(plan))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncGrasp(_Client):
    """The same, to be awaited.

    async with AsyncGrasp() as g:
        source = await g.sources.push("site-a.safetensors", model="faces")
        await source.job.wait()
    """

    def _open(self, **options: Any) -> None:
        self._http = httpx.AsyncClient(**options)
        self.targets: Targets[AsyncGrasp] = Targets(self)
        self.models: Models[AsyncGrasp] = Models(self)
        self.sources: Sources[AsyncGrasp] = Sources(self)
        self.jobs: Jobs[AsyncGrasp] = Jobs(self)
        self.uploads: Uploads[AsyncGrasp] = Uploads(self)

    async def run(self, plan: Plan[Result]) -> Result:
        course = Course(plan)
        async for _ in tell_async(self._http, course):
            pass
        return course.result

    def iterate(self, plan: Telling[Item]) -> AsyncIterator[Item]:
        return tell_async(self._http, Course(plan))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _token(url: str) -> str:
    """What `grasp serve` has written for its user; it is nobody's business on other machines."""
    if urlsplit(url).hostname not in THIS_MACHINE:
        return ""
    try:
        return Path(os.environ.get("GRASP_HOME") or ".grasp", "token").read_text()
    except (OSError, ValueError):
        return ""


def _authorization(key: str) -> dict[str, str]:
    secret = key.strip()
    if not (secret.isascii() and secret.isprintable()):
        raise GraspError("the key has characters that no key has", hint="copy it once more")
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise GraspError(
            f"{url!r} is not the address of a server", hint="write it as http://host:port"
        )
    return url.rstrip("/")
