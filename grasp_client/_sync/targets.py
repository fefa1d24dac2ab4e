# Written by `make client` from grasp_client/_async/targets.py: change that one.
"""Targets: labelled data of the domain we care about."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from grasp_client import concurrency
from grasp_client._sync.jobs import Job, JobHandle
from grasp_client._sync.records import Collection, Record
from grasp_client._sync.uploads import send
from grasp_client.files import Progress, existing_file, zip_folder
from grasp_client.protocol import JobProblem, Sensitivity, given, path


class Target(Record):
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
    job: JobHandle
    created_at: datetime

    def wait(
        self, progress: Callable[[Job], object] | None = None, timeout: float | None = None
    ) -> Target:
        """The target once it is validated. Raises JobFailed, JobUnfinished."""
        self.job.wait(progress, timeout)
        return self._client.targets.get(self.id)


class Targets(Collection):
    """`client.targets`"""

    def create(
        self,
        name: str,
        data: str | Path,
        *,
        kind: str | None = None,
        progress: Progress | None = None,
    ) -> Target:
        """Register `data`: a file or folder of this machine, which is sent, or a uri that is not.

        A uri (file://, https://, s3://) is one that the server can read; a folder is sent as a zip.
        `kind` is the kind of problem, if it is not the server's usual one.
        """
        fields: dict[str, Any] = given(name=name, kind=kind)
        if "://" in str(data):
            asked = fields | {"uri": str(data)}
            answer = self._client.ask("POST", "/targets", json=asked)
        elif Path(data).is_dir():
            with tempfile.TemporaryDirectory() as folder:
                archive = Path(folder, f"{name}.zip")
                concurrency.run(zip_folder, Path(data), archive)
                answer = self._send(fields, archive, progress)
        else:
            answer = self._send(fields, existing_file(data), progress)
        return self._read(Target, answer["target"])

    def _send(self, fields: dict[str, Any], file: Path, progress: Progress | None) -> Any:
        sent = send(self._client, "/targets", file, fields, progress=progress)
        return sent.answer

    def get(self, target: str) -> Target:
        """By id or name."""
        return self._get(Target, path("targets", target))

    def list(self, *, status: str | None = None, limit: int | None = None) -> list[Target]:
        """Newest first."""
        return self._list(Target, "/targets", limit, status=status)

    def delete(self, target: str) -> None:
        """Remove one that no model uses. Raises Conflict."""
        self._client.ask("DELETE", path("targets", target))
