"""Targets: labelled data of the domain we care about."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from grasp_client.bodies import Progress
from grasp_client.errors import GraspError
from grasp_client.exchange import ask
from grasp_client.jobs import Job, JobHandle, JobProblem, wait_for
from grasp_client.plans import Bound, C, Call, Do, Plan, at, operation
from grasp_client.records import Record, get, list_all, read
from grasp_client.sending import existing_file, send


class Target(Record[C]):
    """A target, with its classes and its images per split and class once it is validated."""

    id: str
    name: str
    status: str
    uri: str | None
    sha256: str | None
    size: int | None
    classes: list[str] | None
    counts: dict[str, dict[str, int]] | None
    images: int | None
    broken: list[dict[str, str]] | None
    broken_count: int | None
    fingerprint: str | None
    error: JobProblem | None
    job: JobHandle[C]
    created_at: datetime

    @operation
    def wait(
        self, progress: Callable[[Job[C]], object] | None = None, timeout: float | None = None
    ) -> Plan[Target[C]]:
        """The target once it is validated. Raises JobFailed, JobUnfinished."""
        yield from wait_for(self._client, self.job.id, progress, timeout)
        return (yield from get(Target, self._client, at("targets", self.id)))


class Targets(Bound[C]):
    """`client.targets`"""

    def __init__(self, client: C) -> None:
        self._client = client

    @operation
    def create(
        self, name: str, data: str | Path, *, progress: Progress | None = None
    ) -> Plan[Target[C]]:
        """Register `data`: a file or folder of this machine, which is sent, or a uri that is not.

        A uri (file://, https://, s3://) is one that the server can read; a folder is sent as a zip.
        """
        if "://" in str(data):
            call = Call("POST", "/targets", json={"name": name, "uri": str(data)})
            body = (yield from ask(self._client, call)).json()
        elif Path(data).is_dir():
            with tempfile.TemporaryDirectory() as folder:
                archive = Path(folder, f"{name}.zip")
                yield Do(lambda: _zip(Path(data), archive))
                body = yield from self._send(name, archive, progress)
        else:
            body = yield from self._send(name, existing_file(data), progress)
        return read(Target, self._client, body["target"])

    def _send(self, name: str, path: Path, progress: Progress | None) -> Plan[Any]:
        sent = yield from send(self._client, "/targets", path, {"name": name}, progress=progress)
        return sent.body

    @operation
    def get(self, target: str) -> Plan[Target[C]]:
        """By id or name."""
        return get(Target, self._client, at("targets", target))

    @operation
    def list(self, *, status: str | None = None, limit: int | None = None) -> Plan[list[Target[C]]]:
        """Newest first."""
        return list_all(Target, self._client, "/targets", limit, {"status": status})

    @operation
    def delete(self, target: str) -> Plan[None]:
        """Remove one that no model uses. Raises Conflict."""
        yield from ask(self._client, Call("DELETE", at("targets", target)))


def _zip(folder: Path, archive: Path) -> None:
    """Without compressing: images are already. Raises GraspError if there is nothing to send."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if not files:
        raise GraspError(f"there are no files in {str(folder)!r}")
    with zipfile.ZipFile(archive, "w") as file:
        for path in files:
            file.write(path, path.relative_to(folder))
