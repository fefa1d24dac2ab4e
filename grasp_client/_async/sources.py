"""Sources: the checkpoints that are folded in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from grasp_client._async.jobs import AsyncJob, AsyncJobHandle
from grasp_client._async.records import AsyncCollection, AsyncRecord
from grasp_client._async.uploads import send
from grasp_client.files import Progress, existing_file
from grasp_client.protocol import given, path

LONGEST_NAME = 200


class AsyncSource(AsyncRecord):
    """One checkpoint that was offered to one model, and what became of it."""

    id: str | None  # None: it was only tried
    name: str
    model: str
    sha256: str
    size: int
    content: str | None = None  # None: its bytes were gone when the server began to tell
    classes: list[str] | None  # None in lists, where they are long
    class_count: int | None = None  # None: the server is too old to say
    status: str
    version: int | None
    stored: bool
    job: AsyncJobHandle
    created_at: datetime

    async def wait(
        self, progress: Callable[[AsyncJob], object] | None = None, timeout: float | None = None
    ) -> AsyncJob:
        """Its job once the source is folded in, or tried. Raises JobFailed, JobUnfinished."""
        return await self.job.wait(progress, timeout)


class AsyncSources(AsyncCollection):
    """`client.sources`"""

    async def push(
        self,
        path: str | Path,
        *,
        model: str,
        name: str | None = None,
        classes: Sequence[str] | None = None,
        dry_run: bool = False,
        candidates: Sequence[str | Mapping[str, Any]] | None = None,
        progress: Progress | None = None,
    ) -> AsyncSource:
        """Offer a safetensors file to a model.

        `classes` names its outputs, if they are not the model's; `dry_run` only measures what it
        would be worth, by `candidates`, if these are not to be the model's: methods by name or with
        parameters, ["all"] for all that there are. The same weights offered again, in whatever
        file, give the first source and its job.
        """
        file = existing_file(path)
        fields = {
            "model": model,
            "name": name or file.name[:LONGEST_NAME],
            "classes": list(classes) if classes else None,
        }
        sent = await send(
            self._client,
            "/sources",
            file,
            fields,
            params=_trial(candidates) if dry_run else {},
            progress=progress,
            made_by_others=None if dry_run else partial(self._offered, model),
        )
        if sent.answer["source"] is not None:
            return self._read(AsyncSource, sent.answer["source"])
        tried = _as_tried(sent.answer["job"])
        return self._read(
            AsyncSource, {**fields, **tried, "sha256": sent.sha256, "size": sent.size}
        )

    async def _offered(self, model: str, sha256: str) -> Any:
        """The model's source of these bytes, if there is one."""
        wanted = {"model": model, "sha256": sha256}
        page = await self._client.ask("GET", "/sources", params=wanted)
        return {"source": page["items"][0]} if page["items"] else None

    async def fetch(
        self,
        uri: str,
        *,
        model: str,
        name: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> AsyncSource:
        """Offer a checkpoint that the server fetches itself: file://, https:// or s3://."""
        fields = given(model=model, uri=uri, name=name, classes=classes)
        answer = await self._client.ask("POST", "/sources", json=fields)
        return self._read(AsyncSource, answer["source"])

    async def get(self, source: str) -> AsyncSource:
        """By id."""
        return await self._get(AsyncSource, path("sources", source))

    async def list(
        self,
        *,
        model: str | None = None,
        status: str | None = None,
        sha256: str | None = None,
        content: str | None = None,
        limit: int | None = None,
    ) -> list[AsyncSource]:
        """Newest first."""
        filters = {"model": model, "status": status, "sha256": sha256, "content": content}
        return await self._list(AsyncSource, "/sources", limit, **filters)


def _trial(candidates: Sequence[str | Mapping[str, Any]] | None) -> dict[str, str]:
    """What a dry run adds to the address."""
    if not candidates:
        return {"dry_run": "true"}
    whole = "all" if list(candidates) == ["all"] else json.dumps(list(candidates))
    return {"dry_run": "true", "candidates": whole}


def _as_tried(job: dict[str, Any]) -> dict[str, Any]:
    """What the server would say of a source that it keeps, as far as its job says it."""
    shared = {key: job[key] for key in ("model", "status", "version", "created_at")}
    return {**shared, "id": None, "stored": False, "job": job["id"]}
