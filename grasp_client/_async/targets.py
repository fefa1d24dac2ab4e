"""Targets: labelled data of the domain we care about."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from grasp_client import concurrency
from grasp_client._async.jobs import AsyncJob, AsyncJobHandle
from grasp_client._async.records import AsyncCollection, AsyncRecord
from grasp_client._async.uploads import send
from grasp_client.files import Progress, existing_file, zip_folder
from grasp_client.protocol import JobProblem, Sensitivity, given, path


class AsyncTarget(AsyncRecord):
    """A target, with its classes and its examples per split and class once it is validated."""

    id: str
    name: str
    kind: str | None = None  # None: the server is too old to say
    status: str
    uri: str | None
    sha256: str | None
    size: int | None
    classes: list[str] | None  # None in lists, where they are long
    class_count: int | None = None  # None: the server is too old to say
    counts: dict[str, dict[str, int]] | None
    images: int | None
    broken: list[dict[str, str]] | None
    broken_count: int | None
    fingerprint: str | None
    sensitivity: Sensitivity | None = None  # of a gate with its defaults
    warnings: list[str] = []  # what to think of before relying on it
    error: JobProblem | None
    job: AsyncJobHandle
    created_at: datetime

    async def wait(
        self, progress: Callable[[AsyncJob], object] | None = None, timeout: float | None = None
    ) -> AsyncTarget:
        """The target once it is validated. Raises JobFailed, JobUnfinished."""
        await self.job.wait(progress, timeout)
        return await self._client.targets.get(self.id)


class AsyncTargets(AsyncCollection):
    """`client.targets`"""

    async def create(
        self,
        name: str,
        data: str | Path,
        *,
        kind: str | None = None,
        progress: Progress | None = None,
    ) -> AsyncTarget:
        """Register `data`: a file or folder of this machine, which is sent, or a uri that is not.

        A uri (file://, https://, s3://) is one that the server can read; a folder is sent as a zip.
        `kind` is the kind of problem, if it is not the server's usual one.
        """
        fields: dict[str, Any] = given(name=name, kind=kind)
        if "://" in str(data):
            asked = fields | {"uri": str(data)}
            answer = await self._client.ask("POST", "/targets", json=asked)
        elif Path(data).is_dir():
            with tempfile.TemporaryDirectory() as folder:
                archive = Path(folder, f"{name}.zip")
                await concurrency.async_run(zip_folder, Path(data), archive)
                answer = await self._send(fields, archive, progress)
        else:
            answer = await self._send(fields, existing_file(data), progress)
        return self._read(AsyncTarget, answer["target"])

    async def _send(self, fields: dict[str, Any], file: Path, progress: Progress | None) -> Any:
        sent = await send(self._client, "/targets", file, fields, progress=progress)
        return sent.answer

    async def get(self, target: str) -> AsyncTarget:
        """By id or name."""
        return await self._get(AsyncTarget, path("targets", target))

    async def list(
        self, *, status: str | None = None, limit: int | None = None
    ) -> list[AsyncTarget]:
        """Newest first."""
        return await self._list(AsyncTarget, "/targets", limit, status=status)

    async def delete(self, target: str) -> None:
        """Remove one that no model uses. Raises Conflict."""
        await self._client.ask("DELETE", path("targets", target))
