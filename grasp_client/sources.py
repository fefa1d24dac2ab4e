"""Sources: the checkpoints that are folded in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from grasp_client.bodies import Progress
from grasp_client.exchange import ask
from grasp_client.jobs import Job, JobHandle, wait_for
from grasp_client.plans import Bound, C, Call, Plan, at, operation
from grasp_client.records import Record, get, list_all, read
from grasp_client.sending import existing_file, send

LONGEST_NAME = 200


class Source(Record[C]):
    """One checkpoint that was offered to one model, and what became of it."""

    id: str | None  # None: it was only tried
    name: str
    model: str
    sha256: str
    size: int
    classes: list[str] | None
    status: str
    version: int | None
    stored: bool
    job: JobHandle[C]
    created_at: datetime

    @operation
    def wait(
        self, progress: Callable[[Job[C]], object] | None = None, timeout: float | None = None
    ) -> Plan[Job[C]]:
        """Its job once the source is folded in, or tried. Raises JobFailed, JobUnfinished."""
        return wait_for(self._client, self.job.id, progress, timeout)


class Sources(Bound[C]):
    """`client.sources`"""

    def __init__(self, client: C) -> None:
        self._client = client

    @operation
    def push(
        self,
        path: str | Path,
        *,
        model: str,
        name: str | None = None,
        classes: Sequence[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Plan[Source[C]]:
        """Offer a safetensors file to a model.

        `classes` names its outputs, if they are not the model's; `dry_run` only measures what it
        would be worth. The same bytes offered again give the same source and job.
        """
        file = existing_file(path)
        fields = {
            "model": model,
            "name": name or file.name[:LONGEST_NAME],
            "classes": list(classes) if classes else None,
        }
        sent = yield from send(
            self._client,
            "/sources",
            file,
            fields,
            params={"dry_run": "true"} if dry_run else {},
            progress=progress,
            made_by_others=None if dry_run else partial(self._offered, model),
        )
        if sent.body["source"] is not None:
            return read(Source, self._client, sent.body["source"])
        tried = {**fields, **_as_tried(sent.body["job"]), "sha256": sent.sha256, "size": sent.size}
        return read(Source, self._client, tried)

    def _offered(self, model: str, sha256: str) -> Plan[Any]:
        """The model's source of these bytes, if there is one."""
        call = Call("GET", "/sources", params={"model": model, "sha256": sha256})
        page = (yield from ask(self._client, call)).json()
        return {"source": page["items"][0]} if page["items"] else None

    @operation
    def fetch(
        self,
        uri: str,
        *,
        model: str,
        name: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> Plan[Source[C]]:
        """Offer a checkpoint that the server fetches itself: file://, https:// or s3://."""
        given = {"model": model, "uri": uri, "name": name, "classes": classes}
        said = {key: value for key, value in given.items() if value is not None}
        answer = yield from ask(self._client, Call("POST", "/sources", json=said))
        return read(Source, self._client, answer.json()["source"])

    @operation
    def get(self, source: str) -> Plan[Source[C]]:
        """By id."""
        return get(Source, self._client, at("sources", source))

    @operation
    def list(
        self,
        *,
        model: str | None = None,
        status: str | None = None,
        sha256: str | None = None,
        limit: int | None = None,
    ) -> Plan[list[Source[C]]]:
        """Newest first."""
        filters = {"model": model, "status": status, "sha256": sha256}
        return list_all(Source, self._client, "/sources", limit, filters)


def _as_tried(job: dict[str, Any]) -> dict[str, Any]:
    """What the server would say of a source that it keeps, as far as its job tells."""
    shared = {key: job[key] for key in ("model", "status", "version", "created_at")}
    return {**shared, "id": None, "stored": False, "job": job["id"]}
